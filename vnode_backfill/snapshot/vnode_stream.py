"""Reads an epoch's ranges into files of the sink, each worker its own vnodes (RisingWave: SnapshotBackfillExecutor).

What must be true: a receipt exists only for a range that was read to its end, by a query that began after the epoch's
visibility was sampled; every row in its file belongs to that range; a range without a receipt stays unread. Why it is:

- The intent, and with it the visibility, is committed before `ReadRanges` is ordered, and each query opens its own read
  view.
- The reader raises on anything but the server's own end of a result, so a lost connection cannot look like the end.
- Every batch's keys are placed by the plan's own function and compared with the range asked for. A disagreement means
  that the client's order is not the server's: the job stops instead of losing a row.
- A lane stops *between* ranges when its time is over; what it did not begin is simply not in its receipts.
- The next range is read while the last one is written (`read_ahead`). What a lane has begun to read it also writes:
  after its time it may have two ranges left to write, never a read for nothing.

With a rate limit a range is read in several queries, each with its own view. That is safe for the same reason that
several ranges are: all of them begin after the visibility was sampled and end before the next written offset is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pyarrow as pa

from consume_upstream.key_order import KeyOrder
from consume_upstream.upstream_table import UpstreamSession, UpstreamTable
from progress.task_progress import TaskProgress
from vnode_backfill.sinks import RangeWriter, ReadReceipt
from vnode_backfill.snapshot.rate_limit import RowBudget, lanes_at_once
from vnode_backfill.snapshot.read_ahead import Batches, Ranges, ReadAhead
from vnode_backfill.spark.tasks import Spark, run_tasks
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import BackfillError, KeyOrderError, SchemaChangedError
from vnode_backfill.words.key import Key, KeyKind, keys_of
from vnode_backfill.words.key_range import PlannedRange, SplitPlan


@dataclass(frozen=True, slots=True)
class Lane:
    """One worker's share of an epoch: its ranges in the order to read them, and all it needs to do so.

    Can be pickled.
    """

    table: UpstreamTable
    writer: RangeWriter
    plan: SplitPlan
    ranges: tuple[PlannedRange, ...]
    epoch: Epoch
    attempt: int
    seconds: float
    rows_per_second: float | None = None
    progress: TaskProgress | None = None


@dataclass(frozen=True, slots=True)
class LanesRead:
    """The ranges that were read to their end. `refused` is why a lane ended early: the table has other columns."""

    receipts: tuple[ReadReceipt, ...] = ()
    refused: str = ""


def read_ranges(spark: Spark, lanes: Sequence[Lane]) -> LanesRead:
    """Read all lanes at once, one Spark partition and one source connection each; nothing is visible in the sink
    yet."""
    lanes = _within_rate([lane for lane in lanes if lane.ranges])
    done = run_tasks(spark, _read_lane, lanes)
    receipts = tuple(receipt for lane in done for receipt in lane.receipts)
    return LanesRead(receipts, next((lane.refused for lane in done if lane.refused), ""))


TableOutcome = LanesRead | BackfillError
"""What became of one table's lanes; an error is that table's alone."""


def read_tables(spark: Spark, tables: Sequence[Sequence[Lane]]) -> list[TableOutcome]:
    """Read the lanes of several tables at once: as many tasks as a table has workers, each lane in one of them.

    So the source has one connection per worker, whatever the number of tables. A table that cannot be read is left
    out of the rest, and the others are read.
    """
    shares = shares_of(tables)
    done = [pair for share in run_tasks(spark, _read_share, shares) for pair in share]
    return [_together([outcome for place, outcome in done if place == number]) for number in range(len(tables))]


def shares_of(tables: Sequence[Sequence[Lane]]) -> list[list[tuple[int, Lane]]]:
    """Per task the lanes that it reads, each with the number of its table. A limit is shared among the tasks.

    A lane with a limit waits most of its time, so those without one come first.
    """
    shares = _packed(tables)
    limits = [lane.rows_per_second for share in shares for _, lane in share]
    if not shares or None in limits:
        return [sorted(share, key=lambda pair: pair[1].rows_per_second is not None) for share in shares]
    # A task reads one table after the other, so each table may have its whole limit, shared among the tasks.
    totals = [sum(lane.rows_per_second or 0 for lane in lanes if lane.ranges) for lanes in tables]
    largest = max(lane.ranges[0].estimated_rows for share in shares for _, lane in share)
    lowest = min(total for total in totals if total)
    count = min(len(shares), lanes_at_once(lowest, shares[0][0][1].seconds, largest))
    start = shares[0][0][1].epoch % len(shares)
    chosen = [*shares[start:], *shares[:start]][:count]
    return [
        [(number, replace(lane, rows_per_second=totals[number] / count)) for number, lane in share] for share in chosen
    ]


def _packed(tables: Sequence[Sequence[Lane]]) -> list[list[tuple[int, Lane]]]:
    """Each lane goes to the task with the fewest rows so far, among those without a lane of its table.

    First ranges of many tables begin at key 1, so they are in one vnode and in lanes of the same number. Put together
    by that number they would all be read one after the other.

        rows in the lanes of three tables: (50, 10), (40, 0), (5, 30)
        task 0: 50 of the first, 30 of the third; task 1: 10 of the first, 40 of the second, 5 of the third
    """
    shares: list[list[tuple[int, Lane]]] = [[] for _ in range(max((len(lanes) for lanes in tables), default=0))]
    rows = [0] * len(shares)
    for number, lanes in enumerate(tables):
        free = set(range(len(shares)))
        for lane in sorted((lane for lane in lanes if lane.ranges), key=_rows_of, reverse=True):
            place = min(free, key=lambda each: (rows[each], each))
            free.remove(place)
            shares[place].append((number, lane))
            rows[place] += _rows_of(lane)
    return [share for share in shares if share]


def _rows_of(lane: Lane) -> int:
    return sum(planned.estimated_rows for planned in lane.ranges)


def _read_share(share: Sequence[tuple[int, Lane]]) -> list[tuple[int, TableOutcome]]:
    """One worker's lanes, until its time is over; at least one of them is read."""
    ends = time.monotonic() + max(lane.seconds for _, lane in share)
    done: list[tuple[int, TableOutcome]] = []
    for number, lane in share:
        left = ends - time.monotonic()
        if done and left <= 0:
            break
        try:
            done.append((number, _read_lane(replace(lane, seconds=min(lane.seconds, left)))))
        except BackfillError as error:
            done.append((number, error))
    return done


def _together(outcomes: Sequence[TableOutcome]) -> TableOutcome:
    failures = [outcome for outcome in outcomes if isinstance(outcome, BackfillError)]
    if failures:
        return min(failures, key=lambda failure: failure.retryable)
    read = [outcome for outcome in outcomes if isinstance(outcome, LanesRead)]
    receipts = tuple(receipt for each in read for receipt in each.receipts)
    return LanesRead(receipts, next((each.refused for each in read if each.refused), ""))


def _within_rate(lanes: Sequence[Lane]) -> list[Lane]:
    """The lanes that read in this epoch, with the limit shared among them; another one begins each epoch."""
    shares = [lane.rows_per_second for lane in lanes]
    if not lanes or None in shares:
        return list(lanes)
    total = sum(share for share in shares if share is not None)
    first = lanes[0]
    count = lanes_at_once(total, first.seconds, max(lane.ranges[0].estimated_rows for lane in lanes))
    if count >= len(lanes):
        return list(lanes)
    start = first.epoch % len(lanes)
    chosen = [*lanes[start:], *lanes[:start]][:count]
    return [replace(lane, rows_per_second=total / count) for lane in chosen]


def _read_lane(lane: Lane) -> LanesRead:
    """A table that was changed meanwhile fails nothing: the log holds the statement, and the ranges stay unread."""
    receipts: list[ReadReceipt] = []
    try:
        receipts.extend(VnodeStream(lane).receipts())
    except SchemaChangedError as error:
        return LanesRead(tuple(receipts), f"{error.message}. {error.detail}")
    return LanesRead(tuple(receipts))


class VnodeStream:
    """Reads one lane's ranges vnode by vnode until its time is over."""

    def __init__(
        self, lane: Lane, clock: Callable[[], float] = time.monotonic, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._lane, self._clock, self._wait = lane, clock, wait
        self._ends = clock() + lane.seconds
        self._budget = RowBudget(lane.rows_per_second, clock)
        self._positions = {planned.ordinal: position for position, planned in enumerate(lane.plan.ranges)}
        self._rows_read = 0

    def receipts(self) -> Iterator[ReadReceipt]:
        """A receipt per range that was read to its end; at least one range is read."""
        lane = self._lane
        with ReadAhead(self._read) as ranges:
            for number, (planned, batches) in enumerate(zip(lane.ranges, ranges, strict=False)):
                receipt = lane.writer.write(lane.epoch, planned.ordinal, lane.attempt, self._told(number, batches))
                self._tell(number + 1)
                yield receipt

    def _read(self) -> Ranges:
        """The ranges in turn, over one connection; none is begun when the time is over, but the first.

        Runs beside the writing.
        """
        lane = self._lane
        with lane.table.session() as session, KeyOrder(lane.table, lane.plan, lambda: nullcontext(session)) as order:
            for number, planned in enumerate(lane.ranges):
                if number and self._clock() >= self._ends:
                    return
                yield self._checked(planned, order, self._rows(session, planned))

    def _told(self, ranges: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; after each one the driver hears how far this lane is, `ranges` of them to their end."""
        for batch in batches:
            yield batch
            self._rows_read += batch.num_rows
            self._tell(ranges)

    def _tell(self, ranges: int) -> None:
        if self._lane.progress is not None:
            self._lane.progress.tell(self._rows_read, ranges)

    def _rows(self, session: UpstreamSession, planned: PlannedRange) -> Iterator[pa.RecordBatch]:
        if self._budget.rate is None or not self._lane.plan.compares_keys:
            # A range whose keys nobody compares has no place to continue from. It is small.
            yield from session.read_range(planned.range)
            return
        after: Key | None = None
        limit = self._budget.rows_per_query
        while True:
            self._wait(self._budget.delay(limit))
            rows = 0
            for batch in session.read_range(planned.range, after=after, limit=limit):
                if batch.num_rows:
                    rows += batch.num_rows
                    after = self._last_key(batch)
                    yield batch
            self._budget.give_back(limit - rows)
            if rows < limit:
                return

    def _last_key(self, batch: pa.RecordBatch) -> Key:
        last = batch.slice(batch.num_rows - 1)
        return keys_of(self._lane.plan.parts, _key_columns(self._lane, last))[0]

    def _checked(self, planned: PlannedRange, order: KeyOrder, batches: Iterator[pa.RecordBatch]) -> Batches:
        """The same batches, each proven to be in its range.

        Rows come in the server's order, so for text, whose order must be asked for, the first and the last key of a
        batch prove the rest; they are asked for when the range is read, because the lane's one connection is busy until
        then. No receipt exists before this has ended.
        """
        if not self._lane.plan.compares_keys:
            yield from batches
            return
        text = any(part.kind is KeyKind.TEXT for part in self._lane.plan.parts)
        probes: list[pa.RecordBatch] = []
        for batch in batches:
            if batch.num_rows and text:
                probes.append(batch.take(pa.array(sorted({0, batch.num_rows - 1}))))
            elif batch.num_rows:
                self._check(planned, order, batch)
            yield batch
        for probe in probes:
            self._check(planned, order, probe)

    def _check(self, planned: PlannedRange, order: KeyOrder, batch: pa.RecordBatch) -> None:
        keys = _key_columns(self._lane, batch)
        positions, _ = order.places(keys)
        wrong = (positions != self._positions[planned.ordinal]).nonzero()[0]
        if len(wrong):
            key = keys_of(self._lane.plan.parts, [column.slice(int(wrong[0]), 1) for column in keys])[0]
            raise KeyOrderError(
                f"key {key!r} was read from range {planned.ordinal} but belongs elsewhere in the plan",
                detail=f"The range is {planned.range}. The server orders this key differently from the client.",
                hint="Set `executor: single`, which walks the key in the server's own order.",
            )


def _key_columns(lane: Lane, batch: pa.RecordBatch) -> list[pa.Array]:
    return [batch.column(part.name) for part in lane.plan.parts]
