"""Shows a running job: turns what the coordinator and the performer know into a report, a few times a second at most.

Only the driver knows its speed and its lag, so they are measured here; everything else in a report is the committed
state. Faces: the terminal, the web page with its metrics, and whatever reporters are installed.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass, replace

from progress.faces.metrics import CdcBackfillMetrics, MetricsReporter
from progress.faces.reporters import Reporter, Reporters, load_reporters
from progress.faces.terminal import open_view
from progress.faces.web import open_web
from progress.state.estimates import Estimates
from progress.state.make_report import report_of
from progress.state.report import NOTHING_IN_HAND, Observed, RateWindow, Report, Retry, Subject
from progress.store.observed import ObservedFile, ObservedReporter
from vnode_backfill.config.job import Config
from vnode_backfill.config.values import reveal
from vnode_backfill.decide.coordinator import Coordinator
from vnode_backfill.job.open.locations import owner
from vnode_backfill.job.open.opened import Opened, held_lease
from vnode_backfill.job.run.loop import PerformsOrders
from vnode_backfill.words.errors import BackfillError
from vnode_backfill.words.key_range import SplitPlan

_SHOW_EVERY = 0.25


@dataclass(frozen=True, slots=True)
class Faces:
    """The page and the reporters of others: what may be refused, so they are opened before the job writes anything."""

    metrics: CdcBackfillMetrics
    web: Reporter
    added: tuple[Reporter, ...]

    @classmethod
    def open(cls, config: Config) -> Faces:
        """Listen where `ui` says and load installed reporters; raises ConfigError if one of the two cannot be had."""
        metrics, added = CdcBackfillMetrics(by_table=config.ui.table_metrics), load_reporters()
        return cls(metrics, open_web(config.ui.host, config.ui.port, metrics=metrics), added)

    def close(self) -> None:
        """A second call does nothing."""
        self.web.close()


class Watch:
    """Shows one run of a job, to the configured faces and to the reporters `told`.

    `look` is called by the job's own loop and must not wait on anything.
    The percentage continues from the highest that an earlier run has reached: a restart does not lower it.
    """

    def __init__(self, config: Config, opened: Opened, face: str, *told: Reporter, faces: Faces | None = None) -> None:
        record = opened.record
        self._subject = Subject(record.name, f"{record.database}.{record.table}", record.sink)
        self._driver = f"{owner()} on {socket.gethostname()}, process {os.getpid()}"
        opened_faces = faces or Faces.open(config)
        self._metrics, web = opened_faces.metrics, opened_faces.web
        address = getattr(web, "address", "")
        if address and face == "terminal":
            print(f"progress page: {address}", file=sys.stderr)
        noted = ObservedReporter(
            ObservedFile(opened.store.folder, reveal(config.storage.options), held_lease(opened.store).generation)
        )
        shown = [MetricsReporter(self._metrics), web, open_view(face), noted, *opened_faces.added, *told]
        self._faces: Reporter = Reporters(shown)
        self._plan: SplitPlan | None = None
        self._estimates = Estimates.of(opened.plan)
        self._rates = RateWindow()
        stored = opened.store.status_snapshot()
        self._best = stored.percent if stored else 0.0
        self._shown_at = 0.0
        self._revision = -1
        self._error: BackfillError | None = None
        self._stalled_after = config.ui.stalled_after.total_seconds()

    @property
    def metrics(self) -> CdcBackfillMetrics:
        return self._metrics

    def look(self, coordinator: Coordinator, performer: PerformsOrders) -> None:
        """Show how things are now, unless that was done a moment ago and nothing was committed or went wrong since."""
        now = time.monotonic()
        changed = coordinator.saved.revision != self._revision or coordinator.last_error is not self._error
        if now - self._shown_at >= _SHOW_EVERY or changed:
            self._shown_at, self._revision, self._error = now, coordinator.saved.revision, coordinator.last_error
            self._rates = self._rates.add(now, coordinator.saved.rows + coordinator.in_hand.rows)
            self._show(self._report(coordinator, performer))

    def close(self, coordinator: Coordinator, performer: PerformsOrders) -> None:
        """Show the end and close every face."""
        report = self._report(coordinator, performer)
        ended = report_of(
            self._subject,
            self._estimates,
            coordinator.saved,
            replace(report.observed, driver="", in_hand=NOTHING_IN_HAND),
            at_least=self._best,
        )
        self._show(ended)
        self._faces.close()

    def _show(self, report: Report) -> None:
        self._best = report.percent
        self._faces.show(report)

    def _stalled(self, seconds: float) -> str:
        return f"the driver has finished nothing for {seconds:.0f} s" if seconds > self._stalled_after else ""

    def _report(self, coordinator: Coordinator, performer: PerformsOrders) -> Report:
        if coordinator.plan is not self._plan:
            self._plan, self._estimates = coordinator.plan, Estimates.of(coordinator.current_plan)
        error, seen = coordinator.last_error, performer.seen
        observed = Observed(
            rows_per_second=self._rates.rows_per_second,
            lag_seconds=seen.lag_seconds(coordinator.saved.written, time.time()),
            lag_bytes=seen.lag_bytes(coordinator.saved.written),
            buffer_bytes=seen.buffer_bytes,
            lake_age_seconds=seen.lake_age(coordinator.saved.lowest_applied, time.time()),
            target=seen.target,
            lengthened=performer.pace.lengthened,
            lengthened_by=seen.lengthened_by,
            throttled_by=seen.throttled_by,
            stalled=self._stalled(time.monotonic() - seen.moved_at),
            driver=self._driver,
            retry=Retry(coordinator.attempt, error.message) if error else None,
            asked=seen.asked,
            in_hand=coordinator.in_hand,
            task_slots=performer.task_slots,
        )
        self._metrics.observe_retention(seen.retention(coordinator.saved.written))
        return report_of(self._subject, self._estimates, coordinator.saved, observed, at_least=self._best)
