"""Any package can add a reporter, and no reporter can hold up or stop the job."""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from progress.faces.metrics import CdcBackfillMetrics, MetricsReporter
from progress.faces.reporters import (
    ENTRY_POINT_GROUP,
    CdcTableBackfillProgressReporter,
    CreateMviewProgressReporter,
    NullReporter,
    Reporter,
    Reporters,
    load_reporters,
)
from progress.faces.web import WebReporter, open_web
from progress.state.barriers import CdcTableBackfillProgress, CreateMviewProgress
from progress.state.report import InHand, Report
from tests.job_reports import RUNNING, ImaginaryJob
from vnode_backfill.words.epoch import Actor, Epoch
from vnode_backfill.words.errors import ConfigError

_JOB = ImaginaryJob(vnodes=16, ranges=64)


class Notebook:
    """Writes down what it is shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def show(self, report: Report) -> None:
        self.shown.append(f"{report.percent}")

    def close(self) -> None:
        self.shown.append("closed")


class Broken(Notebook):
    def show(self, report: Report) -> None:
        raise ConnectionError(f"cannot page anybody about {report.percent} %")


def test_every_reporter_is_shown() -> None:
    first, second = Notebook(), Notebook()
    reporters = Reporters([first, second])
    reporters.show(_JOB.report(_JOB.start))
    reporters.close()
    reporters.close()
    assert first.shown == second.shown == ["0.0", "closed"]


def test_reporter_that_raises_is_closed_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    broken, working = Broken(), Notebook()
    reporters = Reporters([broken, working])
    with caplog.at_level(logging.WARNING):
        reporters.show(_JOB.report(_JOB.start))
        reporters.show(_JOB.report(_JOB.start))
    assert broken.shown == ["closed"]
    assert working.shown == ["0.0", "0.0"]
    assert caplog.text.count("reporter failed and is left out reporter=Broken") == 1


def test_reporter_is_found_by_entry_point() -> None:
    (reporter,) = load_reporters([EntryPoint("null", "progress.faces.reporters:NullReporter", ENTRY_POINT_GROUP)])
    assert isinstance(reporter, NullReporter)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("progress.faces.reporters:NoSuchReporter", "cannot be loaded"),
        ("no_such_package:Reporter", "cannot be loaded"),
        ("builtins:object", "is none"),
    ],
)
def test_reporter_that_cannot_be_used_is_refused(value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"reporter pager .* {reason}"):
        load_reporters([EntryPoint("pager", value, ENTRY_POINT_GROUP)])


def test_nothing_is_installed_by_default() -> None:
    assert load_reporters() == ()


def test_port_zero_is_no_page() -> None:
    assert isinstance(open_web("127.0.0.1", 0), NullReporter)


def test_what_we_bring_along_is_a_reporter() -> None:
    metrics: Reporter = MetricsReporter(CdcBackfillMetrics())
    assert isinstance(metrics, Reporter)
    assert issubclass(WebReporter, Reporter)


def test_progress_events_are_shown_once_per_change() -> None:
    rows: list[CreateMviewProgress] = []
    ranges: list[CdcTableBackfillProgress] = []
    reporters = Reporters([CreateMviewProgressReporter(rows.append), CdcTableBackfillProgressReporter(ranges.append)])
    for share, seen in ((0.0, InHand()), (0.5, InHand(70, 2, 30, 20)), (0.5, InHand(70, 2, 30, 20)), (0.5, InHand())):
        report = _JOB.report(_JOB.at(share, epoch=4), replace(RUNNING, in_hand=seen))
        reporters.show(report)
    assert rows == [
        CreateMviewProgress(Actor.SNAPSHOT, Epoch(5), 70),
        CreateMviewProgress(Actor.UPSTREAM, Epoch(5), 30),
        CreateMviewProgress(Actor.MERGE, Epoch(5), 20),
    ]
    assert [(each.ranges_done, each.ranges_total) for each in ranges] == [(0, 64), (report.ranges + 2, 64)]
    assert [each.rows for each in ranges] == [0, report.rows + 70]
