"""Rows are shared out: every key has one vnode, and every vnode has one worker, also after any number of rescales."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from vnode_backfill.words.bitmap import VnodeBitmap, check_assignment, moved, reassign, split_evenly
from vnode_backfill.words.errors import BitmapError
from vnode_backfill.words.key import KeyKind, KeyPart, encode_key, vnode_of
from vnode_backfill.words.key_range import SplitPlan, bound_of
from vnode_backfill.words.plan import make_plan

VNODES = 256
ID = (KeyPart("id", KeyKind.INT),)
KEYS = np.arange(-500, 120_500)
"""Keys below, inside and above the plan."""


def plan_of_a_table() -> SplitPlan:
    """Ids 0 to 120,000 in ranges of 100."""
    return make_plan(ID, tuple((bound_of(ID, (value,)), 100) for value in range(0, 120_001, 100)), VNODES)


def workers_of(assignment: Sequence[VnodeBitmap], vnode: int) -> list[int]:
    return [worker for worker, bitmap in enumerate(assignment) if vnode in bitmap]


def test_every_key_is_in_exactly_one_vnode() -> None:
    plan = plan_of_a_table()
    positions, vnodes = plan.vnodes_of([pa.array(KEYS)])
    assert len(vnodes) == len(KEYS)
    assert vnodes.min() >= 0
    assert vnodes.max() < VNODES
    for key, position, vnode in list(zip(KEYS.tolist(), positions.tolist(), vnodes.tolist(), strict=True))[::499]:
        order = bound_of(ID, (key,)).order
        holding = [each for each in plan.ranges if each.range.holds(order)]
        assert len(holding) == (position >= 0) == (0 <= key <= 120_000)
        named = holding[0].range.low.key if holding and holding[0].range.low else (key,)
        assert vnode == vnode_of(encode_key(ID, named), VNODES)


def test_rows_of_one_range_stay_together_and_ranges_spread() -> None:
    plan = plan_of_a_table()
    _, vnodes = plan.vnodes_of([pa.array(KEYS)])
    inside = vnodes[(KEYS >= 0) & (KEYS < 120_000)].reshape(-1, 100)
    assert (inside == inside[:, :1]).all()
    assert len(set(inside[:, 0].tolist())) > 0.95 * VNODES


def test_keys_that_come_after_the_plan_do_not_pile_up_in_one_vnode() -> None:
    _, vnodes = plan_of_a_table().vnodes_of([pa.array(np.arange(200_000, 225_600))])
    assert np.bincount(vnodes, minlength=VNODES).max() <= 2 * 100


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7, 64, 256])
def test_every_vnode_has_exactly_one_worker(workers: int) -> None:
    assignment = split_evenly(VNODES, workers)
    check_assignment(assignment, VNODES)
    assert all(len(workers_of(assignment, vnode)) == 1 for vnode in range(VNODES))


@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 4), (4, 3), (1, 256), (256, 1), (5, 5)])
def test_every_vnode_has_exactly_one_worker_after_a_rescale(before: int, after: int) -> None:
    old = split_evenly(VNODES, before)
    new = reassign(old, after)
    assert all(len(workers_of(new, vnode)) == 1 for vnode in range(VNODES))
    sizes = [len(bitmap) for bitmap in new]
    assert max(sizes) - min(sizes) <= 1


def test_rescale_from_four_to_eight_moves_half_of_the_vnodes_and_back_again() -> None:
    four = split_evenly(VNODES, 4)
    eight = reassign(four, 8)
    assert len(moved(four, eight)) == 128
    assert len(moved(eight, reassign(eight, 4))) == 128


def test_rescale_changes_the_worker_of_a_key_but_never_its_vnode() -> None:
    plan = plan_of_a_table()
    _, vnodes = plan.vnodes_of([pa.array(KEYS)])
    assignment = split_evenly(VNODES, 2)
    for workers in (5, 3, 8):
        assignment = reassign(assignment, workers)
        owners = np.array([workers_of(assignment, vnode)[0] for vnode in range(VNODES)])
        assert np.bincount(owners[vnodes], minlength=workers).sum() == len(KEYS)
        assert (plan.vnodes_of([pa.array(KEYS)])[1] == vnodes).all()


def test_bitmaps_given_by_hand_must_be_disjoint_and_complete() -> None:
    with pytest.raises(BitmapError, match="vnodes 100-127 are in more than one bitmap"):
        check_assignment([VnodeBitmap.parse("0-127", VNODES), VnodeBitmap.parse("100-255", VNODES)], VNODES)
    with pytest.raises(BitmapError, match="vnodes 128 are in no bitmap"):
        check_assignment([VnodeBitmap.parse("0-127", VNODES), VnodeBitmap.parse("129-255", VNODES)], VNODES)
