"""Plans the tables of a new job so that a kill -9 does not begin again: notes how far each is, and finds such notes.

Nothing is noted of a plan that is made in a few seconds. What must be true of a note that is continued is said in
`progress.state.planning`; it is checked here, before the job's beginning is chosen. A note that does not count any more
is dropped, with a line in the log. Noting never stops planning: a note that cannot be written is a warning.

A job that is refused (exit code 2) leaves no note behind, and no folder. One that ended otherwise leaves its notes to
the next run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from consume_upstream.log.offset import CdcOffset
from consume_upstream.upstream_table import UpstreamTable
from progress.state.planning import BegunPlan, why_not_continued
from vnode_backfill.config.job import Config, StartupMode
from vnode_backfill.decide.start_point import why_not_held
from vnode_backfill.job.open.locations import planning_notes
from vnode_backfill.snapshot.plan_questions import orders_as_before, rows_per_range
from vnode_backfill.words.errors import BackfillError, PlanRefusedError, StateUnavailableError
from vnode_backfill.words.plan import Cuts, TableFacts

__all__ = ["FirstPlans", "Pace", "forget_finished"]

_REFUSED = PlanRefusedError.exit_code
_COPYING = (StartupMode.INITIAL, StartupMode.SNAPSHOT)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """When a plan is noted, in seconds: nothing before `after`, then every `every`. Writing takes one part in `share`.

    A person is told every `told`.
    """

    after: float = 3.0
    every: float = 5.0
    share: float = 20.0
    told: float = 10.0


def forget_finished(config: Config, tables: Collection[str]) -> None:
    """Remove notes of tables that have a state: a driver may be killed right after it has created them."""
    notes = planning_notes(config)
    try:
        for note in notes.all():
            if note.plan.name in tables:
                notes.remove(note.plan.name)
    except StateUnavailableError as error:
        log.warning("planning notes cannot be removed error=%s", error.message)


class FirstPlans:
    """The plans of the tables of one new job. `before_writing` is called before the first note; see `create_job`."""

    def __init__(
        self,
        config: Config,
        *,
        before_writing: Callable[[], object],
        say: Callable[[str], None],
        pace: Pace | None = None,
    ) -> None:
        self.notes, self.pace = planning_notes(config), pace or Pace()
        self.before_writing, self.say = before_writing, say

    @contextmanager
    def left_if_unfinished(self) -> Iterator[None]:
        """Remove all notes at the end of the block, and where it is refused; what ends otherwise is continued later."""
        self.notes.check_free()
        try:
            yield
        except BackfillError as error:
            self.forget_if_refused(error)
            raise
        self.forget()

    def forget(self, *tables: str) -> None:
        """Remove the notes of these tables, which exist now, or all of them. What is left by accident does no harm."""
        try:
            if not tables:
                self.notes.remove_all()
            for name in tables:
                self.notes.remove(name)
        except StateUnavailableError as error:
            log.warning("planning notes cannot be removed error=%s", error.message)

    def forget_if_refused(self, error: BackfillError, *tables: str) -> None:
        """Exit code 2 means that nothing was written: a job, or a table of it, that is refused leaves no note."""
        if error.exit_code == _REFUSED:
            self.forget(*tables)

    def begun(self, config: Config, table: UpstreamTable) -> BegunPlan | None:
        """The plan of this table that was begun and can be continued; one that cannot be is dropped."""
        name = f"{table.definition.database}.{table.definition.table}"
        note = self.notes.of(name)
        if note is None:
            return None
        reason = _why_dropped(config, table, note.plan)
        if not reason:
            log.info("planning continues table=%s ranges=%d", name, note.plan.progress.ranges)
            self.say(f"planning of {name} continues after {note.plan.progress.ranges:,} ranges, from {note.plan.first}")
            return note.plan
        log.warning("planning begins again table=%s reason=%s", name, reason)
        self.say(f"planning of {name} begins again: {reason}")
        self.notes.remove(name)
        return None

    def watch(self, config: Config, table: UpstreamTable, first: CdcOffset, begun: BegunPlan | None) -> WatchedPlan:
        """What notes the progress of one table's plan, from its first question on."""
        since = datetime.now(UTC) if begun is None else begun.since
        watch = WatchedPlan(self, table, config.vnodes, first, since)
        if begun is not None:
            watch.note(begun)  # at once, so that another driver sees who continues it
        return watch


@dataclass
class WatchedPlan:
    """Notes one plan as it grows, and tells a person; used by the thread that plans."""

    plans: FirstPlans
    table: UpstreamTable
    vnodes: int
    first: CdcOffset
    since: datetime
    _began: float = field(default_factory=time.monotonic)
    _noted: float | None = None
    _told: float | None = None
    _took: float = 0.0
    _seen: tuple[TableFacts, int, Cuts] | None = None

    def settled(self, facts: TableFacts, target: int, cuts: Cuts) -> None:
        """Called after each answer of the source."""
        now, pace = time.monotonic(), self.plans.pace
        if not cuts.ranges or (self._noted is None and now - self._began < pace.after):
            return
        self._seen = facts, target, cuts
        if self._noted is None or now - self._noted >= max(pace.every, pace.share * self._took):
            self.note(self._plan(facts, target, cuts))
        if self._told is None or now - self._told >= pace.told:
            self._told = now
            self._tell(self._plan(facts, target, cuts))

    def end(self) -> None:
        """The plan is whole. That is noted if a part of it was: the job may not exist for a long time yet."""
        if self._noted is not None and self._seen is not None:
            self.note(self._plan(*self._seen))

    def _plan(self, facts: TableFacts, target: int, cuts: Cuts) -> BegunPlan:
        return BegunPlan(
            self.table.definition, self.vnodes, target, self.first, facts, cuts.settled, self.since, self.table.parents
        )

    def note(self, plan: BegunPlan) -> None:
        """Store the plan as far as it is. It may fail, unless another driver makes the same plan."""
        if self._noted is None:
            self.plans.before_writing()
        began = time.monotonic()
        try:
            self.plans.notes.write(plan)
        except StateUnavailableError as error:
            log.warning("how far planning is cannot be noted table=%s error=%s", plan.name, error.message)
        self._noted = time.monotonic()
        self._took = self._noted - began

    def _tell(self, plan: BegunPlan) -> None:
        seen = plan.progress
        self.plans.say(
            f"planning {plan.name}: {seen.rows:,} of about {seen.estimated_rows:,} rows in {seen.ranges:,} ranges"
        )


def _why_dropped(config: Config, table: UpstreamTable, begun: BegunPlan) -> str:
    if config.mysql.cdc.startup_mode not in _COPYING:
        return f"mysql.cdc.startup_mode is {config.mysql.cdc.startup_mode}, which copies nothing"
    fault = why_not_held(begun.first, table.source_log(stored=begun.first))
    target = rows_per_range(begun.facts, config)
    reason = why_not_continued(begun, table.definition, config.vnodes, target, fault, parents=table.parents)
    if not reason and not orders_as_before(table, begun):
        return "the server puts its bounds in another order now"
    return reason
