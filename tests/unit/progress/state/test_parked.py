"""A table that rests moves on in the log without an epoch; only one that has nothing to do may rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consume_upstream.log.offset import LoggedTransaction
from progress.state.backfill_state import BackfillState, Failure, Phase
from progress.state.parked import ParkedDocument, Reached, may_rest, moved_on
from tests.unit.progress.state.state_examples import at, beginning, plan_with
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError

HOLE = LoggedTransaction("3e11fa47-71ca-11e1-9e33-c80aa9429562:7", at(480))
FAR = Reached(at(500, gtids="3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9"), (HOLE,))


def live(pos: int = 100) -> BackfillState:
    """A live table all of whose reads are forgotten."""
    state = beginning(plan_with(0, 10, 20, 30), pos=pos)
    return replace(
        state,
        revision=7,
        epoch=Epoch(9),
        vnodes=tuple(replace(each, phase=Phase.LIVE, complete=Epoch(1)) for each in state.vnodes),
    )


def test_a_live_table_that_has_merged_everything_may_rest() -> None:
    assert may_rest(live())
    assert may_rest(replace(live(), changed=at(100)))


@pytest.mark.parametrize(
    "state",
    [
        beginning(plan_with(0, 10)),
        replace(live(), changed=at(101)),
        replace(live(), stopped=True),
        replace(live(), failure=Failure(Epoch(9), "wrong")),
        replace(live(), vnodes=(replace(live().vnodes[0], reads=((0, Epoch(8)),)), *live().vnodes[1:])),
    ],
    ids=["not live", "not merged", "stopped", "failed", "a read still counts by its epoch"],
)
def test_a_table_that_has_something_to_do_may_not(state: BackfillState) -> None:
    assert not may_rest(state)


def test_a_table_that_moves_on_is_the_same_table_at_a_later_offset() -> None:
    before = live()
    after = moved_on(before, FAR)
    assert (after.written, after.lowest_applied, after.highest_applied) == (FAR.written,) * 3
    assert (after.missing, after.visible, after.revision, after.epoch) == ((HOLE,), before.visible, 7, 9)
    assert after.is_live
    assert may_rest(after)


def test_a_table_never_moves_back() -> None:
    with pytest.raises(LawBrokenError, match="would fall"):
        moved_on(live(600), FAR)


def test_what_is_stored_is_read_back_and_applies_to_one_revision_of_one_copy() -> None:
    stored = ParkedDocument.of([("a", 7, FAR), ("b", 3, FAR), ("c", 1, Reached(at(300)))])
    read = ParkedDocument(stored.text)
    assert (read.of_table("a", 7), read.of_table("b", 3), read.of_table("c", 1)) == (FAR, FAR, Reached(at(300)))
    found = read.of_table("a", 7)
    assert found is not None
    assert found.written.gtids == FAR.written.gtids
    assert (read.of_table("a", 8), read.of_table("d", 7)) == (None, None)


def test_what_is_stored_of_tables_that_do_not_run_is_kept_as_it_is() -> None:
    stored = ParkedDocument.of([("a", 7, FAR), ("b", 3, FAR)])
    kept = ParkedDocument.of([("a", 9, Reached(at(700))), *stored.without({"a"})])
    assert (kept.of_table("a", 9), kept.of_table("a", 7), kept.of_table("b", 3)) == (Reached(at(700)), None, FAR)
