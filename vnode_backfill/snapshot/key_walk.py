"""Walks the whole key with one reader, in the server's order: the single executor (RisingWave: CdcBackfillExecutor).

What must be true: the stretches of a walk, one per epoch, follow each other without a gap and without an overlap,
whatever crashes in between; the walk ends only where the table ends. Why it is:

- A stretch begins after the committed cursor. Its rows are appended to the sink under the epoch's id, and its last key
  is the cursor of the commit that ends the epoch. A stretch whose append has landed before a crash is not read again:
  its files hold its rows in the order in which they were read, so the last row of the last file is its cursor
  (`landed_stretch`).
- A stretch is read in queries of bounded size, each with its own read view; that is safe because every change since the
  job's first offset is kept (see `progress.state.walk_state`).
- The end is a query that finds no row at all after the cursor. A query that returns fewer rows than it may proves
  nothing: it is only followed by another one.
- A query that finds the cursor's own key again would walk in a circle; it stops the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from consume_upstream.upstream_table import KeyWalk, UpstreamTable
from progress.state.walk_state import WHOLE_KEY
from progress.task_progress import TaskProgress
from vnode_backfill.delta.parquet import read_columns
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.sinks import RangeWriter, ReadReceipt
from vnode_backfill.spark.tasks import Spark, run_tasks
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import KeyOrderError, LawBrokenError
from vnode_backfill.words.key import Key

__all__ = ["CdcBackfillExecutor", "Stretch", "WalkedStretch", "landed_stretch", "walk_stretch"]

_QUERY_ROWS = 50_000
_QUERY_SECONDS = 0.5
"""How long a query of a limited walk may be paid for: short, so that a limit that changes is felt."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one epoch may walk: after the key `after`, until its time is over. Can be pickled."""

    table: UpstreamTable
    writer: RangeWriter
    after: Key | None
    epoch: Epoch
    attempt: int
    seconds: float
    rows_per_second: float | None = None
    progress: TaskProgress | None = None


@dataclass(frozen=True, slots=True)
class WalkedStretch:
    """What was walked: the rows as files of the sink, the key of the last one, and whether the table ends there."""

    receipt: ReadReceipt
    last_key: Key | None
    ended: bool


class CdcBackfillExecutor:
    """Walks a table stretch by stretch, each as one Spark task over one connection to the source."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def walk(self, stretch: Stretch) -> WalkedStretch:
        """Walk a stretch; nothing of it is visible in the sink yet."""
        (walked,) = run_tasks(self._spark, walk_stretch, [stretch])
        return walked


def walk_stretch(stretch: Stretch) -> WalkedStretch:
    walker = _Walker(stretch)
    receipt = stretch.writer.write(stretch.epoch, WHOLE_KEY, stretch.attempt, walker.batches())
    if receipt.rows != walker.rows:
        raise LawBrokenError(f"{walker.rows} rows were read and {receipt.rows} written in epoch {stretch.epoch}")
    return WalkedStretch(receipt, walker.after if walker.rows else None, walker.ended)


def landed_stretch(receipts: Sequence[ReadReceipt], storage: Storage, table: UpstreamTable) -> WalkedStretch | None:
    """A stretch whose append was found in the sink; None for no receipt.

    Whether the table ended there is not known any more.
    """
    if not receipts:
        return None
    (receipt,), definition = receipts, table.definition
    schema = pa.schema([definition.arrow_schema.field(name) for name in definition.key])
    with storage_errors(f"the last key of a stretch cannot be read from {storage.path}"):
        keys = read_columns(storage, receipt.files[-1].path, schema)
    return WalkedStretch(receipt, table.cursor_of(keys), ended=False)


class _Walker:
    """One stretch being walked; `after` and `rows` are true once `batches` is used up."""

    def __init__(
        self, stretch: Stretch, clock: Callable[[], float] = time.monotonic, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._stretch, self._clock, self._wait = stretch, clock, wait
        self._table = stretch.table
        self._ends = clock() + stretch.seconds
        self.after, self.rows, self.ended = stretch.after, 0, False

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._table.walk() as session:
            while True:
                began, before = self._clock(), self.rows
                yield from self._query(session)
                if self.rows == before:
                    self.ended = True
                    return
                self._slow_down(began, self.rows - before)
                if self._clock() >= self._ends:
                    return

    def _query(self, session: KeyWalk) -> Iterator[pa.RecordBatch]:
        start = self.after
        for batch in session.read(start, self._query_rows):
            if batch.num_rows:
                if start is not None and self._table.cursor_of(batch.slice(0, 1)) == start:
                    raise KeyOrderError(
                        f"the walk found key {start!r} behind itself",
                        detail="The server compares a value of this key in another way than its index orders it.",
                    )
                self.rows += batch.num_rows
                self.after = self._table.cursor_of(batch)
                yield batch
                if self._stretch.progress is not None:
                    self._stretch.progress.tell(self.rows)

    @property
    def _query_rows(self) -> int:
        rate = self._stretch.rows_per_second
        return _QUERY_ROWS if rate is None else min(_QUERY_ROWS, max(1, int(rate * _QUERY_SECONDS)))

    def _slow_down(self, began: float, rows: int) -> None:
        """Wait until the rows just read are paid for.

        Time not used is not saved up, so no second sees more than its share.
        """
        rate = self._stretch.rows_per_second
        if rate is not None:
            self._wait(max(0.0, began + rows / rate - self._clock()))
