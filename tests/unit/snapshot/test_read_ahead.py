"""Proves that what is read ahead arrives whole and in order, errors in their place, and that no thread is left running."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from devkit.waiting import wait_for
from vnode_backfill.snapshot.read_ahead import Batches, Ranges, ReadAhead
from vnode_backfill.words.errors import LawBrokenError, SourceLostError


def batch(number: int, size: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([number] * size, pa.int64())})


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [each.column(0)[0].as_py() for each in batches]


class Source:
    """Ranges to read; what was begun and whether it was left in order."""

    def __init__(self, ranges: list[list[int]], size: int = 1, fails_at: int | None = None) -> None:
        self._ranges, self._size, self._fails_at = ranges, size, fails_at
        self.begun = 0
        self.read = 0
        self.closed = False

    def __call__(self) -> Ranges:
        try:
            for found in self._ranges:
                self.begun += 1
                yield self._batches(found)
        finally:
            self.closed = True

    def _batches(self, found: list[int]) -> Batches:
        for number in found:
            if number == self._fails_at:
                raise SourceLostError("connection lost")
            self.read += 1
            yield batch(number, self._size)


def no_reader_is_left() -> bool:
    return not any(thread.name == "read-ahead" for thread in threading.enumerate())


def test_ranges_arrive_whole_and_in_order_also_empty_ones() -> None:
    source = Source([[1, 2, 3], [], [4], [], [5, 6]])
    with ReadAhead(source) as ranges:
        assert [numbers(each) for each in ranges] == [[1, 2, 3], [], [4], [], [5, 6]]
    assert source.closed
    assert no_reader_is_left()


def test_next_range_is_read_while_the_last_is_written_and_no_further() -> None:
    source = Source([[1], [2], [3], [4]])
    with ReadAhead(source) as ranges:
        taken = iter(ranges)
        first = next(taken)
        wait_for(lambda: source.read == 2, "the second range to be read", seconds=10)
        assert numbers(first) == [1]
        # The first range is still being written: only the second was read beside it.
        assert source.begun == 2
        assert [numbers(each) for each in taken] == [[2], [3], [4]]


def test_reader_is_never_far_ahead_of_a_slow_writer() -> None:
    source = Source([list(range(40))], size=2**19)
    with ReadAhead(source) as ranges:
        for found in ranges:
            for number, _ in enumerate(found):
                assert source.read <= number + 10


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_error_of_the_reader_is_raised_in_its_range_which_does_not_end(fails_at: int) -> None:
    source = Source([[1, 2], [3, 4]], fails_at=fails_at)
    taken: list[list[int]] = []
    with ReadAhead(source) as ranges, pytest.raises(SourceLostError):
        taken.extend(map(numbers, ranges))
    assert taken == [[1, 2]][: (fails_at - 1) // 2]
    assert source.closed
    assert no_reader_is_left()


def test_error_while_a_source_is_opened_is_raised() -> None:
    def read() -> Ranges:
        yield from refuse()

    def refuse() -> Ranges:
        raise SourceLostError("no connection")

    with ReadAhead(read) as ranges, pytest.raises(SourceLostError):
        list(ranges)
    assert no_reader_is_left()


def test_writer_that_fails_leaves_no_reader_and_no_open_source_behind() -> None:
    source = Source([[1, 2, 3], list(range(100))], size=2**20)

    def write() -> None:
        with ReadAhead(source) as ranges:
            for found in ranges:
                next(found)
                raise ValueError("disk full")

    with pytest.raises(ValueError, match="disk full"):
        write()
    assert source.closed
    assert no_reader_is_left()
    assert source.read < 103


def test_writer_that_leaves_a_range_before_its_end_is_told() -> None:
    with ReadAhead(Source([[1, 2], [3]])) as ranges, pytest.raises(LawBrokenError, match="before its end"):
        list(map(next, ranges))
