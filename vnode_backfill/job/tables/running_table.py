"""Holds one table of a job of many while it runs: its protocol, its performer, and what saves work when it is idle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from consume_upstream.log.offset import CdcOffset
from progress.state.barriers import LocalBarrierManager
from progress.state.make_report import phase_of
from vnode_backfill.config.job import Config
from vnode_backfill.decide.coordination import Stage
from vnode_backfill.decide.protocol import Action, Event, MergeEpoch
from vnode_backfill.job.open.opened import Opened
from vnode_backfill.job.run.driver_tools import DriverTools
from vnode_backfill.job.run.performer import Performer
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.job.run.table_run import TableRun
from vnode_backfill.job.tables.reading_order import Unread
from vnode_backfill.words.key_range import SplitPlan

_TAKE_LONG = (Stage.RETRYING, Stage.RESOLVING, Stage.EXTENDING, Stage.FAILING, Stage.STOPPED)
_QUIET_EPOCHS = 3
"""A table without a change in so many epochs rests. A change that comes later costs one commit more."""
CarryOut = Callable[["RunningTable", Action, Committed], None]


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A table that is this driver's to copy. `config` is the job's for this table alone."""

    name: str
    config: Config
    opened: Opened
    priority: int


class RunningTable:
    """One driver's run of one table among others. Orders that tables share go through `carry_out`."""

    def __init__(
        self,
        table: OpenedTable,
        services: Services,
        tools: DriverTools,
        carry_out: CarryOut,
        wake: Callable[[], object],
    ) -> None:
        self.name, self.table, self.services = table.name, table, services
        self.barriers: LocalBarrierManager[Event] = LocalBarrierManager(wake)
        self.performer = Performer(services, self.barriers, shared=tools)
        opened, watched = table.opened, (self.performer.seen, self.performer.pace)

        def carry(action: Action, committed: Committed) -> None:
            carry_out(self, action, committed)

        self.run = TableRun(services, opened.state, opened.plan, self.barriers, carry, watched)
        self.reshaped = 0
        """How often files of the target were joined or folded, which no revision shows."""
        self.tidied = (-1, 0)
        """The revision, and how often files were reshaped, after which the target was looked after."""
        self.measured = -1
        """The revision after which the buffer was measured."""
        self.reached: CdcOffset | None = None
        """How far the log was read while the table rests; None while it does not."""
        self.waiting = 0
        """How many changes were met while the table rests, which wait for others."""
        self._quiet = 0
        self._buffered = True
        self._sized: tuple[SplitPlan, int] | None = None

    @property
    def is_soon_done(self) -> bool:
        """Whether the epoch in progress is a short one: nothing is read in it, and nothing went wrong."""
        coordinator = self.run.coordinator
        if coordinator.stage in _TAKE_LONG:
            return False
        intent = coordinator.saved.intent
        return coordinator.stage is not Stage.WORKING or intent is None or not intent.ordinals

    @property
    def is_retrying(self) -> bool:
        return self.run.coordinator.stage is Stage.RETRYING

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing of the table is under way: it has stopped, or has nothing to do."""
        coordinator = self.run.coordinator
        idle = coordinator.stage is Stage.IDLE and coordinator.saved.intent is None
        return idle or coordinator.stage is Stage.STOPPED

    @property
    def left_out_because(self) -> str:
        """Why the table is not part of a cut."""
        failure, state = self.run.failure, self.run.coordinator.saved
        if failure is not None:
            return failure.message
        return state.schema.ended or str(phase_of(state, running=True))

    def may_hold_changes(self, action: MergeEpoch) -> bool:
        """Whether the buffer may hold a change that this merge takes in. Most epochs change few of many tables."""
        coordinator = self.run.coordinator
        buffered, changed = coordinator.collected.buffered, coordinator.saved.changed
        if not action.vnodes:
            return False
        if buffered is not None and buffered.kept:
            return True
        return changed is not None and any(vnode.applied < changed for vnode in action.vnodes)

    @property
    def captured(self) -> CdcOffset:
        """How far the log was read for the table."""
        return self.reached or self.run.coordinator.saved.written

    def may_settle(self, *, lagged: bool) -> bool:
        """Whether the epoch that has ended may be the last one for now.

        The table is live, and has been quiet for long enough, or its next changes are to wait (`lagged`).
        """
        coordinator = self.run.coordinator
        buffered = coordinator.collected.buffered
        if coordinator.stage is not Stage.SAMPLING or coordinator.stopping or coordinator.requests:
            return False
        if buffered is None or buffered.cut is not None or not coordinator.saved.is_live:
            return False
        first = coordinator.first_sample
        if first is None or coordinator.intent.written < first:
            # At the end of a slice, or of an epoch that the last driver began: a driver that runs until all are live
            # waits for what was written when it began itself.
            return False
        return lagged or (not buffered.kept and self._quiet >= _QUIET_EPOCHS)

    def noted(self, kept: int) -> None:
        """So many changes went into the buffer."""
        self._buffered = self._buffered or kept > 0
        self._quiet = 0 if kept else self._quiet + 1

    def may_trim(self) -> bool:
        """Whether the buffer may hold files whose changes are all applied."""
        state, trims = self.run.coordinator.saved, self._buffered
        if state.changed is None or state.lowest_applied >= state.changed:
            self._buffered = False
        return trims

    def unread(self) -> Unread | None:
        """What is left to read; None if nothing is, or may be read now."""
        coordinator = self.run.coordinator
        state = coordinator.saved
        if state.backfill_finished or not state.controls.reading or state.schema.pending is not None:
            return None
        rows = self._rows(coordinator.current_plan)
        return Unread(self.name, self.table.priority, rows, max(1, rows - state.rows), state.controls.rows_per_second)

    def _rows(self, plan: SplitPlan) -> int:
        if self._sized is None or self._sized[0] is not plan:
            self._sized = plan, sum(planned.estimated_rows for planned in plan.ranges)
        return self._sized[1]
