"""The workload's picture of its table follows what it did, and back."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from devkit.operations import CommittedOp, KeySet, OpKind, Row, WorkloadMix, replay
from devkit.orders import make_value, orders_table

operations = st.lists(st.tuples(st.sampled_from(OpKind), st.integers(0, 2**32)), max_size=60)


def _history(keys: KeySet, drawn: list[tuple[OpKind, int]]) -> list[CommittedOp]:
    history = []
    for kind, seed in drawn:
        random = Random(seed)
        gap = keys.draw_gap(random)
        if kind is OpKind.INSERT:
            operation = CommittedOp(1, kind, gap)
        else:
            new_key = {OpKind.REKEY: gap, OpKind.SWAP: keys.draw(random)}.get(kind) if len(keys) else None
            operation = (
                CommittedOp(1, kind, keys.draw(random), new_key) if len(keys) else CommittedOp(1, OpKind.INSERT, gap)
            )
        keys.apply(operation)
        history.append(operation)
    return history


@given(operations)
def test_key_set_has_the_keys_of_the_replayed_rows(drawn: list[tuple[OpKind, int]]) -> None:
    keys = KeySet(range(1, 6))
    history = _history(keys, drawn)
    model = replay({key: {} for key in range(1, 6)}, history)
    assert {key for key in range(-100, 200) if key in keys} == set(model)
    assert len(keys) == len(model)


@given(operations)
def test_undone_operations_leave_the_keys_as_they_were(drawn: list[tuple[OpKind, int]]) -> None:
    keys = KeySet(range(1, 6))
    for operation in reversed(_history(keys, drawn)):
        keys.undo(operation)
    assert {key for key in range(-100, 200) if key in keys} == set(range(1, 6))


@given(st.sets(st.integers(-50, 50)), st.integers())
def test_gap_is_a_key_nobody_has_and_never_zero(taken: set[int], seed: int) -> None:
    gap = KeySet(sorted(taken)).draw_gap(Random(seed))
    assert gap not in taken
    assert gap != 0


def test_replay_swaps_rows_and_moves_keys() -> None:
    history = [
        CommittedOp(1, OpKind.SWAP, 1, 2),
        CommittedOp(2, OpKind.REKEY, 2, 9),
        CommittedOp(3, OpKind.UPDATE, 9, None, (("name", "new"),)),
    ]
    rows: dict[int, Row] = {1: {"name": "one", "flag": 1}, 2: {"name": "two", "flag": 2}}
    assert replay(rows, history) == {1: {"name": "two", "flag": 2}, 9: {"name": "new", "flag": 1}}


def test_every_column_kind_makes_the_same_value_for_the_same_seed() -> None:
    columns = orders_table("shop").values
    first, second = ([make_value(column, Random(seed)) for column in columns for seed in range(50)] for _ in range(2))
    assert first == second


def test_mix_names_and_weights_belong_together() -> None:
    mix = WorkloadMix(insert=5, savepoint=0)
    assert dict(zip(mix.names(), mix.weights(), strict=True))["insert"] == 5
    assert dict(zip(mix.names(), mix.weights(), strict=True))["savepoint"] == 0
