"""Joins the small files of a Delta table, neighbours in key order, up to the target size, and changes nothing else.

What must be true: the table holds the same rows before and after, also while a job writes to it, also after a kill -9.
Why it is:

- A data file never changes. So a join is right as long as every file it was made from is still part of the table,
  whatever else was committed since. If some of them were removed meanwhile, the commit that removed them has put their
  rows elsewhere. So their rows are taken out of the join again, which is quickly done, or a large join is given up.
- What was joined becomes visible in one commit. Before it the new files belong to nobody, and are swept up later.

A table's files come in key order from the snapshot, one per range, and stay so when changes rewrite them in place. Rows
with new keys in between make files whose bounds span many others. Joined with a neighbour they would take its tight
bounds away, so they are joined among themselves. Target 10, files as key bounds and size:

    0-9 (4)   10-19 (3)   20-29 (2)   30-39 (4)   3-35 (1)   5-38 (1)   40-99 (9)
    └──────── 0-29 (9) ────────┘      30-39 (4)   └─ 3-38 (2) ─┘        40-99 (9)

Bounds are compared as Python compares them, text by its characters: the order that Delta's readers prune by, not a
collation's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs

from vnode_backfill.delta.files import DataFile, FileReceipt, Value
from vnode_backfill.delta.parquet import FileLayout, read_batches, unique_stem, write_files
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.delta.sweep import UNCOMMITTED_HOURS
from vnode_backfill.sinks.changes import STAGED_FOLDER, comparable
from vnode_backfill.words.errors import LawBrokenError

if TYPE_CHECKING:
    from _typeshed import SupportsAllComparisons

Flags = npt.NDArray[np.bool_]

STEP_BYTES = 256 * 1024 * 1024
"""As much as is joined in one commit: about three seconds of two cores."""
BRIEF_BYTES = 32 * 1024 * 1024
_OPENING_BYTES = 256 * 1024
"""Opening a file costs as much as reading and writing this many bytes."""
_WIDE = 8
"""A file is wide if this many others begin and this many others end within its bounds."""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When to join and how far: at the latest above `small_files` files of less than half the target size."""

    target_size: int
    small_files: int
    most_files: int = 1_000
    """The most files that become one at a time."""
    step_bytes: int = STEP_BYTES
    """The most that is joined in one commit, opening the files included; but one group at least."""
    folds_all: bool = False
    """Whether every file with deleted rows is written again, and not only the worn ones."""
    joins_all: bool = False
    """Whether whatever can be joined is, however few small files there are."""

    def brief(self) -> CompactionPolicy:
        """For a step during which the changes wait: less than a second of one core."""
        return replace(self, target_size=min(self.target_size, BRIEF_BYTES), most_files=50, step_bytes=BRIEF_BYTES)

    @classmethod
    def on_request(cls, target_size: int, *, folds_all: bool = False) -> CompactionPolicy:
        """Join whatever can be joined."""
        return cls(target_size, small_files=0, folds_all=folds_all, joins_all=True)

    def is_small(self, file: DataFile) -> bool:
        """Two small files fit into one of the target size, so among neighbours at most the last one stays small."""
        return file.size * 2 < self.target_size


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Which files to join: of each group one file is made; no file is in two groups."""

    groups: tuple[tuple[DataFile, ...], ...]

    @property
    def files(self) -> int:
        return sum(map(len, self.groups))

    def step(self, limit: int) -> tuple[tuple[DataFile, ...], ...]:
        """Groups of the smallest files, at least one, that cost no more than joining `limit` bytes of one file.

        The smallest come first, in key order where they are alike. So what a step has joined is joined again only after
        everything else was.
        """
        taken: list[tuple[DataFile, ...]] = []
        cost = 0
        for group in sorted(self.groups, key=lambda group: (_bytes(group) // len(group)).bit_length()):
            cost += _bytes(group) + len(group) * _OPENING_BYTES
            if taken and cost > limit:
                break
            taken.append(group)
        return tuple(taken)


def _bytes(group: Sequence[DataFile]) -> int:
    return sum(file.size for file in group)


@dataclass(frozen=True, slots=True)
class Joined:
    """Files that were read, how many rows each has, and what holds the rows now, in the same order; not visible yet."""

    removed: tuple[DataFile, ...]
    rows: tuple[int, ...]
    added: tuple[FileReceipt, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.added)


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a step has changed: no file if the job has changed all of them first.

    `left` files wait for the next step. Among them are the `overtaken` ones: joined, but with some that are gone.
    """

    removed: int
    added: int
    bytes: int
    left: int = 0
    overtaken: int = 0


def compaction_due(files: Sequence[DataFile], policy: CompactionPolicy) -> CompactionPlan | None:
    """What to join, or None if there are not enough small files, or none that could be joined."""
    small = [file for file in files if policy.is_small(file)]
    if len(small) <= policy.small_files and not policy.joins_all:
        return None
    bounded, unknown = _by_bounds(small)
    wide = _wide(bounded)
    runs = (
        [each.file for each in bounded if each.file.path not in wide],
        [each.file for each in bounded if each.file.path in wide],
        unknown,
    )
    groups = tuple(group for run in runs for group in _groups(run, policy))
    return CompactionPlan(groups) if groups else None


def in_key_order(files: Sequence[DataFile]) -> list[DataFile]:
    """Neighbours beside each other; files without bounds at the end."""
    bounded, unknown = _by_bounds(files)
    return [*(each.file for each in bounded), *unknown]


def _by_bounds(files: Sequence[DataFile]) -> tuple[list[_Bounded], list[DataFile]]:
    bounded = sorted((each for each in map(_Bounded.of, files) if each is not None), key=lambda each: each.order)
    return bounded, sorted((file for file in files if _Bounded.of(file) is None), key=lambda file: file.path)


@dataclass(frozen=True, slots=True)
class _Bounded:
    """A file whose smallest and largest first key column are known."""

    file: DataFile
    low: SupportsAllComparisons
    high: SupportsAllComparisons
    order: tuple[SupportsAllComparisons, ...]

    @classmethod
    def of(cls, file: DataFile) -> _Bounded | None:
        low, high = (bounds[0] if bounds else None for bounds in (file.low, file.high))
        if low is None or high is None:
            return None
        order = (*_comparable(file.low), *_comparable(file.high), file.path)
        return cls(file, comparable(low), comparable(high, up=True), order)


def _comparable(bounds: Sequence[Value | None]) -> Iterator[SupportsAllComparisons]:
    """As far as all bounds of the key are known, each in a form that an unknown one comes before."""
    for bound in bounds:
        yield (bound is not None, 0 if bound is None else comparable(bound))


def _wide(files: Sequence[_Bounded]) -> frozenset[str]:
    lows, highs = sorted(each.low for each in files), sorted(each.high for each in files)

    def within(bounds: list[SupportsAllComparisons], each: _Bounded) -> int:
        return bisect_left(bounds, each.high) - bisect_right(bounds, each.low)

    return frozenset(each.file.path for each in files if min(within(lows, each), within(highs, each)) >= _WIDE)


def _groups(files: Sequence[DataFile], policy: CompactionPolicy) -> Iterator[tuple[DataFile, ...]]:
    """Neighbours, as many as fit the target size; a file alone needs no joining."""
    group: list[DataFile] = []
    size = 0
    for file in files:
        if group and (size + file.size > policy.target_size or len(group) == policy.most_files):
            if len(group) > 1:
                yield tuple(group)
            group, size = [], 0
        group.append(file)
        size += file.size
    if len(group) > 1:
        yield tuple(group)


class GivenUpError(Exception):
    """A join was given up half-way; what it has written belongs to nobody and is swept up later."""


def always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Joiner:
    """Writes the rows of many files into one, in their order, a bounded number of rows at a time; can be pickled."""

    storage: Storage
    schema: pa.Schema
    layout: FileLayout
    goes_on: Callable[[], bool] = always

    def join(self, files: Sequence[DataFile]) -> Joined:
        rows = [0] * len(files)
        added = self._write(f"{len(files)} files cannot be joined", self._rows(files, rows))
        joined = Joined(tuple(files), tuple(rows), added)
        _check_rows(joined)
        return joined

    def among(self, joined: Joined, there: Set[str], limit: int) -> Joined | None:
        """The part of a join whose files are still there: itself if all are.

        None if too little is left, or if more than `limit` bytes would be written.
        """
        kept = [file.path in there for file in joined.removed]
        if all(kept):
            return joined
        if sum(kept) < 2 or joined.bytes > limit:
            return None
        stays = np.repeat(np.array(kept, dtype=np.bool_), np.array(joined.rows, dtype=np.int64))
        added = self._write(f"{sum(kept)} joined files cannot be written", self._kept(joined.added, stays))
        left = [(file, rows) for file, rows, keep in zip(joined.removed, joined.rows, kept, strict=True) if keep]
        again = Joined(tuple(file for file, _ in left), tuple(rows for _, rows in left), added)
        _check_rows(again)
        return again

    def _write(self, otherwise: str, batches: Iterable[pa.Table]) -> tuple[FileReceipt, ...]:
        # Room for rows that another writer has packed more tightly: they shall become one file all the same.
        layout = replace(self.layout, file_bytes=2 * self.layout.file_bytes)
        with storage_errors(f"{otherwise} in {self.storage.path}"):
            return write_files(self.storage, unique_stem("compacted"), self.schema, batches, layout)

    def _rows(self, files: Sequence[DataFile], counted: list[int]) -> Iterator[pa.Table]:
        for number, file in enumerate(files):
            for batch in read_batches(self.storage, file.path, self.schema):
                if not self.goes_on():
                    raise GivenUpError
                counted[number] += batch.num_rows
                yield batch

    def _kept(self, files: Sequence[FileReceipt], stays: Flags) -> Iterator[pa.Table]:
        start = 0
        for file in files:
            for batch in read_batches(self.storage, file.path, self.schema):
                yield batch.filter(pa.array(stays[start : start + batch.num_rows]))
                start += batch.num_rows


def _check_rows(joined: Joined) -> None:
    written = sum(receipt.rows for receipt in joined.added)
    told = all(file.rows in (None, rows) for file, rows in zip(joined.removed, joined.rows, strict=True))
    if written != sum(joined.rows) or not told:
        known = sum(file.rows or 0 for file in joined.removed)
        raise LawBrokenError(f"{len(joined.removed)} files of {known} rows were joined to {written} rows")


def sweep_staged(storage: Storage, before: datetime) -> list[str]:
    """Delete changes that a driver staged before `before` and never merged; a merge in progress has staged later."""
    filesystem = storage.filesystem()
    with storage_errors(f"staged changes cannot be swept from {storage.path}"):
        selector = pafs.FileSelector(STAGED_FOLDER, allow_not_found=True, recursive=True)
        files = [info for info in filesystem.get_file_info(selector) if info.type is pafs.FileType.File]
        old = [info.path for info in files if info.mtime is not None and info.mtime < before]
        for path in old:
            filesystem.delete_file(path)
    return old


def oldest_kept(now: datetime, retention: timedelta) -> datetime:
    """Files from then on are kept, whatever they are: somebody may still be writing or reading them."""
    return now - max(retention, timedelta(hours=UNCOMMITTED_HOURS))
