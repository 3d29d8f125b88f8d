"""Examines every table of a job for `plan`: what was found, and how each would be cut. Nothing is written.

The server is looked at once. Then tables are looked at side by side, each over one connection at a time, so that there
are never more connections than the job itself may have. A table that cannot be copied is a finding about that table
and changes nothing for the others; a source or a target that cannot be reached ends all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from consume_upstream.upstream_table import UpstreamTable
from vnode_backfill.config.job import Config, StartupMode
from vnode_backfill.config.tables import Chosen, priority_of, table_config
from vnode_backfill.job.open.begin import Beginning, begin
from vnode_backfill.job.open.examine import Examined, cut
from vnode_backfill.job.open.locations import state_folder
from vnode_backfill.job.open.past import followed
from vnode_backfill.job.open.source import (
    LookedAtServer,
    configured_tables,
    in_one_range,
    list_tables,
    look_at_server,
    open_table,
)
from vnode_backfill.job.open.target_ownership import check_target
from vnode_backfill.job.open.writable import check_writable
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.job.tables.parts import tables_store
from vnode_backfill.words.errors import BackfillError, ConfigError
from vnode_backfill.words.finding import Finding, Level
from vnode_backfill.words.table_name import TableName, TablePattern

Progress = Callable[[int, int], None]
"""Is called at least once a second with how many tables of how many were looked at."""

_PATIENCE = 1.0
_PAST = (StartupMode.EARLIEST, StartupMode.SPECIFIC, StartupMode.TIMESTAMP)


@dataclass(frozen=True, slots=True)
class ExaminedTable:
    """One table: where it stands in the order, its target, its key, and what was found."""

    name: TableName
    priority: int
    examined: Examined
    target: str = ""
    key: tuple[str, ...] = ()
    config: Config | None = None
    """What counts for this table; None where the file describes none."""

    @property
    def is_refused(self) -> bool:
        return self.examined.plan is None

    @property
    def rows(self) -> int:
        return 0 if self.examined.facts is None else self.examined.facts.estimated_rows


@dataclass(frozen=True, slots=True)
class ExaminedTables:
    """A job of many tables: what was found about its server, and its tables in the order in which they are copied."""

    findings: tuple[Finding, ...]
    tables: tuple[ExaminedTable, ...] = ()
    beginning: Beginning | None = None
    """Where a new job begins; None if it exists already, or no table can be copied."""

    @property
    def refused(self) -> tuple[ExaminedTable, ...]:
        return tuple(table for table in self.tables if table.is_refused)

    @property
    def server_is_refused(self) -> bool:
        return _is_refused(self.findings)


def examine_tables(config: Config, *, only: Sequence[str] = (), progress: Progress) -> ExaminedTables:
    """Look at the server and at the job's tables, or at those that one of the names or patterns in `only` means."""
    listed = list_tables(config)
    chosen = _restricted(configured_tables(config, listed), only)
    rows = sum(listed.rows[name] for name in chosen.tables)
    server = look_at_server(config, estimated_rows=rows)
    findings = (*server.findings, *_about_patterns(chosen))
    if _is_refused(findings):
        return ExaminedTables(findings)
    exists = tables_store(config).exists()
    looking = _Looking(config, chosen, server, exists)
    names = (*chosen.tables, *chosen.missing)
    tables = sorted(
        _side_by_side(looking, names, at_once(config), progress),
        key=lambda table: (table.priority, table.rows, table.name),
    )
    tables = looking.followable(tables)
    accepted = next((table for table in tables if not table.is_refused), None)
    beginning = None if accepted is None or exists else _beginning(looking.config_of(accepted.name), accepted.examined)
    return ExaminedTables(findings, tuple(tables), beginning)


def at_once(config: Config) -> int:
    """How many tables are looked at side by side.

    Half as many as the job may have connections: one that was closed counts until the server has noticed.
    """
    return max(1, (config.workers + config.limits.log_readers + 2) // 2)


@dataclass(frozen=True, slots=True)
class _Looking:
    """Looks at one table after the other, in any thread."""

    config: Config
    chosen: Chosen
    server: LookedAtServer
    exists: bool
    past: dict[TableName, tuple[Config, UpstreamTable, Beginning]] = field(default_factory=dict)
    """Where tables begin that begin in the past."""

    def config_of(self, name: TableName) -> Config:
        return table_config(self.config, name, fold_case=self.chosen.fold_case)

    def at(self, name: TableName) -> ExaminedTable:
        priority = priority_of(self.config, name, fold_case=self.chosen.fold_case)
        clash = next((clash for clash in self.chosen.clashes if clash.table == name), None)
        if clash is not None:
            return ExaminedTable(
                name, priority, _refused(Finding(Level.REFUSED, "table.target", str(clash), _OWN_PATH))
            )
        try:
            return self._examined(name, priority, self.config_of(name))
        except BackfillError as error:
            if error.retryable:
                raise
            return ExaminedTable(name, priority, _refused(_about(error)))

    def followable(self, tables: Sequence[ExaminedTable]) -> list[ExaminedTable]:
        """The tables after a look at what the log holds behind their beginnings, if these are in the past."""
        begun = [self.past[table.name] for table in tables if not table.is_refused and table.name in self.past]
        names = [TableName(config.mysql.database, config.mysql.table) for config, _, _ in begun]
        found = dict(zip(names, followed(begun), strict=True))
        return [_followed(table, found.get(table.name)) for table in tables]

    def _examined(self, name: TableName, priority: int, config: Config) -> ExaminedTable:
        sink = configured_sink(config)
        seen = ExaminedTable(name, priority, Examined((), None, None), sink.target, config=config)
        found = in_one_range(config, self.server.look_at_table(config).findings)
        findings = tuple(_of_many(finding) for finding in found)
        if _is_refused(findings):
            return replace(seen, examined=Examined(findings, None, None))
        check_writable(config)
        table = open_table(config)
        seen = replace(seen, key=table.definition.key)
        findings += sink.findings(table.definition)
        if not self.exists:
            check_target(config, table.definition, None, state_folder(config))
        if _is_refused(findings):
            return replace(seen, examined=Examined(findings, None, None))
        mode = config.mysql.cdc.startup_mode
        facts, plan = cut(config, table, snapshot=mode in (StartupMode.INITIAL, StartupMode.SNAPSHOT))
        findings += sink.outlook(facts, exists=self.exists, follows=mode is not StartupMode.SNAPSHOT)
        refused = _is_refused(findings)
        if not refused and not self.exists and mode in _PAST:
            table = table.with_parents()
            self.past[name] = config, table, begin(config, table)
        return replace(seen, examined=Examined(findings, None if refused else facts, None if refused else plan))


_OWN_JOB = "executor: single, in a job of its own for this table"
_OWN_PATH = "mysql.tables: a target of its own for one of them, or {database} in the template"


def _side_by_side(
    looking: _Looking, names: Sequence[TableName], workers: int, progress: Progress
) -> Iterator[ExaminedTable]:
    with ThreadPoolExecutor(max_workers=max(1, min(workers, len(names))), thread_name_prefix="plan") as pool:
        waiting: set[Future[ExaminedTable]] = {pool.submit(looking.at, name) for name in names}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=_PATIENCE, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
                progress(len(names) - len(waiting), len(names))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _restricted(chosen: Chosen, only: Sequence[str]) -> Chosen:
    """The tables that one of these names or patterns means; each must mean one."""
    if not only:
        return chosen
    patterns = [asked_pattern(text) for text in only]
    for pattern in patterns:
        if not any(pattern.matches(name, fold_case=chosen.fold_case) for name in (*chosen.tables, *chosen.missing)):
            raise ConfigError(
                f"--table {pattern.text}: the job has no such table",
                hint="`vnode-backfill plan` without --table lists the tables of the job.",
            )
    return replace(
        chosen,
        unmatched=(),
        tables=_matched(chosen.tables, patterns, chosen),
        missing=_matched(chosen.missing, patterns, chosen),
    )


def _matched(names: Sequence[TableName], patterns: Sequence[TablePattern], chosen: Chosen) -> tuple[TableName, ...]:
    return tuple(
        name for name in names if any(pattern.matches(name, fold_case=chosen.fold_case) for pattern in patterns)
    )


def asked_pattern(text: str) -> TablePattern:
    """What --table means."""
    try:
        return TablePattern.parse(text)
    except ValueError as error:
        raise ConfigError(f"--table {text}: {error}") from error


def _about_patterns(chosen: Chosen) -> Iterator[Finding]:
    for pattern in chosen.unmatched:
        fact = f"no table that this account may see matches {pattern}"
        yield Finding(Level.WARNING, "tables.pattern", fact, "mysql.tables: a pattern that matches a table")
    if not chosen.tables and not chosen.missing:
        fact = "the job has no table: nothing that mysql.tables names or matches exists"
        yield Finding(Level.REFUSED, "tables", fact, "mysql.tables: a table that exists")


def _followed(table: ExaminedTable, found: Beginning | BackfillError | None) -> ExaminedTable:
    if isinstance(found, BackfillError):
        examined = Examined((*table.examined.findings, _about(found)), None, None)
    else:
        examined = replace(table.examined, beginning=found)
    return replace(table, examined=examined)


def _about(error: BackfillError) -> Finding:
    fact = f"{error.message}: {error.detail}" if error.detail else error.message
    return Finding(Level.REFUSED, "table", fact, error.hint)


def _beginning(config: Config, examined: Examined) -> Beginning:
    return examined.beginning or begin(config, open_table(config).with_parents())


def _of_many(finding: Finding) -> Finding:
    """A fix names keys of a job of one table; some have another name here, and one executor is not to be had."""
    fix = re.sub(r"^mysql\.(database and mysql\.table|database|table):", "mysql.tables:", finding.fix)
    return replace(finding, fix=_OWN_JOB if fix == "executor: single" else fix)


def _refused(finding: Finding) -> Examined:
    return Examined((finding,), None, None)


def _is_refused(findings: Sequence[Finding]) -> bool:
    return any(finding.level is Level.REFUSED for finding in findings)
