"""Holds what production's shared work is given in a simulated driver of several tables, in place of threads and Spark.

`SharedWork`, `SharedLog` and `ParkedTables` are production's own. Around them are a table that orders and is told, a
store for the states of all tables, a source that is asked once for all, and a pool whose work is done later, in any
order. Whatever another thread would do meanwhile is done at `Others.meanwhile`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Protocol, cast

from consume_upstream.buffer import BufferNote
from consume_upstream.executor import ConsumeOrder, UpstreamTableExecutor
from consume_upstream.log import offset as offsets
from consume_upstream.log.continuity import check_log_goes_on
from consume_upstream.log.offset import CdcOffset, Visibility, VisibleAt
from progress.state.backfill_state import BackfillState, Failure, Intent
from progress.state.barriers import LocalBarrierManager
from progress.state.cut import Cut
from progress.state.parked import ParkedDocument
from tests.simulation.actors import Driver, Steps
from tests.simulation.server import ModelServer, TableSource
from tests.simulation.world import BufferedChange, BufferReceipt, ModelStore
from vnode_backfill.decide.coordination import Coordinator, Stage
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.decide.protocol import (
    Action,
    BufferChanges,
    ChangesBuffered,
    Ending,
    EpochRestarted,
    Event,
    ReadRanges,
    RestartEpoch,
    SampleSource,
    Stop,
)
from vnode_backfill.job.run.performer import Answer, Performer, last_sample
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.job.run.table_run import TableRun
from vnode_backfill.job.tables.order import Order
from vnode_backfill.job.tables.running_table import OpenedTable, RunningTable
from vnode_backfill.words.change import Mark
from vnode_backfill.words.epoch import Actor, Barrier, BarrierKind, Epoch
from vnode_backfill.words.errors import BackfillError, LawBrokenError, SinkUnavailableError, SourceLostError

RARELY = 0.02


class Others(Protocol):
    """The driver around the tables, as each part of it sees it."""

    random: Random

    def meanwhile(self) -> None:
        """Do some of what other threads, and the source, may do at this moment."""

    def carry_out(self, table: RunningTable, action: Action, committed: Committed) -> None: ...

    def say(self, line: str) -> None: ...

    def noticed(self, error: BaseException) -> None:
        """Remember a fault: production reports whatever its own threads raise, and goes on."""

    def made(self, cut: Cut) -> None:
        """A cut was stored."""


class Barriers(LocalBarrierManager[Event]):
    """A table's queue, in which no fault of the program is taken for a failure that may pass."""

    def __init__(self, noticed: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._noticed = noticed

    def notify_failure(self, actor: Actor, attempt: int, error: BaseException) -> None:
        if not isinstance(error, BackfillError) or isinstance(error, LawBrokenError):
            self._noticed(error)
        super().notify_failure(actor, attempt, error)


@dataclass
class ModelRun:
    """What is asked of a table's run."""

    coordinator: Coordinator
    failure: Failure | None = None
    ending: Ending | None = None

    @property
    def has_stopped(self) -> bool:
        return self.coordinator.stage is Stage.STOPPED


@dataclass
class SharingDriver(Driver):
    """A driver whose samples, commits and readings of the log are those of several tables."""

    others: Others | None = None
    running: ModelTable | None = None
    finds_nothing: bool = False
    """Whether its rows of a dump go to somebody else."""

    def perform(self, action: Action) -> Steps:
        assert self.running is not None
        return self.running.carried_out(action)

    def slice_end(self, written: CdcOffset) -> CdcOffset | None:
        assert isinstance(self.source, TableSource)
        return self.source.server.slice_end(last_sample(self.saved), written)

    def consumed(self, order: ConsumeOrder, *, finds_nothing: bool) -> BufferNote | BackfillError:
        """The table's part of a dump."""
        if self.random.random() < RARELY:
            return SourceLostError("the log was not read to its end")
        return self._looked_at(order) if order.peeks else self._captured(order, finds_nothing=finds_nothing)

    def _captured(self, order: ConsumeOrder, *, finds_nothing: bool) -> BufferNote:
        barrier = Barrier(order.intent.epoch, order.intent.kind)
        self.finds_nothing = finds_nothing
        try:
            told = [*self.buffer_changes(BufferChanges(barrier, order.state.written, order.intent))][-1]
        finally:
            self.finds_nothing = False
        assert isinstance(told, ChangesBuffered)
        return BufferNote(told.visible, told.missing, told.kept, told.kept, 0, told.cut, told.passed, told.cascaded)

    def store_changes(self, epoch: Epoch, kept: list[tuple[BufferedChange, Mark]], receipt: BufferReceipt) -> None:
        super().store_changes(epoch, [] if self.finds_nothing else kept, receipt)

    def _looked_at(self, order: ConsumeOrder) -> BufferNote:
        after, upto, source = order.state.written, order.intent.written, self.source
        logged = source.logged_transactions(after, upto)
        visible, missing = offsets.resolve(order.intent.visible, order.state.missing, logged, upto)
        found = [len(t.changes) + bool(t.statement or t.hidden) for t in source.slice(after, upto)]
        return BufferNote(visible, missing, 0, sum(found))


class ModelPerformer:
    """What a table is asked to do for itself, and what its sample is."""

    def __init__(self, table: ModelTable, driver: SharingDriver) -> None:
        self.table, self.driver, self.idle = table, driver, False
        self.handed: Steps = iter(())
        self.pending: list[Future[None]] = []
        self.orders = SimpleNamespace(follow=self.pending.append)
        self.ranges = SimpleNamespace(finish=self._nothing_read)
        self.pace = SimpleNamespace(lengthened=1)
        self.seen = SimpleNamespace(sampled=lambda *_: None, moved_at=0.0)

    @property
    def is_free(self) -> bool:
        """Whether nothing that is shared is at work for the table."""
        return all(each.done() for each in self.pending)

    def perform(self, action: Action, _committed: Committed) -> None:
        self.handed = self._restarted(action) if isinstance(action, RestartEpoch) else self._own(action)

    def _own(self, action: Action) -> Steps:
        return super(SharingDriver, self.driver).perform(action)

    def _restarted(self, action: RestartEpoch) -> Steps:
        """Everything of the failed attempt has ended first, as in production."""
        yield None
        while not self.is_free:
            yield None
        yield EpochRestarted(action.attempt)

    def _nothing_read(self, *_: object) -> tuple[()]:
        self.driver.read = ()
        return ()

    def consume_order(self, action: BufferChanges, committed: Committed) -> ConsumeOrder:
        return ConsumeOrder(self._executor, committed.state, committed.plan, action.intent)

    def peek_order(self, committed: Committed) -> ConsumeOrder:
        state = committed.state
        visible = VisibleAt(state.written)
        nowhere = Intent(state.epoch, BarrierKind.CHECKPOINT, state.written, visible, (), state.plan_generation)
        return ConsumeOrder(self._executor, state, committed.plan, nowhere, may_have_landed=False, peeks=True)

    @property
    def _executor(self) -> UpstreamTableExecutor:
        return cast(UpstreamTableExecutor, self.driver)

    def report_buffered(self, action: BufferChanges, note: BufferNote) -> None:
        barrier = action.barrier
        told = ChangesBuffered(
            barrier.epoch, note.visible, note.missing, note.kept, barrier.attempt, 0, note.cut, note.passed,
            note.cascaded,
        )  # fmt: skip
        self.table.barriers.collect(Actor.UPSTREAM, barrier, told)

    def slice_end(self, state: BackfillState, written: CdcOffset) -> CdcOffset | None:
        return self.driver.slice_end(written) if state.is_read_and_merged else None

    def sample_of(self, committed: Committed, answer: Answer, *, hold: bool, rows: int | None = None) -> Sample:
        check_log_goes_on(last_sample(committed.state), answer.written)
        driver = self.driver
        short = answer.slice_end is None and driver.says_short()
        sample = Sample(
            answer.written, answer.visible, rows or 1, hold=hold or driver.is_held(), short=short,
            slice_end=answer.slice_end,
        )  # fmt: skip
        return driver.answered(sample, idle=self.idle)

    def presses(self, _state: BackfillState) -> bool:
        return self.driver.random.random() < 0.5


class ModelTable(RunningTable):
    """One run of one table: what production knows of it, without threads."""

    def __init__(
        self, name: str, job: str, driver: SharingDriver, barriers: Barriers, decided: Callable[[], Coordinator]
    ) -> None:
        """`decided` is what the table's protocol knows by now."""
        sink = SimpleNamespace(version=lambda: len(driver.sink.landed), is_beside=False)
        record = SimpleNamespace(id=job, sink=name)
        self.name, self.barriers = name, barriers
        self.services = cast(Services, SimpleNamespace(store=driver.store, sink=sink))
        self.table = cast(OpenedTable, SimpleNamespace(opened=SimpleNamespace(record=record), priority=0))
        self.model_run, self.own = ModelRun(decided()), ModelPerformer(self, driver)
        self.run, self.performer = cast(TableRun, self.model_run), cast(Performer, self.own)
        self.reached, self.waiting, self._quiet, self._buffered, self._sized = None, 0, 0, True, None
        self._others, self._decided = driver.others, decided

    def carried_out(self, action: Action) -> Steps:
        """Give an order to whoever it is for; what the table has to do for it itself."""
        assert self._others is not None
        self.own.handed = iter(())
        if isinstance(action, SampleSource):
            self.own.idle = action.idle
        if isinstance(action, Stop):
            self.model_run.failure = action.failure
        coordinator = self.model_run.coordinator = self._decided()
        self._others.carry_out(self, action, Committed(coordinator.saved, coordinator.plan, coordinator.attempt))
        return self.own.handed


class ModelTablesStore:
    """The states of all tables. A commit may be refused as a whole, for one table, or land without an answer."""

    def __init__(self, others: Others) -> None:
        self._others, self._random = others, others.random
        self.document: ParkedDocument | None = None
        self.names: dict[int, str] = {}
        """The table of each store, by its identity."""
        self.unanswered: set[str] = set()
        """Tables whose last commit has landed, and nobody was told. The next driver reads it."""
        self.together = 0

    def parked(self) -> ParkedDocument | None:
        return self.document

    def note_parked(self, document: ParkedDocument) -> None:
        self.document = document

    def commit_together(
        self,
        commits: Sequence[tuple[ModelStore, BackfillState]],
        cut: str | None = None,
        parked: ParkedDocument | None = None,
    ) -> dict[str, BackfillError]:
        self._others.meanwhile()
        if self._random.random() < RARELY:
            raise SinkUnavailableError("the commit did not land")
        refused = [store for store, _ in commits if self._random.random() < RARELY]
        for store, state in commits:
            if not any(store is each for each in refused):
                store.commit(state)
        self.together += len(commits) - len(refused) > 1
        self._others.say(f"COMMIT {[self.names[id(store)] for store, _ in commits]} without {len(refused)}")
        self.document = parked or self.document
        landed = {self.names[id(store)] for store, _ in commits if not any(store is each for each in refused)}
        self.unanswered -= landed
        if cut is not None and not refused:
            self._others.made(Cut.from_json(cut))
        self._others.meanwhile()
        if self._random.random() < RARELY:
            self.unanswered |= landed
            raise SinkUnavailableError("the commit has landed, and the answer was lost")
        return {self.names[id(store)]: SinkUnavailableError("refused") for store in refused}


class OneSource:
    """The source as all tables ask it. Something may happen between its two answers."""

    def __init__(self, others: Others, server: ModelServer) -> None:
        self._others, self._server = others, server

    def written_offset(self, _last: CdcOffset) -> CdcOffset:
        written = self._server.tables[0].written_offset()
        self._others.meanwhile()
        return written

    def visible_offset(self) -> Visibility:
        visible = self._server.tables[0].visible_offset()
        self._others.meanwhile()
        return visible


class OwnRanges:
    """Ranges that each table reads for itself, though no sample lets a table read while another one does."""

    def __init__(self, is_reading: Callable[[], bool], rows_per_second: float) -> None:
        self._is_reading = is_reading
        self.pace = SimpleNamespace(rows_per_second=rows_per_second)

    @property
    def is_busy(self) -> bool:
        return self._is_reading()

    def take(self, order: Order[ReadRanges]) -> None:
        order.table.performer.perform(order.action, order.committed)

    def forget(self, _table: RunningTable) -> None:
        """Nothing waits here."""

    def begin(self) -> None:
        """Everything has begun."""


@dataclass
class Later:
    """Works that were handed to threads, and have not begun."""

    random: Random
    works: list[tuple[Future[None], Callable[[], object]]] = field(default_factory=list)

    def submit(self, work: Callable[..., object], *arguments: object) -> Future[None]:
        future: Future[None] = Future()
        self.works.append((future, partial(work, *arguments)))
        return future

    def run_one(self) -> None:
        future, work = self.works.pop(self.random.randrange(len(self.works)))
        work()
        future.set_result(None)


@dataclass
class Clock:
    """The time, which passes when something happens, and when somebody waits."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def clear(self) -> None:
        """Nobody is woken early."""

    def set(self) -> None:
        """Nobody waits."""


def consumed_together(_tasks: object, asked: Sequence[ConsumeOrder], **_: object) -> list[BufferNote | BackfillError]:
    """One dump. It has each table once: where a table is asked for twice, the last one gets what is found of it."""
    takers = {id(order.executor): order for order in asked}
    return [
        cast(SharingDriver, order.executor).consumed(order, finds_nothing=takers[id(order.executor)] is not order)
        for order in asked
    ]
