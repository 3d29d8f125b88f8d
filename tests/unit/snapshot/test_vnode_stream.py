"""Proves that a lane gives no receipt for a range that holds a row of another one, for keys compared here and by the
server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa
import pytest

from consume_upstream.upstream_table import UpstreamTable, Weights
from tests.tables import Row, batch, plan, table_of
from vnode_backfill.sinks import RangeWriter, ReadReceipt
from vnode_backfill.snapshot.vnode_stream import Lane, VnodeStream, shares_of
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import KeyOrderError
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import SplitPlan

NUMBERS = table_of({"id": "bigint", "note": "varchar(20)"}, "id")
WORDS = table_of({"word": "varchar(20)"}, "word")


@dataclass
class Source:
    """A server that answers a query of any range with the rows given for it, in order of their ranges."""

    definition: TableDefinition
    rows: list[list[Row]]

    @contextmanager
    def session(self) -> Iterator[Source]:
        yield self

    def read_range(self, *_: object, **__: object) -> Iterator[pa.RecordBatch]:
        yield batch(self.definition, self.rows.pop(0))

    def collation_keys(self, keys: Sequence[Key], *_: TableDefinition) -> list[Weights]:
        return [(str(key[0]).encode(),) for key in keys]


class Written:
    """Counts the rows of a range, to its end."""

    def write(self, _epoch: Epoch, ordinal: int, _attempt: int, batches: Iterable[pa.RecordBatch]) -> ReadReceipt:
        return ReadReceipt(ordinal, sum(each.num_rows for each in batches))


def receipts(definition: TableDefinition, split: SplitPlan, rows: list[list[Row]]) -> list[ReadReceipt]:
    source = Source(definition, rows)
    lane = Lane(cast(UpstreamTable, source), cast(RangeWriter, Written()), split, split.ranges, Epoch(1), 0, 60.0)
    return list(VnodeStream(lane).receipts())


def test_rows_of_their_ranges_give_a_receipt_each() -> None:
    split = plan(NUMBERS, (0,), (10,), (20,))
    found = receipts(NUMBERS, split, [[(1, "a"), (9, "b")], [(10, "c"), (20, "d")]])
    assert [(receipt.ordinal, receipt.rows) for receipt in found] == [(0, 2), (1, 2)]


@pytest.mark.parametrize("wrong", [-1, 10, 15, 21])
def test_row_of_another_range_stops_the_lane(wrong: int) -> None:
    split = plan(NUMBERS, (0,), (10,), (20,))
    with pytest.raises(KeyOrderError, match=rf"key \({wrong},\) was read from range 0"):
        receipts(NUMBERS, split, [[(1, "a"), (wrong, "b"), (9, "c")], [(10, "d")]])


@pytest.mark.parametrize("rows", [["a", "b", "n"], ["n", "a", "b"]])
def test_text_row_of_another_range_stops_the_lane(rows: list[str]) -> None:
    split = plan(WORDS, ("a",), ("m",), ("z",))
    with pytest.raises(KeyOrderError, match=r"key \('n',\) was read from range 0"):
        receipts(WORDS, split, [[(word,) for word in rows], [("o",)]])


def limited(rows_per_second: float | None, lanes: int) -> list[Lane]:
    """Lanes of one table with so many rows a second together, each with a range of one row."""
    split = plan(NUMBERS, (0,), (10,))
    table, writer = cast(UpstreamTable, Source(NUMBERS, [])), cast(RangeWriter, Written())
    share = None if rows_per_second is None else rows_per_second / lanes
    lane = Lane(table, writer, split, split.ranges, Epoch(0), 0, 10.0, share)
    return [lane] * lanes


def rates(*tables: list[Lane]) -> list[list[tuple[int, float | None]]]:
    return [[(number, lane.rows_per_second) for number, lane in share] for share in shares_of(tables)]


def test_each_worker_reads_its_tables_one_after_the_other_within_the_limit_of_all() -> None:
    assert rates(limited(1000, 2), limited(1000, 2)) == [[(0, 500), (1, 500)]] * 2
    assert rates(limited(None, 2), limited(None, 1)) == [[(0, None), (1, None)], [(0, None)]]


def test_table_with_a_lower_limit_of_its_own_is_read_at_that_rate_whatever_comes_first() -> None:
    assert rates(limited(1000, 2), limited(100, 2)) == [[(0, 500), (1, 50)]] * 2
    assert rates(limited(100, 2), limited(1000, 2)) == [[(0, 50), (1, 500)]] * 2
    assert rates(limited(None, 2), limited(100, 2)) == [[(0, None), (1, 50)]] * 2


def test_workers_that_cannot_finish_a_range_in_time_at_a_low_limit_take_turns() -> None:
    assert rates(limited(0.1, 2), limited(0.1, 2)) == [[(0, 0.1), (1, 0.1)]]


def lanes_of(*rows: int) -> list[Lane]:
    """Lanes of one table, each with a range of so many rows, or without one."""
    found = []
    for count in rows:
        split = plan(NUMBERS, (0,), (10,))
        ranges = tuple(replace(planned, estimated_rows=count) for planned in split.ranges) if count else ()
        found.append(replace(limited(None, 1)[0], ranges=ranges))
    return found


def packed(*tables: list[Lane]) -> list[list[tuple[int, int]]]:
    return [[(number, lane.ranges[0].estimated_rows) for number, lane in share] for share in shares_of(tables)]


def test_tables_whose_ranges_are_all_in_lanes_of_one_number_are_read_at_once() -> None:
    assert packed(*[lanes_of(10, 0, 0)] * 6) == [[(0, 10), (3, 10)], [(1, 10), (4, 10)], [(2, 10), (5, 10)]]


def test_lane_goes_where_the_fewest_rows_are_and_no_task_has_two_of_one_table() -> None:
    assert packed(lanes_of(50, 10), lanes_of(40, 0), lanes_of(5, 30)) == [
        [(0, 50), (2, 30)],
        [(0, 10), (1, 40), (2, 5)],
    ]
    assert packed(lanes_of(90, 0), lanes_of(1, 2)) == [[(0, 90), (1, 1)], [(1, 2)]]
