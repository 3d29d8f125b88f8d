"""Proves which buffered changes take effect: marked again, above what is applied, the last of each key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consume_upstream.buffer import buffer_schema
from consume_upstream.log.offset import CdcOffset, VisibleAt
from consume_upstream.mark import MarkView, merge_view
from progress.state.backfill_state import BackfillState, Phase, new_state
from tests.tables import Change, Row, change_table, plan, table_of
from vnode_backfill.merge.last_changes import MergeWindow, counted_changes, last_changes, latest_per_key
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import SplitPlan, bound_of

PAIRS = table_of({"id": "int", "value": "varchar(20)"}, "id")
PLAN = plan(PAIRS, (0,), (10,), (20,), vnodes=64)
INSERT, UPDATE, DELETE = ChangeOp


def at(pos: int, file: int = 1) -> CdcOffset:
    return CdcOffset("server", "binlog", file, pos)


def state_of(split: SplitPlan, **reads: int) -> BackfillState:
    """Every range read, `r0=50` means range 0 with a visibility of 50; nothing applied yet."""
    state = new_state(VisibleAt(at(0)), split, split_evenly(split.vnode_count, 2))
    visible = {Epoch(number + 1): VisibleAt(at(pos)) for number, pos in enumerate(reads.values())}
    read_in = {int(name[1:]): Epoch(number + 1) for number, name in enumerate(reads)}
    vnodes = tuple(
        replace(
            vnode,
            phase=Phase.CATCH_UP,
            complete=Epoch(9),
            reads=tuple((r.ordinal, read_in[r.ordinal]) for r in split.of_vnode(vnode.vnode) if r.ordinal in read_in),
        )
        for vnode in state.vnodes
    )
    return replace(state, vnodes=vnodes, visible=((Epoch(0), VisibleAt(at(0))), *visible.items()))


def applied(split: SplitPlan, offset: CdcOffset) -> dict[VnodeId, CdcOffset]:
    return {VnodeId(vnode): offset for vnode in range(split.vnode_count)}


def merged(
    table: pa.Table,
    view: MarkView,
    above: dict[VnodeId, CdcOffset],
    upto: CdcOffset,
    *,
    split: SplitPlan = PLAN,
    definition: TableDefinition = PAIRS,
) -> list[tuple[int, Row]]:
    """Operation and row of each change that takes effect, in key order."""
    window = MergeWindow(split, view, above, upto)
    found = last_changes(table.to_batches(max_chunksize=3), buffer_schema(definition), window)
    names = [column.name for column in definition.columns]
    rows = [(row["_op"], tuple(row[name] for name in names)) for row in found.to_pylist()]
    return sorted(rows, key=lambda row: repr(row[1]))


def test_the_last_change_of_each_key_is_kept_and_deletes_stay_deletes() -> None:
    table = change_table(
        PAIRS,
        [
            (INSERT, 1, (1, "a")),
            (UPDATE, 5, (1, "c")),
            (UPDATE, 3, (1, "b")),
            (UPDATE, 2, (2, "x")),
            (DELETE, 4, (2, "x")),
        ],
    )
    above = applied(PLAN, at(0))
    assert merged(table, merge_view(state_of(PLAN), PLAN), above, at(9)) == [(UPDATE, (1, "c")), (DELETE, (2, None))]


def test_a_change_that_a_read_has_seen_is_dropped() -> None:
    table = change_table(
        PAIRS, [(UPDATE, 40, (7, "a")), (UPDATE, 60, (9, "b")), (UPDATE, 40, (17, "c")), (INSERT, 40, (99, "d"))]
    )
    view = merge_view(state_of(PLAN, r0=50, r1=30), PLAN)
    found = merged(table, view, applied(PLAN, at(0)), at(90))
    assert found == [(UPDATE, (17, "c")), (UPDATE, (9, "b")), (INSERT, (99, "d"))]


def test_a_sink_that_needs_the_window_is_given_every_change_that_counts_with_its_place() -> None:
    """Those that count are the same as for the last of each key: above the reads, above what is applied, up to the
    bound."""
    placed = [(40, 7), (60, 7), (70, 7), (65, 99), (95, 99)]
    table = change_table(PAIRS, [(UPDATE, pos, (key, str(pos))) for pos, key in placed])
    window = MergeWindow(PLAN, merge_view(state_of(PLAN, r0=50), PLAN), applied(PLAN, at(10)), at(90))
    found = counted_changes(table.to_batches(max_chunksize=2), buffer_schema(PAIRS), window)
    rows = pa.concat_tables(found).to_pylist()
    assert sorted((row["_offset_pos"], row["id"]) for row in rows) == [(60, 7), (65, 99), (70, 7)]


def test_changes_at_or_below_applied_and_above_the_bound_are_left() -> None:
    table = change_table(PAIRS, [(UPDATE, pos, (pos, "x")) for pos in (9, 10, 11, 19, 20, 21)])
    found = merged(table, merge_view(state_of(PLAN), PLAN), applied(PLAN, at(10)), at(20))
    assert [row[0] for _, row in found] == [11, 19, 20]


def test_every_row_of_an_event_lies_on_the_same_side_of_a_boundary() -> None:
    """The rows of a transaction that MySQL compressed all have its end as their position, and its end is a boundary."""
    packed = [(INSERT, pos, (key, str(pos))) for pos in (10, 20, 30) for key in range(pos, pos + 3)]
    table = change_table(PAIRS, packed, numbered=True)
    found = merged(table, merge_view(state_of(PLAN), PLAN), applied(PLAN, at(10)), at(20))
    assert [row[0] for _, row in found] == [20, 21, 22]


def test_a_read_that_has_seen_an_event_has_seen_every_row_of_it() -> None:
    packed = [(UPDATE, pos, (key, str(pos))) for pos in (50, 60) for key in (1, 2, 3)]
    table = change_table(PAIRS, packed, numbered=True)
    view = merge_view(state_of(PLAN, r0=50), PLAN)
    found = merged(table.slice(0, 3), view, applied(PLAN, at(0)), at(90))
    assert found == []
    found = merged(table, view, applied(PLAN, at(0)), at(90))
    assert found == [(UPDATE, (key, "60")) for key in (1, 2, 3)]


def test_the_last_row_of_an_event_decides_about_its_key() -> None:
    changes: list[Change] = [
        (INSERT, 20, (1, "a")),
        (DELETE, 20, (1, "a")),
        (INSERT, 20, (1, "b")),
        (DELETE, 20, (2, "")),
    ]
    table = change_table(PAIRS, changes, numbered=True)
    found = merged(table, merge_view(state_of(PLAN), PLAN), applied(PLAN, at(0)), at(20))
    assert found == [(INSERT, (1, "b")), (DELETE, (2, None))]


def test_offsets_compare_by_file_number_before_position() -> None:
    older = change_table(PAIRS, [(UPDATE, 900, (1, "old"))], file=999_999)
    newer = change_table(PAIRS, [(UPDATE, 4, (1, "new"))], file=1_000_000)
    above = applied(PLAN, at(500, file=999_999))
    found = merged(pa.concat_tables([newer, older]), merge_view(state_of(PLAN), PLAN), above, at(4, file=1_000_000))
    assert found == [(UPDATE, (1, "new"))]


def test_changes_of_vnodes_that_do_not_merge_are_left() -> None:
    table = change_table(PAIRS, [(UPDATE, 5, (1, "a")), (UPDATE, 5, (12, "b"))])
    only = {PLAN.ranges[0].vnode: at(0)}
    assert PLAN.ranges[0].vnode != PLAN.ranges[1].vnode
    assert merged(table, merge_view(state_of(PLAN), PLAN), only, at(9)) == [(UPDATE, (1, "a"))]


def test_the_insert_half_of_a_key_change_follows_the_delete_half() -> None:
    table = change_table(PAIRS, [(INSERT, 5, (1, "came")), (DELETE, 5, (1, "went"))])
    found = merged(table, merge_view(state_of(PLAN), PLAN), applied(PLAN, at(0)), at(9))
    assert found == [(INSERT, (1, "came"))]


def test_the_vnode_is_computed_again_under_the_plan_that_holds() -> None:
    low, high = (bound_of(PAIRS.key_parts, (number,)) for number in (50, 60))
    extended = PLAN.extend(((low, 1), (high, 0)))
    stray, home = (VnodeId(int(plan.vnodes_of([pa.array([55])])[1][0])) for plan in (PLAN, extended))
    assert stray != home
    table = change_table(PAIRS, [(UPDATE, 5, (55, "a"))])
    view = merge_view(state_of(extended), extended)
    assert merged(table, view, {stray: at(0)}, at(9), split=extended) == []
    assert merged(table, view, {home: at(0)}, at(9), split=extended) == [(UPDATE, (55, "a"))]


def test_no_change_gives_an_empty_table_with_its_columns() -> None:
    window = MergeWindow(PLAN, merge_view(state_of(PLAN), PLAN), {}, at(1))
    found = last_changes([], buffer_schema(PAIRS), window)
    assert found.num_rows == 0
    assert {"id", "value", "_op"} <= set(found.column_names)


def test_text_keys_are_placed_by_the_weights_of_the_server() -> None:
    words = table_of({"word": "varchar(20)"}, "word")
    split = plan(words, ("A",), ("C",))

    def upper(columns: Sequence[pa.Array]) -> list[pa.Array | None]:
        return [pa.array([word.upper().encode() for word in columns[0].to_pylist()], pa.binary())]

    table = change_table(words, [(UPDATE, 40, ("b",)), (UPDATE, 40, ("z",))])
    window = MergeWindow(split, merge_view(state_of(split, r0=50), split), applied(split, at(0)), at(90))
    found = last_changes(table.to_batches(), buffer_schema(words), window, upper)
    assert found.column("word").to_pylist() == ["z"]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint unsigned", [Decimal(0), Decimal(2**64 - 1)]),
        ("decimal(30,5)", [Decimal("-1.5"), Decimal("1.50000")]),
        ("varbinary(9)", [b"", b"\x00"]),
        ("varchar(9)", ["a", "A", "a ", "ä", "\U0001f600"]),
        ("timestamp(6)", [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
    ],
)
def test_keys_of_every_kind_are_told_apart_by_their_bytes(
    kind: str, values: list[Decimal | bytes | str | datetime]
) -> None:
    definition = table_of({"k": kind, "n": "int"}, "k")
    rows = [(UPDATE, pos, (value, pos)) for pos, value in enumerate([*values, *values], start=1)]
    found = latest_per_key(change_table(definition, rows), ["k"])
    assert sorted(found.column("n").to_pylist()) == [pos for _, pos, _ in rows[len(values) :]]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(list(ChangeOp)), st.integers(0, 30), st.booleans()), max_size=60),
    st.randoms(use_true_random=False),
    st.integers(0, 60),
    st.integers(0, 60),
    st.tuples(st.integers(-1, 60), st.integers(-1, 60)),
)
def test_merged_changes_equal_a_dict_in_log_order(
    log: list[tuple[ChangeOp, int, bool]], random: object, low: int, high: int, seen: tuple[int, int]
) -> None:
    changes: list[Change] = [(op, pos, (key, f"v{pos}")) for pos, (op, key, _) in enumerate(log, start=1)]
    model: dict[int, tuple[int, str | None]] = {}
    for op, pos, (key, value) in changes:
        assert isinstance(key, int)
        mark = seen[0] if key < 10 else seen[1] if key <= 20 else -1
        if low < pos <= high and pos > mark:
            model[key] = (int(op), None if op is DELETE else str(value))
    shuffled = sorted(changes, key=lambda _: random.random())  # type: ignore[attr-defined]
    view = merge_view(state_of(PLAN, r0=seen[0], r1=seen[1]), PLAN)
    if min(seen) < 0:
        view = merge_view(state_of(PLAN, **{f"r{n}": pos for n, pos in enumerate(seen) if pos >= 0}), PLAN)
    merge_rows = merged(change_table(PAIRS, shuffled), view, applied(PLAN, at(low)), at(high))
    assert {row[0]: (op, row[1]) for op, row in merge_rows} == model
    assert len(merge_rows) == len(model)


def test_letting_go_of_older_changes_on_the_way_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = change_table(PAIRS, [(UPDATE, pos, (pos % 5, f"v{pos}")) for pos in range(1, 60)])
    view, above = merge_view(state_of(PLAN), PLAN), applied(PLAN, at(0))
    at_once = merged(table, view, above, at(99))
    monkeypatch.setattr("vnode_backfill.merge.last_changes._COMPACTED_ROWS", 4)
    assert merged(table, view, above, at(99)) == at_once
