"""Drives the coordinator in tests: it answers every order at once, except those that a test wants to answer itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from consume_upstream.log.offset import VisibleAt
from consume_upstream.log.statement import FoundStatement
from progress.state.backfill_state import BackfillState, Request, RequestKind
from tests.unit.progress.state.state_examples import DEFINITION, PARTS, at, beginning, plan_with
from vnode_backfill.decide.coordinator import Coordinator, Stage, decide
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.decide.protocol import (
    Action,
    BufferChanges,
    ChangesBuffered,
    ChangeSink,
    CommitEpoch,
    CommitReceipts,
    EpochMerged,
    EpochRestarted,
    Event,
    ExtendPlan,
    InjectBarrier,
    MergeEpoch,
    PlanExtended,
    RangeReceipt,
    RangesRead,
    ReadRanges,
    ReceiptsCommitted,
    RequestArrived,
    ResolveStatement,
    RestartEpoch,
    Sampled,
    SampleSource,
    SinkChanged,
    Started,
    StateCommitted,
    StatementResolved,
    Stop,
    TrimBuffer,
)
from vnode_backfill.words.epoch import BarrierKind
from vnode_backfill.words.errors import LogFormatError, SourceLostError, SparkLostError
from vnode_backfill.words.key_range import SplitPlan, bound_of
from vnode_backfill.words.schema_change import StatementEffect, TableShape

PLAN = plan_with(0, 10, 20, 30)
LOST = SourceLostError("connection lost")
GONE = SparkLostError("gone")
DAMAGED = LogFormatError("event is damaged", detail="at 7", hint="look")
Kind = TypeVar("Kind", bound=Action)


@dataclass
class Job:
    """A driver that does what it is told at once; `hold` names kinds of actions it leaves to the test."""

    coordinator: Coordinator
    position: int = 100
    rows_per_worker: int = 1000
    short: bool = False
    hold: tuple[type[Action], ...] = ()
    orders: list[Action] = field(default_factory=list)
    held: list[Action] = field(default_factory=list)
    statements: dict[FoundStatement, StatementEffect] = field(default_factory=dict)
    """What the log holds, in its order, and what each has done."""
    kept: int = 1
    """How many changes each stretch of the log holds."""
    passes: bool = False
    """Whether each stretch of the log holds a statement that is passed over, such as CREATE INDEX."""
    cascades: tuple[int, ...] = ()
    """Where changes of a parent have changed rows outside the log."""
    shape: TableShape = field(default_factory=lambda: TableShape(DEFINITION))

    @classmethod
    def new(cls, plan: SplitPlan = PLAN, workers: int = 1) -> Job:
        return cls(Coordinator(beginning(plan, workers), plan))

    @property
    def state(self) -> BackfillState:
        return self.coordinator.saved

    @property
    def stage(self) -> Stage:
        return self.coordinator.stage

    def happen(self, event: Event) -> list[Action]:
        """Let something happen and do what follows, until the job waits; returns the orders given."""
        before = len(self.orders)
        todo = [event]
        while todo:
            self.coordinator, actions = decide(self.coordinator, todo.pop(0))
            self.orders.extend(actions)
            for action in actions:
                if isinstance(action, self.hold) or (isinstance(action, SampleSource) and action.idle):
                    self.held.append(action)
                else:
                    todo.extend(self.answer(action))
        return self.orders[before:]

    def sample(self) -> list[Action]:
        """The source is asked again, as after the pause of an idle job."""
        return self.happen(Sampled(self.sample_of(), self.coordinator.asked))

    def sample_of(self) -> Sample:
        return Sample(at(self.position), VisibleAt(at(self.position)), self.rows_per_worker, short=self.short)

    def ask(self, number: int, kind: RequestKind, **what: object) -> list[Action]:
        return self.happen(RequestArrived(Request(number, kind, **what)))  # type: ignore[arg-type]

    def answer(self, action: Action) -> list[Event]:
        match action:
            case ReadRanges(barrier=barrier, lanes=lanes):
                receipts = tuple(RangeReceipt(ordinal, 10) for lane in lanes for ordinal in lane)
                return [RangesRead(barrier.epoch, receipts, barrier.attempt)]
            case BufferChanges(barrier=barrier, after=after, intent=intent):
                assert isinstance(intent.visible, VisibleAt)
                cut = next(
                    (each for each in self.statements if after <= each.before and each.after <= intent.written), None
                )
                passed = (FoundStatement(after, intent.written, "CREATE INDEX"),) if self.passes else ()
                found = [at(pos) for pos in self.cascades if after < at(pos) <= intent.written]
                return [
                    ChangesBuffered(
                        barrier.epoch, intent.visible, (), self.kept, barrier.attempt, cut=cut, passed=passed,
                        cascaded=found[-1] if found else None,
                    )
                ]  # fmt: skip
            case MergeEpoch(barrier=barrier):
                return [EpochMerged(barrier.epoch, 0, barrier.attempt)]
            case CommitReceipts(barrier=barrier, receipts=receipts):
                return [ReceiptsCommitted(barrier.epoch, receipts, barrier.attempt)]
            case ExtendPlan():
                return [PlanExtended(extended(self.coordinator.plan))]
            case SampleSource(ticket=ticket):
                return [Sampled(self.sample_of(), ticket)]
            case CommitEpoch(state=state):
                return [StateCommitted(state.revision)]
            case RestartEpoch(attempt=attempt):
                return [EpochRestarted(attempt)]
            case ResolveStatement(found=found, attempt=attempt):
                return [StatementResolved(found, self.statements[found], self.shape, attempt)]
            case ChangeSink(version=version):
                return [SinkChanged(version.number)]
            case InjectBarrier() | TrimBuffer() | Stop():
                return []


def extended(plan: SplitPlan) -> SplitPlan:
    return plan.extend(((bound_of(PARTS, (40,)), 5), (bound_of(PARTS, (50,)), 0)))


def only(actions: list[Action], kind: type[Kind]) -> Kind:
    (found,) = (action for action in actions if isinstance(action, kind))
    return found


def kinds(actions: list[Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def barriers(actions: list[Action]) -> list[BarrierKind]:
    return [action.barrier.kind for action in actions if isinstance(action, InjectBarrier)]


def live_job() -> Job:
    job = Job.new()
    job.happen(Started())
    assert job.state.is_live
    assert job.stage is Stage.IDLE
    return job


def held_in_epoch_one(*hold: type[Action]) -> Job:
    job = Job.new()
    job.hold = hold
    job.happen(Started())
    return job
