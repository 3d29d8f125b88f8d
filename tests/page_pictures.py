"""Takes the pictures of the progress page in `docs/`: `python -m tests.page_pictures docs`.

Each shows an imaginary job's real reports of the last minutes, in a real browser.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from devkit.browser import Browser
from devkit.process import free_ports
from progress.alerts import Retention
from progress.metrics import CdcBackfillMetrics
from progress.report import InHand, Observed, Retry
from progress.state import Acknowledgement, BackfillState, Failure, RequestKind
from progress.web import WebReporter
from tests.job_reports import RUNNING, ImaginaryJob, asked
from vnode_backfill.epoch import Epoch

_NOW = datetime.now(UTC)
_REQUESTS = (
    asked(1, RequestKind.RATE_LIMIT, _NOW - timedelta(minutes=12)),
    asked(2, RequestKind.RESCALE, _NOW - timedelta(minutes=8)),
    asked(3, RequestKind.RESCALE, _NOW - timedelta(minutes=7), "jonas"),
    asked(4, RequestKind.RATE_LIMIT, _NOW - timedelta(seconds=3)),
)
_ANSWERS = (
    Acknowledgement(1, Epoch(12)),
    Acknowledgement(2, Epoch(30)),
    Acknowledgement(3, Epoch(31), "300 workers cannot share 256 vnodes"),
    Acknowledgement(4, Epoch(102)),
)
_MB = 1_000_000


class Clock:
    """A clock that is set."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Shot:
    name: str
    width: int
    height: int
    dark: bool


def main(folder: Path, *, every: bool = False) -> None:
    """Write the pictures; with `every` each of the four states in all sizes and colours."""
    shown = {"start": start, "snapshot": snapshot, "live": live, "failed": failed, "many": many}
    shots = [
        Shot("snapshot", 1180, 900, dark=False),
        Shot("live", 1180, 900, dark=True),
        Shot("failed", 1180, 900, dark=False),
        Shot("phone", 375, 1160, dark=False),
    ]
    if every:
        sizes = [(1180, 900), (375, 812)]
        shots = [Shot(f"{name}", *size, dark=dark) for name in shown for size in sizes for dark in (False, True)]
    with Browser() as browser:
        for shot in shots:
            clock = Clock(time.time() - 840)
            metrics = CdcBackfillMetrics()
            reporter = WebReporter("127.0.0.1", free_ports()[0], metrics=metrics, clock=clock)
            shown.get(shot.name, snapshot)(reporter, clock, metrics)
            page = browser.open(reporter.address, width=shot.width, height=shot.height, scale=2, dark=shot.dark)
            page.wait_until("document.querySelector('#percent').innerText !== '–'")
            page.evaluate("new Promise((done) => setTimeout(done, 1000))")
            suffix = f"-{shot.width}-{'dark' if shot.dark else 'light'}" if every else ""
            page.screenshot(folder / f"page-{shot.name}{suffix}.png", whole=shot.name != "phone" or every)
            page.close()
            reporter.close()


def start(reporter: WebReporter, clock: Clock, metrics: CdcBackfillMetrics) -> None:
    job = ImaginaryJob()
    clock.now = time.time()
    reporter.show(job.report(job.start, replace(RUNNING, lag_seconds=0.4, lag_bytes=18_211, buffer_bytes=0)))


def snapshot(reporter: WebReporter, clock: Clock, metrics: CdcBackfillMetrics) -> None:
    job = ImaginaryJob(rescaled=6)
    for minute in _minutes(clock):
        seen = replace(
            RUNNING, rows_per_second=_rate(minute), lag_seconds=_lag(minute), lag_bytes=int(_lag(minute) * 310_000),
            buffer_bytes=int((14 + minute * 6.1 + 9 * math.sin(minute * 2.2)) * _MB), asked=_REQUESTS,
            in_hand=InHand(rows=int((minute * 5 + 0.7) % 1 * 240_000), ranges=9),
        )  # fmt: skip
        state = job.at(0.02 + 0.043 * minute, epoch=3 + int(minute * 5))
        reporter.show(job.report(_steered(state), seen))


def live(reporter: WebReporter, clock: Clock, metrics: CdcBackfillMetrics) -> None:
    job = ImaginaryJob(rescaled=6)
    for minute in _minutes(clock):
        lag = 0.6 + 0.35 * math.sin(minute * 5) + (4 * math.exp(-((minute - 9) ** 2) * 3))
        copying = minute < 3
        seen = replace(
            RUNNING, rows_per_second=_rate(minute) if copying else 0.0, lag_seconds=lag, lag_bytes=int(lag * 120_000),
            buffer_bytes=int((90 - 20 * minute if copying else 3.2 + math.sin(minute * 4)) * _MB), asked=_REQUESTS,
        )  # fmt: skip
        epoch = 190 + int(minute * 15)
        state = job.at(0.86 + 0.04 * minute, epoch=epoch) if copying else job.live(epoch=epoch)
        reporter.show(job.report(_steered(state), seen))


def failed(reporter: WebReporter, clock: Clock, metrics: CdcBackfillMetrics) -> None:
    job, report = ImaginaryJob(rescaled=6), None
    for minute in _minutes(clock):
        lost = Retry(int(minute * 2 - 20), "connection to db.example.com:3306 was lost while reading the log")
        seen = replace(
            RUNNING, rows_per_second=_rate(minute) if minute < 10 else 0.0, lag_seconds=max(1.2, (minute - 10) * 60),
            lag_bytes=int(max(0.4, (minute - 10) * 19) * _MB), buffer_bytes=int((20 + min(minute, 10) * 5) * _MB),
            retry=lost if minute > 10.6 else None, asked=_REQUESTS,
        )  # fmt: skip
        metrics.observe_retention(Retention(seconds=7200))
        report = _steered(job.at(min(0.1 + 0.05 * minute, 0.6), epoch=3 + int(min(minute, 10) * 5)))
        reporter.show(job.report(report, seen))
    assert report is not None
    reason = Failure(
        Epoch(54),
        "binlog position binlog.000419:22114870 is no longer available upstream",
        "The oldest position the server still holds is binlog.000421:4.",
        "Re-snapshot with `vnode-backfill resnapshot --all`, and raise binlog_expire_logs_seconds.",
    )
    clock.now += 2
    reporter.show(
        job.report(replace(report, failure=reason, stopped=True), Observed(asked=_REQUESTS, buffer_bytes=70 * _MB))
    )


def many(reporter: WebReporter, clock: Clock, metrics: CdcBackfillMetrics) -> None:
    job = ImaginaryJob(vnodes=32768, ranges=131_072, workers=96)
    clock.now = time.time()
    reporter.show(job.report(job.at(0.55, just_read=20), replace(RUNNING, rows_per_second=812_000.0, lag_seconds=3.1)))


def _minutes(clock: Clock) -> Iterator[float]:
    """Fourteen minutes up to now, in steps of four seconds, with the clock in step."""
    for step in range(211):
        clock.now = time.time() - 840 + step * 4
        yield step * 4 / 60


def _steered(state: BackfillState) -> BackfillState:
    return replace(state, acknowledged=tuple(each for each in _ANSWERS if each.epoch <= state.epoch))


def _rate(minute: float) -> float:
    return 21_000 * (1 - math.exp(-minute * 2)) + 1_900 * math.sin(minute * 3.1) + 900 * math.sin(minute * 11.7)


def _lag(minute: float) -> float:
    return 1.4 + 0.5 * math.sin(minute * 4.3) + 2.2 * math.exp(-((minute - 6) ** 2) * 4)


if __name__ == "__main__":
    main(Path(sys.argv[1]), every="--every" in sys.argv)
