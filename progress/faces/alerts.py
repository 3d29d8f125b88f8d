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

In a job of many tables each alert is about the table that is worst. Vnodes and phases of a sum say nothing about one of
its tables, so `vnode-stalled` looks at each table that is not live. A worker reads ranges of all tables in turn, so it
is stalled when it reads nothing of any of them. `buffer-growth` looks at the tables that are read, as long as they are
the same ones: one that is still read must not silence it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from itertools import takewhile

from progress.state.backfill_state import Phase
from progress.state.report import JobPhase, Report, VnodeProgress
from vnode_backfill.words.bitmap import VnodeBitmap
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.units import MB

_READING = (Phase.PENDING, Phase.SNAPSHOT)
RUNNING_PHASES = (JobPhase.SNAPSHOT, JobPhase.CATCH_UP, JobPhase.LIVE, JobPhase.PAUSED)
"""In any other phase no work is in progress that an alert could save."""
_MERGING_PHASES = (JobPhase.CATCH_UP, JobPhase.LIVE)
_NOT_LIVE_PHASES = (JobPhase.SNAPSHOT, JobPhase.CATCH_UP, JobPhase.PAUSED)
"""A table of many that is live has all its vnodes at one offset: none of them can be left behind."""
_ONE_TABLE = ""
"""The name of the table in a job of one."""


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
    merging: Merging | None = None
    """Of a job of many tables: what waits for those that are read."""

    @classmethod
    def of(
        cls, report: Report, at: float, retention: Retention = RETENTION_UNKNOWN, before: Sample | None = None
    ) -> Sample:
        """The figures of a report. A sample `before` it lends the names of tables, which are the same most times."""
        seen = report.observed
        return cls(
            at, report.phase, report.percent, report.rows, seen.rows_per_second, seen.lag_seconds, seen.lag_bytes,
            seen.buffer_bytes, retention, _merging(report, before),
        )  # fmt: skip

    @property
    def merging_bytes(self) -> int | None:
        """How much waits in the buffer of what is read, and so could be merged; None if nothing is, or nobody looked.

        While a table is read, the changes of its unread vnodes have to wait, and a growing buffer is as planned.
        """
        if self.merging is not None:
            return self.merging.buffer_bytes
        return self.buffer_bytes if self.phase in _MERGING_PHASES else None


@dataclass(frozen=True, slots=True)
class Merging:
    """The tables of many that are read, and the size of the changes that wait for them."""

    tables: tuple[str, ...]
    buffer_bytes: int | None


@dataclass(frozen=True, slots=True)
class Advance:
    """A vnode as it was last seen; `read_at` is when its reading last moved, `moved_at` when anything of it did."""

    seen: VnodeProgress
    read_at: float
    moved_at: float


@dataclass(frozen=True, slots=True)
class TableAdvances:
    """The vnodes of one table: as they were shown last, and when each has advanced.

    `read_at` is when each worker last read something of the table, `moved_at` when that vnode moved that has not moved
    for longest.
    """

    shown: tuple[VnodeProgress, ...] = ()
    vnodes: Mapping[VnodeId, Advance] = field(default_factory=dict)
    read_at: Mapping[int, float] = field(default_factory=dict)
    moved_at: float = math.inf


@dataclass(frozen=True, slots=True)
class Advances:
    """How the vnodes of a job advance, by table, and when each worker last read something of any table."""

    tables: Mapping[str, TableAdvances] = field(default_factory=dict)
    read_at: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Stalled:
    """A vnode that does not advance, and since when."""

    table: str
    seen: VnodeProgress
    since: float


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
    advances: Advances,
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
    known = [(s.at, float(size)) for s in _of_same_tables(samples) if (size := s.merging_bytes) is not None]
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


def advances_of(before: Advances, report: Report, at: float) -> Advances:
    """Which vnodes moved since `before`, and when those that did not last have."""
    tables = {
        name: _table_advances(before.tables.get(name, TableAdvances()), part.vnodes, at)
        for name, part in _watched(report).items()
    }
    read_at = dict(before.read_at)
    for table in tables.values():
        for worker, read in table.read_at.items():
            read_at[worker] = max(read_at.get(worker, read), read)
    return Advances(tables, read_at)


def _table_advances(before: TableAdvances, shown: tuple[VnodeProgress, ...], at: float) -> TableAdvances:
    if before.shown is shown:
        # Most tables of many are shown as they were.
        return before
    vnodes = {seen.vnode: _advance(before.vnodes.get(seen.vnode), seen, at) for seen in shown}
    read_at: dict[int, float] = {}
    for advance in vnodes.values():
        worker = advance.seen.worker
        read_at[worker] = max(read_at.get(worker, advance.read_at), advance.read_at)
    moved_at = min((advance.moved_at for advance in vnodes.values()), default=math.inf)
    return TableAdvances(shown, vnodes, read_at, moved_at)


def _advance(known: Advance | None, seen: VnodeProgress, at: float) -> Advance:
    if known is None:
        return Advance(seen, at, at)
    if known.seen.worker != seen.worker:
        # A rescale: the time of the new worker begins now.
        known = replace(known, read_at=at)
    if (known.seen.phase, known.seen.epoch, known.seen.applied) == (seen.phase, seen.epoch, seen.applied):
        return replace(known, seen=seen)
    return Advance(seen, at if known.seen.phase in _READING else known.read_at, at)


def _watched(report: Report) -> Mapping[str, Report]:
    """The tables whose vnodes are to advance, each one's report by its name."""
    return _driven(report, _NOT_LIVE_PHASES) if report.parts else {_ONE_TABLE: report}


def _driven(report: Report, phases: Sequence[JobPhase]) -> dict[str, Report]:
    """The tables of many that are in one of these phases. One that has ended stays in its phase, without a driver."""
    return {name: part for name, part in report.parts.items() if part.observed.driver and part.phase in phases}


def vnode_stalled(advances: Advances, report: Report, at: float, thresholds: Thresholds = USUAL) -> Alert | None:
    """Vnodes that should have advanced and have not for as long as patience lasts."""
    limit = at - thresholds.patience
    idle = {worker: read for worker, read in advances.read_at.items() if read <= limit}
    stalled: list[_Stalled] = []
    for name, part in _watched(report).items():
        table = advances.tables.get(name, TableAdvances())
        if idle and not _is_held(part, report):
            stalled += [_Stalled(name, *found) for found in _stalled_reading(table.vnodes.values(), idle)]
        if table.moved_at <= limit:
            found_merging = _stalled_merging(table.vnodes.values(), part.phase, at, thresholds.patience)
            stalled += [_Stalled(name, *found) for found in found_merging]
    return _stalled_alert(stalled, at, thresholds.patience) if stalled else None


def _is_held(part: Report, job: Report) -> bool:
    """Whether somebody holds the reading of a table."""
    return part.paused or part.rate_limit == 0 or bool(job.observed.throttled_by)


def _stalled_alert(stalled: Sequence[_Stalled], at: float, patience: float) -> Alert:
    numbers = {each.seen.vnode for each in stalled}
    vnodes, since = VnodeBitmap.of(numbers, max(numbers) + 1), min(each.since for each in stalled)
    workers = sorted({each.seen.worker for each in stalled})
    named = ", ".join(map(str, workers[:8])) + (", …" if len(workers) > 8 else "")
    tables = sorted({each.table for each in stalled} - {_ONE_TABLE})
    only = f" --table {shlex.quote(tables[0])}" if tables else ""
    return Alert(
        AlertId.VNODE_STALLED,
        since + patience,
        f"{'vnode' if len(vnodes) == 1 else 'vnodes'} {vnodes.named()} of "
        f"{'worker' if len(workers) == 1 else 'workers'} {named}{_in_tables(tables)} "
        f"{'has' if len(vnodes) == 1 else 'have'} not advanced for {_duration(at - since)}",
        f"See `vnode-backfill status --per-vnode{only}`. A query that hangs at the source can be killed there: the epoch "
        "is then tried again.",
    )


def _in_tables(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = len(names) - 1
    return f" in {names[0]}" + (f" and {more} more {'table' if more == 1 else 'tables'}" if more else "")


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


def _stalled_reading(advances: Iterable[Advance], idle: Mapping[int, float]) -> list[tuple[VnodeProgress, float]]:
    """The unread vnodes of workers that read nothing, and when those last did."""
    seen = (advance.seen for advance in advances if advance.seen.phase in _READING)
    return [(each, idle[each.worker]) for each in seen if each.worker in idle]


def _stalled_merging(
    advances: Iterable[Advance], phase: JobPhase, at: float, patience: float
) -> list[tuple[VnodeProgress, float]]:
    """Vnodes left behind by the others. While the job catches up all must advance; once live, the source may idle."""
    merging = [advance for advance in advances if advance.seen.phase not in _READING]
    newest = at if phase is JobPhase.CATCH_UP else max((each.moved_at for each in merging), default=at)
    return [(advance.seen, advance.moved_at) for advance in merging if newest - advance.moved_at >= patience]


def _merging(report: Report, before: Sample | None) -> Merging | None:
    """What waits for the tables of many that are read; None of a job of one."""
    if not report.parts:
        return None
    parts = _driven(report, _MERGING_PHASES)
    sizes = [size for part in parts.values() if (size := part.observed.buffer_bytes) is not None]
    tables = tuple(parts)
    if before is not None and before.merging is not None and before.merging.tables == tables:
        tables = before.merging.tables
    return Merging(tables, sum(sizes) if sizes else None)


def _of_same_tables(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The newest samples that are about the same tables: a table that joins them brings changes that had to wait."""
    tables = _tables_of(samples[-1]) if samples else ()
    count = sum(1 for _ in takewhile(lambda sample: _tables_of(sample) == tables, reversed(samples)))
    return list(samples)[len(samples) - count :]


def _tables_of(sample: Sample) -> tuple[str, ...]:
    return () if sample.merging is None else sample.merging.tables


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
