"""Opens every table of a job of many: creates those that are new, continues those that it has.

A table is opened as a job of one table is (`job.open`), under the job's lease. What must be true besides:

- One table that cannot be opened refuses no other. It is set aside with its reason. If that may pass, the running job
  opens it again; else the next run does.
- Tables that begin together begin at one offset. It is taken when the definitions of all of them were read, and before
  any of them is planned. So from their first epoch on they read the log together.
- A table exists from its first commit on. Tables that are created together have one.
- A table that joins the job has the job's number of vnodes, and what was last asked of all tables (`joining`).
- A table that appears while the job runs is not read, if the log since the last look shows its CREATE: whatever the
  table holds is in the log after it. A CREATE TABLE IF NOT EXISTS proves nothing, because the table may have been
  there.
- A table that the file no longer names is let go: its state is removed, its target stays. One that the file names and
  the server does not have is opened all the same: the log says what became of it. Once the table has ended, and while
  the server does not have it again, there is nothing to open.
- A new table that the file wants to be reported only (`mysql.new_tables`) is looked for in the same way. It is named
  as long as the server has it and nobody adds it. One that an earlier driver has set aside is not new.
- A table that was removed by hand is not opened, and its state stays: once it is added again it continues. A running
  job looks for such choices all the time, so nothing depends on when one was made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypeVar

from consume_upstream.log.offset import CdcOffset
from consume_upstream.upstream_table import UpstreamTable
from progress.state.report import AskedRequest
from progress.store.tables_store import TablesStore
from vnode_backfill.config.job import Config
from vnode_backfill.config.tables import Chosen, MeantTables, is_chosen, only_reported, priority_of
from vnode_backfill.job.open.begin import Beginning
from vnode_backfill.job.open.create import (
    Planned,
    examined_table,
    planned_from,
    planned_from_creation,
    written,
)
from vnode_backfill.job.open.locations import owner
from vnode_backfill.job.open.opened import Opened, acquire
from vnode_backfill.job.open.past import followed, is_past
from vnode_backfill.job.open.planning import FirstPlans, Pace, forget_finished
from vnode_backfill.job.open.resume import take_up
from vnode_backfill.job.open.source import (
    LookedAtServer,
    OpeningSource,
    configured_tables,
    in_one_range,
    list_tables,
    look_at_server,
)
from vnode_backfill.job.open.writable import check_writable
from vnode_backfill.job.tables.examine import at_once
from vnode_backfill.job.tables.joining import as_asked, ask_what_came_since, with_vnodes_of_job
from vnode_backfill.job.tables.parts import part_config, stored_name, with_choices
from vnode_backfill.job.tables.running_table import OpenedTable
from vnode_backfill.words.errors import BackfillError, FencedError, LawBrokenError, PlanRefusedError
from vnode_backfill.words.finding import refuse
from vnode_backfill.words.hints import for_new_table, for_table
from vnode_backfill.words.schema_change import CreatedTable
from vnode_backfill.words.table_name import TableName

log = logging.getLogger(__name__)
Item = TypeVar("Item")
Result = TypeVar("Result")
_LOOK_SECONDS = 15.0
"""How often a server is asked for tables that have appeared."""
_TRIES = 4
"""How often a table is opened where what went wrong may pass."""


@dataclass
class OpenedTables:
    """What became of the tables of a job when it was opened. `removed` are those that the file no longer names."""

    tables: list[OpenedTable] = field(default_factory=list)
    aside: dict[str, BackfillError] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    taken_out: list[str] = field(default_factory=list)
    """Tables that were removed by hand. Their state stays."""
    reported: tuple[str, ...] = ()
    """New tables that a pattern matches, and that the file says are only to be reported."""
    ended: dict[str, str] = field(default_factory=dict)
    """Tables that were dropped or renamed, and are still gone, with the offset at which that was."""
    created: int = 0


class TablesOpener:
    """Opens the tables of one job for its driver. `before_writing` is called before a new job writes anything."""

    def __init__(
        self,
        config: Config,
        store: TablesStore,
        before_writing: Callable[[], object],
        say: Callable[[str], None] = lambda _: None,
        *,
        pace: Pace | None = None,
    ) -> None:
        self.config, self.store, self._before_writing = config, store, before_writing
        self._plans = FirstPlans(config, before_writing=self._prepare_to_write, say=say, pace=pace)
        self._file, self._choices, self._looked_at = config, -1, time.monotonic()
        self._removed: frozenset[str] = frozenset()
        self._ended: dict[str, str] = {}
        self._fold_case = False
        self._meant = MeantTables(config, fold_case=False)
        self._asked: UpstreamTable | None = None
        self._looked: CdcOffset | None = None
        """The end of the log when tables were looked for last."""
        self.reported: tuple[str, ...] = ()
        """New tables that were seen at the last look, and that are only to be reported."""

    def open(self) -> OpenedTables:
        """Every table, with the job's lease taken. Raises only for what concerns all of them."""
        store, config = self.store, self.config
        exists = store.exists()
        if exists:
            acquire(config, store)
            self.config = self._file = with_vnodes_of_job(config, store)
        else:
            self._plans.notes.check_free()
        try:
            opened = self._opened(exists=exists)
            self._looked = self._end_of_log()
            return opened
        except BackfillError as error:
            if not exists:
                self._plans.forget_if_refused(error)
            store.release()
            raise
        except BaseException:
            store.release()
            raise

    def refuse(self, error: BackfillError) -> BackfillError:
        """The error, before it ends a job that was not created: if it is a refusal no plan is kept."""
        self._plans.forget_if_refused(error)
        return error

    def look_again(self, known: Sequence[str]) -> OpenedTables:
        """What has changed while the job runs: tables that were removed or added by hand, or that have appeared.

        `known` are those that the job copies or has set aside. The source is asked only where something may be new.
        """
        if self.store.lease is None:
            raise FencedError(f"tables cannot be added to job {self.config.job} without its lease")
        chosen_anew, done = self._heed_choices(), OpenedTables()
        done.taken_out = [name for name in known if not self._is_meant(name)]
        held = [name for name in self.store.names() if name not in self._ended]
        back = [name for name in held if name not in known and self._is_meant(name)]
        self._take_up([stored_name(name) for name in back], done)
        if chosen_anew or self._may_have_appeared():
            self._add_new((*known, *self.store.names()), done)
        return done

    def open_again(self, names: Sequence[str]) -> OpenedTables:
        """Open tables once more that could not be opened: those that the job has, and those that are to be created."""
        if self.store.lease is None:
            raise FencedError(f"tables of job {self.config.job} cannot be opened without its lease")
        done, listed = OpenedTables(), list_tables(self.config)
        chosen, held = configured_tables(self.config, listed), self.store.names()
        meant = [stored_name(text) for text in names if self._is_meant(text)]
        self._take_up([name for name in meant if str(name) in held], done)
        new = [name for name in (*chosen.tables, *chosen.missing) if name in meant and str(name) not in held]
        if new:
            self._create(new, chosen, look_at_server(self.config, estimated_rows=0), done)
        return done

    def _add_new(self, known: Sequence[str], done: OpenedTables) -> None:
        """Create tables that the server has by now, and that neither the job nor `known` has."""
        since, self._looked = self._looked, self._end_of_log()
        chosen = configured_tables(self.config, list_tables(self.config))
        before, new = self.reported, [name for name in chosen.tables if str(name) not in known]
        names = self._to_copy(new)
        for name in self.reported:
            if name not in before:
                log.info("table appeared and is not copied, because mysql.new_tables is report table=%s", name)
        if names:
            self._create(names, chosen, look_at_server(self.config, estimated_rows=0), done, since)

    def _to_copy(self, new: Sequence[TableName]) -> list[TableName]:
        """Those of the new tables that are copied; the others are `reported` from now on."""
        left = only_reported(self.config, new, fold_case=self._fold_case)
        self.reported = tuple(map(str, left))
        return [name for name in new if name not in left]

    def _may_have_appeared(self) -> bool:
        varies = any(entry.table.exact is None for entry in self.config.mysql.tables)
        if not varies or time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return False
        self._looked_at = time.monotonic()
        return True

    def _heed_choices(self) -> bool:
        """Let what operators have chosen count from now on; whether that is news."""
        version, choices = self.store.choices.since(self._choices)
        if choices is None:
            return False
        self.config, self._choices = with_choices(self._file, choices), version
        self._removed = frozenset(choice.table for choice in choices if not choice.wanted)
        self._meant = MeantTables(self.config, fold_case=self._fold_case)
        return True

    def _is_meant(self, name: str) -> bool:
        return stored_name(name) in self._meant

    def _end_of_log(self) -> CdcOffset | None:
        """None where it cannot be had: what appears until the next look is read."""
        try:
            return None if self._asked is None else self._asked.written_offset()
        except BackfillError as error:
            log.warning("tables that appear now will be read error=%s", error.message)
            return None

    def _opened(self, *, exists: bool) -> OpenedTables:
        self._heed_choices()
        store, config, done = self.store, self.config, OpenedTables()
        listed = list_tables(config)
        chosen = configured_tables(config, listed)
        self._fold_case = chosen.fold_case
        self._meant = MeantTables(config, fold_case=chosen.fold_case)
        held = [stored_name(text) for text in store.names()]
        forget_finished(config, {str(name) for name in held})
        kept = [name for name in held if is_chosen(config, name, fold_case=chosen.fold_case)]
        done.taken_out = [str(name) for name in held if str(name) in self._removed]
        self._let_go([name for name in held if name not in kept and str(name) not in self._removed], done)
        done.ended = self._ended = self._still_gone([name for name in kept if name not in listed.rows])
        self._take_up([name for name in kept if str(name) not in done.ended], done)
        new = [name for name in (*chosen.tables, *chosen.missing) if name not in held]
        if exists:
            tried = self.store.aside()
            copied = self._to_copy([name for name in new if str(name) not in tried])
            new, done.reported = [name for name in new if name in copied or str(name) in tried], self.reported
        server = look_at_server(config, estimated_rows=sum(listed.rows.get(name, 0) for name in new))
        if not exists:
            refuse(server.findings)
        self._create(new, chosen, server, done)
        return done

    def _let_go(self, names: Sequence[TableName], done: OpenedTables) -> None:
        for name in names:
            self.store.forget(str(name))
            done.removed.append(str(name))

    def _still_gone(self, names: Sequence[TableName]) -> dict[str, str]:
        """Those of the tables that have ended, with how; the server has none of them."""
        loaded = ((str(name), self.store.table(str(name)).load()) for name in names)
        return {name: found.state.schema.ended for name, found in loaded if found and found.state.schema.ended}

    def _take_up(self, names: Sequence[TableName], done: OpenedTables) -> None:
        """Continue tables that the job has."""
        if not names:
            return

        def take(name: TableName) -> OpenedTable:
            config, store = self._own(name), self.store.table(str(name))
            store.acquire_lease(owner(), config.state.lease)
            return self._opened_table(name, config, take_up(config, store, None, source.open_known))

        with closing(OpeningSource(self.config)) as source:
            for name, found in self._side_by_side(take, names, source):
                _sort_in(done, name, found)

    def _create(
        self,
        names: Sequence[TableName],
        chosen: Chosen,
        server: LookedAtServer,
        done: OpenedTables,
        since: CdcOffset | None = None,
    ) -> None:
        """Create new tables, all in one commit. Those that the log after `since` has created are not read."""
        with closing(OpeningSource(self.config)) as source:
            tables = self._kept(self._examined(names, chosen, server, source), done)
            plans = self._planned(tables, since, done, source) if tables else {}
        if not plans:
            return
        self._prepare_to_write()
        if self.store.lease is None:
            acquire(self.config, self.store)
        asked = self.store.asked_of_every()
        found = self._side_by_side(lambda name: self._write(name, plans[name], asked), tuple(plans))
        created = self._kept(found, done)
        if not created:
            return
        refused = self.store.commit_together([(each.opened.store, each.opened.state) for each in created.values()])
        done.aside.update(refused)
        done.tables.extend(table for table in created.values() if table.name not in refused)
        done.created += len(created) - len(refused)
        ask_what_came_since(self.store, [str(name) for name in created if str(name) not in refused], asked)
        self._plans.forget(*(str(name) for name in created))

    def _examined(
        self, names: Sequence[TableName], chosen: Chosen, server: LookedAtServer, source: OpeningSource
    ) -> list[tuple[TableName, UpstreamTable | BackfillError]]:
        """Each table as it is now, or why it is refused."""
        clashing = {clash.table: str(clash) for clash in chosen.clashes}

        def look(name: TableName) -> UpstreamTable:
            if name in clashing:
                raise PlanRefusedError(clashing[name], hint="Give one of the two tables a target of its own.")
            own = self._own(name)
            check_writable(own)
            seen = source.look_at_table(own, server)
            refuse(in_one_range(own, seen.findings))
            return examined_table(own, source.open_known(own, seen.definition) if seen.definition else None)

        return self._side_by_side(look, names, source)

    def _prepare_to_write(self) -> None:
        """A job that exists has been written to before."""
        if self.store.lease is None:
            self._before_writing()

    def _planned(
        self,
        tables: Mapping[TableName, UpstreamTable],
        since: CdcOffset | None,
        done: OpenedTables,
        source: OpeningSource,
    ) -> dict[TableName, Planned]:
        """Where each table begins: after its CREATE if the log shows it, else all at one offset, and all are read."""
        created = {name: found for name in tables if (found := _creation(tables[name], since)) is not None}
        others = [name for name in tables if name not in created]
        first = self._first_offset(tables[others[0]]) if others else None

        def plan(name: TableName) -> Planned:
            if name in created:
                return planned_from_creation(self._own(name), tables[name], created[name], plans=self._plans)
            return planned_from(self._own(name), tables[name], first, plans=self._plans)

        planned = self._kept(self._side_by_side(plan, tuple(tables), source), done)
        return self._kept(self._followable(planned), done)

    def _followable(self, planned: Mapping[TableName, Planned]) -> list[tuple[TableName, Planned | BackfillError]]:
        """Those that begin in the past where the log allows it. What is wrong with the log concerns all of them."""
        begun = [(self._own(name), each.table, each.beginning) for name, each in planned.items()]
        found: Sequence[Beginning | BackfillError]
        try:
            found = followed(begun)
        except BackfillError as error:
            found = [error if is_past(each.beginning) else each.beginning for each in planned.values()]
        return [
            (name, each if isinstance(each, BackfillError) else replace(planned[name], beginning=each))
            for name, each in zip(planned, found, strict=True)
        ]

    def _write(self, name: TableName, planned: Planned, asked: Sequence[AskedRequest]) -> OpenedTable:
        config, store = self._own(name), self.store.table(str(name))
        store.acquire_lease(owner(), config.state.lease)
        opened = written(config, store, planned)
        opened = replace(opened, state=as_asked(opened.state, opened.plan, asked))
        return self._opened_table(name, config, opened)

    def _first_offset(self, table: UpstreamTable) -> CdcOffset:
        return table.identified(table.beginning())

    def _opened_table(self, name: TableName, config: Config, opened: Opened) -> OpenedTable:
        priority = priority_of(self.config, name, fold_case=self._fold_case)
        opened = replace(opened, table=opened.table.on_its_own())
        # New tables begin in the first era, whatever others have seen.
        self._asked = self._asked or opened.table.in_era(0)
        return OpenedTable(str(name), config, opened, priority)

    def _own(self, name: TableName) -> Config:
        return part_config(self.config, name, fold_case=self._fold_case)

    def _side_by_side(
        self, work: Callable[[TableName], Result], names: Sequence[TableName], source: OpeningSource | None = None
    ) -> list[tuple[TableName, Result | BackfillError]]:
        """Do it for each table, as many at once as the source has connections for."""

        def one(name: TableName) -> Result | BackfillError:
            for attempt in range(1, _TRIES + 1):
                try:
                    return work(name)
                except BackfillError as error:
                    if not error.retryable or attempt == _TRIES:
                        return error
                    if source is not None:
                        source.forget()
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
                done.aside[str(name)] = each.hinted(for_new_table(each.hint))
                self._plans.forget_if_refused(each, str(name))
            else:
                kept[name] = each
        return kept


def _creation(table: UpstreamTable, since: CdcOffset | None) -> CreatedTable | None:
    """How the table was created, if the log shows it. Where that cannot be found out the table is read."""
    try:
        return None if since is None else table.created_since(since)
    except BackfillError as error:
        log.warning("the table is read table=%s error=%s", table.definition.table, error.message)
        return None


def _sort_in(done: OpenedTables, name: TableName, found: OpenedTable | BackfillError) -> None:
    if isinstance(found, BackfillError):
        done.aside[str(name)] = found.hinted(for_table(found.hint, str(name)))
    else:
        done.tables.append(found)
