"""Each vnode has one worker, before and after any change of their number."""

from __future__ import annotations

import pytest

from vnode_backfill.words.bitmap import VnodeBitmap, check_assignment, moved, reassign, split_evenly
from vnode_backfill.words.errors import BitmapError


def bitmaps(vnode_count: int, *texts: str) -> tuple[VnodeBitmap, ...]:
    return tuple(VnodeBitmap.parse(text, vnode_count) for text in texts)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("0-63,128", "0-63,128"),
        ("", ""),
        ("0-255", "0-255"),
        ("255", "255"),
        (" 3 , 1 - 2 ", "1-3"),
        ("5,5,4", "4-5"),
        ("0,2,4-6,8-8", "0,2,4-6,8"),
    ],
)
def test_bitmap_is_read_and_printed_as_ranges(text: str, printed: str) -> None:
    bitmap = VnodeBitmap.parse(text, 256)
    assert str(bitmap) == printed
    assert VnodeBitmap.parse(printed, 256) == bitmap


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a", "neither a vnode nor a range"),
        ("1,,2", "neither a vnode nor a range"),
        ("-1", "neither a vnode nor a range"),
        ("1-2-3", "neither a vnode nor a range"),
        ("²", "neither a vnode nor a range"),
        ("9-3", "runs backwards"),
        ("256", "vnode 256 in vnodes '256' is not between 0 and 255"),
    ],
)
def test_text_that_is_not_a_bitmap_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(BitmapError, match=reason):
        VnodeBitmap.parse(text, 256)


def test_bitmap_is_a_set_of_vnodes_in_order() -> None:
    bitmap = VnodeBitmap.of([9, 0, 4, 4], 10)
    assert list(bitmap) == [0, 4, 9]
    assert len(bitmap) == 3
    assert 4 in bitmap
    assert 5 not in bitmap
    assert -1 not in bitmap
    assert 10 not in bitmap
    assert {bitmap: "hashable"}[VnodeBitmap.parse("0,4,9", 10)] == "hashable"


def test_bitmaps_combine_as_sets() -> None:
    left, right = bitmaps(8, "0-4", "3-7")
    assert left | right == VnodeBitmap.full(8)
    assert str(left & right) == "3-4"
    assert str(left - right) == "0-2"
    assert not (left - right) & right
    assert not VnodeBitmap.empty(8)


def test_bitmaps_of_different_lengths_do_not_mix() -> None:
    left, right = VnodeBitmap.full(8), VnodeBitmap.full(16)
    for combine in (left.__or__, left.__and__, left.__sub__):
        with pytest.raises(BitmapError, match="of 8 and of 16 vnodes"):
            combine(right)


def test_vnodes_outside_the_count_are_refused() -> None:
    with pytest.raises(BitmapError, match="vnode 8 is not between 0 and 7"):
        VnodeBitmap.of([8], 8)
    with pytest.raises(BitmapError, match="outside 0-7"):
        VnodeBitmap(8, 256)
    with pytest.raises(BitmapError, match="not between 1 and 32768"):
        VnodeBitmap.full(0)


@pytest.mark.parametrize(("count", "workers"), [(256, 1), (256, 3), (256, 256), (7, 2), (1, 1), (32768, 1000)])
def test_even_split_is_contiguous_and_complete(count: int, workers: int) -> None:
    split = split_evenly(count, workers)
    check_assignment(split, count)
    assert [vnode for bitmap in split for vnode in bitmap] == list(range(count))
    sizes = [len(bitmap) for bitmap in split]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("workers", [0, -1, 9])
def test_more_workers_than_vnodes_or_none_are_refused(workers: int) -> None:
    with pytest.raises(BitmapError, match=f"{workers} workers cannot share 8 vnodes"):
        split_evenly(8, workers)
    with pytest.raises(BitmapError, match=f"{workers} workers cannot share 8 vnodes"):
        reassign(split_evenly(8, 2), workers)


def test_vnode_with_two_workers_is_refused_by_name() -> None:
    with pytest.raises(BitmapError, match="vnodes 3-4 are in more than one bitmap") as caught:
        check_assignment(bitmaps(8, "0-4", "", "3-7"), 8)
    assert "workers 0, 2" in caught.value.detail


def test_vnode_without_worker_is_refused_by_name() -> None:
    with pytest.raises(BitmapError, match="vnodes 2,7 are in no bitmap"):
        check_assignment(bitmaps(8, "0-1", "3-6"), 8)


def test_long_list_of_vnodes_is_cut_off_in_a_message() -> None:
    evens = VnodeBitmap.of(range(0, 256, 2), 256)
    with pytest.raises(BitmapError, match=r"vnodes 1,3,5,.*,39 and 108 more ranges are in no bitmap"):
        check_assignment([evens], 256)


def test_growing_takes_only_what_the_new_workers_need() -> None:
    old = split_evenly(8, 2)
    new = reassign(old, 3)
    assert [str(bitmap) for bitmap in new] == ["0-2", "4-6", "3,7"]
    assert str(moved(old, new)) == "3,7"


def test_shrinking_keeps_the_workers_that_have_most() -> None:
    old = bitmaps(9, "0", "1-4", "5-8")
    new = reassign(old, 2)
    assert [str(bitmap) for bitmap in new] == ["0-4", "5-8"]
    assert str(moved(old, new)) == "0"


def test_uneven_assignment_is_evened_out_with_the_same_workers() -> None:
    old = bitmaps(10, "0-8", "9")
    new = reassign(old, 2)
    assert [str(bitmap) for bitmap in new] == ["0-4", "5-9"]
    assert str(moved(old, new)) == "5-8"


def test_rescale_to_the_same_number_moves_nothing() -> None:
    old = split_evenly(256, 7)
    assert reassign(old, 7) == old
    assert not moved(old, old)


def test_worker_that_only_changes_its_number_moves_nothing() -> None:
    old = bitmaps(8, "0-3", "4-7")
    assert not moved(old, old[::-1])


def test_incomplete_assignment_is_not_rescaled() -> None:
    with pytest.raises(BitmapError, match="vnodes 4-7 are in no bitmap"):
        reassign(bitmaps(8, "0-3"), 2)
    with pytest.raises(BitmapError, match="vnode count 0"):
        reassign((), 2)
