"""GTID sets and positions hold exactly the transactions they name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consume_upstream.log.gtid import GtidSet, MariaDbGtidPosition, parse_gtids
from vnode_backfill.words.errors import OffsetError

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4f22fb58-82db-22f2-af44-d91bb0530673"
numbered = st.frozensets(st.tuples(st.sampled_from([A, B, f"{A}:tag"]), st.integers(1, 25)), max_size=20)


def set_of(members: frozenset[tuple[str, int]]) -> GtidSet:
    return GtidSet.parse(",".join(f"{source}:{number}" for source, number in members))


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("", ""),
        (f"{A}:1", f"{A}:1"),
        (f"{A}:5-7:1-3:4", f"{A}:1-7"),
        (f"{A.upper()}:1-3:9", f"{A}:1-3:9"),
        (f"{B}:1,\n{A}:2", f"{A}:2,{B}:1"),
        (f"{A}:1-2,{A}:4", f"{A}:1-2:4"),
        (f"{A}:1-3:blue:7", f"{A}:1-3,{A}:blue:7"),
    ],
)
def test_set_is_read_and_printed_in_one_form(text: str, printed: str) -> None:
    parsed = GtidSet.parse(text)
    assert str(parsed) == printed
    assert GtidSet.parse(printed) == parsed


@pytest.mark.parametrize("text", ["x", "x:1", f"{A}", f"{A}:0", f"{A}:5-3", f"{A}:-1", f"{A}:1-2-3"])
def test_text_that_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(OffsetError, match="is not a GTID set"):
        GtidSet.parse(text)


@settings(deadline=None)
@given(numbered, st.sampled_from([A, B, f"{A}:tag"]), st.integers(1, 26))
def test_set_holds_what_it_was_made_of_and_nothing_else(
    members: frozenset[tuple[str, int]], source: str, number: int
) -> None:
    assert set_of(members).holds(f"{source}:{number}") == ((source, number) in members)


@settings(deadline=None)
@given(numbered, numbered)
def test_sets_combine_as_sets_of_transactions(
    left: frozenset[tuple[str, int]], right: frozenset[tuple[str, int]]
) -> None:
    a, b = set_of(left), set_of(right)
    assert a.union(b) == set_of(left | right)
    assert a.intersection(b) == set_of(left & right)
    assert a.holds_all(b) == (right <= left)
    assert bool(a) == bool(left)


def test_interval_over_a_hole_is_not_held() -> None:
    held = GtidSet.parse(f"{A}:1-3:5-9")
    assert held.holds_interval(A, (5, 9))
    assert not held.holds_interval(A, (3, 5))
    assert not held.holds_interval(B, (5, 5))


def test_source_is_found_in_either_case() -> None:
    assert GtidSet.parse(f"{A}:4").holds(f"{A.upper()}:4")


def test_mariadb_position_holds_every_earlier_transaction_of_its_domains() -> None:
    position = MariaDbGtidPosition.parse("1-7-20, 0-1-77")
    assert str(position) == "0-1-77,1-7-20"
    assert position.holds("0-1-77")
    assert position.holds("0-9-3"), "another server of the same domain"
    assert not position.holds("0-1-78")
    assert not position.holds("2-1-1")


def test_mariadb_position_holds_another_if_it_is_ahead_in_every_domain() -> None:
    ahead = MariaDbGtidPosition.parse("0-1-5,1-1-5")
    assert ahead.holds_all(MariaDbGtidPosition.parse("0-1-5,1-1-4"))
    assert ahead.holds_all(MariaDbGtidPosition.parse(""))
    assert not ahead.holds_all(MariaDbGtidPosition.parse("0-1-6"))
    assert not ahead.holds_all(MariaDbGtidPosition.parse("2-1-1"))


@pytest.mark.parametrize("text", ["1-2", "a-b-c", "1-2-3-4", "1-2-3 4"])
def test_text_that_is_no_mariadb_position_is_refused(text: str) -> None:
    with pytest.raises(OffsetError, match="is not a MariaDB GTID"):
        MariaDbGtidPosition.parse(text)


def test_domain_named_twice_is_refused() -> None:
    with pytest.raises(OffsetError, match="names domain 0 twice"):
        MariaDbGtidPosition.parse("0-1-5,0-2-6")


def test_either_form_is_told_by_its_shape() -> None:
    assert parse_gtids("0-1-5") == MariaDbGtidPosition.parse("0-1-5")
    assert parse_gtids(f"{A}:1-5") == GtidSet.parse(f"{A}:1-5")
    assert parse_gtids("") == GtidSet()
