"""Holds what the protocol knows between two events: the stage it is in, and what has been reported so far.

Nothing here decides; `coordinator.decide` makes the next value out of this one and an event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from consume_upstream.log.offset import CdcOffset
from progress.state.backfill_state import BackfillState, Failure, Intent, Request
from progress.state.report import NOTHING_IN_HAND, InHand
from vnode_backfill.decide.end_of_epoch import NOTHING_COLLECTED, Collected
from vnode_backfill.decide.protocol import StatementResolved
from vnode_backfill.words.epoch import Barrier
from vnode_backfill.words.errors import BackfillError, LawBrokenError
from vnode_backfill.words.key_range import SplitPlan


class Stage(StrEnum):
    STARTING = "starting"
    WORKING = "working"
    EXTENDING = "extending"
    RESOLVING = "resolving"
    SAMPLING = "sampling"
    COMMITTING = "committing"
    IDLE = "idle"
    RETRYING = "retrying"
    FAILING = "failing"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Coordinator:
    """What the protocol knows between two events. `saved` is what is committed; `pending` what is being committed.

    `in_hand` is how far the actors say they are; it is shown, and nothing is decided by it.
    """

    saved: BackfillState
    plan: SplitPlan
    attempts_allowed: int = 5
    stage: Stage = Stage.STARTING
    attempt: int = 0
    collected: Collected = NOTHING_COLLECTED
    in_hand: InHand = NOTHING_IN_HAND
    pending: BackfillState | None = None
    pending_plan: SplitPlan | None = None
    requests: tuple[Request, ...] = ()
    stopping: bool = False
    bounded: bool = False
    """Whether the job only copies. It ends at the end of the log as it is then, where another job begins to follow."""
    retrying: Stage | None = None
    asked: int = 0
    last_error: BackfillError | None = field(default=None, compare=False)
    ending: Failure | None = None
    """Why the job ends as soon as the commit in progress has ended."""
    resolved: StatementResolved | None = None
    """What is known of the statement that cut the epoch."""
    met: StatementResolved | None = None
    """The statement after which this copy cannot continue: the job stops before it."""
    changing: int = 0
    """The version that the sink was ordered to follow to."""
    changed: int = 0
    """The version that the sink has followed to, perhaps beyond what is committed."""
    first_sample: CdcOffset | None = None
    """The end of the log when this driver first asked for it."""
    not_followed: int = 0
    """How often in a row the sink could not follow."""
    refused: str = ""
    """Why a range of the epoch before was not read; the epoch in progress must meet a statement that explains it."""

    @property
    def intent(self) -> Intent:
        if self.saved.intent is None:
            raise LawBrokenError(f"stage {self.stage} without an intent after epoch {self.saved.epoch}")
        return self.saved.intent

    @property
    def is_up_to_date(self) -> bool:
        """Whether the job is live and has met every statement that the log held when this driver began."""
        first = self.first_sample
        return self.saved.is_live and first is not None and self.saved.written >= first

    @property
    def is_failing(self) -> bool:
        """Whether the job ends with a reason that is known already."""
        return self.stage is Stage.FAILING or self.ending is not None

    @property
    def barrier(self) -> Barrier:
        return Barrier(self.intent.epoch, self.intent.kind, self.attempt)

    @property
    def current_plan(self) -> SplitPlan:
        return self.plan.at(self.saved.plan_generation)
