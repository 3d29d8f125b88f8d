"""Decides which files of a table with deletion vectors are written again, and when.

Each merge leaves one small file and longer vectors. Both must be paid back, or reading gets slower for ever. What is
paid back too early costs more than it brings. So:

- **Fold** a file when the vectors written for it since it was written have as many bytes as the file, and at the latest
  when a tenth of its rows is gone. A vector is cumulative: each commit writes a file's earlier deletes again, so the
  bytes grow with the square of the commits, while a fold costs the file's size. Paid back when both are equal, the
  total is the smallest, and grows with the square root of the table.
- **Join** files of about the same size, eight at a time. Each row is then written once per tier, not once per join.
  Sixteen at a time would write each row once less, and leave twice as many small files for every reader to open.
- **Join neighbours** of any size when there are more small files than the policy allows, as in a table without vectors.
  Tiers alone leave up to seven files each, 35 with the usual target size. Whoever wants fewer pays with more writing.

Tiers of 8 times the size, files of about 20 KB that come with each merge:

    20 KB × 8 → 160 KB × 8 → 1.3 MB × 8 → 10 MB × 8 → 80 MB: a row is written four times until its file is large
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import log

from progress.state.target_health import VectorHealth
from vnode_backfill.delta.files import DataFile
from vnode_backfill.sinks.changes import comparable
from vnode_backfill.sinks.delta.compaction import CompactionPolicy, compaction_due, in_key_order
from vnode_backfill.sinks.delta.reshape import Reshape

GONE_AT_MOST = 10
"""A file is folded when one in so many of its rows is gone."""
WORTH_BYTES = 1024 * 1024
"""A smaller file is not worth a commit of its own for the rows it has lost: the next join leaves them out."""
JOINED = 8
_TIER_BYTES = 64 * 1024
_WAITING_JOINS = 4
"""Where so many joins wait, they come before a fold."""
_MOST_WIDE = 64
_WIDE_BYTES = 32 * 1024 * 1024
"""One fold looks into so many wide files of so many bytes together at most: the rows it takes are held in memory."""
_WIDE_SHARE = 2
"""A file gives rows to a fold only if it is smaller than this part of the folded one."""


def is_worn(file: DataFile) -> bool:
    """Whether a fold of this file is due."""
    if file.vector is None:
        return False
    tenth = file.rows is not None and file.vector.cardinality * GONE_AT_MOST >= file.rows
    return (tenth and file.size >= WORTH_BYTES) or file.vector_bytes >= max(file.size, WORTH_BYTES)


def vector_health(files: Sequence[DataFile]) -> VectorHealth:
    """How much of these files is gone, and how much is due to be written again."""
    gone = sum(file.vector.cardinality for file in files if file.vector is not None)
    return VectorHealth(gone, sum(file.size for file in files if is_worn(file)))


def next_reshapes(files: Sequence[DataFile], policy: CompactionPolicy) -> tuple[Reshape, ...]:
    """The reshapes of the next commit: the fold of the most worn file, else joins of small files; none if none is due.

    Where many joins wait, they come first: every small file that spans all keys makes each merge dearer. Small files
    are joined tier by tier where the policy allows as many as there are, else with their neighbours. No file is in two
    reshapes.
    """
    worn, tiers = _worn(files, policy), list(_tiers(files, policy))
    if worn and len(tiers) < _WAITING_JOINS:
        return (fold_of(max(worn, key=_wear), files),)
    wanted = compaction_due(files, policy)
    if wanted is not None:
        return tuple(Reshape(group) for group in wanted.step(policy.step_bytes))
    return tuple(Reshape(tuple(group)) for group in tiers[:1])


def due_files(files: Sequence[DataFile], policy: CompactionPolicy) -> int:
    """How many files wait to be written again."""
    wanted = compaction_due(files, policy)
    joins = wanted.files if wanted is not None else sum(map(len, _tiers(files, policy)))
    return len(_worn(files, policy)) + joins


def _worn(files: Sequence[DataFile], policy: CompactionPolicy) -> list[DataFile]:
    return [file for file in files if is_worn(file) or (policy.folds_all and file.vector is not None)]


def fold_of(base: DataFile, files: Sequence[DataFile]) -> Reshape:
    """Write this file again with the rows of its key range out of the smaller files that overlap it."""
    low, high = base.low[0] if base.low else None, base.high[0] if base.high else None
    if low is None or high is None:
        return Reshape((base,))
    smaller = [file for file in files if file.path != base.path and file.size * _WIDE_SHARE < base.size]
    wide = _affordable(sorted((file for file in smaller if _overlaps(file, base)), key=lambda file: -file.size))
    return Reshape((base,), wide, low, high) if wide else Reshape((base,))


def _affordable(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """As many of the files, from the first on, as one fold looks into."""
    sizes = accumulate(file.size for file in files)
    return tuple(file for file, size in zip(files[:_MOST_WIDE], sizes, strict=False) if size <= _WIDE_BYTES)


def _wear(file: DataFile) -> float:
    gone = 0.0 if file.vector is None or not file.rows else file.vector.cardinality * GONE_AT_MOST / file.rows
    return max(gone, file.vector_bytes / max(file.size, 1))


def _overlaps(file: DataFile, base: DataFile) -> bool:
    bounds = (file.low[0], file.high[0], base.low[0], base.high[0])
    low, high, lowest, highest = bounds
    if low is None or high is None or lowest is None or highest is None:
        return False
    return bool(comparable(low) <= comparable(highest, up=True) and comparable(high, up=True) >= comparable(lowest))


def _tiers(files: Sequence[DataFile], policy: CompactionPolicy) -> Iterator[list[DataFile]]:
    """Groups of eight neighbours of about the same size, the smallest first."""
    tiers: dict[int, list[DataFile]] = {}
    for file in files:
        if policy.is_small(file):
            tiers.setdefault(_tier(file), []).append(file)
    for _, members in sorted(tiers.items()):
        if len(members) >= JOINED:
            ordered = in_key_order(members)
            for start in range(0, len(ordered) - JOINED + 1, JOINED):
                yield list(ordered[start : start + JOINED])


def _tier(file: DataFile) -> int:
    return max(0, int(log(max(file.size, 1) / _TIER_BYTES, JOINED)) + 1) if file.size > _TIER_BYTES else 0
