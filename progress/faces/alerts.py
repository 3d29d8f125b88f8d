"""Decides which alerts a job raises: what will go wrong if nobody acts, while there is still time to act.

These are pure functions over samples and over how the vnodes moved; the caller has the clock and passes the times.
There are four alerts:

- `binlog-retention`: the source will purge log before it is captured. The measure is the lag of capture as a share of
  the log that is kept, in bytes or in seconds, whichever is larger:

        captured    behind 3 GB of 8 GB kept        38 %, and rising: gone in about 40 min      alert
        captured    behind 3 GB of 8 GB kept        38 %, and falling: captured first           none

- `buffer-growth`: the buffer grows faster than it is merged. It is raised only once every range is read. Until then the
  changes of unread vnodes have to wait, and a growing buffer is as planned.
- `vnode-stalled`: a vnode does not advance. A vnode that is not read yet may wait its turn for hours, so it counts as
  stalled when its worker reads nothing at all. A vnode that merges is stalled when the others advance without it.
- `epochs-lengthened`: epochs take longer than configured, because the target's log grows too fast or its files are not
  folded as fast as they wear. The target is then older than it need be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from progress.state.backfill_state import Phase
from progress.state.report import JobPhase, Report, VnodeProgress
from vnode_backfill.words.bitmap import VnodeBitmap
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.units import MB

_READING = (Phase.PENDING, Phase.SNAPSHOT)
RUNNING_PHASES = (JobPhase.SNAPSHOT, JobPhase.CATCH_UP, JobPhase.LIVE, JobPhase.PAUSED)
"""In any other phase no work is in progress that an alert could save."""


class AlertId(StrEnum):
    BINLOG_RETENTION = "binlog-retention"
    BUFFER_GROWTH = "buffer-growth"
    VNODE_STALLED = "vnode-stalled"
    EPOCHS_LENGTHENED = "epochs-lengthened"


@dataclass(frozen=True, slots=True)
class Alert:
    """A harm that is coming; `since` is when it was first known, in seconds since 1970."""

    id: AlertId
    since: float
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the source keeps its log: bytes from the oldest position still held to the one captured, and seconds."""

    held_bytes: int | None = None
    seconds: float | None = None


RETENTION_UNKNOWN = Retention()


@dataclass(frozen=True, slots=True)
class Sample:
    """The moving figures of one report, at a time in seconds since 1970; None where nobody looked."""

    at: float
    phase: JobPhase
    percent: float
    rows: int
    rows_per_second: float | None = None
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    buffer_bytes: int | None = None
    retention: Retention = RETENTION_UNKNOWN

    @classmethod
    def of(cls, report: Report, at: float, retention: Retention = RETENTION_UNKNOWN) -> Sample:
        seen = report.observed
        return cls(
            at, report.phase, report.percent, report.rows, seen.rows_per_second, seen.lag_seconds, seen.lag_bytes,
            seen.buffer_bytes, retention,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Advance:
    """A vnode as it was last seen; `read_at` is when its reading last moved, `moved_at` when anything of it did."""

    seen: VnodeProgress
    read_at: float
    moved_at: float


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a warning is due; durations in seconds."""

    window: float = 600.0
    """The stretch a trend is measured over; a shorter history shows no trend."""
    watched_share: float = 0.2
    """Below this share of the kept log, a growing lag is not a danger yet."""
    alarming_share: float = 0.8
    """From this share on, a lag that does not shrink is a danger."""
    growth_bytes: int = 16 * MB
    patience: float = 600.0
    """How long a vnode may make no progress."""


USUAL = Thresholds()


def alerts_of(
    samples: Sequence[Sample],
    advances: Mapping[VnodeId, Advance],
    report: Report,
    thresholds: Thresholds = USUAL,
) -> tuple[Alert, ...]:
    """What is wrong at the newest sample, by id. `samples` are in order of time."""
    if not samples or report.phase not in RUNNING_PHASES:
        return ()
    found = (
        binlog_retention(samples, thresholds),
        buffer_growth(samples, thresholds),
        vnode_stalled(advances, report, samples[-1].at, thresholds),
        epochs_lengthened(report, samples[-1].at),
    )
    return tuple(alert for alert in found if alert is not None)


def carried_on(before: Iterable[Alert], now: Iterable[Alert]) -> tuple[Alert, ...]:
    """The alerts of now; one that was raised before keeps its `since`."""
    since = {alert.id: alert.since for alert in before}
    return tuple(replace(alert, since=min(alert.since, since.get(alert.id, alert.since))) for alert in now)


def binlog_retention(samples: Sequence[Sample], thresholds: Thresholds = USUAL) -> Alert | None:
    """Capture lags behind by a dangerous share of what the source keeps, and is not catching up."""
    known = [(sample.at, share) for sample in samples if (share := _used_share(sample)) is not None]
    trend = _within(known, thresholds.window)
    if trend is None:
        return None
    (start, before), (end, share) = trend[0], trend[-1]
    growth = (share - before) / (end - start)
    if share < (thresholds.watched_share if growth > 0 else thresholds.alarming_share) or growth < 0:
        return None
    left = f"in about {_duration((1 - share) / growth)}" if growth > 0 and share < 1 else "at any moment"
    return Alert(
        AlertId.BINLOG_RETENTION,
        end,
        f"the source will purge log that is not captured yet {left}: "
        f"capture lags behind by {share:.0%} of what is kept",
        "Keep the log longer at the source (binlog_expire_logs_seconds), or speed capture up: raise limits.log_readers "
        "or slow the copying down with `vnode-backfill throttle --rows-per-second …`.",
    )


def buffer_growth(samples: Sequence[Sample], thresholds: Thresholds = USUAL) -> Alert | None:
    """The buffer's lowest size rises from each third of the window to the next, though all ranges are read."""
    merging = [s for s in samples if s.phase in (JobPhase.CATCH_UP, JobPhase.LIVE)]
    known = [(sample.at, float(sample.buffer_bytes)) for sample in merging if sample.buffer_bytes is not None]
    trend = _within(known, thresholds.window)
    if trend is None or len(trend) < 6:
        return None
    third = len(trend) // 3
    # The buffer's size is a sawtooth: it grows with each epoch and falls with each trim. Only the lowest sizes show a
    # trend.
    first, second, last = (
        min(size for _, size in part) for part in (trend[:third], trend[third:-third], trend[-third:])
    )
    if not first < second < last or last - first < max(thresholds.growth_bytes, first / 10):
        return None
    over = _duration(trend[-1][0] - trend[0][0])
    return Alert(
        AlertId.BUFFER_GROWTH,
        trend[-1][0],
        f"the buffer grows faster than it is merged: {last / MB:,.0f} MB, {(last - first) / MB:,.0f} MB more than "
        f"{over} ago",
        "Spread the merge over more workers with `vnode-backfill rescale --workers …`, and compact the target if it "
        "has many small files.",
    )


def advances_of(before: Mapping[VnodeId, Advance], report: Report, at: float) -> dict[VnodeId, Advance]:
    """Which vnodes moved since `before`, and when those that did not last have."""

    def advance(seen: VnodeProgress) -> Advance:
        known = before.get(seen.vnode)
        if known is None:
            return Advance(seen, at, at)
        if known.seen.worker != seen.worker:
            # A rescale: the time of the new worker begins now.
            known = replace(known, read_at=at)
        if (known.seen.phase, known.seen.epoch, known.seen.applied) == (seen.phase, seen.epoch, seen.applied):
            return replace(known, seen=seen)
        return Advance(seen, at if known.seen.phase in _READING else known.read_at, at)

    return {seen.vnode: advance(seen) for seen in report.vnodes}


def vnode_stalled(
    advances: Mapping[VnodeId, Advance], report: Report, at: float, thresholds: Thresholds = USUAL
) -> Alert | None:
    """Vnodes that should have advanced and have not for as long as patience lasts."""
    waiting = report.paused or report.rate_limit == 0 or bool(report.observed.throttled_by)
    stalled = [] if waiting else _stalled_reading(advances.values(), at - thresholds.patience)
    stalled += _stalled_merging(advances.values(), report.phase, at, thresholds.patience)
    if not stalled:
        return None
    vnodes = VnodeBitmap.of((seen.vnode for seen, _ in stalled), max(advances) + 1)
    since = min(since for _, since in stalled)
    workers = sorted({seen.worker for seen, _ in stalled})
    named = ", ".join(map(str, workers[:8])) + (", …" if len(workers) > 8 else "")
    return Alert(
        AlertId.VNODE_STALLED,
        since + thresholds.patience,
        f"{'vnode' if len(vnodes) == 1 else 'vnodes'} {vnodes.named()} of "
        f"{'worker' if len(workers) == 1 else 'workers'} {named} "
        f"{'has' if len(vnodes) == 1 else 'have'} not advanced for {_duration(at - since)}",
        "See `vnode-backfill status --per-vnode`. A query that hangs at the source can be killed there: the epoch is "
        "then tried again.",
    )


def epochs_lengthened(report: Report, at: float) -> Alert | None:
    """The driver has made epochs longer than configured."""
    seen = report.observed
    if seen.lengthened == 1:
        return None
    return Alert(
        AlertId.EPOCHS_LENGTHENED,
        at,
        f"epochs take {seen.lengthened} times as long as configured: {seen.lengthened_by}",
        "Raise epoch.live to what the target can bear. Larger files (sink.delta.target_file_size) make commits "
        "shorter. Folds need a core and a disk that keep up: `vnode-backfill compact` helps from another machine.",
    )


def _stalled_reading(advances: Iterable[Advance], limit: float) -> list[tuple[VnodeProgress, float]]:
    """The unread vnodes of workers that have read nothing since `limit`, and when those last did."""
    lanes: dict[int, list[Advance]] = defaultdict(list)
    for advance in advances:
        lanes[advance.seen.worker].append(advance)
    return [
        (advance.seen, read_at)
        for lane in lanes.values()
        if (read_at := max(each.read_at for each in lane)) <= limit
        for advance in lane
        if advance.seen.phase in _READING
    ]


def _stalled_merging(
    advances: Iterable[Advance], phase: JobPhase, at: float, patience: float
) -> list[tuple[VnodeProgress, float]]:
    """Vnodes left behind by the others. While the job catches up all must advance; once live, the source may idle."""
    merging = [advance for advance in advances if advance.seen.phase not in _READING]
    newest = at if phase is JobPhase.CATCH_UP else max((each.moved_at for each in merging), default=at)
    return [(advance.seen, advance.moved_at) for advance in merging if newest - advance.moved_at >= patience]


def _used_share(sample: Sample) -> float | None:
    """How much of the kept log capture lags behind, 0 to 1; by bytes or by time, whichever is closer to the end."""
    shares = []
    held, kept = sample.retention.held_bytes, sample.retention.seconds
    if held is not None and sample.lag_bytes:
        shares.append(sample.lag_bytes / (max(held, 0) + sample.lag_bytes))
    if kept and sample.lag_seconds is not None:
        shares.append(min(sample.lag_seconds / kept, 1.0))
    return max(shares, default=None)


def _within(points: Sequence[tuple[float, float]], window: float) -> Sequence[tuple[float, float]] | None:
    """The points of the last `window` seconds; None if they do not reach back that far."""
    if len(points) < 2 or points[-1][0] - points[0][0] < window:
        return None
    begin = points[-1][0] - window
    first = max(index for index, (at, _) in enumerate(points) if at <= begin)
    return points[first:]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{timedelta(seconds=seconds).days} days"
