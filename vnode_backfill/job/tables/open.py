"""Opens every table of a job of many: creates those that are new, continues those that it has.

A table is opened as a job of one table is (`job.open`), under the job's lease. What must be true besides:

- One table that cannot be opened refuses no other. It is set aside with its reason, and tried again by the next run.
- Tables that begin together begin at one offset. It is taken when the definitions of all of them were read, and before
  any of them is planned. So from their first epoch on they read the log together.
- A table exists from its first commit on. Tables that are created together have one.
- A table that the file no longer names is let go: its state is removed, its target stays. One that the file names and
  the server does not have is opened all the same: the log says what became of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from consume_upstream.log.offset import CdcOffset
from consume_upstream.upstream_table import UpstreamTable
from progress.store.tables_store import TablesStore
from vnode_backfill.config.job import Config, NewTables
from vnode_backfill.config.tables import Chosen, is_chosen, priority_of
from vnode_backfill.job.open.create import Planned, examined_table, planned_from, written
from vnode_backfill.job.open.locations import owner
from vnode_backfill.job.open.opened import Opened, acquire
from vnode_backfill.job.open.resume import take_up
from vnode_backfill.job.open.source import LookedAtServer, configured_tables, list_tables, look_at_server
from vnode_backfill.job.open.writable import check_writable
from vnode_backfill.job.tables.examine import at_once
from vnode_backfill.job.tables.parts import part_config
from vnode_backfill.job.tables.running_table import OpenedTable
from vnode_backfill.words.errors import BackfillError, FencedError, LawBrokenError, PlanRefusedError
from vnode_backfill.words.finding import refuse
from vnode_backfill.words.table_name import TableName, TablePattern

Item = TypeVar("Item")
Result = TypeVar("Result")
_TRIES = 4
"""How often a table is opened where what went wrong may pass."""


@dataclass
class OpenedTables:
    """What became of the tables of a job when it was opened. `removed` are those that the file no longer names."""

    tables: list[OpenedTable] = field(default_factory=list)
    aside: dict[str, BackfillError] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    """New tables that a pattern matches, and that the file says are only to be reported."""
    created: int = 0


class TablesOpener:
    """Opens the tables of one job for its driver. `before_writing` is called before a new job writes anything."""

    def __init__(self, config: Config, store: TablesStore, before_writing: Callable[[], object]) -> None:
        self.config, self.store, self._before_writing = config, store, before_writing
        self._fold_case = False

    def open(self) -> OpenedTables:
        """Every table, with the job's lease taken. Raises only for what concerns all of them."""
        store, config = self.store, self.config
        exists = store.exists()
        if exists:
            acquire(config, store)
        try:
            return self._opened(exists=exists)
        except BaseException:
            store.release()
            raise

    def new_tables(self) -> Callable[[Sequence[str]], OpenedTables] | None:
        """How a running job finds tables that appear later; None where it has no patterns, or only reports them."""
        mysql = self.config.mysql
        varies = any(entry.table.exact is None for entry in mysql.tables)
        return self.add_new if varies and mysql.new_tables is NewTables.ADD else None

    def add_new(self, known: Sequence[str]) -> OpenedTables:
        """Create tables that the server has by now, and that neither the job nor `known` has."""
        if self.store.lease is None:
            raise FencedError(f"tables cannot be added to job {self.config.job} without its lease")
        listed = list_tables(self.config)
        chosen = configured_tables(self.config, listed)
        done = OpenedTables()
        names = [name for name in chosen.tables if str(name) not in {*known, *self.store.names()}]
        if names:
            self._create(names, chosen, look_at_server(self.config, estimated_rows=0), done)
        return done

    def _opened(self, *, exists: bool) -> OpenedTables:
        store, config, done = self.store, self.config, OpenedTables()
        listed = list_tables(config)
        chosen = configured_tables(config, listed)
        self._fold_case = chosen.fold_case
        held = [_name(text) for text in store.names()]
        kept = [name for name in held if is_chosen(config, name, fold_case=chosen.fold_case)]
        self._let_go([name for name in held if name not in kept], done)
        for name, found in self._side_by_side(self._take_up, kept):
            _sort_in(done, name, found)
        new = [name for name in (*chosen.tables, *chosen.missing) if name not in held]
        if exists and config.mysql.new_tables is NewTables.REPORT:
            named = [name for name in new if _is_named(config, name)]
            done.reported = [str(name) for name in new if name not in named]
            new = named
        server = look_at_server(config, estimated_rows=sum(listed.rows.get(name, 0) for name in new))
        if not exists:
            refuse(server.findings)
        self._create(new, chosen, server, done)
        return done

    def _let_go(self, names: Sequence[TableName], done: OpenedTables) -> None:
        for name in names:
            self.store.forget(str(name))
            done.removed.append(str(name))

    def _take_up(self, name: TableName) -> OpenedTable:
        config, store = self._own(name), self.store.table(str(name))
        store.acquire_lease(owner(), config.state.lease)
        return self._opened_table(name, config, take_up(config, store, None))

    def _create(self, names: Sequence[TableName], chosen: Chosen, server: LookedAtServer, done: OpenedTables) -> None:
        """Create new tables, all in one commit."""
        clashing = {clash.table: str(clash) for clash in chosen.clashes}

        def look(name: TableName) -> UpstreamTable:
            if name in clashing:
                raise PlanRefusedError(clashing[name], hint="Give one of the two tables a target of its own.")
            own = self._own(name)
            check_writable(own)
            refuse(server.look_at_table(own))
            return examined_table(own)

        tables = self._kept(self._side_by_side(look, names), done)
        if not tables:
            return
        first = self._first_offset(next(iter(tables.values())))
        plans = self._kept(
            self._side_by_side(lambda name: planned_from(self._own(name), tables[name], first), tuple(tables)), done
        )
        if not plans:
            return
        if self.store.lease is None:
            self._before_writing()
            acquire(self.config, self.store)
        created = self._kept(self._side_by_side(lambda name: self._write(name, plans[name]), tuple(plans)), done)
        if not created:
            return
        self.store.commit_together([(table.opened.store, table.opened.state) for table in created.values()])
        done.tables.extend(created.values())
        done.created += len(created)

    def _write(self, name: TableName, planned: Planned) -> OpenedTable:
        config, store = self._own(name), self.store.table(str(name))
        store.acquire_lease(owner(), config.state.lease)
        return self._opened_table(name, config, written(config, store, planned))

    def _first_offset(self, table: UpstreamTable) -> CdcOffset:
        return table.identified(table.beginning())

    def _opened_table(self, name: TableName, config: Config, opened: Opened) -> OpenedTable:
        priority = priority_of(self.config, name, fold_case=self._fold_case)
        return OpenedTable(str(name), config, opened, priority)

    def _own(self, name: TableName) -> Config:
        return part_config(self.config, name, fold_case=self._fold_case)

    def _side_by_side(
        self, work: Callable[[TableName], Result], names: Sequence[TableName]
    ) -> list[tuple[TableName, Result | BackfillError]]:
        """Do it for each table, as many at once as the source has connections for."""

        def one(name: TableName) -> Result | BackfillError:
            for attempt in range(1, _TRIES + 1):
                try:
                    return work(name)
                except BackfillError as error:
                    if not error.retryable or attempt == _TRIES:
                        return error
                    time.sleep(self.config.limits.pause(attempt))
            raise LawBrokenError(f"{name} was not tried")

        with ThreadPoolExecutor(max_workers=at_once(self.config), thread_name_prefix="open") as pool:
            return list(zip(names, pool.map(one, names), strict=True))

    def _kept(
        self, found: Sequence[tuple[TableName, Result | BackfillError]], done: OpenedTables
    ) -> dict[TableName, Result]:
        """What could be done. A table for which it could not is set aside."""
        kept: dict[TableName, Result] = {}
        for name, each in found:
            if isinstance(each, BackfillError):
                done.aside[str(name)] = each
            else:
                kept[name] = each
        return kept


def _sort_in(done: OpenedTables, name: TableName, found: OpenedTable | BackfillError) -> None:
    if isinstance(found, BackfillError):
        done.aside[str(name)] = found
    else:
        done.tables.append(found)


def _name(text: str) -> TableName:
    """A table's name as it is stored."""
    exact = TablePattern.parse(text).exact
    assert exact is not None
    return exact


def _is_named(config: Config, name: TableName) -> bool:
    """Whether the file names the table itself, not by a pattern."""
    return any(entry.table.exact == name for entry in config.mysql.tables)
