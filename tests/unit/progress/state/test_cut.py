"""A cut is stored exactly, and one that cannot be read is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from progress.state.cut import Cut, Target
from tests.unit.progress.state.state_examples import at
from vnode_backfill.words.errors import StateError


def test_a_cut_is_read_back_as_it_was_stored() -> None:
    cut = Cut(
        at(100), datetime(2026, 3, 1, tzinfo=UTC), {"shop.a": Target("delta:/lake/a", 7), "shop.b": Target("iotdb", None)},
        {"shop.c": "snapshot"},
    )  # fmt: skip
    assert Cut.from_json(cut.to_json()) == cut


def test_a_version_is_kept_for_its_target_and_for_so_long() -> None:
    made, week = datetime(2026, 3, 1, tzinfo=UTC), timedelta(days=7)
    cut = Cut(at(100), made, {"shop.a": Target("delta:/lake/a", 7), "shop.b": Target("iotdb", None)}, {})
    assert cut.version_kept("shop.a", "delta:/lake/a", made + week - timedelta(seconds=1), week) == 7
    assert cut.version_kept("shop.a", "delta:/lake/a", made + week, week) is None
    assert cut.version_kept("shop.a", "delta:/lake/other", made, week) is None
    assert cut.version_kept("shop.b", "iotdb", made, week) is None
    assert cut.version_kept("shop.c", "delta:/lake/c", made, week) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v": 2}', '{"v": 1, "offset": "x"}'])
def test_a_cut_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="a stored cut"):
        Cut.from_json(text)
