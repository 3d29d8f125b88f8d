"""A plan of many ranges is stored and read in pieces, and is the same plan again; rows are chosen without a copy."""

from __future__ import annotations

import pyarrow as pa
import pytest

from progress.store.rows import job_rows
from progress.store.rows.job_rows import plan_from_rows, plan_rows
from progress.store.state_table import rows_where
from tests.unit.progress.state.state_examples import PARTS, plan_with
from tests.unit.progress.store.state_folder import record
from vnode_backfill.words.key_range import bound_of


@pytest.mark.parametrize("piece", [1, 2, 3, 50])
def test_plan_is_the_same_again_whatever_pieces_it_is_stored_in(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_rows, "_BATCH", piece)
    first = plan_with(0, 10, 20, 30)
    later = first.extend(tuple((bound_of(PARTS, (key,)), 5) for key in (40, 50, 60)))
    rows = pa.concat_tables([plan_rows(later, generation, "w") for generation in (1, 0)])
    assert rows["ordinal"].to_pylist() == [3, 4, 0, 1, 2]
    assert plan_from_rows(record(), rows) == later
    assert plan_rows(later, 2, "w").num_rows == 0


def test_ranges_that_touch_share_their_bound_when_they_are_loaded() -> None:
    loaded = plan_from_rows(record(), plan_rows(plan_with(0, 10, 20, 30), 0, "w")).ranges
    assert loaded[0].range.high is loaded[1].range.low
    assert loaded[1].range.high is loaded[2].range.low


@pytest.mark.parametrize("kept", ["", "10110", "00000", "11111", "00001"])
def test_rows_that_are_kept_are_those_that_a_filter_keeps(kept: str) -> None:
    rows = pa.table({"n": range(len(kept))}, schema=pa.schema([("n", pa.int64())]))
    found = rows_where(rows, [letter == "1" for letter in kept])
    assert found["n"].to_pylist() == [place for place, letter in enumerate(kept) if letter == "1"]
    assert found.schema == rows.schema
