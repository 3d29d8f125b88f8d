"""Exposes a running job to Prometheus (RisingWave: CdcBackfillMetrics).

All names begin with `vnode_backfill_`. Units are base units. Labels are bounded: phases, actors, barrier kinds, alerts,
at most 16 throttle reasons, and tables (`table_metrics`). `docs/metrics.md` is the list; a test compares it and the
dashboard with this module.

Counters never fall. Totals of the job (rows, ranges, epochs) are the highest value seen in the reports. So a repeated
epoch, or a driver that is started again in the same process, counts nothing twice and takes nothing back. Bytes of
targets count from the beginning of a run, so they are added as they grow, for each table on its own. A process has one
`CdcBackfillMetrics` per job for its whole life. A gauge is NaN while its value is not known: a 0 would look like good
news.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder

from progress.faces.alerts import RETENTION_UNKNOWN, Alert, AlertId, Retention
from progress.faces.table_metrics import TableMetrics
from progress.state.backfill_state import Phase
from progress.state.definition_report import DefinitionProgress
from progress.state.report import JobPhase, Report
from progress.state.target_health import TargetHealth
from vnode_backfill.words.epoch import Actor, BarrierKind

_PREFIX = "vnode_backfill_"
_EPOCH_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_THROTTLE_REASONS = 16
_OTHER_REASON = "other"
_NOTHING_WRITTEN = TargetHealth(0, 0, 0, 0)


class CdcBackfillMetrics:
    """One job's metrics, in a registry of their own. Safe to call from any thread."""

    def __init__(self, *, by_table: bool = True) -> None:
        """`by_table` says whether the tables of a job of many have metrics of their own."""
        self.registry = CollectorRegistry()
        self._tables = TableMetrics(self.registry, _PREFIX) if by_table else None
        self.retention = RETENTION_UNKNOWN
        self._reasons: set[str] = set()
        self._counted: dict[str, TargetHealth] = {}
        """The targets whose bytes are counted, as they were shown last."""
        self._make_counters()
        self._make_gauges()
        ProcessCollector(registry=self.registry)

    def observe_report(self, report: Report) -> None:
        """Set every metric that a report determines."""
        seen = report.observed
        _raise_to(self._snapshot_rows, report.rows)
        _raise_to(self._snapshot_ranges, report.ranges)
        _raise_to(self._epochs, report.epoch)
        self._info.info({"job": report.subject.job, "source": report.subject.source, "sink": report.subject.sink})
        for phase in Phase:
            self._vnodes.labels(phase).set(report.phases.get(phase, 0))
        for job_phase in JobPhase:
            self._phase.labels(job_phase).set(report.phase is job_phase)
        self._percent.set(report.percent / 100)
        self._estimated_rows.set(report.estimated_rows)
        self._workers.set(len(report.workers))
        self._paused.set(report.paused or report.rate_limit == 0)
        self._throttled.set(bool(seen.throttled_by))
        self._rate_limit.set(_known(report.rate_limit))
        self._eta.set(_known(report.eta_seconds))
        self._lag_seconds.set(_known(seen.lag_seconds))
        self._lag_bytes.set(_known(seen.lag_bytes))
        self._buffer_bytes.set(_known(seen.buffer_bytes))
        self._lake_age.set(_known(seen.lake_age_seconds))
        self._lengthened.set(seen.lengthened)
        self._observe_target(seen.target)
        self._count_bytes(report)
        self._observe_definition(report.definition)
        if self._tables is not None:
            self._tables.observe(report.tables)

    def _observe_definition(self, definition: DefinitionProgress | None) -> None:
        if definition is None:
            return
        self._definition_version.set(definition.version)
        self._target_definition_version.set(definition.in_target)
        self._table_ended.set(bool(definition.ended))
        self._new_copy.set(definition.new_copy is not None)

    def _observe_target(self, target: TargetHealth | None) -> None:
        if target is None:
            return
        self._target_files.set(target.files)
        self._target_bytes.set(target.bytes)
        self._vector_share.set(_known(target.vector_share))
        self._fold_debt.set(_known(target.fold_debt_bytes))
        self._amplification.set(_known(target.write_amplification))

    def _count_bytes(self, report: Report) -> None:
        """Count what was written to each target since it was shown last.

        A table that is opened again begins at 0, and one that leaves the job takes its figures along: the sum over the
        tables falls then, and what the others write must count all the same.
        """
        for name, part in (report.parts or {"": report}).items():
            now, before = part.observed.target, self._counted.get(name, _NOTHING_WRITTEN)
            if now is not None and now is not before:
                self._written_bytes.inc(_growth(before.written_bytes, now.written_bytes))
                self._changed_bytes.inc(_growth(before.changed_bytes, now.changed_bytes))
                self._counted[name] = now

    def observe_epoch(self, actor: Actor, seconds: float) -> None:
        """An actor did its part of an epoch; DRIVER is the whole epoch, from intent to commit."""
        self._epoch_seconds.labels(actor).observe(seconds)

    def observe_barrier(self, kind: BarrierKind) -> None:
        self._barriers.labels(kind).inc()

    def observe_buffered(self, changes: int) -> None:
        """Changes of one epoch were committed to the buffer."""
        self._buffered.inc(changes)

    def observe_merged(self, changes: int) -> None:
        """Buffered changes of one epoch were merged into the sink."""
        self._merged.inc(changes)

    def observe_retry(self, actor: Actor) -> None:
        """An actor failed and its epoch is tried again."""
        self._retries.labels(actor).inc()

    def observe_throttled(self, reason: str, seconds: float) -> None:
        """The snapshot waited. `reason` names a check, never its reading: each name is a series of its own."""
        if reason not in self._reasons and len(self._reasons) >= _THROTTLE_REASONS:
            reason = _OTHER_REASON
        self._reasons.add(reason)
        self._throttle_seconds.labels(reason).inc(seconds)

    def observe_retention(self, retention: Retention) -> None:
        """How much of its log before the captured position the source still holds."""
        self.retention = retention
        self._held_bytes.set(_known(retention.held_bytes))

    def observe_alerts(self, alerts: Iterable[Alert]) -> None:
        raised = {alert.id for alert in alerts}
        for each in AlertId:
            self._alerts.labels(each).set(each in raised)

    def expose(self, accept: str = "") -> tuple[bytes, str]:
        """The body and content type for a scraper that accepts `accept`."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _make_counters(self) -> None:
        self._snapshot_rows = self._counter("snapshot_rows", "Rows read by the snapshot, over the whole job")
        self._snapshot_ranges = self._counter("snapshot_ranges", "Key ranges read by the snapshot, over the whole job")
        self._buffered = self._counter("buffered_changes", "Changes of the log written to the buffer")
        self._merged = self._counter("merged_changes", "Buffered changes merged into the sink")
        self._written_bytes = self._counter("target_written_bytes", "Bytes written to merge, join, fold and commit")
        self._changed_bytes = self._counter("target_changed_bytes", "Size of the changes that were merged, in memory")
        self._epochs = self._counter("epochs", "Epochs committed, over the whole job")
        self._barriers = self._counter("barriers", "Barriers begun, by kind", "kind")
        self._retries = self._counter("retries", "Epochs tried again after a passing failure, by failed actor", "actor")
        self._throttle_seconds = self._counter("throttle_seconds", "Seconds the snapshot had to wait", "reason")
        self._epoch_seconds = Histogram(
            f"{_PREFIX}epoch_seconds",
            "Seconds an actor took for its part of an epoch; driver: the whole epoch",
            ("actor",),
            buckets=_EPOCH_BUCKETS,
            registry=self.registry,
        )
        for kind in BarrierKind:
            self._barriers.labels(kind)
        for actor in Actor:
            self._retries.labels(actor)
            self._epoch_seconds.labels(actor)

    def _make_gauges(self) -> None:
        self._info = Info(f"{_PREFIX}job", "Which job this is", registry=self.registry)
        self._phase = self._gauge("phase", "1 for the phase the job is in", "phase")
        self._vnodes = self._gauge("vnodes", "Vnodes in each phase", "phase")
        self._alerts = self._gauge("alert", "1 while the alert holds", "alert")
        self._percent = self._gauge("progress_ratio", "How much of the job is done, 0 to 1")
        self._estimated_rows = self._gauge(
            "estimated_rows", "Rows read, and rows the unread ranges are thought to hold"
        )
        self._workers = self._gauge("workers", "Workers that share the vnodes")
        self._paused = self._gauge("paused", "1 while an operator holds the snapshot")
        self._throttled = self._gauge("throttled", "1 while a check of the source holds the snapshot")
        self._rate_limit = self._gauge("rate_limit_rows_per_second", "Limit set by an operator; NaN without one")
        self._eta = self._gauge("eta_seconds", "Seconds until the snapshot is read at the present rate")
        self._lag_seconds = self._gauge("lag_seconds", "Age of the newest change that is captured")
        self._lag_bytes = self._gauge("lag_bytes", "Bytes of log written by the source and not captured yet")
        self._held_bytes = self._gauge(
            "binlog_held_bytes", "Bytes from the oldest log position the source still holds to the captured one"
        )
        self._buffer_bytes = self._gauge("buffer_bytes", "Size of the changes that wait in the buffer")
        for gauge in (self._rate_limit, self._eta, self._lag_seconds, self._lag_bytes, self._held_bytes):
            gauge.set(math.nan)
        self._buffer_bytes.set(math.nan)
        self._make_target_gauges()
        self._definition_version = self._gauge(
            "definition_version", "How often the table's columns changed, as captured"
        )
        self._target_definition_version = self._gauge("target_definition_version", "The same, as the target has it")
        self._table_ended = self._gauge("table_ended", "1 once the table was dropped or renamed away")
        self._new_copy = self._gauge("new_copy", "1 while a copy is made that will replace the one that readers see")
        self.observe_alerts(())

    def _make_target_gauges(self) -> None:
        self._lake_age = self._gauge("lake_age_seconds", "Age of the newest change that is merged")
        self._lengthened = self._gauge("epoch_lengthening", "How many times as long as configured epochs take")
        self._target_files = self._gauge("target_files", "Files of the target")
        self._target_bytes = self._gauge("target_bytes", "Size of the target's files")
        self._vector_share = self._gauge("vector_share", "Rows of the target's files that are gone, 0 to 1")
        self._fold_debt = self._gauge("fold_debt_bytes", "Size of the target's files that wait to be folded")
        self._amplification = self._gauge("write_amplification", "Bytes written per byte changed, in this run")
        self._lengthened.set(1)
        for gauge in (self._lake_age, self._target_files, self._target_bytes, self._vector_share):
            gauge.set(math.nan)
        for gauge in (self._fold_debt, self._amplification):
            gauge.set(math.nan)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}{name}", what, labels, registry=self.registry)

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(f"{_PREFIX}{name}", what, labels, registry=self.registry)


class MetricsReporter:
    """Keeps the metrics in step with the reports. Closing it leaves them as they are, for the last scrape."""

    def __init__(self, metrics: CdcBackfillMetrics) -> None:
        self._metrics = metrics

    def show(self, report: Report) -> None:
        self._metrics.observe_report(report)

    def close(self) -> None:
        """Nothing is held open."""


def _raise_to(counter: Counter, total: int) -> None:
    """Never lower than before."""
    now = next(
        sample.value for metric in counter.collect() for sample in metric.samples if sample.name.endswith("_total")
    )
    if total > now:
        counter.inc(total - now)


def _growth(before: int, now: int) -> int:
    """How much a figure has grown; all of it is new where it has begun again."""
    return now - before if now >= before else now


def _known(value: float | None) -> float:
    return math.nan if value is None else value
