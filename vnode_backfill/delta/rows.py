"""Names rows of one file by their positions: physical ones, from 0, over all row groups, deleted rows counted too.

A sorted array serves every question faster than a bitmap does, except writing it down. Measured, 190,000 of 2 M rows
and 1,000 more, CPU: union 0.7 ms, membership of 1,000 positions 0.1 ms, mask 0.5 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vnode_backfill.words.errors import SinkError

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """A set of rows; `positions` ascend, are unique and cannot be written to."""

    positions: Positions

    @classmethod
    def of(cls, positions: npt.NDArray[np.integer]) -> Rows:
        """The rows at these positions, in any order and as often as they come."""
        unique = np.unique(positions.astype(np.int64))
        if len(unique) and unique[0] < 0:
            raise ValueError(f"{unique[0]} is no position of a row")
        return cls._of_unique(unique)

    @classmethod
    def _of_unique(cls, positions: Positions) -> Rows:
        positions.setflags(write=False)
        return cls(positions)

    @property
    def count(self) -> int:
        return len(self.positions)

    @property
    def nbytes(self) -> int:
        return self.positions.nbytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and np.array_equal(self.positions, other.positions)

    def __hash__(self) -> int:
        return hash(self.positions.tobytes())

    def union(self, other: Rows) -> Rows:
        """The rows of both."""
        if other.count > self.count:
            return other.union(self)
        new = other.positions[~self.contains(other.positions)]
        return Rows._of_unique(np.insert(self.positions, np.searchsorted(self.positions, new), new))

    def contains(self, positions: npt.NDArray[np.integer]) -> Flags:
        """For each position whether it is one of these rows."""
        if not self.count:
            return np.zeros(len(positions), np.bool_)
        places = np.searchsorted(self.positions, positions)
        found: Flags = self.positions[np.minimum(places, self.count - 1)] == positions
        return found

    def mask(self, count: int) -> Flags:
        """For each row of a file of `count` rows whether it is one of these; SinkError if the file has not so many."""
        if self.count and self.positions[-1] >= count:
            raise SinkError(
                f"a deletion vector names row {self.positions[-1]} of a file that has {count} rows",
                hint="The table's log and its files do not belong together: restore the table, or re-snapshot it.",
            )
        mask = np.zeros(count, np.bool_)
        mask[self.positions] = True
        return mask

    def rest(self, count: int) -> Positions:
        """The positions of all other rows of a file of `count` rows."""
        return np.flatnonzero(~self.mask(count))


NO_ROWS = Rows.of(np.empty(0, np.int64))
