"""Shows a running job of many tables: a report on each, summed up as one, about once a second.

A table that nothing has happened to is not reported on again: only its age moves on, and how far the log was read for
it. Whatever looks at each vnode is done once per state, because there may be hundreds of tables with hundreds of them.
What is shown of a target is what the table's upkeep has seen last: nothing is read to show it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from consume_upstream.log.offset import CdcOffset
from progress.faces.alerts import RETENTION_UNKNOWN, Retention
from progress.faces.metrics import CdcBackfillMetrics, MetricsReporter
from progress.faces.reporters import Reporter, Reporters
from progress.faces.terminal import open_view
from progress.state.backfill_state import BackfillState
from progress.state.estimates import Estimates
from progress.state.make_report import report_of
from progress.state.report import NOTHING_IN_HAND, JobPhase, Observed, RateWindow, Report, Retry, Subject, VnodeProgress
from progress.state.tables_report import KnownNumbers, grid_of, reason_of, summed_up
from progress.store.observed import ObservedFile, ObservedReporter
from progress.store.tables_store import TablesStore
from vnode_backfill.config.job import Config
from vnode_backfill.config.values import reveal
from vnode_backfill.job.open.locations import owner
from vnode_backfill.job.run.watch import Faces
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.words.errors import BackfillError
from vnode_backfill.words.key_range import SplitPlan

_SHOW_EVERY = 1.0
_SHOW_MORE = 0.01
"""With many tables a report takes long to make: so much later it comes for each of them."""
_GRID_EVERY = 3.0
_LIVE_EVERY = 10.0
"""A live table is reported on anew so often: only its age moves, which is looked at each time."""
_RESTING_EVERY = 60.0
"""The vnodes of a table that rests are shown where they are as often as that."""


@dataclass
class _Known:
    """What is remembered of one table: its last report, and what it was made of."""

    plan: SplitPlan
    estimates: Estimates
    best: float
    made_of: tuple[object, ...] = ()
    made_at: float = 0.0
    report: Report | None = None
    state: BackfillState | None = None
    is_live: bool = False
    """Whether `state` is live."""
    reached: CdcOffset | None = None
    """How far the table is by the report, where it rests."""
    vnodes_at: float = 0.0
    """When its vnodes were shown where they are."""
    captured: CdcOffset | None = None
    """How far the log was read for it, at any time."""

    def look_at(self, state: BackfillState) -> bool:
        """Whether the table is live. A state is looked at once."""
        if self.state is not state:
            self.state, self.is_live = state, state.is_live
        return self.is_live

    def captured_by(self, captured: CdcOffset) -> CdcOffset:
        """How far the log was read, now that it seems to be `captured`.

        A table that is woken hears a moment later how far the log was read while it was resting. Its own state may be
        days behind that, and a lag of days for a moment would be a false alarm.
        """
        if self.captured is None or captured.order >= self.captured.order:
            self.captured = captured
        return self.captured

    def is_fresh(self, made_of: tuple[object, ...], now: float) -> bool:
        """Whether the last report will do: nothing has happened, or what happens all the time to a live table."""
        if self.report is None or made_of == self.made_of:
            return self.report is not None
        return (
            self.report.phase is JobPhase.LIVE and made_of[1:] == self.made_of[1:] and now - self.made_at < _LIVE_EVERY
        )

    def made(self, report: Report, made_of: tuple[object, ...], now: float) -> None:
        self.report, self.made_of, self.best = report, made_of, report.percent
        self.made_at = self.vnodes_at = now
        self.reached = None

    def move_on(self, report: Report, reached: CdcOffset, text: str, now: float) -> None:
        """The table rests, and the log was read for it up to there; `text` is what that is shown as."""
        vnodes = report.vnodes
        if now - self.vnodes_at >= _RESTING_EVERY:
            vnodes, self.vnodes_at = tuple([vnode._replace(applied=text) for vnode in vnodes]), now
        place = reached.in_era(0).order
        self.report = replace(report, written=text, applied=text, places=(place, place), vnodes=vnodes)
        self.reached = reached


class TablesWatch:
    """Shows one run of a job of many tables; see `job.run.watch.Watch`."""

    def __init__(
        self,
        config: Config,
        store: TablesStore,
        face: str,
        faces: Faces,
        *told: Reporter,
        sink: str = "",
        reported: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """`reported` names new tables that are not copied."""
        self._reported = reported
        self._subject = Subject(config.job, "", sink)
        self._driver = f"{owner()} on {socket.gethostname()}, process {os.getpid()}"
        self._metrics, web = faces.metrics, faces.web
        address = getattr(web, "address", "")
        if address and face == "terminal":
            print(f"progress page: {address}", file=sys.stderr)
        generation = store.lease.generation if store.lease else 0
        noted = ObservedReporter(ObservedFile(store.folder, reveal(config.storage.options), generation))
        self._faces: Reporter = Reporters(
            [MetricsReporter(self._metrics), web, open_view(face), noted, *faces.added, *told]
        )
        self._known: dict[str, _Known] = {}
        self._rates = RateWindow()
        self._shown_at = self._grid_at = 0.0
        self._grid: tuple[VnodeProgress, ...] = ()
        self._numbers = KnownNumbers()
        self._text: tuple[CdcOffset | None, str] = (None, "")
        self._stalled_after = config.ui.stalled_after.total_seconds()

    @property
    def metrics(self) -> CdcBackfillMetrics:
        return self._metrics

    def look(self, tables: Sequence[RunningTable], aside: Mapping[str, BackfillError]) -> None:
        now = time.monotonic()
        if now - self._shown_at >= _SHOW_EVERY + len(tables) * _SHOW_MORE:
            self._shown_at = now
            self._faces.show(self._report(tables, aside, running=True))

    def close(self, tables: Sequence[RunningTable], aside: Mapping[str, BackfillError]) -> None:
        """Show the end and close every face."""
        self._faces.show(self._report(tables, aside, running=False))
        self._faces.close()

    def _report(self, tables: Sequence[RunningTable], aside: Mapping[str, BackfillError], *, running: bool) -> Report:
        reports = {table.name: self._of_table(table, running=running) for table in tables}
        now = time.monotonic()
        rows = sum(report.rows + report.observed.in_hand.rows for report in reports.values())
        self._rates = self._rates.add(now, rows)
        seen = tables[0].performer.seen if tables else None
        quiet = now - max((table.performer.seen.moved_at for table in tables), default=now)
        retried = next((report.observed.retry for report in reports.values() if report.observed.retry), None)
        observed = Observed(
            rows_per_second=self._rates.rows_per_second,
            throttled_by=seen.throttled_by if seen else "",
            stalled=f"the driver has finished nothing for {quiet:.0f} s" if quiet > self._stalled_after else "",
            driver=self._driver if running else "",
            retry=retried,
            task_slots=tables[0].performer.task_slots if tables else None,
            reported=self._reported(),
        )
        subject = replace(self._subject, source=f"{len({*reports, *aside})} tables")
        if not self._grid or not running or now - self._grid_at > _GRID_EVERY:
            going = tuple(report for name, report in reports.items() if name not in aside)
            self._grid, self._grid_at = grid_of(going, self._numbers), now
        self._metrics.observe_retention(self._retention(tables))
        reasons = {name: reason_of(error) for name, error in aside.items()}
        return summed_up(subject, reports, reasons, observed, self._grid)

    def _of_table(self, table: RunningTable, *, running: bool) -> Report:
        coordinator, seen = table.run.coordinator, table.performer.seen
        known = self._known.get(table.name)
        if known is None or known.plan is not coordinator.plan:
            best = 0.0 if known is None else known.best
            known = self._known[table.name] = _Known(coordinator.plan, Estimates.of(coordinator.current_plan), best)
        going = running and not table.run.has_stopped
        saved, reached, live = coordinator.saved, table.reached, known.look_at(coordinator.saved)
        # A live table's epochs go by; what else happens to it shows at once.
        seen_of = None if live else coordinator.in_hand
        made_of = (
            saved.revision, live, saved.schema, saved.failure, coordinator.last_error, going, seen_of, seen.asked,
        )  # fmt: skip
        now = time.monotonic()
        if known.report is None or not known.is_fresh(made_of, now):
            known.made(self._made(table, known, going=going), made_of, now)
        report = known.report
        assert report is not None
        if reached is not None and reached is not known.reached:
            known.move_on(report, reached, self._text_of(reached), now)
            report = known.report or report
        captured = known.captured_by(reached or saved.written)
        return self._with_age(report, table, captured, reached or _applied(saved, live=live))

    def _made(self, table: RunningTable, known: _Known, *, going: bool) -> Report:
        coordinator, record, seen = table.run.coordinator, table.table.opened.record, table.performer.seen
        error = coordinator.last_error
        observed = Observed(
            driver=self._driver if going else "",
            retry=Retry(coordinator.attempt, error.message) if error else None,
            in_hand=coordinator.in_hand if going else NOTHING_IN_HAND,
            asked=seen.asked,
        )
        subject = Subject(table.name, f"{record.database}.{record.table}", record.sink)
        return report_of(subject, known.estimates, coordinator.saved, observed, at_least=known.best)

    def _with_age(self, report: Report, table: RunningTable, written: CdcOffset, applied: CdcOffset) -> Report:
        """The report with what may change though nothing happens to the table itself."""
        seen, now = table.performer.seen, time.time()
        measured = replace(
            report.observed,
            lag_seconds=seen.lag_seconds(written, now),
            lag_bytes=seen.lag_bytes(written),
            buffer_bytes=seen.buffer_bytes,
            lake_age_seconds=seen.lake_age(applied, now),
            target=seen.target,
            lengthened=table.performer.pace.lengthened,
            lengthened_by=seen.lengthened_by,
        )
        return replace(report, observed=measured)

    def _retention(self, tables: Sequence[RunningTable]) -> Retention:
        """How long the source keeps the log that the job needs: that of the table for which least of it is captured.

        The job's lag is that of the same table, so both are measured from one point of the log. Tables that have ended
        or failed do not count: nothing is captured for them, so they would raise the alert for ever.
        """
        running = [(table.performer.seen, self._known[table.name]) for table in tables if not table.run.has_stopped]
        found = [(captured, seen) for seen, known in running if (captured := known.captured) is not None]
        if not found:
            return RETENTION_UNKNOWN
        captured, seen = min(found, key=lambda each: (each[0].file_number, each[0].pos))
        return seen.retention(captured)

    def _text_of(self, reached: CdcOffset) -> str:
        """Most tables that rest are at one offset."""
        if self._text[0] is not reached:
            self._text = reached, str(reached)
        return self._text[1]


def _applied(saved: BackfillState, *, live: bool) -> CdcOffset:
    return saved.vnodes[0].applied if live else saved.lowest_applied
