"""Deletes the rows of a Delta table that a condition on one column names, once per version of the definition.

What must be true: after the commit no row is left that meets it, and every other row is as it was. A second
call with the same version changes nothing. Why it is:

- A file whose bounds are outside every range is left alone. One that is inside goes as a whole, and is not read: that
  is what makes the drop of a partition cheap. Of any other file the one column is read.
- What was found in a file stays right, because files do not change. So another try after a commit that came between
  looks at new files only. Which rows are gone already is asked of the version that is committed to.
- Everything is one commit, which carries the application transaction (`schema`, version).

`day` from 3 to below 5 goes:

    file a  day 1 … 2            stays
    file b  day 3 … 4            is removed
    file c  day 2 4 6            loses row 1, by a vector or by a new file without it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.parquet import read_columns
from vnode_backfill.delta.rows import Rows
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.sinks import TaskRunner
from vnode_backfill.sinks.changes import comparable
from vnode_backfill.sinks.delta.effect import Effect
from vnode_backfill.sinks.delta.rewrite import REWRITE_IN_TASKS_BYTES, Removal, in_threads
from vnode_backfill.words.schema_change import DeleteRows

if TYPE_CHECKING:
    from _typeshed import SupportsAllComparisons

__all__ = ["RowDeletion", "RowsGone"]


@dataclass(frozen=True, slots=True)
class RowsGone:
    """Finds the rows of a file that go; can be pickled."""

    storage: Storage
    step: DeleteRows
    column: pa.Field

    def find(self, file: DataFile) -> Rows:
        with storage_errors(f"{file.path} cannot be read"):
            table = read_columns(self.storage, file.path, pa.schema([self.column]))
        matching = self.step.matching(table.column(0)).to_numpy(zero_copy_only=False)
        return Rows.of(np.flatnonzero(matching))

    def none_in(self, file: DataFile) -> bool:
        """Whether the bounds of the file show that no row of it goes."""
        low, high = file.low[0], file.high[0]
        if self.step.values or low is None or high is None:
            return False
        lowest, highest = comparable(low), comparable(high, up=True)
        return all(
            (first is not None and highest < first) or (end is not None and lowest >= end)
            for first, end in self._ranges()
        )

    def all_in(self, file: DataFile) -> bool:
        """Whether the bounds of the file show that every row of it goes."""
        low, high = file.low[0], file.high[0]
        if self.step.values or low is None or high is None:
            return False
        lowest, highest = comparable(low), comparable(high, up=True)
        return any(
            (first is None or lowest >= first) and (end is None or highest < end) for first, end in self._ranges()
        )

    def _ranges(self) -> Iterator[tuple[SupportsAllComparisons | None, SupportsAllComparisons | None]]:
        for low, high in self.step.bounds(self.column.type):
            yield None if low is None else comparable(low.as_py()), None if high is None else comparable(high.as_py())


@dataclass(frozen=True, slots=True, eq=False)
class RowDeletion:
    """What the deletion does to one version of the table after another, until a commit of it lands.

    `remove` takes rows of files away as the table's mode says, `gone` has the rows of a file that are gone already.
    """

    rows: RowsGone
    remove: Callable[[TableVersion, Sequence[Removal]], Effect]
    gone: Callable[[DataFile], Rows]
    _found: dict[str, Rows] = field(default_factory=dict)

    def effect(self, table: TableVersion, tasks: TaskRunner | None) -> Effect:
        files = [file for file in table.described([self.rows.column.name]) if not self.rows.none_in(file)]
        read = [file for file in files if not self.rows.all_in(file)]
        self._find(read, tasks)
        removals = [Removal(file, self._found[file.path]) for file in read]
        whole = [file for file in files if file not in read] + [each.file for each in removals if self._is_all(each)]
        partly = [each for each in removals if each.file not in whole and self._loses(each)]
        return Effect(removed=whole) + self.remove(table, partly)

    def _find(self, files: Sequence[DataFile], tasks: TaskRunner | None) -> None:
        new = [file for file in files if file.path not in self._found]
        run = tasks if tasks and sum(file.size for file in new) > REWRITE_IN_TASKS_BYTES else in_threads
        found = run(self.rows.find, new)
        self._found.update({file.path: each for file, each in zip(new, found, strict=True)})

    def _loses(self, removal: Removal) -> bool:
        return not bool(self.gone(removal.file).contains(removal.rows.positions).all())

    def _is_all(self, removal: Removal) -> bool:
        return self.gone(removal.file).union(removal.rows).count == removal.file.rows
