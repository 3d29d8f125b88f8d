"""Runs several tables of one server in one driver, with production's own shared work.

Each table has a protocol and a history of its own, with every kind of event that a single one has. What they share is
carried out by `SharedWork`, `SharedLog` and `ParkedTables` of `vnode_backfill.job.tables`: samples, commits, readings of
the log, tables that rest, cuts. Around them tables are added, taken out, fail, are copied again and taken up, while the
others go on. One crash, one stop and one other log are everybody's.

Checked besides what is checked of each table: at every cut that is stored, each live table's sink is what its source
was at the one offset of the cut. Transactions span tables, so it holds each of them as a whole or not at all. At the
end all tables have stopped at one offset, which is a cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from threading import Event as Flag
from types import ModuleType, SimpleNamespace
from typing import TypeVar, cast
from unittest.mock import patch

from progress.state.backfill_state import OWN_REQUEST, BackfillState, Request, RequestKind
from progress.state.cut import Cut
from progress.state.parked import may_rest, moved_on
from progress.store.tables_store import TablesStore
from tests.simulation.actors import Driver
from tests.simulation.server import ModelServer
from tests.simulation.simulator import Simulation
from tests.simulation.source import Flavour, ModelSource
from tests.simulation.together_tables import (
    Barriers,
    Clock,
    Later,
    ModelTable,
    ModelTablesStore,
    OneSource,
    OwnRanges,
    SharingDriver,
    consumed_together,
)
from tests.simulation.world import ModelSink, ModelStore, WrongError
from vnode_backfill.config.job import Config
from vnode_backfill.decide.coordinator import Stage
from vnode_backfill.decide.protocol import Action, Event, ReadRanges, RequestArrived, event_of
from vnode_backfill.job.run.driver_tools import DriverTools
from vnode_backfill.job.run.services import Committed
from vnode_backfill.job.tables import parked_tables, running_table, shared_log, shared_work
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.job.tables.shared_ranges import SharedRanges
from vnode_backfill.job.tables.shared_work import SharedWork
from vnode_backfill.words.errors import BackfillError

Kind = TypeVar("Kind")


@dataclass
class OneOfSeveral(Simulation):
    """One table. What it shares with others is `everybody`'s."""

    everybody: Together | None = None
    number: int = 0
    leaving: bool = False

    @property
    def others(self) -> Together:
        assert self.everybody is not None
        return self.everybody

    @property
    def name(self) -> str:
        return f"t{self.number}"

    @property
    def is_stopped(self) -> bool:
        return self.coordinator.stage is Stage.STOPPED

    def _make_source(self, flavour: Flavour, keys: int) -> ModelSource:  # noqa: ARG002 - it is the server's
        return self.others.server.table(self.random, keys)

    def begin(self, job: str) -> None:
        """Begin a copy of the table, with an empty target."""
        self.sink, self.store, self.leaving = ModelSink(), ModelStore(), False
        self.outstanding.clear()
        self.requests.clear()
        self._create(job)

    def _loaded(self) -> BackfillState:
        """The state as it is stored, and how far the table is if it rests."""
        state, document = self.store.state, self.others.store.document
        reached = document.of_table(self.job, state.revision) if document is not None else None
        return state if reached is None or not may_rest(state) else moved_on(state, reached)

    def _recover(self) -> None:
        if hasattr(self, "table"):
            self.others.shared.forget(self.table)
        super()._recover()

    def _open(self, state: BackfillState) -> None:
        super()._open(state)
        assert isinstance(self.driver, SharingDriver)
        self.barriers: Barriers = Barriers(self.others.noticed)
        self.driver.others = self.others
        self.table = ModelTable(self.name, self.job, self.driver, self.barriers, lambda: self.coordinator)
        self.driver.running = self.table
        self.others.store.names[id(self.store)] = self.name
        if self.others.shared.stopping or self.leaving:
            self.stop()

    def stop(self) -> None:
        self.barriers.tell(RequestArrived(Request(OWN_REQUEST, RequestKind.STOP)))

    def _happen(self, event: Event) -> None:
        super()._happen(event)
        self.table.model_run.coordinator = self.coordinator

    def _crash(self) -> None:
        self.others.crash()

    def _change_log(self) -> None:
        self.others.change_log()

    def _step(self) -> None:
        if self.barriers.has_waiting and self.random.random() < 0.5:
            taken = self.barriers.next_event(0)
            assert taken is not None
            self._happen(event_of(taken))
        elif self.outstanding:
            super()._step()
        elif self.is_stopped and self.table.own.is_free and not self.others.shared.stopping:
            if self.leaving:
                self.others.left(self)
            elif self.random.random() < 0.1:
                self._say("TAKEN UP")
                self._recover()

    def _is_settled(self) -> bool:
        state, stage = self.coordinator.saved, self.coordinator.stage
        return state.is_live and stage is Stage.IDLE and self.table.captured == self.source.written_offset()

    def check_cut(self, cut: Cut) -> None:
        """The table's part of a cut: its sink is what its source was there."""
        state = self._loaded()
        if self.name not in cut.targets:
            failed = state.failure is not None or self.table.model_run.failure is not None
            if state.is_live and not failed and self.name not in self.others.store.unanswered:
                raise WrongError(f"{self.name} is live and not part of the cut at {cut.offset}")
            return
        # A table that rests may be further than its stored state says, and is the same all the way.
        at, first = cut.offset.in_era(state.written.era), self.store.state.lowest_applied
        if not state.is_live or not first <= at <= state.lowest_applied:
            raise WrongError(f"{self.name} is at {first} to {state.lowest_applied}, the cut at {at}")
        expected = self._expected(state, at)
        if self.sink.rows != expected:
            raise WrongError(f"{self.name} at the cut {at}: sink {self.sink.rows}\nsource {expected}")

    def check_end(self) -> None:
        state, end = self.coordinator.saved, self.source.written_offset()
        if state.failure is not None or not state.is_live or state.vnodes[0].applied != end:
            raise WrongError(f"{self.name} stopped at {state.vnodes[0].applied}, the source is at {end}")
        if self.sink.rows != self.source.visible:
            raise WrongError(f"{self.name}: sink {self.sink.rows}\nsource {self.source.visible}")


class Together:
    """A whole run of several tables from one seed. `make_driver` and `simulation` are those of each table."""

    def __init__(
        self, seed: int, make_driver: type[Driver] = Driver, simulation: type[Simulation] = Simulation
    ) -> None:
        self.seed, self.random, self.clock = seed, Random(seed), Clock()
        self.story: list[str] = []
        self.server = ModelServer(self.random, self.random.choice(("mysql", "mariadb")))
        self.store = ModelTablesStore(self)
        self.cuts = self.rested = self.stops = self.jobs = self.left_tables = 0
        self._last_cut: Cut | None = None
        self._faults: list[BaseException] = []
        self._nested = self.quiet = False
        pick = self.random.choice
        second = timedelta(seconds=1)
        epoch = SimpleNamespace(
            live=second, backfill=3 * second, cut=pick((None, 5 * second)), lag=pick((None, 8 * second))
        )
        self._config = SimpleNamespace(epoch=epoch, limits=SimpleNamespace(log_readers=pick((1, 3))))
        self._rows_per_second, self._busy = pick((0.5, 2.0, 10.0)), pick((1.0, 1.0, 0.3))
        self.copied: list[OneOfSeveral] = []
        with self._in_force():
            self._begin_driver()
        driver, table = mixed(make_driver, SharingDriver), cast(type[OneOfSeveral], mixed(simulation, OneOfSeveral))
        table = table if table is OneOfSeveral else dataclass(table)
        self.tables = [
            table(1000 * seed + number, driver, story=self.story, everybody=self, number=number)
            for number in range(pick((2, 3)))
        ]

    def run(self) -> None:
        """Raises `WrongError` with the story attached."""
        try:
            with self._in_force():
                for table in self.tables:
                    table._traffic(self.random.randrange(30))
                for table in self.tables[: self.random.randrange(1, len(self.tables) + 1)]:
                    self._add(table)
                for _ in range(self.random.randrange(200, 900)):
                    self._step()
                if self.random.random() < 0.6:
                    self._go_live()
                    self._follow(self.random.randrange(200, 700))
                self._finish()
        except (WrongError, BackfillError, AssertionError, KeyError, IndexError) as error:
            tail = "\n".join(self.story[-150:])
            raise WrongError(f"seed {self.seed}: {type(error).__name__}: {error}\n{tail}") from error

    @contextmanager
    def _in_force(self) -> Iterator[None]:
        """The model in place of time and of the log's readers."""
        patches: tuple[tuple[ModuleType, str, object], ...] = (
            (shared_work, "time", self.clock),
            (parked_tables, "time", self.clock),
            (shared_log, "consume_together", consumed_together),
            (running_table, "_QUIET_EPOCHS", 1),
        )
        with ExitStack() as undo:
            for module, name, value in patches:
                undo.enter_context(patch.object(module, name, value))
            yield

    def _begin_driver(self) -> None:
        spark = SimpleNamespace(run=lambda _actor, _barrier, work, _stopped: work(), tasks_in=None)
        tools = SimpleNamespace(spark=spark, source=OneSource(self, self.server))
        self.works = Later(self.random)
        self.store.unanswered.clear()
        self.shared = SharedWork(
            cast(Config, self._config), cast(TablesStore, self.store), cast(DriverTools, tools), lambda: None
        )
        self.shared._pool = self.shared._log._pool = cast(ThreadPoolExecutor, self.works)
        self.shared._awake = cast(Flag, self.clock)
        self.shared._ranges = cast(SharedRanges, OwnRanges(self._is_reading, self._rows_per_second))

    def _is_reading(self) -> bool:
        return any(isinstance(each.action, ReadRanges) for table in self.copied for each in table.outstanding)

    def carry_out(self, table: RunningTable, action: Action, committed: Committed) -> None:
        self.shared.carry_out(table, action, committed)

    def say(self, line: str) -> None:
        self.story.append(line)

    def noticed(self, error: BaseException) -> None:
        self._faults.append(error)

    def made(self, cut: Cut) -> None:
        self.cuts += 1
        self._last_cut = cut
        self.story.append(f"CUT at {cut.offset}: {[*cut.targets]}, without {dict(cut.left_out)}")
        try:
            for table in self.copied:
                table.check_cut(cut)
        except WrongError as error:
            self.noticed(error)

    def meanwhile(self) -> None:
        if self._nested:
            return
        self._nested = True
        for _ in range(self.random.randrange(4)):
            self._traffic() if self.random.random() < 0.5 * self._busy else self._work_on_a_table()
        self._nested = False

    def _traffic(self) -> None:
        if not self.quiet:
            self.story.append(self.server.step())

    def _step(self) -> None:
        dice, table = self.random.random(), self.random.choice(self.copied or self.tables)
        if dice < 0.3:
            if self.random.random() < self._busy:
                self._traffic()
        elif dice < 0.32 and table in self.copied:
            table._ask(table._request())
        elif dice < 0.325 and table in self.copied:
            table._fail()
        elif dice < 0.345:
            self._do_rarely()
        else:
            self._work()

    def _do_rarely(self) -> None:
        match self.random.choice(("crash", "crash", "log", "stop", "add", "take out")):
            case "crash":
                self.crash()
            case "log":
                self.change_log()
            case "stop" if not self.shared.stopping:
                self.stop()
            case "add" if len(self.copied) < len(self.tables) and not self.shared.stopping:
                self._add(self.random.choice([each for each in self.tables if each not in self.copied]))
            case "take out" if len(self.copied) > 1:
                self._take_out(self.random.choice(self.copied))
            case _:
                pass

    def _work(self) -> None:
        """Something that the driver does by itself: its loop, one of its threads, or a table."""
        self.clock.now += self.random.random() * 0.3
        dice = self.random.random()
        if dice < 0.2:
            self.shared.begin([table.table for table in self.copied])
            self.rested += len(self.shared._parked._resting) > 0
        elif dice < 0.5 and self.works.works:
            self.works.run_one()
        else:
            self._work_on_a_table()
        if self._faults:
            raise self._faults[0]
        if self.shared.stopping and not self.quiet and self._has_ended():
            self.story.append("RUN AGAIN")
            self._run_again()

    def _work_on_a_table(self) -> None:
        if self.copied:
            self.random.choice(self.copied)._step()

    def _has_ended(self) -> bool:
        return not self.works.works and all(table.is_stopped and not table.outstanding for table in self.copied)

    def _add(self, table: OneOfSeveral) -> None:
        self.jobs += 1
        self.story.append(f"ADDED {table.name}")
        table.begin(f"job-{self.jobs}")
        self.copied.append(table)

    def _take_out(self, table: OneOfSeveral) -> None:
        self.story.append(f"TAKEN OUT {table.name}")
        table.leaving = True
        table.stop()

    def left(self, table: OneOfSeveral) -> None:
        """Nothing is at work any more for a table that was taken out."""
        self.story.append(f"LEFT {table.name}")
        self.left_tables += 1
        self.shared.forget(table.table)
        self.copied.remove(table)

    def stop(self) -> None:
        """Ask all tables to stop at one offset."""
        self.story.append("STOP")
        self.stops += 1
        with self.shared.telling:
            self.shared.stopping = True
            for table in self.copied:
                table.stop()

    def crash(self) -> None:
        """The driver dies: nothing that is shared is begun, and every table begins again from what is durable."""
        self.story.append("CRASH")
        self._run_again()

    def _run_again(self) -> None:
        self._begin_driver()
        for table in self.copied:
            table._recover()

    def change_log(self) -> None:
        """The driver dies, and the next one finds another log: of a replica, or of a server that was reset."""
        states = [(table, table._loaded()) for table in self.copied]
        if self.random.random() < 0.7 and all(state.written.gtids for _, state in states):
            needed = [table._needed_of_log(state) for table, state in states]
            self.server.fail_over(frozenset[str]().union(*needed))
            self._begin_driver()
            for table, state in states:
                table._move(state)
        elif all(table._may_begin_again(state) for table, state in states):
            self.server.reset_log()
            self._begin_driver()
            for table, state in states:
                table._begin_again(state)

    def _follow(self, steps: int) -> None:
        """Tables that are live, of which most rest most of the time: now and then something happens to one of them."""
        self._set_quiet(quiet=False)
        for _ in range(steps):
            if not self.copied:
                return
            dice, table = self.random.random(), self.random.choice(self.copied)
            if dice < 0.06 * self._busy:
                self._traffic()
            elif dice > 0.997:
                table._ask(table._drain())
            elif dice > 0.993:
                table._fail()
            elif dice > 0.98:
                self._do_rarely()
            else:
                self._work()

    def _set_quiet(self, *, quiet: bool) -> None:
        self.quiet = quiet
        for table in self.tables:
            table.quiet = quiet

    def _go_live(self) -> None:
        """Stop the traffic, and let all tables go live."""
        if self.shared.stopping:
            self._until(self._has_ended)
            self._run_again()
        self._set_quiet(quiet=True)
        self.server.tables[0].settle()
        for table in [*self.copied]:
            for kind in (RequestKind.RESUME, RequestKind.RATE_LIMIT):
                table._ask(Request(len(table.requests) + 1, kind))
        self._until(lambda: all(table._is_settled() for table in self.copied))

    def _finish(self) -> None:
        """Let all tables go live, stop them at one offset, and compare."""
        self._go_live()
        self._last_cut = None
        self.stop()
        self._until(self._has_ended)
        for table in self.copied:
            table.check_end()
        self._check_last_cut()

    def _check_last_cut(self) -> None:
        named = {*self._last_cut.targets} if self._last_cut is not None else set()
        if named != {table.name for table in self.copied}:
            raise WrongError(f"all tables have stopped, and the last cut is {self._last_cut}")

    def _until(self, done: Callable[[], bool]) -> None:
        quiet, self.quiet = self.quiet, True
        for _ in range(20_000):
            if done():
                self.quiet = quiet
                return
            self._work()
        stages = {table.name: table.coordinator.stage for table in self.copied}
        raise WrongError(
            f"never got there: {stages} {len(self.works.works)} works, parked {self.shared._parked._resting}"
        )


def mixed(of_one_table: type[Kind], of_several: type[Kind]) -> type[Kind]:
    """The class of a single table's history, as one of several: what it does otherwise comes first."""
    if issubclass(of_several, of_one_table):
        return of_several
    return type(of_one_table.__name__, (of_one_table, of_several), {})
