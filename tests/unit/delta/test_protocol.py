"""What a table demands of readers and writers when a feature comes or goes."""

from __future__ import annotations

import pytest

from vnode_backfill.delta.log.actions import VECTORS, Protocol

NTZ = "timestampNtz"
OLD = frozenset({"appendOnly", "invariants"})
PLAIN = Protocol(1, 2)
TYPED = Protocol(3, 7, frozenset({NTZ}), frozenset({NTZ}))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PLAIN, Protocol(3, 7, frozenset({VECTORS}), OLD | {VECTORS})),
        (Protocol(1, 1), Protocol(3, 7, frozenset({VECTORS}), frozenset({VECTORS}))),
        (Protocol(1, 3), Protocol(3, 7, frozenset({VECTORS}), OLD | {"checkConstraints", VECTORS})),
        (TYPED, Protocol(3, 7, frozenset({NTZ, VECTORS}), frozenset({NTZ, VECTORS}))),
        (Protocol(1, 7, frozenset(), OLD), Protocol(3, 7, frozenset({VECTORS}), OLD | {VECTORS})),
    ],
)
def test_what_the_old_versions_implied_is_named(before: Protocol, after: Protocol) -> None:
    assert before.with_feature(VECTORS) == after
    assert after.with_feature(VECTORS) == after


def test_mapped_columns_stay_a_demand_on_readers() -> None:
    found = Protocol(2, 5).with_feature(VECTORS)
    assert found.reader_features == {"columnMapping", VECTORS}


@pytest.mark.parametrize("before", [PLAIN, TYPED, Protocol(1, 7, frozenset(), frozenset({"vacuumLater"}))])
def test_a_feature_that_goes_leaves_what_was_there_before(before: Protocol) -> None:
    after = before.with_feature(VECTORS).without_feature(VECTORS)
    assert after == before
