"""Names what the coordinator receives (events, in the past tense) and what it orders (actions, in the imperative).

Every action is a seam: a crash before or after it must be harmless, and tests kill the process there.
"""

from __future__ import annotations

from dataclasses import dataclass

from consume_upstream.log.offset import CdcOffset, LoggedTransaction, VisibleAt
from consume_upstream.log.statement import FoundStatement
from progress.state.backfill_state import BackfillState, Failure, Intent, Request, VnodeState
from progress.state.barriers import (
    ActorFailure,
    BarrierCollected,
    CdcTableBackfillProgress,
    CreateMviewProgress,
    LocalBarrierEvent,
    OtherEvent,
)
from progress.state.parked import Reached
from progress.state.schema_state import DefinitionVersion
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.words.epoch import Barrier, Epoch
from vnode_backfill.words.errors import BackfillError
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.partitioning import Partitioning
from vnode_backfill.words.schema_change import Ended, NewCopy, SetAside, StatementEffect, TableShape


@dataclass(frozen=True, slots=True)
class RangeReceipt:
    """One range that was read, and how many rows it had."""

    ordinal: int
    rows: int


@dataclass(frozen=True, slots=True)
class Started:
    """State was loaded."""


@dataclass(frozen=True, slots=True)
class RangesRead:
    """`refused` is why the source would not read a range by the columns that the job knows; it stays unread."""

    epoch: Epoch
    receipts: tuple[RangeReceipt, ...]
    attempt: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class ChangesBuffered:
    """The log up to the intent's written offset is in the buffer; `kept` changes of it were not dropped.

    With a `cut` it is there up to the point before a statement that may concern the table. `passed` are statements
    that concern it and change nothing. Up to `cascaded` there is a change of another table that has changed rows of
    this one outside the log.
    """

    epoch: Epoch
    visible: VisibleAt
    missing: tuple[LoggedTransaction, ...]
    kept: int
    attempt: int = 0
    newest: int = 0
    """When the newest change among them was made, in seconds since 1970; 0 where there was none."""
    cut: FoundStatement | None = None
    passed: tuple[FoundStatement, ...] = ()
    cascaded: CdcOffset | None = None


@dataclass(frozen=True, slots=True)
class StatementResolved:
    """What the statement that cut the epoch has done; `effect` is None where the job was asked to stop meanwhile.

    `shape` is what the target holds after it, where the target follows. `partitioning` is the table's after it, None if
    that is as it was before.
    """

    found: FoundStatement
    effect: StatementEffect | None
    shape: TableShape | None = None
    attempt: int = 0
    partitioning: Partitioning | None = None


@dataclass(frozen=True, slots=True)
class SinkChanged:
    """The sink holds this version of the definition now. That stays true, whatever attempt found it out."""

    version: int


@dataclass(frozen=True, slots=True)
class SinkNotChanged:
    """The sink could not follow to this version of the definition."""

    version: int
    error: BackfillError


@dataclass(frozen=True, slots=True)
class EpochMerged:
    epoch: Epoch
    changes: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class ReceiptsCommitted:
    """The sink holds these reads of the epoch now. Where an earlier attempt had landed, its receipts count, not
    ours."""

    epoch: Epoch
    receipts: tuple[RangeReceipt, ...]
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class PlanExtended:
    """The plan with one more generation of ranges; it is stored, and holds from the next commit on."""

    plan: SplitPlan


@dataclass(frozen=True, slots=True)
class Sampled:
    """The answer to `SampleSource` of the same ticket; a stale one may have been taken before the last reads ended."""

    sample: Sample
    ticket: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The log was read that far for a table that rests, and holds nothing of it (see `progress.state.parked`)."""

    reached: Reached


@dataclass(frozen=True, slots=True)
class StateCommitted:
    revision: int


@dataclass(frozen=True, slots=True)
class RequestArrived:
    request: Request


@dataclass(frozen=True, slots=True)
class ActorFailed:
    error: BackfillError
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class EpochRestarted:
    """Everything of the failed attempt has ended and the pause is over; `attempt` is the one that may begin.

    A definite failure during the pause orders a second restart, for the commit in progress. The first report is then
    old.
    """

    attempt: int


Event = (
    Started | RangesRead | ChangesBuffered | EpochMerged | ReceiptsCommitted | PlanExtended | Sampled | StateCommitted
    | RequestArrived | ActorFailed | EpochRestarted | CreateMviewProgress | CdcTableBackfillProgress
    | StatementResolved | SinkChanged | SinkNotChanged | CaughtUp
)  # fmt: skip


def event_of(taken: LocalBarrierEvent[Event]) -> Event:
    """What the barrier manager hands over, in the coordinator's own words; nothing else reaches the coordinator."""
    match taken:
        case BarrierCollected(result=event) | OtherEvent(event=event):
            return event
        case ActorFailure(error=error, attempt=attempt):
            return ActorFailed(error, attempt)
        case CreateMviewProgress() | CdcTableBackfillProgress():
            return taken


@dataclass(frozen=True, slots=True)
class InjectBarrier:
    """Announce to the actors, and to those who watch, that a barrier begins."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class ReadRanges:
    barrier: Barrier
    lanes: tuple[tuple[int, ...], ...]
    replaces: frozenset[int]
    rows_per_second: int | None = None
    """The limit of all lanes together."""


@dataclass(frozen=True, slots=True)
class BufferChanges:
    barrier: Barrier
    after: CdcOffset
    intent: Intent


@dataclass(frozen=True, slots=True)
class MergeEpoch:
    barrier: Barrier
    vnodes: tuple[VnodeState, ...]
    upto: CdcOffset


@dataclass(frozen=True, slots=True)
class CommitReceipts:
    barrier: Barrier
    receipts: tuple[RangeReceipt, ...]
    replaces: frozenset[int]


@dataclass(frozen=True, slots=True)
class ExtendPlan:
    """Plan the keys outside the plan as one more generation after `generation`, replacing an orphan of a crash."""

    generation: int


@dataclass(frozen=True, slots=True)
class ResolveStatement:
    """Find out what the statement that cut the epoch has done to the table."""

    found: FoundStatement
    attempt: int


@dataclass(frozen=True, slots=True)
class ChangeSink:
    """Let the sink follow to a version of the definition, beside the epochs. A second time changes nothing."""

    version: DefinitionVersion


@dataclass(frozen=True, slots=True)
class SampleSource:
    """Ask the source once; `idle` after a pause, because the last answer held no work."""

    idle: bool
    ticket: int


@dataclass(frozen=True, slots=True)
class CommitEpoch:
    """The only commit point: `state` ends its epoch and holds the next intent."""

    state: BackfillState


@dataclass(frozen=True, slots=True)
class TrimBuffer:
    upto: CdcOffset


@dataclass(frozen=True, slots=True)
class RestartEpoch:
    """End everything of the failed attempt, wait if the cause may pass, and report `EpochRestarted`."""

    attempt: int
    cause: BackfillError


Ending = NewCopy | Ended | SetAside
"""Effects of a statement after which this copy does not continue."""


@dataclass(frozen=True, slots=True)
class Stop:
    """`ending` is what the table has met, where the job cannot continue with this copy."""

    failure: Failure | None
    ending: Ending | None = None


Action = (
    InjectBarrier | ReadRanges | BufferChanges | MergeEpoch | CommitReceipts | ExtendPlan | SampleSource | CommitEpoch
    | TrimBuffer | RestartEpoch | Stop | ResolveStatement | ChangeSink
)  # fmt: skip
