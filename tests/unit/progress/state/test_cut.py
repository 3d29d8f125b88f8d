"""A cut is stored exactly, and one that cannot be read is refused."""

from __future__ import annotations

from datetime import UTC, datetime

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


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v": 2}', '{"v": 1, "offset": "x"}'])
def test_a_cut_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="a stored cut"):
        Cut.from_json(text)
