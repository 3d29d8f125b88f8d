"""Opens the configured source: the address, the table as it is now, and what a look at the server finds.

This is the one module above `consume_upstream` that knows which database the source is; an import contract says so. All
others speak to an `UpstreamTable`. Nothing here writes to the source.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from pymysql.connections import Connection

from consume_upstream.mysql.connection import SourceAddress, TlsMode, TlsOptions, connect
from consume_upstream.mysql.opened_together import OpenedTogether
from consume_upstream.mysql.preflight.clock import clock_skew
from consume_upstream.mysql.preflight.inspect import SeenServer, inspect, inspect_server, inspect_table, see_server
from consume_upstream.mysql.preflight.server_checks import check_clock
from consume_upstream.mysql.rows import result_rows
from consume_upstream.mysql.schema import table_list
from consume_upstream.mysql.schema.table_list import ListedTables
from consume_upstream.mysql.table import MySqlTable
from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import BackfillState
from vnode_backfill.config.job import Config, TlsConfig, TlsVerify
from vnode_backfill.config.tables import Chosen, chosen_tables, priority_of
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.finding import Finding, Level, refuse
from vnode_backfill.words.table_name import TableName, TablePattern

_TLS = {
    TlsVerify.IDENTITY: TlsMode.VERIFY_IDENTITY, TlsVerify.CA: TlsMode.VERIFY_CA, TlsVerify.NONE: TlsMode.REQUIRED,
}  # fmt: skip


def open_table(config: Config) -> UpstreamTable:
    """The source table as it is now."""
    mysql = config.mysql
    table = MySqlTable.open(
        source_address(config), mysql.database, mysql.table, zero_dates=config.zero_dates.value,
        watermark_table=mysql.watermark_table, visibility_timeout=mysql.visibility_timeout.total_seconds(),
        server_ids=(mysql.server_id_range.low, mysql.server_id_range.high),
    )  # fmt: skip
    return replace(table, follows_parents=config.among_many)


def open_known_table(
    config: Config, definition: TableDefinition, together: OpenedTogether | None = None
) -> UpstreamTable:
    """The source table by a stored definition; it may be another by now, or gone.

    With `together` it asks by that, until it is told to be on its own.
    """
    mysql = config.mysql
    table = MySqlTable.known(
        source_address(config), definition, zero_dates=config.zero_dates.value,
        watermark_table=mysql.watermark_table, visibility_timeout=mysql.visibility_timeout.total_seconds(),
        server_ids=(mysql.server_id_range.low, mysql.server_id_range.high), together=together,
    )  # fmt: skip
    return replace(table, follows_parents=config.among_many)


def table_of(config: Config, state: BackfillState) -> UpstreamTable:
    """The source table as the job of `state` knows it: offsets are counted in the job's era."""
    return open_table(config).in_era(state.written.era)


def load_kernels() -> None:
    """Load the compiled code that reads the source; it takes about a second."""
    result_rows.load_kernels()


def source_address(config: Config) -> SourceAddress:
    mysql = config.mysql
    return SourceAddress(
        host=mysql.host, port=mysql.port, user=mysql.user,
        password=mysql.resolve_password(os.environ).get_secret_value(), tls=_tls(mysql.tls),
        connect_timeout=mysql.connect_timeout.total_seconds(), read_timeout=mysql.read_timeout.total_seconds(),
    )  # fmt: skip


def look_at_source(config: Config) -> tuple[Finding, ...]:
    """Check server and table; reads only."""
    with connect(source_address(config)) as connection:
        found = inspect(connection, config)
        if config.whole is not None:
            found = in_one_range(config, found)
        clock = (
            () if configured_sink(config).fences_drivers else (check_clock(config.state.lease, clock_skew(connection)),)
        )
        return (*found, *clock)


def in_one_range(config: Config, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings about a table of a job of many: a key without an order here refuses nothing, if the table is small.

    Whether it is small is found out when it is planned.
    """
    if not config.among_many or config.sink.delta is None:
        return tuple(findings)
    return tuple(
        replace(each, level=Level.INFO, fact=f"{each.fact}; the table is copied as one range", fix="")
        if each.check == "table.key_type" and each.level is Level.REFUSED and each.fix == "executor: single"
        else each
        for each in findings
    )


@dataclass(frozen=True, slots=True)
class LookedAtTable:
    """What a look at a table has found; its definition as it was then, None if it has none that can be copied."""

    findings: tuple[Finding, ...]
    definition: TableDefinition | None


@dataclass(frozen=True, slots=True)
class LookedAtServer:
    """A server that was looked at once, for all tables of a job."""

    findings: tuple[Finding, ...]
    _seen: SeenServer

    def look_at_table(self, config: Config, lent: AbstractContextManager[Connection] | None = None) -> LookedAtTable:
        """What is this table's own: `config` is that of one table. Over one connection; reads only."""
        with lent or connect(source_address(config)) as connection:
            return LookedAtTable(*inspect_table(connection, config, self._seen))


class OpeningSource:
    """What tables of one job are opened by in one round: few connections, and each question about the server once.

    Safe to use from any thread. The caller closes it, and tells each table to be on its own then.
    """

    def __init__(self, config: Config) -> None:
        self._together = OpenedTogether(source_address(config))

    def look_at_table(self, config: Config, server: LookedAtServer) -> LookedAtTable:
        return server.look_at_table(config, self._together.lent())

    def open_known(self, config: Config, definition: TableDefinition) -> UpstreamTable:
        """The source table by a definition that is stored, or that was just read."""
        return open_known_table(config, definition, self._together)

    def forget(self) -> None:
        """Something went wrong: ask again what may have changed."""
        self._together.forget()

    def close(self) -> None:
        self._together.close()


def look_at_server(config: Config, *, estimated_rows: int) -> LookedAtServer:
    """Check what all tables of a job have in common; reads only. `estimated_rows` are those of all tables together."""
    with connect(source_address(config)) as connection:
        seen = see_server(connection, config)
        clock = (
            () if configured_sink(config).fences_drivers else (check_clock(config.state.lease, clock_skew(connection)),)
        )
    return LookedAtServer((*inspect_server(config, seen, estimated_rows=estimated_rows), *clock), seen)


def list_tables(config: Config) -> ListedTables:
    """The tables of every database that the job's names and patterns can mean; in one query, reads only."""
    patterns = {entry.table.like() for entry in config.mysql.tables}
    if not config.many:
        patterns = {TablePattern.parse(str(TableName(config.mysql.database, config.mysql.table))).like()}
    with connect(source_address(config)) as connection:
        return table_list.list_tables(connection, sorted(patterns))


def configured_tables(config: Config, listed: ListedTables | None = None) -> Chosen:
    """The job's tables that the server has now, in the order in which they are copied.

    That is: by priority, then the smaller ones first.
    """
    found = list_tables(config) if listed is None else listed
    chosen = chosen_tables(config, found.rows, fold_case=found.fold_case)
    return replace(chosen, tables=in_order(config, chosen, found.rows))


def in_order(config: Config, chosen: Chosen, rows: Mapping[TableName, int]) -> tuple[TableName, ...]:
    """The chosen tables as they are copied: by priority, then by rows, then by name."""
    return tuple(
        sorted(
            chosen.tables,
            key=lambda name: (priority_of(config, name, fold_case=chosen.fold_case), rows.get(name, 0), name),
        )
    )


def look_at_clock(config: Config) -> tuple[str, ...]:
    """Refuse a clock by which two drivers could write to one target at the same time.

    Return what to warn of otherwise.
    """
    if configured_sink(config).fences_drivers:
        return ()
    with connect(source_address(config)) as connection:
        found = check_clock(config.state.lease, clock_skew(connection))
    refuse((found,), "this machine's clock is wrong")
    return (found.fact,) if found.level is Level.WARNING else ()


def _tls(tls: TlsConfig) -> TlsOptions:
    if not tls.enabled:
        return TlsOptions()
    return TlsOptions.from_files(_TLS[tls.verify], ca=tls.ca, cert=tls.cert, key=tls.key)
