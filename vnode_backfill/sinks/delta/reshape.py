"""Writes rows of many files into new ones, while other commits go on taking rows of the old files away.

What must be true: the table holds the same rows before and after. Why it is:

- A data file never changes. So the place that each old row has in the new files is known, and stays right.
- Rows that go between reading and committing are named by the old files' newer vectors. At the commit they are looked
  up: whatever went meanwhile is gone in the new files too, by a vector of their own (`settle`).
- What was written becomes visible in one commit. Before it the new files belong to nobody, and are swept up later.
- A file that is no longer part of the table ends the reshape. Its rows are where the commit that removed it put them.

A **join** takes all rows of its files. A **fold** writes a file again without the rows that are gone, and takes along
the rows of its key range from the files that span many ranges. These lose them by a vector.

    base  1 3 5 7 9   vector {1, 3}      fold →  1 3' 5 7' 9      base is removed
    wide  3' 7' 40'   no vector                  wide gets {0, 1}: 40' belongs to another base
    meanwhile key 5 is deleted: base's vector is now {1, 2, 3}, so the new file gets {2}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from vnode_backfill.delta.files import DataFile, FileReceipt, Masked, Value
from vnode_backfill.delta.parquet import FileLayout, read_batches, read_columns, unique_stem, write_files
from vnode_backfill.delta.rows import Rows
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.delta.vectors import read_vector, write_vectors
from vnode_backfill.sinks.delta.compaction import GivenUpError, always
from vnode_backfill.sinks.delta.effect import Effect
from vnode_backfill.words.errors import LawBrokenError

Ints = npt.NDArray[np.int64]
_NOT_TAKEN = -1


@dataclass(frozen=True, slots=True)
class Reshape:
    """Files whose rows all go into new ones, and wide files that give the rows of the same key range."""

    whole: tuple[DataFile, ...]
    wide: tuple[DataFile, ...] = ()
    low: Value | None = None
    high: Value | None = None
    """The bounds, both included, of the first key column of the rows that the wide files give."""

    @property
    def files(self) -> tuple[DataFile, ...]:
        return (*self.whole, *self.wide)

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.whole)


@dataclass(frozen=True, slots=True, eq=False)
class Reshaped:
    """What a reshape has written, not visible yet, and where each row of its files went.

    `places` has for each file and each of its rows the position in all new files together, or -1 for a row that was not
    taken.
    """

    task: Reshape
    places: tuple[Ints, ...]
    added: tuple[FileReceipt, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.added)


@dataclass(frozen=True, slots=True)
class Reshaper:
    """Reads and writes the files of a reshape; can be pickled.

    Rows of whole files go through a bounded number at a time. Those that wide files give are held in memory.
    """

    storage: Storage
    schema: pa.Schema
    key: tuple[str, ...]
    layout: FileLayout
    goes_on: Callable[[], bool] = always

    def run(self, task: Reshape) -> Reshaped:
        places = [np.full(self._rows(file), _NOT_TAKEN, np.int64) for file in task.files]
        taken = self._taken(task, places[len(task.whole) :])
        rows = _Rows(self, task, places, taken)
        # Room for rows that another writer has packed more tightly: they shall become one file all the same.
        layout = replace(self.layout, file_bytes=2 * self.layout.file_bytes)
        with storage_errors(f"{len(task.files)} files cannot be written again in {self.storage.path}"):
            added = write_files(self.storage, unique_stem("compacted"), self.schema, rows.batches(), layout)
        done = Reshaped(task, tuple(places), added)
        _check_rows(done, self._live(task))
        return done

    def gone(self, file: DataFile) -> Rows | None:
        return None if file.vector is None else read_vector(self.storage, file.vector)

    def _rows(self, file: DataFile) -> int:
        if file.rows is not None:
            return file.rows
        return int(read_columns(self.storage, file.path, pa.schema([self.schema.field(self.key[0])])).num_rows)

    def _live(self, task: Reshape) -> int:
        return sum(self._rows(file) - (file.vector.cardinality if file.vector else 0) for file in task.whole)

    def _taken(self, task: Reshape, places: Sequence[Ints]) -> _Taken:
        """The rows that the wide files give, in key order."""
        tables: list[pa.Table] = [self.schema.empty_table()]
        owners, positions = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for number, file in enumerate(task.wide):
            with storage_errors(f"{file.path} cannot be read"):
                table = read_columns(self.storage, file.path, self.schema)
            inside = self._inside(task, table, self.gone(file))
            tables.append(table.filter(pa.array(inside)))
            positions.append(np.flatnonzero(inside))
            owners.append(np.full(int(inside.sum()), number, np.int64))
        rows = pa.concat_tables(tables).combine_chunks()
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in self.key])
        at = order.to_numpy()
        return _Taken(rows.take(order), places, np.concatenate(owners)[at], np.concatenate(positions)[at])

    def _inside(self, task: Reshape, table: pa.Table, gone: Rows | None) -> npt.NDArray[np.bool_]:
        live = np.ones(table.num_rows, np.bool_) if gone is None else ~gone.mask(table.num_rows)
        first = table.column(self.key[0])
        if task.low is None or task.high is None:
            return live
        above = pc.greater_equal(first, pa.scalar(task.low, first.type))
        within = pc.and_(above, pc.less_equal(first, pa.scalar(task.high, first.type)))
        inside: npt.NDArray[np.bool_] = live & within.combine_chunks().to_numpy(zero_copy_only=False)
        return inside


@dataclass(eq=False)
class _Taken:
    """Rows of wide files in key order, and how far they are given away."""

    rows: pa.Table
    places: Sequence[Ints]
    owners: Ints
    positions: Ints
    given: int = 0

    def upto(self, highest: pa.Scalar | None, key: str) -> pa.Table:
        """The rows that are not given yet, up to a value of the first key column, or all of them."""
        rest = self.rows.slice(self.given)
        if highest is None or not rest.num_rows:
            return rest
        return rest.slice(0, int(pc.sum(pc.less_equal(rest.column(key), highest)).as_py() or 0))

    def give(self, at: Ints) -> None:
        """The next rows got these places."""
        stop = self.given + len(at)
        owners, positions = self.owners[self.given : stop], self.positions[self.given : stop]
        for number, place in enumerate(self.places):
            mine = owners == number
            place[positions[mine]] = at[mine]
        self.given = stop


@dataclass(eq=False)
class _Rows:
    """The rows of a reshape in their new order, noting the place of each as it goes by."""

    reshaper: Reshaper
    task: Reshape
    places: Sequence[Ints]
    taken: _Taken
    count: int = 0

    def batches(self) -> Iterator[pa.Table]:
        key = self.reshaper.key
        for file, place in zip(self.task.whole, self.places, strict=False):
            gone = self.reshaper.gone(file)
            left = np.arange(len(place)) if gone is None else gone.rest(len(place))
            start = 0
            for batch in read_batches(self.reshaper.storage, file.path, self.reshaper.schema, gone=gone):
                if not self.reshaper.goes_on():
                    raise GivenUpError
                mine = left[start : start + batch.num_rows]
                start += batch.num_rows
                highest = pc.max(batch.column(key[0])) if self.taken.rows.num_rows else None
                extra = self.taken.upto(highest, key[0]) if highest is not None else self.taken.rows.slice(0, 0)
                yield self._placed(batch, extra, place, mine)
        rest = self.taken.upto(None, key[0])
        if rest.num_rows:
            yield self._placed(rest.slice(0, 0), rest, np.empty(0, np.int64), np.empty(0, np.int64))

    def _placed(self, batch: pa.Table, extra: pa.Table, place: Ints, mine: Ints) -> pa.Table:
        """The batch with the extra rows where their keys are."""
        both, size = batch, batch.num_rows + extra.num_rows
        at = self.count + np.arange(size, dtype=np.int64)
        if extra.num_rows and batch.num_rows:
            both = pa.concat_tables([batch, extra]).combine_chunks()
            order = pc.sort_indices(both, sort_keys=[(name, "ascending") for name in self.reshaper.key])
            both = both.take(order)
            moved = np.empty(size, np.int64)
            moved[order.to_numpy()] = at
            at = moved
        elif extra.num_rows:
            both = extra
        place[mine] = at[: batch.num_rows]
        self.taken.give(at[batch.num_rows :])
        self.count += size
        return both


def settle(
    storage: Storage, done: Reshaped, now: Mapping[str, DataFile], gone: Callable[[DataFile], Rows]
) -> Effect | None:
    """What the commit of a reshape does to a version whose files are `now`; None if a file is no longer part of it."""
    task, late = done.task, list[Ints]()
    removed: list[DataFile] = []
    losing: list[tuple[DataFile, Rows]] = []
    for number, (before, place) in enumerate(zip(task.files, done.places, strict=True)):
        file = now.get(before.path)
        if file is None:
            return None
        went = gone(file).positions
        at = place[went]
        late.append(at[at != _NOT_TAKEN])
        if number < len(task.whole):
            removed.append(file)
            continue
        after = gone(file).union(Rows.of(np.flatnonzero(place != _NOT_TAKEN)))
        if after.count == len(place):
            removed.append(file)
        elif after.count > len(went):
            losing.append((file, after))
    return _effect(storage, done, removed, losing, Rows.of(np.concatenate(late)))


def _effect(
    storage: Storage,
    done: Reshaped,
    removed: Sequence[DataFile],
    losing: Sequence[tuple[DataFile, Rows]],
    late: Rows,
) -> Effect:
    arrived = lost_on_the_way(done.added, late)
    kept = [(receipt, rows) for receipt, rows in arrived if rows.count < receipt.rows]
    masks = [rows for _, rows in losing]
    vectors = write_vectors(storage, [*masks, *(rows for _, rows in kept if rows.count)])
    masked = [Masked(file, vector) for (file, _), vector in zip(losing, vectors, strict=False)]
    own = iter(vectors[len(masks) :])
    added = [replace(receipt, vector=next(own)) if rows.count else receipt for receipt, rows in kept]
    return Effect(added, removed, masked)


def lost_on_the_way(added: Sequence[FileReceipt], late: Rows) -> Iterator[tuple[FileReceipt, Rows]]:
    """Each new file with its rows that went meanwhile."""
    start = 0
    for receipt in added:
        stop = start + receipt.rows
        first, last = np.searchsorted(late.positions, [start, stop])
        yield receipt, Rows.of(late.positions[first:last] - start)
        start = stop


def _check_rows(done: Reshaped, live: int) -> None:
    whole = done.places[: len(done.task.whole)]
    written, taken = sum(file.rows for file in done.added), sum(int((place >= 0).sum()) for place in done.places)
    if written != taken or sum(int((place >= 0).sum()) for place in whole) != live:
        raise LawBrokenError(
            f"{len(done.task.files)} files gave {taken} rows and {written} were written",
            detail=f"The log says that {live} rows of the files that go were there.",
        )
