"""Lists the tables of a job, and changes which ones it has: `tables`, `tables add` and `tables remove`.

A change is stored with the job's state and counts before its file, for the driver that runs now and for every later
one. A running driver finds it within seconds. What must be true: a removed table keeps target and state, so that it
continues where it was if it is added again; and no pattern of the file brings it back before.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from progress.state.report import REPORTED, Report
from progress.store.table_choices import TableChoice
from progress.store.tables_store import TablesStore
from vnode_backfill.commands.tables.asked import asked_names, held_names, stored_tables
from vnode_backfill.commands.tables.status import find_tables_report
from vnode_backfill.config.job import Config
from vnode_backfill.config.table_entries import HIGHEST_PRIORITY
from vnode_backfill.config.tables import is_chosen, only_reported
from vnode_backfill.job.open.locations import owner
from vnode_backfill.job.open.writable import check_state_writable
from vnode_backfill.job.tables.parts import stored_name, tables_store, with_choices
from vnode_backfill.words.errors import ConfigError, PlanRefusedError
from vnode_backfill.words.finding import refuse, render
from vnode_backfill.words.table_name import TableName, TablePattern

__all__ = ["add_tables", "chosen_config", "is_of_file", "list_tables_of_job", "remove_tables"]


def chosen_config(config: Config) -> Config:
    """The job's file as `tables add` and `tables remove` have changed it."""
    return with_choices(config, tables_store(config).choices.all()) if config.many else config


def list_tables_of_job(config: Config, *, as_json: bool) -> int:
    """Print every table of the job, with those that were removed; asks the state alone."""
    _check_many(config)
    store = stored_tables(config)
    report = find_tables_report(chosen_config(config))
    listed = _listed(store, report)
    print(json.dumps({"version": 1, "tables": [each.to_json() for each in listed]}) if as_json else _text(listed))
    return 0


def add_tables(config: Config, names: Sequence[str], priority: int | None) -> int:
    """Let the job copy these tables from now on; if one cannot be copied nothing changes."""
    store = _opened(config)
    if priority is not None and not 0 <= priority <= HIGHEST_PRIORITY:
        raise ConfigError(f"--priority {priority}: must be between 0 and {HIGHEST_PRIORITY:,}")
    of_server = dict(_of_server(config, text) for text in names)
    tables = sorted(of_server)
    present = [str(name) for name in tables if str(name) in held_names(store)]
    if present:
        raise ConfigError(f"job {config.job} has {present[0]} already", hint=_AGAIN)
    back = [
        str(name)
        for name, folded in sorted(of_server.items())
        if priority is None and is_of_file(config, store, name, folded=folded)
    ]
    new = [
        _choice(str(name), wanted=True, priority=priority, folded=of_server[name])
        for name in tables
        if str(name) not in back
    ]
    _check_copyable(config, store, new, back)
    store.choices.choose(new, forget=back)
    for name in map(str, tables):
        continued = ", from where it was" if name in store.names() else ""
        print(f"{name} is added{continued}: {_when(store)}")
    return 0


def remove_tables(config: Config, names: Sequence[str]) -> int:
    """Let the job no longer copy these tables; their targets and their states stay."""
    store = _opened(config)
    held = held_names(store)
    for choice in store.choices.all():
        if choice.table in names and not choice.wanted:
            raise ConfigError(f"{choice.table} was removed from job {config.job} already")
    tables = asked_names(held, names, flag="tables remove")
    if not held - set(tables):
        raise ConfigError(
            f"{tables[-1]} is the last table of job {config.job}",
            hint="`vnode-backfill stop` ends its driver, and `vnode-backfill drop` removes the job.",
        )
    store.choices.choose([_choice(name, wanted=False, folded=_is_respelled(config, name, held)) for name in tables])
    for name in tables:
        print(f"{name} is removed: {_when(store)}; its target stays, and `tables add` continues it")
    return 0


_AGAIN = "`vnode-backfill status` says how far it is. One that is set aside is tried again by the next run."


@dataclass(frozen=True, slots=True)
class _Listed:
    """One line of the list."""

    name: str
    phase: str
    target: str
    choice: TableChoice | None

    @property
    def note(self) -> str:
        if self.choice is None:
            return "not copied, because mysql.new_tables is report" if self.phase == REPORTED else ""
        what = "added" if self.choice.wanted else "removed"
        priority = "" if self.choice.priority is None else f" with priority {self.choice.priority}"
        return f"{what}{priority} by {self.choice.who} on {self.choice.host}, {self.choice.asked_at:%Y-%m-%d %H:%M:%S}"

    def to_json(self) -> dict[str, object]:
        changed = None if self.choice is None else ("added" if self.choice.wanted else "removed")
        return {
            "name": self.name, "phase": self.phase, "target": self.target, "changed": changed,
            "priority": self.choice and self.choice.priority, "who": self.choice and self.choice.who,
            "at": self.choice and self.choice.asked_at.isoformat(),
        }  # fmt: skip


def _listed(store: TablesStore, report: Report | None) -> list[_Listed]:
    choices = {choice.table: choice for choice in store.choices.all()}
    tables = () if report is None else report.tables
    found = {
        table.name: _Listed(table.name, table.phase, table.sink or _sink(store, table.name), choices.get(table.name))
        for table in tables
    }
    new = {name: _Listed(name, REPORTED, "", None) for name in (report.observed.reported if report else ())}
    # A driver has not come round to it yet.
    waiting = {name: _Listed(name, "added", "", choice) for name, choice in choices.items() if choice.wanted}
    return sorted({**new, **waiting, **found}.values(), key=lambda each: each.name)


def _sink(store: TablesStore, name: str) -> str:
    """Where a table has gone that the file does not mean any more."""
    found = store.table(name).status_snapshot()
    return found.record.sink if found else ""


def _text(listed: Sequence[_Listed]) -> str:
    name, phase = max(len(each.name) for each in listed), max(len(each.phase) for each in listed)
    lines = [f"{each.name:<{name}}  {each.phase:<{phase}}  {each.target}  {each.note}".rstrip() for each in listed]
    return "\n".join(lines)


def _opened(config: Config) -> TablesStore:
    _check_many(config)
    store = stored_tables(config)
    check_state_writable(config)
    return store


def _check_many(config: Config) -> None:
    if not config.many:
        raise ConfigError(
            "tables is for a job of many tables: this one names its table by mysql.database and mysql.table",
            hint="Give another table a job of its own, or begin a new job with mysql.tables.",
        )


def _is_respelled(config: Config, name: str, held: Collection[str]) -> bool:
    """Whether the file names the table with letters of another case: no other table of the job has that name."""
    spelled = [entry.table.exact for entry in config.mysql.tables if entry.table.exact is not None]
    folded = stored_name(name).folded()
    return any(exact.folded() == folded and str(exact) not in held for exact in spelled)


def _of_server(config: Config, text: str) -> tuple[TableName, bool]:
    """The table that is named, as the server spells it, and whether case makes no difference there."""
    from vnode_backfill.job.open.source import list_tables

    try:
        pattern = TablePattern.parse(text)
    except ValueError as error:
        raise ConfigError(f"tables add {text}: {error}") from error
    if pattern.exact is None:
        raise ConfigError(f"tables add {text}: a pattern cannot be added", hint="Name each table, or change the file.")
    listed = list_tables(with_choices(config, [_choice(text, wanted=True)]))
    found = [name for name in sorted(listed.rows) if pattern.matches(name, fold_case=listed.fold_case)]
    if not found:
        raise ConfigError(
            f"tables add {text}: the server has no such table, or this account may not see it",
            hint="A name is database.table. Views, sequences and tables of the server itself cannot be copied.",
        )
    return found[0], listed.fold_case


def is_of_file(config: Config, store: TablesStore, name: TableName, *, folded: bool) -> bool:
    """Whether the file alone says that the table is copied, once it is no longer removed."""
    if not is_chosen(config, name, fold_case=folded):
        return False
    return str(name) in store.names() or not only_reported(config, [name], fold_case=folded)


def _check_copyable(config: Config, store: TablesStore, new: Sequence[TableChoice], back: Collection[str]) -> None:
    """Refuse tables that a look at the source refuses. One that has a state is looked at when it is opened."""
    from vnode_backfill.job.tables.examine import examine_tables

    left = [choice for choice in store.choices.all() if choice.table not in {*back, *(each.table for each in new)}]
    unknown = [text for text in (*back, *(choice.table for choice in new)) if text not in store.names()]
    if not unknown:
        return
    found = examine_tables(with_choices(config, [*left, *new]), only=unknown, progress=lambda _done, _all: None)
    refuse(found.findings)
    for table in found.refused:
        raise PlanRefusedError(f"{table.name} cannot be copied", detail=render(table.examined.findings))


def _choice(text: str, *, wanted: bool, priority: int | None = None, folded: bool = False) -> TableChoice:
    return TableChoice(text, wanted, owner(), socket.gethostname(), datetime.now(UTC), priority, folded)


def _when(store: TablesStore) -> str:
    return "the driver acts on it within seconds" if store.current_lease() else "it counts when the job is run again"
