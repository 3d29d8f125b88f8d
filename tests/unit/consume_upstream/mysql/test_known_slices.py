"""Where slices of the log end is found once for all tables at an offset."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from consume_upstream.log.offset import CdcOffset
from consume_upstream.mysql.driver_source import DriverSource, KnownSlices, _Connections
from consume_upstream.mysql.known_table import KnownTable
from tests.unit.progress.state.state_examples import at
from vnode_backfill.words.errors import BackfillError, OffsetError, SourceError, SourceLostError


class Log:
    """A log in which the next boundary is always `length` further; counts how often it was looked at."""

    def __init__(self) -> None:
        self.slices, self.looks = KnownSlices(), 0

    def end(self, after: int, upto: int, length: int = 100) -> CdcOffset | None:
        def find() -> CdcOffset | None:
            self.looks += 1
            return at(after + length) if after + length < upto else None

        return self.slices.end(at(after), at(upto), length, find)


def test_tables_at_one_offset_are_given_one_end() -> None:
    log = Log()
    assert [log.end(100, 500), log.end(100, 500), log.end(100, 900)] == [at(200)] * 3
    assert log.looks == 1


def test_log_without_a_boundary_is_looked_at_again_when_it_has_grown() -> None:
    log = Log()
    assert [log.end(100, 200), log.end(100, 200)] == [None, None]
    assert log.looks == 1
    assert log.end(100, 201) == at(200)
    assert log.looks == 2


def test_end_is_never_at_or_beyond_the_sample() -> None:
    log = Log()
    assert log.end(100, 500) == at(200)
    assert log.end(100, 200) is None
    assert log.end(100, 150) is None


def test_each_offset_and_each_length_has_its_own_end() -> None:
    log = Log()
    found = [log.end(after, 10_000, length) for length in (100, 300) for after in range(100, 2_100, 100)]
    assert found == [at(after + length) for length in (100, 300) for after in range(100, 2_100, 100)]


def test_end_in_a_log_that_was_reset_is_not_that_of_the_log_before() -> None:
    slices, first, second = KnownSlices(), replace(at(100), log="first"), replace(at(100), log="second")
    assert slices.end(first, at(500), 100, lambda: at(200)) == at(200)
    assert slices.end(second, at(500), 100, lambda: at(217)) == at(217)


def failing_source(monkeypatch: pytest.MonkeyPatch, *answers: BackfillError | CdcOffset) -> DriverSource:
    """A source that has these answers, one after the other, when it is asked for the end of a slice."""
    left = list(answers)

    def find(*_: object) -> CdcOffset:
        answer = left.pop(0)
        if isinstance(answer, BackfillError):
            raise answer
        return answer

    monkeypatch.setattr(DriverSource, "_find_slice_end", find)
    return DriverSource(cast(KnownTable, None), cast(_Connections, SimpleNamespace(slices=KnownSlices())))


@pytest.mark.parametrize("error", [SourceError("no such file"), OffsetError("'x' is not a GTID set")])
def test_log_in_which_no_end_can_be_found_is_not_cut(error: BackfillError, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with it is for its reader to say, and it is not looked at again for each table."""
    source = failing_source(monkeypatch, error)
    assert [source.slice_end(at(100), at(500), 100) for _ in range(2)] == [None, None]


def test_connection_that_is_lost_does_not_make_one_epoch_of_a_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    source = failing_source(monkeypatch, SourceLostError("gone"), at(200))
    with pytest.raises(SourceLostError):
        source.slice_end(at(100), at(500), 100)
    found = source.slice_end(at(100), at(500), 100)
    assert found is not None
    assert found.order == at(200).order
