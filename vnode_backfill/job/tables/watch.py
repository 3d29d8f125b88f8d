"""Shows a running job of many tables: a report on each, summed up as one, about once a second.

A table that nothing has happened to is not reported on again: only its age moves on.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from progress.faces.metrics import CdcBackfillMetrics, MetricsReporter
from progress.faces.reporters import Reporter, Reporters
from progress.faces.terminal import open_view
from progress.state.estimates import Estimates
from progress.state.report import (
    NOTHING_IN_HAND,
    JobPhase,
    Observed,
    RateWindow,
    Report,
    Retry,
    Subject,
    VnodeProgress,
    report_of,
)
from progress.state.tables_report import grid_of, reason_of, summed_up
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


@dataclass
class _Known:
    """What is remembered of one table: its last report, and what it was made of."""

    plan: SplitPlan
    estimates: Estimates
    best: float
    made_of: tuple[object, ...] = ()
    made_at: float = 0.0
    report: Report | None = None

    def is_fresh(self, made_of: tuple[object, ...], now: float) -> bool:
        """Whether the last report will do: nothing has happened, or what happens all the time to a live table."""
        if self.report is None or made_of == self.made_of:
            return self.report is not None
        return (
            self.report.phase is JobPhase.LIVE and made_of[1:] == self.made_of[1:] and now - self.made_at < _LIVE_EVERY
        )


class TablesWatch:
    """Shows one run of a job of many tables; see `job.run.watch.Watch`."""

    def __init__(
        self, config: Config, store: TablesStore, face: str, faces: Faces, *told: Reporter, sink: str = ""
    ) -> None:
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
        )
        subject = replace(self._subject, source=f"{len({*reports, *aside})} tables")
        if not self._grid or not running or now - self._grid_at > _GRID_EVERY:
            going = tuple(report for name, report in reports.items() if name not in aside)
            self._grid, self._grid_at = grid_of(going), now
        reasons = {name: reason_of(error) for name, error in aside.items()}
        return summed_up(subject, reports, reasons, observed, self._grid)

    def _of_table(self, table: RunningTable, *, running: bool) -> Report:
        coordinator, seen, record = table.run.coordinator, table.performer.seen, table.table.opened.record
        known = self._known.get(table.name)
        if known is None or known.plan is not coordinator.plan:
            best = 0.0 if known is None else known.best
            known = self._known[table.name] = _Known(coordinator.plan, Estimates.of(coordinator.current_plan), best)
        going = running and not table.run.has_stopped
        saved, reached = coordinator.saved, table.reached
        if reached is not None:
            saved = replace(saved, written=reached)
        # A live table's epochs go by; what else happens to it shows at once.
        seen_of = None if saved.is_live else coordinator.in_hand
        made_of = (
            (saved.revision, reached), saved.is_live, saved.schema, saved.failure, coordinator.last_error, going, seen_of,
            seen.asked,
        )  # fmt: skip
        if known.report is None or not known.is_fresh(made_of, time.monotonic()):
            error = coordinator.last_error
            observed = Observed(
                driver=self._driver if going else "",
                retry=Retry(coordinator.attempt, error.message) if error else None,
                in_hand=coordinator.in_hand if going else NOTHING_IN_HAND,
                asked=seen.asked,
            )
            subject = Subject(table.name, f"{record.database}.{record.table}", record.sink)
            known.report = report_of(subject, known.estimates, saved, observed, at_least=known.best)
            known.made_of, known.made_at, known.best = made_of, time.monotonic(), known.report.percent
        now = time.time()
        applied = reached or (saved.vnodes[0].applied if saved.is_live else saved.lowest_applied)
        measured = replace(
            known.report.observed,
            lag_seconds=seen.lag_seconds(saved.written, now),
            lag_bytes=seen.lag_bytes(saved.written),
            buffer_bytes=seen.buffer_bytes,
            lake_age_seconds=seen.lake_age(applied, now),
        )
        return replace(known.report, observed=measured)
