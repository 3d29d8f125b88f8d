"""Alerts are raised before the harm, and only where one is coming."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from progress.faces.alerts import (
    Advances,
    Alert,
    AlertId,
    Retention,
    Sample,
    advances_of,
    alerts_of,
    binlog_retention,
    buffer_growth,
    carried_on,
    vnode_stalled,
)
from progress.faces.history import History
from progress.state.backfill_state import BackfillState, Controls, Failure
from progress.state.report import JobPhase, Report, Retry, Subject
from progress.state.tables_report import summed_up
from tests.job_reports import RUNNING, ImaginaryJob
from vnode_backfill.words.bitmap import reassign
from vnode_backfill.words.epoch import Epoch

_GB = 10**9
_JOB = ImaginaryJob(vnodes=16, ranges=64)


def samples(make: Callable[[float], Sample], seconds: int = 900, step: int = 10) -> list[Sample]:
    return [make(float(at)) for at in range(0, seconds + 1, step)]


def lagging(lag: Callable[[float], float], held: int | None, kept: float | None = None) -> list[Sample]:
    """The lag in bytes or, if only seconds are known of the log, in seconds."""

    def sample(at: float) -> Sample:
        retention = Retention(held, kept)
        if kept is not None:
            return Sample(at, JobPhase.SNAPSHOT, 50.0, 1, lag_seconds=lag(at), retention=retention)
        return Sample(at, JobPhase.SNAPSHOT, 50.0, 1, lag_bytes=int(lag(at)), retention=retention)

    return samples(sample)


def buffering(size: Callable[[float], float], phase: JobPhase = JobPhase.CATCH_UP) -> list[Sample]:
    return samples(lambda at: Sample(at, phase, 99.0, 1, buffer_bytes=int(size(at))))


def test_log_that_will_be_purged_before_it_is_captured_is_told() -> None:
    alert = binlog_retention(lagging(lambda at: 3 * _GB + at * 1e6, held=5 * _GB))
    assert alert is not None
    assert alert.id is AlertId.BINLOG_RETENTION
    assert "in about" in alert.message
    assert "binlog_expire_logs_seconds" in alert.hint


def test_time_left_of_the_log_is_forecast() -> None:
    alert = binlog_retention(lagging(lambda at: 1800 + at, held=None, kept=7200))
    assert alert is not None
    assert "in about 75 min" in alert.message
    assert "38%" in alert.message


@pytest.mark.parametrize(
    ("lag", "held"),
    [
        (lambda at: 3 * _GB - at * 1e6, 5 * _GB),
        (lambda at: 1e6 + at, 5 * _GB),
        (lambda _: 2 * _GB, 5 * _GB),
        (lambda _: 0, 0),
        (lambda at: 3 * _GB + at * 1e6, None),
    ],
    ids=[
        "it is being caught up",
        "it is small",
        "it does not grow and is far from the end",
        "nothing lags",
        "nobody looked",
    ],
)
def test_log_that_is_captured_in_time_is_no_alert(lag: Callable[[float], float], held: int | None) -> None:
    assert binlog_retention(lagging(lag, held)) is None


def test_lag_that_stands_still_near_the_end_is_told() -> None:
    alert = binlog_retention(lagging(lambda _: 9 * _GB, held=_GB))
    assert alert is not None
    assert "at any moment" in alert.message


def test_trend_needs_its_window() -> None:
    assert binlog_retention(lagging(lambda at: 3 * _GB + at * 1e6, held=5 * _GB)[:30]) is None


def test_buffer_that_only_grows_is_told() -> None:
    alert = buffer_growth(buffering(lambda at: 50e6 + at * 1e5))
    assert alert is not None
    assert "more than 10 min ago" in alert.message


@pytest.mark.parametrize(
    ("size", "phase"),
    [
        (lambda at: 50e6 + at * 1e5, JobPhase.SNAPSHOT),
        (lambda at: 50e6 + (at % 60) * 1e6, JobPhase.LIVE),
        (lambda at: 50e6 + at * 1e3, JobPhase.LIVE),
        (lambda at: 150e6 - at * 1e5, JobPhase.CATCH_UP),
    ],
    ids=["unread vnodes fill it", "it is emptied now and then", "it grows by little", "it shrinks"],
)
def test_buffer_that_is_merged_in_time_is_no_alert(size: Callable[[float], float], phase: JobPhase) -> None:
    assert buffer_growth(buffering(size, phase)) is None


def watched(*moments: tuple[float, BackfillState]) -> tuple[Advances, Report, float]:
    advances = Advances()
    for at, state in moments:
        report = _JOB.report(state)
        advances = advances_of(advances, report, at)
    return advances, report, at


def test_worker_that_reads_nothing_is_told_with_its_unread_vnodes() -> None:
    half = _JOB.at(0.5, epoch=5, just_read=0)
    ahead = _JOB.at(0.9, epoch=6, just_read=0)
    stuck = (*ahead.vnodes[:12], *half.vnodes[12:])
    alert = vnode_stalled(
        *watched((0.0, half), (300.0, replace(ahead, vnodes=stuck)), (700.0, replace(ahead, vnodes=stuck)))
    )
    assert alert is not None
    assert "of worker 3" in alert.message
    assert "have not advanced for 12 min" in alert.message
    assert alert.since == 600.0


def test_vnode_that_waits_its_turn_is_no_alert() -> None:
    moments = [(at * 100.0, _JOB.at(0.1 + at * 0.05, epoch=at + 1)) for at in range(15)]
    assert vnode_stalled(*watched(*moments)) is None


def test_vnode_left_behind_by_the_merges_of_others_is_told() -> None:
    before, after = _JOB.live(epoch=5), _JOB.live(epoch=9)
    left = (*after.vnodes[:3], before.vnodes[3], *after.vnodes[4:])
    alert = vnode_stalled(*watched((0.0, before), (650.0, replace(after, vnodes=left))))
    assert alert is not None
    assert alert.message.startswith("vnode 3 of worker 0 has not advanced")


def test_idle_live_job_is_no_alert() -> None:
    state = _JOB.live()
    assert vnode_stalled(*watched((0.0, state), (90_000.0, state))) is None


def test_job_that_is_held_is_no_alert() -> None:
    held = replace(_JOB.at(0.5, just_read=0), controls=Controls(paused=True))
    assert vnode_stalled(*watched((0.0, held), (5_000.0, held))) is None
    throttled = replace(RUNNING, throttled_by="Threads_running 61 is above 40")
    advances, _, at = watched((0.0, _JOB.at(0.5, just_read=0)), (5_000.0, _JOB.at(0.5, just_read=0)))
    assert vnode_stalled(advances, _JOB.report(_JOB.at(0.5, just_read=0), throttled), at) is None


def test_vnode_handed_to_another_worker_gets_its_time() -> None:
    half = _JOB.at(0.5, just_read=0)
    rescaled = replace(half, assignment=reassign(half.assignment, 8))
    alert = vnode_stalled(*watched((0.0, half), (590.0, rescaled), (700.0, rescaled)))
    assert alert is not None
    assert "of workers 0, 2, 3 have" in alert.message


def many(states: Mapping[str, BackfillState], *held: str) -> Report:
    """The report on a job of these tables, those among `held` paused."""

    def part(name: str, state: BackfillState) -> Report:
        state = replace(state, controls=Controls(paused=True)) if name in held else state
        return replace(_JOB.report(state), subject=Subject(name, name, ""))

    return summed_up(Subject("shop", "", ""), {name: part(name, state) for name, state in states.items()}, {}, RUNNING)


def stalled(*moments: tuple[float, Report]) -> Alert | None:
    advances = Advances()
    for at, report in moments:
        advances = advances_of(advances, report, at)
    return vnode_stalled(advances, report, at)


HALF = _JOB.at(0.5, epoch=5, just_read=0)


def test_table_that_is_not_read_is_told_though_others_are_live_and_merge() -> None:
    moments = [(at * 100.0, many({"a": _JOB.live(epoch=at + 1), "b": HALF, "c": HALF})) for at in range(9)]
    alert = stalled(*moments)
    assert alert is not None
    assert "of workers 0, 1, 2, 3 in b and 1 more table have not advanced for 13 min" in alert.message
    assert "status --per-vnode --table b`" in alert.hint
    ended = [(at, without_driver(report, "b", "c")) for at, report in moments]
    assert stalled(*ended) is None


def without_driver(report: Report, *names: str) -> Report:
    """The report when these tables have ended: their phase may be what it was."""
    parts = {
        name: replace(part, observed=replace(part.observed, driver="")) if name in names else part
        for name, part in report.parts.items()
    }
    return replace(report, parts=parts)


def test_table_waits_while_its_workers_read_others_and_after_these_are_live() -> None:
    reading = [(at * 100.0, many({"a": _JOB.at(0.1 + at * 0.05, epoch=at + 1), "b": _JOB.start})) for at in range(15)]
    assert stalled(*reading) is None
    live = [(1500.0, many({"a": _JOB.live(), "b": _JOB.start})), (1900.0, many({"a": _JOB.live(), "b": _JOB.start}))]
    assert stalled(*reading, *live) is None
    assert stalled(*reading, *live, (2100.0, many({"a": _JOB.live(), "b": _JOB.start}))) is not None


def test_table_that_is_held_is_no_alert_and_hides_no_other() -> None:
    held = {"a": HALF, "b": HALF}
    assert stalled(*((at, many(held, "a", "b")) for at in (0.0, 5_000.0))) is None
    alert = stalled(*((at, many(held, "a")) for at in (0.0, 5_000.0)))
    assert alert is not None
    assert "in b have" in alert.message


def test_vnode_of_one_table_left_behind_by_its_others_is_told() -> None:
    def catching_up(state: BackfillState) -> Report:
        report = many({"a": _JOB.live(), "b": state})
        return replace(report, parts={**report.parts, "b": replace(report.parts["b"], phase=JobPhase.CATCH_UP)})

    before, after = _JOB.live(epoch=5), _JOB.live(epoch=9)
    left = (*after.vnodes[:3], before.vnodes[3], *after.vnodes[4:])
    alert = stalled((0.0, catching_up(before)), (650.0, catching_up(replace(after, vnodes=left))))
    assert alert is not None
    assert alert.message.startswith("vnode 3 of worker 0 in b has not advanced")


def buffered(sizes: Mapping[str, tuple[JobPhase, int]], at: float, before: Sample | None = None) -> Sample:
    parts = {
        name: replace(_JOB.report(_JOB.live(), replace(RUNNING, buffer_bytes=size)), phase=phase)
        for name, (phase, size) in sizes.items()
    }
    return Sample.of(summed_up(Subject("shop", "", ""), parts, {}, RUNNING), at, before=before)


def test_buffer_that_grows_is_told_though_another_table_is_still_read() -> None:
    def sample(at: float) -> Sample:
        return buffered({"a": (JobPhase.LIVE, int(50e6 + at * 1e5)), "b": (JobPhase.SNAPSHOT, 10**9)}, at)

    found = samples(sample)
    assert {each.phase for each in found} == {JobPhase.SNAPSHOT}
    alert = buffer_growth(found)
    assert alert is not None
    assert "MB more than 10 min ago" in alert.message
    assert buffer_growth(samples(lambda at: buffered({"a": (JobPhase.SNAPSHOT, int(at * 1e6))}, at))) is None


def test_buffer_of_a_table_that_has_been_read_is_not_growth() -> None:
    def sample(at: float) -> Sample:
        phases = {
            name: JobPhase.CATCH_UP if at >= since else JobPhase.SNAPSHOT for name, since in (("b", 400), ("c", 650))
        }
        return buffered({"a": (JobPhase.LIVE, 10**6), **{name: (phase, 10**9) for name, phase in phases.items()}}, at)

    assert buffer_growth(samples(sample)) is None


def test_names_of_tables_are_held_once_for_all_samples() -> None:
    first = buffered({"a": (JobPhase.LIVE, 1), "b": (JobPhase.LIVE, 1)}, 1.0)
    second = buffered({"a": (JobPhase.LIVE, 2), "b": (JobPhase.LIVE, 2)}, 2.0, first)
    assert first.merging is not None
    assert second.merging is not None
    assert second.merging.tables is first.merging.tables


def test_alert_keeps_the_time_since_when() -> None:
    first = Alert(AlertId.BUFFER_GROWTH, 100.0, "120 MB", "")
    assert carried_on([first], [replace(first, since=160.0, message="150 MB")]) == (replace(first, message="150 MB"),)
    assert carried_on([first], []) == ()


def test_job_that_ended_has_no_alerts() -> None:
    state = _JOB.at(0.5)
    advances, _, _ = watched((0.0, state), (5_000.0, state))
    ended = _JOB.report(replace(state, failure=Failure(Epoch(5), "it broke")), replace(RUNNING, driver=""))
    assert alerts_of([Sample.of(ended, 5_000.0)], advances, ended) == ()


def fed(seconds: Sequence[float], make: Callable[[float], Report]) -> History:
    history = History()
    for at in seconds:
        history.add(make(at), at)
    return history


def test_history_of_a_long_run_stays_bounded_and_even() -> None:
    history = fed([float(at) for at in range(20_000)], lambda _: _JOB.report(None))
    assert len(history.whole) <= 721
    assert len(history.recent) <= 901
    gaps = {round(later.at - sooner.at) for sooner, later in zip(history.whole, history.whole[1:], strict=False)}
    assert gaps == {32}


def test_history_samples_once_a_second_however_often_it_is_told() -> None:
    history = fed([at / 4 for at in range(40)], lambda _: _JOB.report(_JOB.start))
    assert len(history.recent) == 10


def test_history_knows_epochs_and_what_they_read() -> None:
    history = fed([0.0, 10.0, 11.0, 22.0], lambda at: _JOB.report(_JOB.at(0.2 + at / 100, epoch=3 + int(at // 10))))
    newest, older = history.epochs
    assert (newest.epoch, newest.seconds) == (5, 12.0)
    assert (older.epoch, older.seconds) == (4, 10.0)
    assert older.rows > 0


def test_history_tells_a_trouble_once_while_it_goes_on() -> None:
    def report(at: float) -> Report:
        lost = Retry(1 + int(at), "connection lost")
        return _JOB.report(_JOB.start, replace(RUNNING, retry=lost if at < 5 else Retry(1, "disk full")))

    disk, lost = fed([float(at) for at in range(7)], report).troubles
    assert (disk.message, disk.attempts) == ("disk full", 1)
    assert (lost.message, lost.attempts, lost.first_at, lost.last_at) == ("connection lost", 5, 0.0, 4.0)


def test_history_forgets_alerts_when_the_job_ends() -> None:
    state = _JOB.at(0.5, just_read=0)
    history = fed([0.0, 700.0], lambda _: _JOB.report(state))
    assert [alert.id for alert in history.alerts] == [AlertId.VNODE_STALLED]
    history.add(_JOB.report(replace(state, failure=Failure(Epoch(5), "it broke")), replace(RUNNING, driver="")), 700.5)
    assert history.alerts == ()


def test_epochs_that_take_longer_are_told_with_the_reason_and_what_to_turn() -> None:
    history = History()
    slower = replace(RUNNING, lengthened=4, lengthened_by="the target's log grew by 70 MB in a minute")
    history.add(_JOB.report(_JOB.live(), slower), 10.0)
    (alert,) = history.alerts
    assert alert.id is AlertId.EPOCHS_LENGTHENED
    assert "4 times as long as configured: the target's log grew by 70 MB" in alert.message
    assert "epoch.live" in alert.hint
    assert "sink.delta.target_file_size" in alert.hint
    history.add(_JOB.report(_JOB.live(), RUNNING), 20.0)
    assert history.alerts == ()
