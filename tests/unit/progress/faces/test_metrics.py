"""Metrics of a job: counters never fall, labels are bounded, and everything is documented."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

from progress.faces.alerts import Alert, AlertId, Retention
from progress.faces.metrics import CdcBackfillMetrics, MetricsReporter
from progress.faces.table_metrics import MOST_TABLES
from progress.state.backfill_state import Phase
from progress.state.definition_report import DefinitionProgress
from progress.state.schema_state import CopyNote
from progress.state.target_health import TargetHealth, VectorHealth
from tests.job_reports import RUNNING, ImaginaryJob
from tests.tables_reports import tables_report
from vnode_backfill.config.job import UiConfig
from vnode_backfill.words.epoch import Actor, BarrierKind

_ROOT = Path(__file__).parents[4]
_NAME = re.compile(r"vnode_backfill_[a-z_]+")
_JOB = ImaginaryJob(vnodes=16, ranges=64)


def value(metrics: CdcBackfillMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"vnode_backfill_{name}", labels)


def names(metrics: CdcBackfillMetrics) -> set[str]:
    """As they appear in a query: counters with _total, the info with _info."""
    ending = {"counter": "_total", "info": "_info"}
    return {
        family.name + ending.get(family.type, "")
        for family in metrics.registry.collect()
        if family.name.startswith("vnode_backfill_")
    }


def test_report_is_taken_over() -> None:
    metrics = CdcBackfillMetrics()
    report = _JOB.report(_JOB.at(0.5, epoch=9, just_read=1), replace(RUNNING, lag_seconds=1.5, lag_bytes=300))
    MetricsReporter(metrics).show(report)
    assert value(metrics, "snapshot_rows_total") == report.rows > 0
    assert value(metrics, "epochs_total") == 9
    assert value(metrics, "vnodes", phase="catch-up") == report.phases[Phase.CATCH_UP] > 0
    assert value(metrics, "phase", phase="snapshot") == 1
    assert value(metrics, "phase", phase="live") == 0
    assert value(metrics, "lag_seconds") == 1.5
    assert value(metrics, "job_info", job="orders", source="shop.orders", sink="s3://lake/shop/orders") == 1


def test_counters_do_not_fall_when_a_driver_starts_again_from_an_older_commit() -> None:
    metrics = CdcBackfillMetrics()
    later, earlier = _JOB.report(_JOB.at(0.6, epoch=12)), _JOB.report(_JOB.at(0.5, epoch=11))
    MetricsReporter(metrics).show(later)
    MetricsReporter(metrics).show(earlier)
    assert value(metrics, "snapshot_rows_total") == later.rows > earlier.rows
    assert value(metrics, "epochs_total") == 12


def test_shape_of_the_target_is_taken_over() -> None:
    metrics = CdcBackfillMetrics()
    health = TargetHealth(3, 100, 40, 7, 70, 60, 20, VectorHealth(10, 50))
    seen = replace(RUNNING, lake_age_seconds=2.5, target=health, lengthened=4)
    MetricsReporter(metrics).show(_JOB.report(_JOB.live(), seen))
    figures = ("lake_age_seconds", "vector_share", "fold_debt_bytes", "write_amplification", "epoch_lengthening")
    assert [value(metrics, name) for name in figures] == [2.5, 0.25, 50, 3, 4]
    assert (value(metrics, "target_files"), value(metrics, "target_bytes")) == (3, 100)
    assert (value(metrics, "target_written_bytes_total"), value(metrics, "target_changed_bytes_total")) == (60, 20)
    MetricsReporter(metrics).show(_JOB.report(_JOB.live(), replace(seen, target=replace(health, vectors=None))))
    unknown = [value(metrics, name) for name in ("vector_share", "fold_debt_bytes")]
    assert all(each is not None and math.isnan(each) for each in unknown)


def test_targets_of_many_tables_are_taken_over_together() -> None:
    metrics, health = CdcBackfillMetrics(), TargetHealth(3, 100, 40, 7, 70, 60, 20, VectorHealth(10, 50))
    report = tables_report(4, per_table=replace(RUNNING, target=health, lengthened=4, lengthened_by="its log"))
    MetricsReporter(metrics).show(report)
    figures = ("target_files", "target_bytes", "vector_share", "fold_debt_bytes", "write_amplification")
    assert [value(metrics, name) for name in figures] == [12, 400, 0.25, 200, 3]
    assert (value(metrics, "epoch_lengthening"), value(metrics, "target_written_bytes_total")) == (4, 240)
    assert (value(metrics, "definition_version"), value(metrics, "table_ended"), value(metrics, "new_copy")) == (
        0,
        0,
        0,
    )


def test_bytes_count_on_when_a_table_is_opened_again_or_leaves_the_job() -> None:
    metrics, first, second = CdcBackfillMetrics(), "shop.table_000", "shop.table_001"

    def show(**written: int) -> float | None:
        found = tables_report(2)
        parts = {
            name: replace(
                part, observed=replace(part.observed, target=TargetHealth(1, 1, 1, 1, 0, bytes_, bytes_ // 2))
            )
            for (name, part), bytes_ in zip(found.parts.items(), written.values(), strict=False)
        }
        MetricsReporter(metrics).show(replace(found, parts=parts))
        assert list(parts) == [first, second][: len(written)]
        return value(metrics, "target_written_bytes_total")

    assert show(first=1000, second=10) == 1010
    assert show(first=6, second=20) == 1026, "the first begins again, the second goes on"
    assert show(first=30, second=20) == 1050
    assert show(first=30) == 1050
    assert show(first=40) == 1060
    assert value(metrics, "target_changed_bytes_total") == 530


def test_version_of_the_definition_is_taken_over() -> None:
    metrics = CdcBackfillMetrics()
    report = _JOB.report(_JOB.live(), RUNNING)
    MetricsReporter(metrics).show(replace(report, definition=DefinitionProgress(3, 2, ended="dropped at binlog.1:4")))
    figures = ("definition_version", "target_definition_version", "table_ended")
    assert [value(metrics, name) for name in figures] == [3, 2, 1]
    assert value(metrics, "new_copy") == 0
    copy = CopyNote("2026-03-01T12:00:00+00:00", "another type", "the old copy at binlog.1:4")
    MetricsReporter(metrics).show(replace(report, definition=DefinitionProgress(new_copy=copy)))
    assert value(metrics, "new_copy") == 1


def test_unknown_is_not_zero() -> None:
    metrics = CdcBackfillMetrics()
    MetricsReporter(metrics).show(_JOB.report(_JOB.at(0.5)))
    unknown = ["lag_seconds", "lag_bytes", "buffer_bytes", "binlog_held_bytes", "rate_limit_rows_per_second"]
    assert all(math.isnan(value(metrics, name) or 0.0) for name in unknown)


def test_job_observes_what_reports_do_not_hold() -> None:
    metrics = CdcBackfillMetrics()
    metrics.observe_epoch(Actor.MERGE, 0.4)
    metrics.observe_barrier(BarrierKind.CHECKPOINT)
    metrics.observe_buffered(70)
    metrics.observe_merged(60)
    metrics.observe_retry(Actor.UPSTREAM)
    metrics.observe_retention(Retention(held_bytes=5_000))
    metrics.observe_alerts([Alert(AlertId.BUFFER_GROWTH, 1.0, "it grows", "")])
    assert value(metrics, "epoch_seconds_sum", actor="merge") == 0.4
    assert value(metrics, "epoch_seconds_bucket", actor="merge", le="0.5") == 1
    assert value(metrics, "barriers_total", kind="checkpoint") == 1
    assert value(metrics, "buffered_changes_total") == 70
    assert value(metrics, "merged_changes_total") == 60
    assert value(metrics, "retries_total", actor="upstream") == 1
    assert value(metrics, "binlog_held_bytes") == 5_000
    assert value(metrics, "alert", alert="buffer-growth") == 1
    assert value(metrics, "alert", alert="vnode-stalled") == 0


def test_throttle_reasons_are_bounded() -> None:
    metrics = CdcBackfillMetrics()
    for number in range(40):
        metrics.observe_throttled(f"check {number}", 2.0)
    metrics.observe_throttled("check 3", 1.0)
    reasons = {s.labels["reason"] for f in metrics.registry.collect() for s in f.samples if "reason" in s.labels}
    assert len(reasons) == 17
    assert value(metrics, "throttle_seconds_total", reason="check 3") == 3.0
    assert value(metrics, "throttle_seconds_total", reason="other") == 48.0


def test_two_jobs_in_one_process_do_not_share_metrics() -> None:
    first, second = CdcBackfillMetrics(), CdcBackfillMetrics()
    first.observe_buffered(5)
    assert value(second, "buffered_changes_total") == 0


def test_scraper_gets_the_form_it_asks_for() -> None:
    metrics = CdcBackfillMetrics()
    body, kind = metrics.expose("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    body, kind = metrics.expose()
    assert kind.startswith("text/plain")
    assert b"vnode_backfill_snapshot_rows_total 0.0" in body


def test_every_metric_is_documented_and_no_other() -> None:
    documented = set(re.findall(r"\| `(vnode_backfill_[a-z_]+)` \|", (_ROOT / "docs/metrics.md").read_text()))
    assert documented == names(CdcBackfillMetrics())


def test_dashboard_asks_only_for_metrics_that_exist() -> None:
    board = json.loads((_ROOT / "conf/grafana-dashboard.json").read_text())
    asked = {name for panel in board["panels"] for t in panel["targets"] for name in _NAME.findall(t["expr"])}
    known = names(CdcBackfillMetrics())
    assert {name.removesuffix("_bucket") for name in asked} <= known
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {"${datasource}"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_dashboard_shows_the_tables_that_are_chosen_and_all_of_them_at_first() -> None:
    board, report = json.loads((_ROOT / "conf/grafana-dashboard.json").read_text()), tables_report(2)
    (chosen,) = (each for each in board["templating"]["list"] if each["name"] == "table")
    assert (chosen["multi"], chosen["includeAll"], chosen["allValue"]) == (True, True, ".*")
    asked = re.fullmatch(r"label_values\((\w+)\{.*\}, table\)", chosen["query"]["query"])
    assert asked is not None
    metrics = CdcBackfillMetrics()
    MetricsReporter(metrics).show(report)
    assert value(metrics, asked[1].removeprefix("vnode_backfill_"), table=report.tables[0].name) is not None
    of_tables = set(re.findall(r"^(\w+)\{.*table=", metrics.expose()[0].decode(), re.MULTILINE))
    shown = [
        t["expr"] for panel in board["panels"] for t in panel["targets"] if of_tables & {*_NAME.findall(t["expr"])}
    ]
    assert len(shown) == 5
    assert all('table=~"$table"' in expression for expression in shown)


def test_tables_have_metrics_of_their_own_unless_the_file_says_otherwise() -> None:
    metrics, report = CdcBackfillMetrics(), tables_report(6)
    MetricsReporter(metrics).show(report)
    live = "shop.table_001"
    assert value(metrics, "table_phase", table=live, phase="live") == 1
    assert value(metrics, "table_progress_ratio", table=live) == 1
    assert value(metrics, "table_lake_age_seconds", table=live) == 1.3
    assert value(metrics, "table_rows", table=live) == report.parts[live].rows > 0
    assert value(metrics, "table_phase", table="shop.audit", phase="set aside") == 1
    without = CdcBackfillMetrics(by_table=UiConfig(table_metrics=False).table_metrics)
    MetricsReporter(without).show(report)
    assert not [name for name in names(without) if "_table_r" in name or "_table_p" in name]


def test_table_that_changes_phase_or_leaves_the_job_leaves_no_series_behind() -> None:
    metrics, report = CdcBackfillMetrics(), tables_report(6)
    MetricsReporter(metrics).show(report)
    first = replace(report.tables[0], phase="paused")
    MetricsReporter(metrics).show(replace(report, tables=(first,)))
    exposed = metrics.expose()[0].decode()
    assert re.findall(r'table_phase\{phase="(\w+)",table="([\w.]+)"', exposed) == [("paused", first.name)]
    assert exposed.count('table_rows{table="') == 1


def test_no_more_tables_than_allowed_have_metrics() -> None:
    metrics, report = CdcBackfillMetrics(), tables_report(3)
    many = tuple(replace(report.tables[0], name=f"shop.t{number}") for number in range(MOST_TABLES + 50))
    MetricsReporter(metrics).show(replace(report, tables=many))
    assert metrics.expose()[0].decode().count('table_rows{table="') == MOST_TABLES
