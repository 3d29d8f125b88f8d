"""Changes rows of a Delta table without writing its files again: a deletion vector takes each old row away.

What must be true: after a merge each changed key has exactly the row of its last change, or none after a delete. Why it
is:

- Every file whose bounds may hold a changed key is searched by the key's bytes, inserts included. Every row found that
  is not gone yet goes: its position is added to the file's vector. A row that is gone already is not found again.
- The rows that changes leave behind are written to new files, in key order. Both become visible in one commit.
- A position never changes its meaning, because files never change. So what was found in a file is right whatever else
  was committed since; only which of the rows are gone already is asked again, from the version that is committed to.

Keys 3 and 7 are updated, 9 is deleted, 12 is new; file a has lost its row 1 before:

    a  keys 1 3 5 7     vector {1}      → vector {1, 3}: key 3 was found at row 1, which is gone, and 7 at row 3
    b  keys 3 9         no vector       → vector {0, 1}: all rows gone, so the file is removed
    new file            3 7 12

A merge that takes many rows of a file writes it again instead, with the new rows in place: a vector saves nothing
there, and the file stays tight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from vnode_backfill.delta.files import DataFile, FileReceipt, Masked
from vnode_backfill.delta.rows import NO_ROWS, Rows
from vnode_backfill.delta.vectors import VectorCache, write_vectors
from vnode_backfill.sinks import TaskRunner
from vnode_backfill.sinks.changes import INDEX, Changes, ChangeSlice, MemoryChanges
from vnode_backfill.sinks.delta.effect import Effect
from vnode_backfill.sinks.delta.keys.cache import key_cache
from vnode_backfill.sinks.delta.rewrite import (
    REWRITE_IN_TASKS_BYTES,
    Ints,
    Removal,
    Replacement,
    Rewriter,
    Rewritten,
    in_threads,
)

WORN = 10
"""A merge that takes more than one in so many rows of a file writes the file again."""
SPENT = 2
"""So does one after which more than one in so many rows are gone, should no fold have come before."""
SMALL_BYTES = 1024 * 1024
"""A smaller file is not written again: its changed rows move to the new file, and a join takes what is left."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A file and the changes whose keys it may hold."""

    file: DataFile
    changes: ChangeSlice


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Pairs of a row of a file and the number of a change of the same key; rows that are gone are among them."""

    rows: Ints
    numbers: Ints


@dataclass(frozen=True, slots=True)
class RowFinder:
    """Finds changed keys in files; can be pickled. `cache_bytes` limits the cache on the machine where it runs."""

    rewriter: Rewriter
    cache_bytes: int

    def find(self, task: Lookup) -> Found:
        changes = task.changes.load()
        rows, positions = key_cache(self.cache_bytes).find(
            self.rewriter.storage, task.file, self.rewriter.key_schema, changes.select(list(self.rewriter.key))
        )
        return Found(rows, changes.column(INDEX).to_numpy()[positions])


@dataclass(frozen=True, slots=True, eq=False)
class _Loss:
    """A file that loses rows: `gone` were gone before, `rows` go now, `numbers` are the changes they meet."""

    file: DataFile
    gone: Rows
    rows: Ints
    numbers: Ints
    part: ChangeSlice | None = None

    @property
    def after(self) -> Rows:
        return self.gone.union(Rows.of(self.rows))

    @property
    def rewrites(self) -> bool:
        count = self.file.rows
        if count is None:
            return True
        worn = len(self.rows) * WORN > count or self.after.count * SPENT > count
        return worn and self.file.size > SMALL_BYTES


class MergeByMask:
    """One epoch's changes by deletion vectors; `merge` is asked again after another commit came between."""

    def __init__(self, rewriter: Rewriter, cache_bytes: int, vectors: VectorCache) -> None:
        self._rewriter, self._vectors = rewriter, vectors
        self._finder = RowFinder(rewriter, cache_bytes)
        self._found: dict[str, Found] = {}
        self._rewritten: dict[tuple[str, str | None], Rewritten] = {}
        self._placed: Ints | None = None
        self._inserted: list[FileReceipt] = []

    def merge(self, files: Sequence[DataFile], changes: Changes, tasks: TaskRunner | None) -> Effect:
        run = tasks if tasks and not isinstance(changes, MemoryChanges) else in_threads
        parts = [(file, changes.within(file)) for file in files]
        lookups = [Lookup(file, part) for file, part in parts if part is not None]
        new = [each for each in lookups if each.file.path not in self._found]
        found = run(self._finder.find, new)
        self._found.update({each.file.path: hits for each, hits in zip(new, found, strict=True)})
        losses = [loss for loss in map(self._loss, lookups) if len(loss.rows)]
        rewritten = self._rewrite([loss for loss in losses if loss.rewrites], tasks)
        placed = np.sort(np.concatenate([np.empty(0, np.int64), *(each.met for each in rewritten)]))
        self._insert(changes, placed, run)
        masked = self._mask([loss for loss in losses if not loss.rewrites])
        return sum((each.effect for each in rewritten), masked + Effect(self._inserted))

    def remove(self, removals: Sequence[Removal]) -> Effect:
        """Take rows away that a new read replaces."""
        losses = [self._without_gone(each.file, each.rows.positions) for each in removals]
        worn = [Removal(loss.file, Rows.of(loss.rows)) for loss in losses if loss.rewrites and len(loss.rows)]
        rewritten = in_threads(self._rewriter.remove, worn)
        masked = self._mask([loss for loss in losses if not loss.rewrites and len(loss.rows)])
        return sum((each.effect for each in rewritten), masked)

    def gone(self, file: DataFile) -> Rows:
        """The rows of a file that are gone."""
        return NO_ROWS if file.vector is None else self._vectors.read(self._rewriter.storage, file.vector)

    def _loss(self, lookup: Lookup) -> _Loss:
        found, gone = self._found[lookup.file.path], self.gone(lookup.file)
        live = ~gone.contains(found.rows)
        return _Loss(lookup.file, gone, found.rows[live], found.numbers[live], lookup.changes)

    def _without_gone(self, file: DataFile, rows: Ints) -> _Loss:
        gone = self.gone(file)
        going = rows[~gone.contains(rows)]
        return _Loss(file, gone, going, np.full(len(going), Replacement.LEAVES, np.int64))

    def _rewrite(self, losses: Sequence[_Loss], tasks: TaskRunner | None) -> list[Rewritten]:
        """Write worn files again. A change whose key is found in two of them is placed in one of them only."""
        known = [self._rewritten[loss.file.identity] for loss in losses if loss.file.identity in self._rewritten]
        placed = np.concatenate([np.empty(0, np.int64), *(each.met for each in known)])
        work: list[Replacement] = []
        for loss in losses:
            if loss.file.identity not in self._rewritten and loss.part is not None:
                homes = np.where(np.isin(loss.numbers, placed), Replacement.LEAVES, loss.numbers)
                placed = np.concatenate([placed, loss.numbers])
                work.append(Replacement(loss.file, loss.part, loss.rows, homes))
        run = tasks if tasks and sum(each.file.size for each in work) > REWRITE_IN_TASKS_BYTES else in_threads
        done = run(self._rewriter.replace, work)
        self._rewritten.update({task.file.identity: each for task, each in zip(work, done, strict=True)})
        return [self._rewritten[loss.file.identity] for loss in losses]

    def _insert(self, changes: Changes, placed: Ints, run: TaskRunner) -> None:
        if self._placed is not None and np.array_equal(self._placed, placed):
            return
        inserted = run(partial(_insert, self._rewriter, placed), changes.parts())
        self._placed, self._inserted = placed, [file for each in inserted for file in each]

    def _mask(self, losses: Sequence[_Loss]) -> Effect:
        """A new vector for each file; a file without a row left is removed."""
        whole = [loss.file for loss in losses if loss.after.count == loss.file.rows]
        kept = [loss for loss in losses if loss.after.count != loss.file.rows]
        vectors = write_vectors(self._rewriter.storage, [loss.after for loss in kept])
        for vector, loss in zip(vectors, kept, strict=True):
            self._vectors.keep(vector, loss.after)
        masked = [Masked(loss.file, vector) for loss, vector in zip(kept, vectors, strict=True)]
        return Effect(removed=whole, masked=masked)


def _insert(rewriter: Rewriter, placed: Ints, part: ChangeSlice) -> tuple[FileReceipt, ...]:
    return rewriter.insert(part, placed)
