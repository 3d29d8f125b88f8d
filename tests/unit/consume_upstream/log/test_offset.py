"""Offsets of one server are totally ordered; what is visible is read as a prefix of the log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consume_upstream.log.gtid import GtidSet
from consume_upstream.log.offset import (
    SHORT_STRETCH_BYTES,
    CdcOffset,
    LoggedTransaction,
    Visibility,
    VisibleAt,
    VisibleGtids,
    is_short_stretch,
    resolve,
    visibility_from_json,
    visibility_to_json,
)
from tests.unit.progress.state.state_examples import SERVER, at, offsets, visibilities
from vnode_backfill.words.errors import OffsetError

one_server = st.builds(
    CdcOffset,
    st.just(SERVER),
    st.just("binlog"),
    st.integers(1, 3),
    st.integers(0, 5),
    st.sampled_from(["", "a"]),
)


def test_file_numbers_are_compared_not_names() -> None:
    before = CdcOffset.at(SERVER, "binlog.999999", 900)
    after = CdcOffset.at(SERVER, "binlog.1000000", 4)
    assert before < after
    assert after > before
    assert (before.file, after.file) == ("binlog.999999", "binlog.1000000")


@pytest.mark.parametrize(
    ("low", "high"),
    [(at(4), at(5)), (at(900), at(4, number=2))],
)
def test_position_counts_after_the_file(low: CdcOffset, high: CdcOffset) -> None:
    assert low < high
    assert low <= high
    assert not high <= low


@settings(deadline=None)
@given(one_server, one_server, one_server)
def test_offsets_of_one_server_are_totally_ordered(a: CdcOffset, b: CdcOffset, c: CdcOffset) -> None:
    assert [a < b, a == b, a > b].count(True) == 1
    assert (a <= b) == (a < b or a == b)
    assert (a >= b) == (b <= a)
    if a <= b <= c:
        assert a <= c
    if a == b:
        assert hash(a) == hash(b)


def test_gtids_travel_along_without_being_compared() -> None:
    assert at(4, gtids="x:1") == at(4, gtids="")
    assert not at(4, gtids="x:1") < at(4)


@pytest.mark.parametrize("other", [CdcOffset("other", "binlog", 1, 4), CdcOffset(SERVER, "mysql-bin", 1, 4)])
def test_offsets_of_different_servers_cannot_be_compared(other: CdcOffset) -> None:
    with pytest.raises(OffsetError, match="are of different servers") as caught:
        assert at(4) < other
    assert "GTID" in caught.value.hint
    with pytest.raises(OffsetError, match="different servers"):
        assert at(4) >= other


@pytest.mark.parametrize(("file", "pos"), [("binlog", 4), ("binlog.", 4), ("binlog.x1", 4), ("", 4), ("binlog.1", -1)])
def test_text_that_is_no_position_is_refused(file: str, pos: int) -> None:
    with pytest.raises(OffsetError, match="is not a log position"):
        CdcOffset.at(SERVER, file, pos)


def test_offset_is_shown_as_file_and_position() -> None:
    assert str(at(120, number=3)) == "binlog.000003:120"


def test_offset_keeps_the_form_that_earlier_releases_stored() -> None:
    """A boundary has no row, but releases that gave it one wrote a 0 and demand it."""
    stored = '{"file": "binlog.000003", "gtids": "", "pos": 120, "row": 0, "server": "17", "v": 1}'
    offset = CdcOffset.at("17", "binlog.000003", 120)
    assert offset.to_json() == stored
    assert CdcOffset.from_json(stored) == offset


@settings(deadline=None)
@given(offsets)
def test_offset_comes_back_from_its_text(offset: CdcOffset) -> None:
    read = CdcOffset.from_json(offset.to_json())
    assert (read, read.gtids) == (offset, offset.gtids)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a stored offset"),
        ("[]", "not a stored offset"),
        ("{}", "not a stored offset"),
        ('{"v": 1, "server": "s", "file": "binlog.1"}', "not a stored offset"),
        ('{"v": 1, "server": "s", "file": "binlog", "pos": 4, "row": 0, "gtids": ""}', "not a log position"),
        (at(4).to_json().replace('"v": 1', '"v": 2'), "unknown version 2"),
    ],
)
def test_damaged_offset_is_refused(text: str, reason: str) -> None:
    with pytest.raises(OffsetError, match=reason):
        CdcOffset.from_json(text)


@settings(deadline=None)
@given(visibilities)
def test_visibility_comes_back_from_its_text(visibility: Visibility) -> None:
    assert visibility_from_json(visibility_to_json(visibility)) == visibility


@pytest.mark.parametrize(("changed", "reason"), [({"v": 9}, "unknown version 9"), ({"gtids": "0-1-7"}, "MariaDB")])
def test_visibility_of_an_unknown_form_is_refused(changed: dict[str, object], reason: str) -> None:
    stored = json.loads(visibility_to_json(VisibleGtids(GtidSet()))) | changed
    with pytest.raises(OffsetError, match=reason):
        visibility_from_json(json.dumps(stored))


def transactions(*numbers: int) -> tuple[LoggedTransaction, ...]:
    return tuple(LoggedTransaction(f"{SERVER}:{number}", at(number * 10)) for number in numbers)


def executed(text: str) -> VisibleGtids:
    return VisibleGtids(GtidSet.parse(text))


def test_position_is_its_own_prefix() -> None:
    assert resolve(VisibleAt(at(50)), (), transactions(1, 2), at(100)) == (VisibleAt(at(50)), ())


def test_everything_visible_reaches_to_the_end_of_the_slice() -> None:
    assert resolve(executed(f"{SERVER}:1-3"), (), transactions(1, 2, 3), at(100)) == (VisibleAt(at(100)), ())


def test_set_with_a_hole_is_read_as_the_prefix_before_the_hole() -> None:
    visible, missing = resolve(executed(f"{SERVER}:1:3"), (), transactions(1, 2, 3), at(100))
    assert visible == VisibleAt(at(20))
    assert missing == transactions(2)


def test_transaction_that_stays_invisible_holds_the_prefix_over_epochs() -> None:
    _, missing = resolve(executed(f"{SERVER}:1:3"), (), transactions(1, 2, 3), at(40))
    visible, missing = resolve(executed(f"{SERVER}:1:3-5"), missing, transactions(4, 5), at(60))
    assert (visible, missing) == (VisibleAt(at(20)), transactions(2))
    visible, missing = resolve(executed(f"{SERVER}:1-5"), missing, transactions(6), at(70))
    assert (visible, missing) == (VisibleAt(at(60)), transactions(6))


@settings(deadline=None)
@given(st.sets(st.integers(1, 12)), st.integers(0, 12), st.integers(0, 12))
def test_prefix_is_the_same_read_at_once_or_in_slices(seen: set[int], cut: int, more: int) -> None:
    cut, more = sorted((cut, more))
    visible = executed(",".join(f"{SERVER}:{number}" for number in seen))
    whole = resolve(visible, (), transactions(*range(1, more + 1)), at(999))
    _, missing = resolve(visible, (), transactions(*range(1, cut + 1)), at(999))
    assert resolve(visible, missing, transactions(*range(cut + 1, more + 1)), at(999)) == whole
    hole = min((number for number in range(1, more + 1) if number not in seen), default=None)
    assert whole[0] == VisibleAt(at(999 if hole is None else hole * 10))


def test_whatever_stands_in_a_later_era_comes_after_everything_in_an_earlier_one() -> None:
    old = CdcOffset.at("first", "binlog.999999", 4_000_000_000)
    new = CdcOffset.at("second", "mysql-bin.000001", 4, era=1)
    assert old < new
    assert (new.file, new.era) == ("mysql-bin.000001", 1)
    assert CdcOffset.from_json(new.to_json()) == new
    assert new.in_era(0) == CdcOffset.at("second", "mysql-bin.000001", 4)


@pytest.mark.parametrize(
    ("upto", "short"),
    [
        (at(100), True),
        (at(100 + SHORT_STRETCH_BYTES), True),
        (at(101 + SHORT_STRETCH_BYTES), False),
        (at(4, number=2), False),
        (at(100).in_era(1), False),
    ],
    ids=["nothing", "just short", "a byte longer", "the next file", "the same place of another log"],
)
def test_stretch_is_short_where_both_ends_are_near_in_one_file(upto: CdcOffset, short: bool) -> None:
    assert is_short_stretch(at(100), upto) is short
