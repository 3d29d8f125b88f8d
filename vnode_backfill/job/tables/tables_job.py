"""Runs a job of many tables: one loop takes what happened to any of them, and begins what they do together.

Each table has its own protocol (`job.run.table_run`), so what ends one table ends no other. A table that fails has its
reason in its own state, and is set aside until it is asked to resume, or the job is run again. One that needs a new
copy gets it beside the others, and so does one that could not be opened for a reason that may pass. The job ends when
every table has: stopped on request, ended with its source, or failed.

The lease, the source's connections, the Spark session and the commits are the job's. A driver that loses one of the
first three ends with all its tables.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Protocol

from consume_upstream.upstream_table import HeldLog
from progress.state.backfill_state import BackfillState, RequestKind
from progress.store.tables_store import TablesStore
from vnode_backfill.config.job import Config
from vnode_backfill.decide.protocol import Started
from vnode_backfill.job.run.driver_tools import DriverTools
from vnode_backfill.job.run.loop import Until
from vnode_backfill.job.run.services import Services
from vnode_backfill.job.tables.kept_versions import KeptVersions
from vnode_backfill.job.tables.late_stops import acknowledge_earlier_stops, acknowledge_late_stops
from vnode_backfill.job.tables.open import OpenedTables
from vnode_backfill.job.tables.reopening import AsideTries, Reopening
from vnode_backfill.job.tables.running_table import OpenedTable, RunningTable
from vnode_backfill.job.tables.shared_work import SharedWork
from vnode_backfill.job.tables.take_ups import NotOpened, TakeUps
from vnode_backfill.words.epoch import Actor
from vnode_backfill.words.errors import BackfillError, FencedError
from vnode_backfill.words.hints import for_table
from vnode_backfill.words.schema_change import NewCopy

log = logging.getLogger(__name__)
_LOOK_AT_LOG = timedelta(seconds=30)
_UPKEEP_EVERY = timedelta(seconds=2)
_WAIT_SECONDS = 0.5
_CLOSE_SECONDS = 60.0


class TablesWatcher(Protocol):
    """Shows progress; called by the job's own loop."""

    def look(self, tables: Sequence[RunningTable], aside: Mapping[str, BackfillError]) -> None: ...

    def close(self, tables: Sequence[RunningTable], aside: Mapping[str, BackfillError]) -> None: ...


@dataclass(frozen=True, slots=True)
class JobParts:
    """What a driver of many tables works with: how a table's services are made, copied again, and opened again."""

    config: Config
    store: TablesStore
    services: Callable[[OpenedTable], Services]
    renew: Callable[[OpenedTable, NewCopy], OpenedTable]
    take_up: Callable[[OpenedTable], OpenedTable]
    look_again: Callable[[Sequence[str]], OpenedTables]
    """Opens tables that the job is to have by now and has not, and names those that it is not to have any more."""
    open_aside: Callable[[Sequence[str]], OpenedTables]
    """Opens tables again that could not be opened."""
    watch: TablesWatcher


class TablesJob:
    """One driver's run of a job of many tables."""

    def __init__(self, parts: JobParts, opened: Sequence[OpenedTable], aside: Mapping[str, BackfillError]) -> None:
        self._parts, self._store = parts, parts.store
        self._happened = threading.Event()
        self._ended = threading.Event()
        services = [parts.services(table) for table in opened]
        self._tools = DriverTools.open(services[0], many=True)
        self._shared = SharedWork(parts.config, parts.store, self._tools, self._happened.set)
        kept = self._kept_versions()
        self.tables = [self._running(table, each, kept) for table, each in zip(opened, services, strict=True)]
        self.aside = dict(aside)
        """Tables that could not be opened, or not be copied again, with the reason."""
        self._renewing = Reopening(parts.config.limits, self._tools.spark.stopping, self._happened.set)
        self._aside_tries, self._aside_failures = AsideTries(parts.config.limits), 0
        self._added: list[OpenedTables] = []
        self._held = {*(table.name for table in self.tables), *aside}
        """The tables that this driver copies or has set aside, those among `_added` included."""
        self._leaving: set[str] = set()
        self._log_held: HeldLog | None = None
        """What the source held of its log when it was last asked."""
        self._stop_asked = self._signalled = self._is_lost = False
        self._take_ups, self._not_opened = TakeUps(), NotOpened(self._stored_state)

    def run(self, until: Until) -> None:
        """Run to the end of every table."""
        with self._signals(), self._background():
            self._look_for_requests()
            for table in self.tables:
                table.run.take_waiting()
                table.run.happen(Started())
            while not self._has_ended():
                self._shared.begin(self.tables)
                self._happened.wait(_WAIT_SECONDS)
                self._happened.clear()
                self._take_all()
                if self._signalled or (until is Until.LIVE and self._is_up_to_date()):
                    self.ask_to_stop()
                self._parts.watch.look(self.tables, self.aside)
        self._close()

    @property
    def is_stopping(self) -> bool:
        return self._tools.spark.stopping.is_set()

    @property
    def leaves_tasks(self) -> bool:
        return any(table.performer.leaves_tasks for table in self.tables)

    def ask_to_stop(self) -> None:
        """Stop all tables at one offset; asking again changes nothing."""
        self._tools.spark.stopping.set()
        if self._stop_asked:
            return
        with self._shared.telling:
            self._stop_asked = self._shared.stopping = True
            for table in self.tables:
                table.run.ask_to_stop()
                table.performer.wake()
        self._shared.wake()

    def _running(self, table: OpenedTable, services: Services, kept: KeptVersions) -> RunningTable:
        # Before anything of the table is at work: a target without vectors has its log cleaned by its own commits.
        services.sink.keep(kept.version_of(table.name, table.opened.record.sink))
        return RunningTable(table, services, self._tools, self._shared.carry_out, self._happened.set)

    def _take_all(self) -> None:
        for table in self.tables:
            if table.barriers.has_waiting:
                table.run.take_waiting()
        self._put_renewed()
        self._put_added()
        self._let_leave()
        if self.is_stopping:
            return
        for table in [table for table in self.tables if table.run.has_stopped]:
            if isinstance(table.run.ending, NewCopy):
                self._renew(table, table.run.ending)
            if table.name not in self._renewing and self._take_ups.take(table.name):
                self._reopen(table, partial(self._taken_up, table.table))

    def _taken_up(self, table: OpenedTable) -> OpenedTable:
        acknowledge_earlier_stops(self._store, table.name)
        return self._parts.take_up(table)

    def _is_up_to_date(self) -> bool:
        if self._renewing or self._aside_waiting():
            return False
        return all(table.run.has_stopped or table.run.is_up_to_date for table in self.tables)

    def _has_ended(self) -> bool:
        if self._renewing or not all(table.run.has_stopped for table in self.tables):
            return False
        return self.is_stopping or not self._aside_waiting()

    def _aside_waiting(self) -> list[str]:
        """The tables that could not be opened and are still tried again."""
        return self._aside_tries.waiting(self.aside, (table.name for table in tuple(self.tables)))

    def _renew(self, table: RunningTable, ending: NewCopy) -> None:
        """Begin a new copy of a table, beside the others."""
        if table.name not in self._renewing and table.name not in self.aside:
            self._reopen(table, partial(self._parts.renew, table.table, ending))

    def _reopen(self, table: RunningTable, opened: Callable[[], OpenedTable]) -> None:
        """Open a table that has stopped again, beside the others."""
        self._shared.forget(table)
        self._renewing.begin(table, opened)

    def _put_renewed(self) -> None:
        for old, found in self._renewing.take():
            if found is None:
                # A stop came first. The next run opens the table again.
                continue
            table = found if isinstance(found, BackfillError) else self._begun(found)
            if isinstance(table, BackfillError):
                self._set_aside(old.name, table)
                continue
            self.aside.pop(old.name, None)
            self.tables[self.tables.index(old)] = table
            self._start(table)

    def _set_aside(self, name: str, error: BackfillError) -> None:
        log.warning("table set aside table=%s error=%s", name, error.message)
        self.aside[name] = error.hinted(for_table(error.hint, name))

    def _begun(self, opened: OpenedTable) -> RunningTable | BackfillError:
        """A table that was opened while the job runs, or why its target cannot be opened."""
        try:
            return self._running(opened, self._parts.services(opened), self._kept_versions())
        except BackfillError as error:
            return error

    def _start(self, table: RunningTable) -> None:
        table.performer.seen.held_log = self._log_held
        table.run.happen(Started())
        if self._stop_asked or self._shared.stopping:
            table.run.ask_to_stop()

    def _look_again(self) -> None:
        """Find tables that come or go, beside the others. One that is refused is tried again by the next run."""
        if self.is_stopping:
            return
        try:
            found = self._parts.look_again(sorted(self._held))
        except BackfillError as error:
            # Whatever it is, the tables that the job has are not concerned. It is looked at again.
            log.warning("tables that come or go cannot be looked for error=%s", error.message)
            return
        self._held |= {*(table.name for table in found.tables), *found.aside}
        if found.tables or found.aside or found.taken_out:
            self._added.append(found)
            self._happened.set()

    def _try_aside(self) -> None:
        """Open tables again that could not be opened, beside the others: the reason may pass, or somebody asks."""
        if self.is_stopping:
            return
        due = self._aside_tries.due(self._aside_waiting(), time.monotonic())
        asked = [name for name in self._unopened() if self._take_ups.take(name)]
        if not due and not asked:
            return
        try:
            for name in asked:
                acknowledge_earlier_stops(self._store, name)
            self._added.append(self._parts.open_aside(sorted({*due, *asked})))
        except FencedError:
            raise
        except BackfillError as error:
            for name in asked:
                self._take_ups.give_back(name)
            # The tables that run are not concerned.
            log.warning("tables that are set aside cannot be opened error=%s", error.message)
            self._aside_failures += 1
            self._ended.wait(self._parts.config.limits.pause(self._aside_failures))
        else:
            self._aside_failures = 0
        self._happened.set()

    def _put_added(self) -> None:
        while self._added:
            found = self._added.pop()
            self.aside.update({name: error for name, error in found.aside.items() if name in self._held})
            self._leaving.update(found.taken_out)
            for opened in found.tables:
                if opened.name not in self._held or any(table.name == opened.name for table in self.tables):
                    # It was removed while it was opened, or somebody else has opened it.
                    continue
                table = self._begun(opened)
                if isinstance(table, BackfillError):
                    self._set_aside(opened.name, table)
                    continue
                log.info("table added table=%s", opened.name)
                self.tables.append(table)
                self.aside.pop(opened.name, None)
                self._start(table)

    def _let_leave(self) -> None:
        """Stop tables that were taken out of the job, and forget those that nothing is at work for any more."""
        for name in tuple(self._leaving):
            table = next((table for table in self.tables if table.name == name), None)
            if table is not None and (name in self._renewing or not self._has_left(table)):
                continue
            log.info("table taken out table=%s", name)
            self.aside.pop(name, None)
            self._leaving.discard(name)
            self._held.discard(name)

    def _has_left(self, table: RunningTable) -> bool:
        if not table.run.has_stopped:
            if table.run.ask_to_stop():
                table.performer.wake()
                self._shared.wake()
            return False
        if len(self.tables) == 1 or not table.performer.has_ended(0):
            return False
        self._shared.forget(table)
        table.performer.close()
        table.services.sink.close()
        self.tables.remove(table)
        return True

    def _close(self) -> None:
        for table in self.tables:
            table.performer.close()
        try:
            self._note_aside()
            if not self._is_lost:
                acknowledge_late_stops(self._store, self.tables)
        except BackfillError as error:
            log.warning("tables that are set aside, or stops that came late, cannot be noted error=%s", error.message)
        self._parts.watch.close(self.tables, self.aside)
        self._shared.close()
        self._tools.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def stop(_number: int, _frame: FrameType | None) -> None:
            # Nothing more: the loop may be interrupted while it holds the lock that waking it needs.
            self._signalled = True

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        old = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    @contextmanager
    def _background(self) -> Iterator[None]:
        """Renew the lease, look for requests and look after the targets, apart from the loop."""
        config, any_services = self._parts.config, self.tables[0].services
        works = [
            (config.state.lease / 3, self._store.renew),
            (timedelta(seconds=1), self._look_for_requests),
            (timedelta(seconds=5), self._measure),
            (_LOOK_AT_LOG, self._measure_source),
            (timedelta(seconds=1), self._note_aside),
            (timedelta(seconds=1), self._look_again),
            (timedelta(seconds=1), self._try_aside),
        ]
        if any_services.jvm is not None:
            works.append((timedelta(seconds=0.5), self._check_spark))
        if any_services.throttle is not None and any_services.throttle.has_checks:
            self._check_throttle()
            works.append((config.limits.throttle.every, self._check_throttle))
        threads = [threading.Thread(target=self._repeat, args=work, daemon=True) for work in works]
        upkeep = [
            threading.Thread(target=self._repeat, args=(_UPKEEP_EVERY, work), daemon=True)
            for work in (self._keep_up, self._tidy)
        ]
        for thread in (*threads, *upkeep):
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join(_CLOSE_SECONDS)
            # A sweep or a checkpoint cannot be broken off, and nothing is lost if the process ends in it.
            for thread in upkeep:
                thread.join(timeout=2)

    def _repeat(self, every: timedelta, work: Callable[[], object]) -> None:
        while not self._ended.wait(every.total_seconds()):
            try:
                work()
            except BackfillError as error:
                if not error.retryable:
                    self._fail_all(error)
                log.warning("%s failed error=%s", getattr(work, "__name__", work), error.message)
            except Exception:
                # A fault of ours. What is done again and again must go on all the same: the lease is renewed here.
                log.exception("%s failed", getattr(work, "__name__", work))

    def _fail_all(self, error: BackfillError) -> None:
        """What trying again cannot help ends every table: a lost lease, a lost JVM."""
        self._is_lost = True
        for table in self.tables:
            coordinator = table.run.coordinator
            if not coordinator.is_failing and not table.run.has_stopped:
                table.barriers.notify_failure(Actor.DRIVER, coordinator.attempt, error)

    def _check_spark(self) -> None:
        jvm = self.tables[0].services.jvm
        if jvm is not None and jvm.lost is not None and not self.is_stopping:
            raise jvm.lost

    def _keep_up(self) -> None:
        def keep_up(table: RunningTable) -> None:
            if table.run.keep_up(partial(self._goes_on, table)):
                table.reshaped += 1

        self._each(keep_up)

    def _kept_versions(self) -> KeptVersions:
        return KeptVersions.of(self._parts.config, self._store)

    def _tidy(self) -> None:
        """Look after the targets that were committed to since, but keep what the newest cut names. Others cost nothing:
        what is known of them is used."""
        kept = self._kept_versions()

        def tidy(table: RunningTable) -> None:
            now = (table.run.coordinator.saved.revision, table.reshaped)
            table.services.sink.keep(kept.version_of(table.name, table.table.opened.record.sink))
            if now != table.tidied:
                table.run.tidy()
                table.tidied = now
            elif table.performer.pace.lengthened > 1:
                table.run.judge_pace()

        self._each(tidy)

    def _each(self, work: Callable[[RunningTable], None]) -> None:
        """Do it for every table that runs; what fails for one is tried again at the next turn."""
        for table in tuple(self.tables):
            if table.run.has_stopped or self._ended.is_set():
                continue
            try:
                work(table)
            except BackfillError as error:
                log.warning("upkeep failed table=%s error=%s", table.name, error.message)

    def _goes_on(self, table: RunningTable) -> bool:
        return not (self._stop_asked or table.run.coordinator.stopping or self._ended.is_set())

    def _check_throttle(self) -> None:
        services = self.tables[0].services
        if services.throttle is None:
            return
        found = services.throttle.reason(self._tools.source)
        self._shared.throttled_by = found.sentence if found else ""
        for table in self.tables:
            table.performer.seen.throttled_by = self._shared.throttled_by
        if found:
            every = self._parts.config.limits.throttle.every.total_seconds()
            services.metrics.observe_throttled(found.label, every)

    def _measure(self) -> None:
        asked = self._store.asked({table.name: table.run.coordinator.saved for table in tuple(self.tables)})
        for table in tuple(self.tables):
            table.performer.seen.asked = asked.get(table.name, ())

        def measure(table: RunningTable) -> None:
            revision = table.run.coordinator.saved.revision
            if revision != table.measured:
                table.performer.seen.buffer_bytes = table.services.buffer.size().bytes
                table.measured = revision

        self._each(measure)

    def _measure_source(self) -> None:
        self._log_held = self._tools.source.held_log()
        for table in tuple(self.tables):
            table.performer.seen.held_log = self._log_held

    def _note_aside(self) -> None:
        """So that `status` knows it without a driver."""
        self._store.note_aside(self.aside)

    def _unopened(self) -> list[str]:
        """The tables of the job that this driver could not open. One that was never created can be asked nothing."""
        missing = set(self.aside) - {table.name for table in tuple(self.tables)}
        return sorted(missing.intersection(self._store.names())) if missing else []

    def _stored_state(self, name: str) -> BackfillState | None:
        """None where the state cannot be read, which may be why the table could not be opened: others go on."""
        try:
            loaded = self._store.table(name).load()
        except BackfillError:
            return None
        return None if loaded is None else loaded.state

    def _look_for_failed(self) -> None:
        """Find tables that have failed, or could not be opened, and are asked to continue: each is opened again, once
        per request."""
        stopped = [table for table in tuple(self.tables) if table.run.has_stopped]
        failed = [table for table in stopped if table.run.failure is not None or table.name in self.aside]
        states = {table.name: table.run.coordinator.saved for table in failed}
        found = self._store.unacknowledged(states | self._not_opened.states(self._unopened()))
        for name, asked in found.items():
            if self._take_ups.ask(name, asked):
                self._happened.set()

    def _look_for_requests(self) -> None:
        tables = [table for table in tuple(self.tables) if not table.run.has_stopped]
        found = self._store.unacknowledged({table.name: table.run.coordinator.saved for table in tables})
        stops = [name for name, asked in found.items() if any(each.kind is RequestKind.STOP for each in asked)]
        with self._shared.telling:
            if tables and len(stops) == len(tables):
                self._tools.spark.stopping.set()
                self._shared.stopping = True
            for table in tables:
                asked = found.get(table.name, ())
                # Most tables are asked for nothing, time and again.
                if (asked or table.run.rereads_waiting) and table.run.hear(asked):
                    table.performer.wake()
                    self._shared.wake()
        self._look_for_failed()
