"""Holds what a reader of the log returns: batches of changes, and every transaction it passed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction of the log, whether it touches the table or not. Its first event begins at `start`.

    `end` is None while the transaction continues in the next batch, where it is listed again; so each transaction
    of a slice is listed exactly once with its end.
    """

    gtid: str
    """Its global id, empty where the server writes none."""
    start: tuple[int, int]
    """File number and position."""
    end: tuple[int, int] | None
    timestamp: int
    skipped: bool = False
    """The caller's predicate said so: none of its rows is in a batch."""


@dataclass(frozen=True, slots=True, eq=False)
class LogBatch:
    """Changes in log order. All arrays and both record batches have one entry per change.

    A batch may hold no changes at all: it then reports transactions that did not touch the table.
    """

    file: int
    """Number of the log file that all changes of the batch come from."""
    op: npt.NDArray[np.int8]
    """0 insert, 1 update, 2 delete."""
    pos: npt.NDArray[np.uint64]
    """Where the change's event ends. All rows of a compressed transaction have its end."""
    row: npt.NDArray[np.uint32]
    """Number of the change among those with the same `pos`."""
    timestamp: npt.NDArray[np.uint32]
    """Seconds since 1970 from the event's header: when the statement ran."""
    before: pa.RecordBatch
    """The row before the change; NULL in every column for an insert."""
    after: pa.RecordBatch
    """The row after the change; NULL in every column for a delete."""
    transactions: tuple[Transaction, ...]

    def __len__(self) -> int:
        return len(self.op)

    def shifted(self, files: int) -> LogBatch:
        """The same changes, with so much added to every file number."""
        moved = tuple(
            replace(
                each, start=(each.start[0] + files, each.start[1]), end=each.end and (each.end[0] + files, each.end[1])
            )
            for each in self.transactions
        )
        return replace(self, file=self.file + files, transactions=moved)


class SharedBatch(NamedTuple):
    """What a reader of several tables yields: the next changes of one of them.

    Changes of one table come in log order; those of different tables do not. `rows.transactions` lists what the reader
    passed, whichever table it is of: each transaction once in all, with its end, and with the first changes of it or
    before them. A batch without changes lists transactions, and its table does not matter.
    """

    table: int
    """The place of the table among those that were asked for."""
    rows: LogBatch
