"""The case `idle`: what 300 tables that nothing happens to add to an epoch of a live job.

Two jobs copy their tables first, which is not measured: one has a busy table and one that rests, the other has the same
and 299 more that rest. Each is then run again and follows the busy table, which has an update of ten rows every tenth
of a second. The jobs take turns. What counts is the CPU time of the driver from one commit of the busy table to another
one `_SECONDS` later, divided by the epochs between them. Tables that rest have no epochs, so every commit is of the
busy table, and no other process takes part: a live job that is run again starts no JVM.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.bench import Bench
from benchmarks.recorder import Mark
from benchmarks.results import Figure, figure
from benchmarks.runs import Background, Job, background, read_marks
from benchmarks.source import DATABASE, Source

_CASE = "idle"
_IDLE, _ROWS = 300, 20
_SETTLED, _SECONDS, _PAUSE = 10.0, 30.0, 0.1
_BUSY = "idle_busy"


@dataclass(frozen=True, slots=True)
class _Epochs:
    """The mean epoch of a stretch: seconds, and CPU-seconds of the driver."""

    seconds: float
    cpu: float


def idle(bench: Bench) -> list[Figure]:
    """An epoch with 300 tables at rest, against one with a single table at rest."""
    bench.source.create_table(_BUSY, _ROWS)
    names = [f"idle_{number}" for number in range(_IDLE)]
    for name in names:
        bench.source.split_table(name, _BUSY, 0, _ROWS)
    few, many = (_live(bench, [_BUSY, *chosen]) for chosen in (names[:1], names))
    pairs = [(_followed(bench.source, few), _followed(bench.source, many)) for _ in range(bench.rounds)]
    for job in (few, many):
        shutil.rmtree(job.folder)
    added = [1000 * (after.cpu - before.cpu) for before, after in pairs]
    shares = [(after.cpu - before.cpu) / after.seconds for before, after in pairs]
    return [
        figure(_CASE, "an epoch with one table at rest", [1000 * before.cpu for before, _ in pairs], "CPU-ms"),
        figure(_CASE, f"an epoch with {_IDLE} at rest", [1000 * after.cpu for _, after in pairs], "CPU-ms"),
        figure(_CASE, f"{_IDLE - 1} tables at rest add to an epoch", added, "CPU-ms", goal="< 20"),
        figure(_CASE, "that is of the epoch's time", [100 * share for share in shares], "%", goal="< 2"),
        figure(_CASE, f"length of an epoch with {_IDLE} at rest", [after.seconds for _, after in pairs], "s"),
    ]


def _live(bench: Bench, names: Sequence[str]) -> Job:
    job = replace(bench.job(_BUSY), tables=tuple(f"{DATABASE}.{name}" for name in names))
    job.to_live()
    return job


def _followed(source: Source, job: Job) -> _Epochs:
    """Run the job, which is live, beside the updates, for as long as it takes to measure."""
    job.marks.unlink(missing_ok=True)
    with background(job.command(), job.folder) as running:
        while not _only_one_is_busy(job):
            _update_for(_SETTLED, source, running)
        began = time.monotonic()
        _update_for(_SECONDS, source, running)
    return _epochs([mark for mark in _commits(job) if began <= mark.at <= began + _SECONDS])


def _update_for(seconds: float, source: Source, running: Background) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        running.check_alive()
        source.execute(f"UPDATE {_BUSY} SET score = score + 1 WHERE id <= 10")
        time.sleep(_PAUSE)


def _commits(job: Job) -> list[Mark]:
    """The ends of epochs so far."""
    marks = read_marks(job.marks) if job.marks.exists() else ()
    return [mark for mark in marks if mark.name == "CommitEpoch" and mark.moment == "after"]


def _only_one_is_busy(job: Job) -> bool:
    """Whether every other table rests: each has an epoch when the job begins, and the busy one has one a second."""
    since, commits = time.monotonic() - _SETTLED, _commits(job)
    newest = [mark for mark in commits if mark.at >= since]
    return len(commits) > len(job.tables) and 1 < len(newest) < 1.5 * _SETTLED


def _epochs(ends: Sequence[Mark]) -> _Epochs:
    first, last, count = ends[0], ends[-1], len(ends) - 1
    return _Epochs((last.at - first.at) / count, (last.driver - first.driver) / count)
