"""Inspects the source before a job writes anything: can this server, account and table be copied exactly?

`inspect` reads the facts over one connection and judges them; `examine` judges facts that were read already. Both
return every finding (see `vnode_backfill.words.finding`).

Sessions can change what a server logs (`SET SESSION binlog_row_image`), so the log reader checks each event again. This
check only saves a user from finding out after hours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from pymysql.connections import Connection

from consume_upstream.mysql.connection import encryption_of
from consume_upstream.mysql.preflight.cascade_checks import judge_cascades
from consume_upstream.mysql.preflight.facts import ServerFacts, TableProfile, read_server_facts, read_table_profile
from consume_upstream.mysql.preflight.grants import parse_grants, read_grants, read_privileges
from consume_upstream.mysql.preflight.server_checks import (
    OF_EACH_TABLE,
    ServerDetails,
    Watermark,
    check_encryption,
    check_server,
)
from consume_upstream.mysql.preflight.table_checks import (
    FOREIGN_KEY,
    TableDetails,
    check_schema,
    check_table,
    check_table_type,
)
from consume_upstream.mysql.schema.collation import unorderable
from consume_upstream.mysql.schema.definition import read_definition
from consume_upstream.mysql.server import Cell, ServerIdentity, ask, identify
from consume_upstream.mysql.sql import quoted
from vnode_backfill.config.job import Config
from vnode_backfill.words.columns import Column, Kind, TableDefinition
from vnode_backfill.words.errors import PlanRefusedError, SourceError, SourceLostError
from vnode_backfill.words.finding import Finding, Level
from vnode_backfill.words.table_name import SYSTEM_SCHEMAS

__all__ = [
    "SeenServer",
    "SourceDetails",
    "examine",
    "inspect",
    "inspect_server",
    "inspect_table",
    "read_server_details",
    "see_server",
]  # fmt: skip

_OLDEST = {"mysql": (8, 0, 0), "mariadb": (10, 5, 0)}
_TABLE = """
    SELECT TABLE_SCHEMA AS `database`, TABLE_NAME AS `table`, TABLE_TYPE AS type, CREATE_OPTIONS AS options
    FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"""
_COLUMNS = """
    SELECT COLUMN_NAME AS name, COLUMN_TYPE AS type, EXTRA AS extra
    FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"""
_SETTINGS = (
    "log_replica_updates", "log_slave_updates", "binlog_encryption", "encrypt_binlog", "gtid_slave_pos",
    "gtid_executed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceDetails:
    """What `examine` needs beyond `ServerFacts` and `TableProfile`."""

    server: ServerDetails
    table: TableDetails


@dataclass(frozen=True, slots=True)
class SeenServer:
    """A server and an account that were looked at once, for any number of tables."""

    about: tuple[Finding, ...]
    """Its version, and how the connection is encrypted."""
    identity: ServerIdentity
    facts: ServerFacts | None = None
    """None if the server is too old to be asked. The privileges on a table are those of no table."""
    details: ServerDetails | None = None
    grants: tuple[str, ...] = ()


_Judged = tuple[tuple[Finding, ...], tuple[Finding, ...], TableDefinition | None]
"""What is found about the server, with a table, and about the table; and its definition, if it has one."""


def inspect(connection: Connection, config: Config, *, rows_per_second: float | None = None) -> tuple[Finding, ...]:
    """Read and judge. A table that cannot be described is a finding too, beside those about the server.

    `rows_per_second` is the speed to expect, for the estimate of how long the copy takes; the configured limit counts
    if it is lower.
    """
    seen = see_server(connection, config)
    server, table, _ = _judged(connection, config, seen, rows_per_second)
    return *seen.about, *server, *table


def see_server(connection: Connection, config: Config) -> SeenServer:
    """Ask the server what all tables have in common."""
    identity = identify(connection)
    too_old = _version(identity)
    if too_old.level is Level.REFUSED:
        return SeenServer((too_old,), identity)
    tls = check_encryption(encryption_of(connection), config.mysql.host)
    return SeenServer(
        (too_old, tls), identity, read_server_facts(connection, identity, TableDefinition("", "", (), ())),
        read_server_details(connection, identity, config), read_grants(connection),
    )  # fmt: skip


def inspect_server(config: Config, seen: SeenServer, *, estimated_rows: int) -> tuple[Finding, ...]:
    """Judge what all tables have in common; `estimated_rows` are those of all tables together."""
    if seen.facts is None or seen.details is None:
        return seen.about
    limit = config.limits.rows_per_second
    judged = check_server(config, seen.facts, seen.details, estimated_seconds=estimated_rows / limit if limit else None)
    return *seen.about, *(finding for finding in judged if finding.check not in OF_EACH_TABLE)


def inspect_table(
    connection: Connection, config: Config, seen: SeenServer
) -> tuple[tuple[Finding, ...], TableDefinition | None]:
    """Read and judge what is one table's own, on a server that was seen before. Its definition, if it has one."""
    server, table, definition = _judged(connection, config, seen, None)
    return (*(finding for finding in server if finding.check in OF_EACH_TABLE), *table), definition


def _judged(connection: Connection, config: Config, seen: SeenServer, rows_per_second: float | None) -> _Judged:
    server, table, definition = _judged_alone(connection, config, seen, rows_per_second)
    return server, judge_cascades(connection, config, table, partial(_why_not_copied, connection, seen)), definition


def _why_not_copied(connection: Connection, seen: SeenServer, config: Config) -> str:
    """Its foreign keys apart: whoever asks follows them. A key without an order here may do for a small table."""
    server, table, _ = _judged_alone(connection, config, seen, None)
    found = (*(each for each in server if each.check in OF_EACH_TABLE), *table)
    refusals = (each for each in found if each.level is Level.REFUSED and each.check != FOREIGN_KEY)
    return next((each.fact for each in refusals if each.fix != "executor: single"), "")


def _judged_alone(connection: Connection, config: Config, seen: SeenServer, rows_per_second: float | None) -> _Judged:
    """Without a look at other tables."""
    if seen.facts is None or seen.details is None:
        return (), (), None
    name = (config.mysql.database, config.mysql.table)
    facts = replace(seen.facts, privileges=parse_grants(seen.grants, *name))
    described = _described(connection, *name)
    if not isinstance(described, _Described):
        return tuple(check_server(config, facts, seen.details, estimated_seconds=None)), described, None
    definition = described.definition
    profile = read_table_profile(connection, seen.identity, definition)
    details = SourceDetails(seen.details, _table_details(connection, described))
    seconds = _estimate(config, profile, rows_per_second)
    return *examine(config, facts, profile, definition, details, estimated_seconds=seconds), definition


def examine(
    config: Config,
    facts: ServerFacts,
    profile: TableProfile,
    definition: TableDefinition,
    details: SourceDetails,
    *,
    estimated_seconds: float | None,
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Judge what was read, the server first and then the table; pure.

    None means that something is not known yet, and leaves out what depends on it.
    """
    server = check_server(config, facts, details.server, estimated_seconds=estimated_seconds)
    return tuple(server), tuple(check_table(config, facts, profile, definition, details.table))


def read_server_details(connection: Connection, identity: ServerIdentity, config: Config) -> ServerDetails:
    names = ", ".join(["%s"] * len(_SETTINGS))
    rows = ask(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})", _SETTINGS)
    settings = {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}
    name, _, host = str(ask(connection, "SELECT CURRENT_USER() AS account")[0]["account"]).rpartition("@")
    logs = settings.get("log_replica_updates", settings.get("log_slave_updates", "OFF"))
    return ServerDetails(
        account=f"{quoted(name)}@{quoted(host)}",
        replicates=_replicates(connection, identity, settings),
        logs_replicated=logs.upper() in ("ON", "1"),
        log_encrypted=any(
            settings.get(n, "OFF").upper() in ("ON", "1") for n in ("binlog_encryption", "encrypt_binlog")
        ),
        # uuid:tag:1-5 holds a word between two colons.
        tagged_gtids=re.search(r":\s*[a-z_][a-z0-9_]*:", settings.get("gtid_executed", ""), re.IGNORECASE) is not None,
        watermark=_watermark(connection, config.mysql.watermark_table),
    )


def _table_details(connection: Connection, found: _Described) -> TableDetails:
    definition = found.definition
    return TableDetails(
        table_type=_text(found.table["type"]),
        partitioned="partitioned" in _text(found.table["options"]).lower(),
        invisible_columns=tuple(
            _text(row["name"]) for row in found.columns if "INVISIBLE" in _text(row["extra"]).upper()
        ),
        create_table=found.create_table,
        unorderable=unorderable(connection, definition),
        lowest_date=_lowest_date(connection, definition),
    )


def _version(identity: ServerIdentity) -> Finding:
    name, version = {"mysql": "MySQL", "mariadb": "MariaDB"}[identity.flavour], ".".join(map(str, identity.version))
    oldest = _OLDEST[identity.flavour]
    if identity.version >= oldest:
        return Finding(Level.OK, "server.version", f"the server is {name} {version}")
    fact = f"the server is {name} {version}; servers before {oldest[0]}.{oldest[1]} are not supported"
    return Finding(
        Level.REFUSED, "server.version", fact, f"upgrade the server to {name} {oldest[0]}.{oldest[1]} or later"
    )


@dataclass(frozen=True, slots=True)
class _Described:
    """A table that has a definition, with the server's other answers about it."""

    definition: TableDefinition
    table: Mapping[str, Cell]
    columns: list[Mapping[str, Cell]]
    create_table: str


def _described(connection: Connection, database: str, table: str) -> _Described | tuple[Finding, ...]:
    """The table; or why it has no definition that can be copied."""
    found = ask(connection, _TABLE, (database, table))
    name = f"{quoted(database)}.{quoted(table)}"
    if not found:
        fact = f"table {name} does not exist, or this account may not see it; a temporary one is its session's alone"
        return (Finding(Level.REFUSED, "table.exists", fact, "mysql.database and mysql.table: a table that exists"),)
    if _text(found[0]["database"]) in SYSTEM_SCHEMAS:
        return (check_schema(name),)
    create_table = _create_table(connection, database, table)
    typed = check_table_type(name, _text(found[0]["type"]), create_table)
    wrong = tuple(finding for finding in typed if finding.level is Level.REFUSED)
    rows = ask(connection, _COLUMNS, (database, table))
    columns = {_text(row["name"]): _text(row["type"]) for row in rows}
    wrong += _unreadable_columns(name, columns)
    if wrong:
        return wrong
    try:
        definition = read_definition(connection, database, table)
    except PlanRefusedError as error:
        fact = f"{error.message}: a row could not be found again when it is changed"
        return (Finding(Level.REFUSED, "table.key", fact, _add_key(name, columns)),)
    return _Described(definition, found[0], rows, create_table)


def _create_table(connection: Connection, database: str, table: str) -> str:
    """The text of SHOW CREATE TABLE; empty for a view, and if the account may not see it."""
    # The names in it are quoted only if this is on.
    ask(connection, "SET SESSION sql_quote_show_create = 1")
    shown = _rows_if_allowed(connection, f"SHOW CREATE TABLE {quoted(database)}.{quoted(table)}")
    return _text(shown[0].get("Create Table")) if shown else ""


def _unreadable_columns(table: str, columns: Mapping[str, str]) -> tuple[Finding, ...]:
    found = []
    for name, column_type in columns.items():
        try:
            Column.parse(name, column_type, nullable=True)
        except PlanRefusedError as error:
            fix = f"ALTER TABLE {table} MODIFY {quoted(name)} LONGBLOB;"
            found.append(Finding(Level.REFUSED, "table.column_type", error.message, fix))
    return tuple(found)


def _add_key(table: str, columns: Mapping[str, str]) -> str:
    name = "row_id"
    while name in {column.lower() for column in columns}:
        name += "_"
    return f"ALTER TABLE {table} ADD COLUMN {quoted(name)} BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY;"


def _replicates(connection: Connection, identity: ServerIdentity, settings: Mapping[str, str]) -> bool | None:
    """A replica that is stopped counts too: it will continue."""
    if identity.flavour == "mysql":
        rows = _rows_if_allowed(
            connection, "SHOW REPLICA STATUS" if identity.version >= (8, 0, 22) else "SHOW SLAVE STATUS"
        )
        return None if rows is None else bool(rows)
    rows = _rows_if_allowed(connection, "SHOW ALL SLAVES STATUS")
    if rows is not None:
        return bool(rows)
    # Everybody may see that one is running; that none is running says nothing unless this server never applied
    # anything.
    running = ask(connection, "SHOW GLOBAL STATUS LIKE 'Slaves_running'")
    if any(_text(row["Value"]) != "0" for row in running):
        return True
    return None if settings.get("gtid_slave_pos") else False


def _watermark(connection: Connection, configured: str | None) -> Watermark | None:
    if configured is None:
        return None
    database, table = configured.split(".")
    held = read_privileges(connection, database, table).table
    writable = bool({"ALL PRIVILEGES"} & held) or {"SELECT", "INSERT", "UPDATE"} <= held
    seen = bool(ask(connection, _TABLE, (database, table)))
    return Watermark(f"{quoted(database)}.{quoted(table)}", seen, writable)


def _lowest_date(connection: Connection, definition: TableDefinition) -> str:
    """The end of an index, so it is found without reading the table.

    A zero date deeper in the key shows only when it is read.
    """
    first = definition.key_columns[0]
    if first.kind not in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP):
        return ""
    name = f"{quoted(definition.database)}.{quoted(definition.table)}"
    rows = _rows_if_allowed(connection, f"SELECT CAST(MIN({quoted(first.name)}) AS CHAR) AS lowest FROM {name}")
    return _text(rows[0]["lowest"]) if rows else ""


def _estimate(config: Config, profile: TableProfile, rows_per_second: float | None) -> float | None:
    speeds = [speed for speed in (config.limits.rows_per_second, rows_per_second) if speed]
    return profile.estimated_rows / min(speeds) if speeds else None


def _rows_if_allowed(connection: Connection, statement: str) -> list[Mapping[str, Cell]] | None:
    try:
        return ask(connection, statement)
    except SourceLostError:
        raise
    except SourceError:
        return None


def _text(value: Cell) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")
