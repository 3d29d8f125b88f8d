"""What a job of many tables sees of its targets and of its log is on every face, and every alert of it can fire."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer
from devkit.waiting import wait_for
from progress.faces.alerts import AlertId, Thresholds
from progress.faces.history import History
from progress.faces.metrics import CdcBackfillMetrics
from progress.faces.terminal import Face, status_text
from progress.faces.web_answers import Answers
from progress.state.report import Report
from tests.system.connections import Connections
from tests.system.job.tables.many_tables import SHAPES, Here, Tables, fresh
from tests.system.job_case import COPIER, create_copier, execute
from vnode_backfill.commands.tables.status import find_tables_report
from vnode_backfill.decide.protocol import Action, BufferChanges
from vnode_backfill.job.run import order_threads, pace_of_epochs
from vnode_backfill.job.run.watch import Faces
from vnode_backfill.job.tables import tables_job
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.job.tables.watch import TablesWatch
from vnode_backfill.words.errors import BackfillError

FIGURES = ("target_files", "target_bytes", "vector_share", "fold_debt_bytes", "write_amplification")


class Page:
    """The page and its metrics without a socket, impatient enough for a test."""

    def __init__(self) -> None:
        self.metrics = CdcBackfillMetrics()
        self.answers = Answers(self.metrics, History(Thresholds(window=3.0, watched_share=0.02)))
        self.report: Report | None = None

    def show(self, report: Report) -> None:
        self.report = report
        self.answers.show(report)

    def close(self) -> None:
        """Nothing is open."""

    def value(self, name: str, **labels: str) -> float:
        found = self.metrics.registry.get_sample_value(f"vnode_backfill_{name}", labels)
        assert found is not None
        return found

    def alerts(self) -> set[str]:
        """As the page shows them, which must be what the metrics say."""
        found = {alert["id"] for alert in json.loads(self.answers.answer("/page.json").body)["alerts"]}
        return found & {str(each) for each in AlertId if self.value("alert", alert=each)}


class Watched(Here):
    """A run that is shown as `run` shows it."""

    def __init__(self, case: Tables, spark: SparkSession) -> None:
        super().__init__(case, spark)
        self.page = Page()
        faces = Faces(self.page.metrics, self.page, ())
        self._watch = TablesWatch(
            self.config, self.store, Face.QUIET, faces, sink="delta", reported=lambda: self.opener.reported
        )

    def look(self, tables: Sequence[RunningTable], aside: Mapping[str, BackfillError]) -> None:
        self._watch.look(tables, aside)

    def close(self, tables: Sequence[RunningTable], aside: Mapping[str, BackfillError]) -> None:
        self._watch.close(tables, aside)


@contextmanager
def capture_held(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """During the block nothing of the log is captured."""
    released = threading.Event()

    def seam(moment: str, action: Action) -> None:
        if moment == "before" and isinstance(action, BufferChanges):
            released.wait(60)

    with monkeypatch.context() as patched:
        patched.setattr(order_threads, "seam", seam)
        try:
            yield
        finally:
            released.set()


def test_targets_alerts_and_the_log_of_many_tables_are_shown(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source keeps its log for two minutes. A table may log 100 bytes a minute, and a minute lasts two seconds."""
    monkeypatch.setattr(tables_job, "_LOOK_AT_LOG", timedelta(seconds=1))
    monkeypatch.setattr(tables_job, "_UPKEEP_EVERY", timedelta(seconds=0.5))
    monkeypatch.setattr(pace_of_epochs, "_WINDOW_SECONDS", 2.0)
    monkeypatch.setattr(pace_of_epochs, "LOG_BYTES_A_MINUTE", 100)
    with MariaDbServer({"binlog-expire-logs-seconds": "120"}) as server:
        execute(server, None, "CREATE DATABASE watched")
        case = fresh(server, "watched", tmp_path)
        case.by_vectors()
        for shape in ("numbers", "texts", "days"):
            case.create(shape, shape)
        here = Watched(case, spark)
        page = here.page
        with here.running():
            here.until_live()
            with case.written_to():
                wait_for(lambda: AlertId.EPOCHS_LENGTHENED in page.alerts(), "epochs take longer", seconds=240)
                assert page.value("epoch_lengthening") > 1
                wait_for(lambda: page.value("write_amplification") > 0, "targets are looked at", seconds=240)
                assert_shown(case, page)
                wait_for(lambda: page.value("binlog_held_bytes") > 0, "the log is looked at", seconds=240)
                assert page.metrics.retention.seconds == 120
                with capture_held(monkeypatch):
                    wait_for(lambda: AlertId.BINLOG_RETENTION in page.alerts(), "log will be lost", seconds=240)
            execute(server, "watched", "ALTER TABLE numbers ADD COLUMN added INT DEFAULT 7")
            wait_for(lambda: page.value("target_definition_version") == 1, "the statement is followed", seconds=240)
        assert here.failures == {}


def assert_shown(case: Tables, page: Page) -> None:
    """Metrics are those of all tables together, and `status --table` those of one."""
    report = page.report
    assert report is not None
    names = [f"watched.{name}" for name in case.shapes]
    targets = [report.parts[name].observed.target for name in names]
    assert report.observed.target is not None
    assert report.observed.target.files == sum(target.files for target in targets if target is not None) >= 3
    assert all(page.value(name) >= 0 for name in FIGURES)

    def noted() -> bool:
        """The driver looks at buffers less often than at targets, and at each target in its turn."""
        alone, whole = find_tables_report(case.loaded_config(), names[:1]), find_tables_report(case.loaded_config())
        if alone is None or whole is None or alone.observed.target is None or whole.observed.target is None:
            return False
        shown = json.loads(alone.to_json())
        return (
            shown["target"]["files"] > 0
            and shown["buffer_bytes"] is not None
            and "bytes written per byte changed" in status_text(alone)
            and whole.observed.target.files > shown["target"]["files"]
        )

    wait_for(noted, "the driver has noted its targets and buffers", seconds=240)


def test_many_tables_have_no_more_connections_than_one(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    """From the first look at the tables to live ones: as many as workers, log readers and two."""
    create_copier(mariadb_server)
    with mariadb_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE DATABASE counted")
    mysql = {
        "host": mariadb_server.host, "port": mariadb_server.port, "user": COPIER, "database": "", "table": "",
        "tables": ["counted.*"],
    }  # fmt: skip
    limits = {"log_readers": 2, "range_rows": 100}
    case = fresh(mariadb_server, "counted", tmp_path, mysql=mysql, workers=3, limits=limits)
    for number, shape in enumerate([*SHAPES, *SHAPES]):
        case.create(f"{shape}_{number}", shape)
    counted = Connections(mariadb_server)
    with counted.counting(), Here(case, spark).running() as here, case.written_to() as done:
        here.until_live()
        before = done[0]
        wait_for(lambda: done[0] > before + 100, "live tables are written to", seconds=60)
    assert case.wrong() == {}
    assert 3 <= counted.most <= 3 + 2 + 2
