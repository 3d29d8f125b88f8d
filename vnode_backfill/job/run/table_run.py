"""Runs one table: takes what happened to it, decides, and hands on what was decided; and what is done beside the
epochs.

A driver calls this from its own loop. `loop.BackfillJob` drives one table, `job.tables` any number of them. The table's
protocol is the same in both: nothing here knows whether there are others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from progress.state.backfill_state import OWN_REQUEST, BackfillState, Failure, Request, RequestKind
from progress.state.barriers import (
    ActorFailure,
    BarrierCollected,
    CdcTableBackfillProgress,
    CreateMviewProgress,
    LocalBarrierEvent,
    LocalBarrierManager,
)
from vnode_backfill.decide.coordinator import Coordinator, Stage, decide
from vnode_backfill.decide.protocol import (
    Action,
    ActorFailed,
    ChangesBuffered,
    CommitEpoch,
    Ending,
    EpochMerged,
    Event,
    RequestArrived,
    Stop,
    event_of,
)
from vnode_backfill.job.run.observations import Pace, Seen
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.job.run.told_failure import told_decision
from vnode_backfill.job.run.upkeep import Upkeep
from vnode_backfill.words.epoch import Actor
from vnode_backfill.words.errors import BackfillError, LawBrokenError, SinkUnavailableError
from vnode_backfill.words.key_range import SplitPlan

log = logging.getLogger(__name__)

CarryOut = Callable[[Action, Committed], None]


class TableRun:
    """One driver's run of one table. Orders go to `carry_out`, in the state in which they were given."""

    def __init__(
        self,
        services: Services,
        state: BackfillState,
        plan: SplitPlan,
        barriers: LocalBarrierManager[Event],
        carry_out: CarryOut,
        watched: tuple[Seen, Pace],
        *,
        bounded: bool = False,
    ) -> None:
        self.services, self.barriers = services, barriers
        retries = services.config.limits.retries
        self.coordinator = Coordinator(saved=state, plan=plan, attempts_allowed=retries, bounded=bounded)
        self.failure: Failure | None = None
        self.ending: Ending | None = None
        """What the table has met, where it has stopped because this copy cannot continue."""
        self.rereads_waiting = False
        self.stop_asked = False
        self._carry_out = carry_out
        self._seen, self._pace = watched
        self._upkeep = Upkeep(services.sink, services.config)
        self._heard: set[int] = set()

    @property
    def has_stopped(self) -> bool:
        return self.coordinator.stage is Stage.STOPPED

    @property
    def is_up_to_date(self) -> bool:
        return self.coordinator.is_up_to_date and not self.rereads_waiting

    @property
    def committed(self) -> Committed:
        return Committed(self.coordinator.saved, self.coordinator.plan, self.coordinator.attempt)

    def take_waiting(self) -> None:
        """Take everything that has happened by now."""
        while (event := self.barriers.next_event(timeout=0)) is not None:
            self.take(event)

    def take(self, event: LocalBarrierEvent[Event]) -> None:
        """Count what metrics and faces want to know of it, and let it happen."""
        match event:
            case BarrierCollected(result=ChangesBuffered(kept=kept, newest=newest)):
                self.services.metrics.observe_buffered(kept)
                self._seen.captured(self.coordinator.saved.intent, newest)
            case BarrierCollected(result=EpochMerged(changes=changes)):
                self.services.metrics.observe_merged(changes)
            case ActorFailure(error=error, attempt=attempt):
                log.warning("actor failed actor=%s attempt=%d error=%s", event.actor, attempt, error.message)
                self.services.metrics.observe_retry(event.actor)
            case CreateMviewProgress() | CdcTableBackfillProgress():
                self._seen.moved_at = time.monotonic()
            case _:
                pass
        self.happen(event_of(event))

    def happen(self, event: Event) -> None:
        ended = self.coordinator.saved.epoch
        try:
            decided = decide(self.coordinator, event)
        except LawBrokenError as error:
            # A bug of ours: stop with the reason in the state, before anything more is ordered.
            decided = decide(self.coordinator, ActorFailed(error, self.coordinator.attempt))
        self.coordinator, actions = told_decision(decided, self.services.config.table_of_many)
        if self.coordinator.saved.epoch > ended:
            self.services.metrics.observe_epoch(Actor.DRIVER, time.monotonic() - self._pace.epoch_began)
        committed = self.committed
        for action in actions:
            if isinstance(action, Stop):
                self.failure, self.ending = action.failure, action.ending
            if isinstance(action, CommitEpoch):
                log.info("epoch ends epoch=%d kind=%s", action.state.epoch, _kind(action.state))
            self._carry_out(action, committed)

    def ask_to_stop(self) -> bool:
        """Stop at a SyncCheckpoint; asking again changes nothing. Whether it was asked for the first time."""
        if self.stop_asked:
            return False
        self.stop_asked = True
        self.barriers.tell(RequestArrived(Request(OWN_REQUEST, RequestKind.STOP)))
        return True

    def hear(self, found: Sequence[Request]) -> bool:
        """What operators have asked for and nobody has acted on; whether something of it is new."""
        self.rereads_waiting = any(request.kind is RequestKind.RESNAPSHOT for request in found)
        new = [request for request in found if request.id not in self._heard]
        self._heard.update(request.id for request in new)
        for request in new:
            self.barriers.tell(RequestArrived(request))
        return bool(new)

    def keep_up(self, goes_on: Callable[[], bool]) -> bool:
        """Join and fold files of the target where that is due; whether something was done."""
        with _tried_again():
            return self._upkeep.maybe_compact(self.coordinator.saved, goes_on) is not None

    def tidy(self) -> None:
        """Sweep the target, make its checkpoint, and look at it."""
        with _tried_again():
            self._upkeep.tidy(self.coordinator.saved)
        self._show_target()

    def judge_pace(self) -> None:
        """Let epochs get shorter again where nothing was committed to the target since it was looked at.

        Without a commit its log does not grow, so what was known then is still true.
        """
        self._upkeep.judge_pace()
        self._show_target()

    def _show_target(self) -> None:
        upkeep = self._upkeep
        self._seen.target, self._seen.lengthened_by = upkeep.health, upkeep.lengthening.reason
        self._pace.lengthened = upkeep.lengthening.factor

    def measure(self) -> None:
        self._seen.buffer_bytes = self.services.buffer.size().bytes
        snapshot = self.services.store.status_snapshot()
        self._seen.asked = snapshot.asked if snapshot else ()


def _kind(state: BackfillState) -> str:
    return str(state.intent.kind) if state.intent else "none"


@contextmanager
def _tried_again() -> Iterator[None]:
    """Upkeep changes no row, so nothing that goes wrong in it ends its thread or the job: the next turn tries again."""
    try:
        yield
    except BackfillError:
        raise
    except Exception as error:
        raise SinkUnavailableError(f"the target's upkeep failed: {error!r}") from error
