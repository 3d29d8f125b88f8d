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

from vnode_backfill.delta.files import DataFile, Masked
from vnode_backfill.delta.rows import NO_ROWS, Rows
from vnode_backfill.delta.vectors import VectorCache, write_vectors
from vnode_backfill.sinks import TaskRunner
from vnode_backfill.sinks.changes import INDEX, Changes, ChangeSlice, MemoryChanges
from vnode_backfill.sinks.delta.effect import Effect
from vnode_backfill.sinks.delta.keys.cache import key_cache
from vnode_backfill.sinks.delta.rewrite import (
    REWRITE_IN_TASKS_BYTES,
    Inserts,
    Ints,
    Removal,
    Replacement,
    Rewriter,
    Rewritten,
    in_threads,
    only_new,
    placed_by,
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
        self._inserts = Inserts(rewriter)

    def merge(self, files: Sequence[DataFile], changes: Changes, tasks: TaskRunner | None) -> Effect:
        run = tasks if tasks and not isinstance(changes, MemoryChanges) else in_threads
        parts = [(file, changes.within(file)) for file in files]
        lookups = {file.path: Lookup(file, part) for file, part in parts if part is not None}
        found = only_new(self._found, lookups, partial(run, self._finder.find))
        losses = [loss for loss in map(self._loss, lookups.values(), found) if len(loss.rows)]
        rewritten = self._rewrite([loss for loss in losses if loss.rewrites], tasks)
        inserted = self._inserts.files(changes, placed_by(rewritten), run)
        masked = self._mask([loss for loss in losses if not loss.rewrites])
        return sum((each.effect for each in rewritten), masked + Effect(inserted))

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

    def _loss(self, lookup: Lookup, found: Found) -> _Loss:
        gone = self.gone(lookup.file)
        live = ~gone.contains(found.rows)
        return _Loss(lookup.file, gone, found.rows[live], found.numbers[live], lookup.changes)

    def _without_gone(self, file: DataFile, rows: Ints) -> _Loss:
        gone = self.gone(file)
        going = rows[~gone.contains(rows)]
        return _Loss(file, gone, going, np.full(len(going), Replacement.LEAVES, np.int64))

    def _rewrite(self, losses: Sequence[_Loss], tasks: TaskRunner | None) -> list[Rewritten]:
        """Write worn files again. A change whose key is found in two of them is placed in one of them only."""
        work = {loss.file.identity: loss for loss in losses if loss.part is not None}
        placed = placed_by([self._rewritten[identity] for identity in work if identity in self._rewritten])

        def replace(new: Sequence[_Loss]) -> list[Rewritten]:
            run = tasks if tasks and sum(loss.file.size for loss in new) > REWRITE_IN_TASKS_BYTES else in_threads
            return run(self._rewriter.replace, _replacements(new, placed))

        return only_new(self._rewritten, work, replace)

    def _mask(self, losses: Sequence[_Loss]) -> Effect:
        """A new vector for each file; a file without a row left is removed."""
        whole = [loss.file for loss in losses if loss.after.count == loss.file.rows]
        kept = [loss for loss in losses if loss.after.count != loss.file.rows]
        vectors = write_vectors(self._rewriter.storage, [loss.after for loss in kept])
        for vector, loss in zip(vectors, kept, strict=True):
            self._vectors.keep(vector, loss.after)
        masked = [Masked(loss.file, vector) for loss, vector in zip(kept, vectors, strict=True)]
        return Effect(removed=whole, masked=masked)


def _replacements(losses: Sequence[_Loss], placed: Ints) -> list[Replacement]:
    """A change is placed in the first file that has its key, unless it is `placed` in another one already."""
    made: list[Replacement] = []
    for loss in losses:
        if loss.part is not None:
            homes = np.where(np.isin(loss.numbers, placed), Replacement.LEAVES, loss.numbers)
            placed = np.concatenate([placed, loss.numbers])
            made.append(Replacement(loss.file, loss.part, loss.rows, homes))
    return made
