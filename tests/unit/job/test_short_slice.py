"""A slice is merged by its own epoch where it is short, and under the parallel executor only."""

from __future__ import annotations

import pytest

from consume_upstream.log.offset import SHORT_STRETCH_BYTES, CdcOffset
from tests.unit.progress.state.state_examples import at
from vnode_backfill.config.job import Executor
from vnode_backfill.job.run.performer import may_be_merged_at_once


@pytest.mark.parametrize(
    ("executor", "upto", "expected"),
    [
        (Executor.PARALLEL, at(200), True),
        (Executor.PARALLEL, at(101 + SHORT_STRETCH_BYTES), False),
        (Executor.SINGLE, at(200), False),
    ],
    ids=["short", "long", "a walk"],
)
def test_slice_is_merged_at_once(executor: Executor, upto: CdcOffset, expected: bool) -> None:
    assert may_be_merged_at_once(executor, at(100), upto) is expected
