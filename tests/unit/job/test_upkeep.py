"""Which files of a table are joined: pure, from their bounds and sizes alone."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from vnode_backfill.delta.files import DataFile, Value
from vnode_backfill.sinks.delta.compaction import CompactionPlan, CompactionPolicy, compaction_due

TARGET = 100
EAGER = CompactionPolicy.on_request(TARGET)


def file(low: Value | None, high: Value | None, size: int = 10, name: str = "") -> DataFile:
    return DataFile(name or f"{low}-{high}", size, 1, (low,), (high,))


def names(plan: CompactionPlan | None) -> list[list[str]]:
    return [] if plan is None else [[each.path for each in group] for group in plan.groups]


def test_neighbours_are_joined_in_key_order_up_to_the_target_size() -> None:
    files = [file(n, n + 9, 40) for n in (30, 0, 20, 10)]
    assert names(compaction_due(files, EAGER)) == [["0-9", "10-19"], ["20-29", "30-39"]]


def test_files_of_half_the_target_size_are_left_alone() -> None:
    files = [file(0, 9, 50), file(10, 19, 100), file(20, 29, 49)]
    assert compaction_due(files, EAGER) is None


def test_nothing_is_due_until_there_are_more_small_files_than_the_policy_allows() -> None:
    files = [file(n, n) for n in range(5)]
    assert compaction_due(files, CompactionPolicy(TARGET, small_files=5)) is None
    assert names(compaction_due([*files, file(5, 5)], CompactionPolicy(TARGET, small_files=5))) == [
        ["0-0", "1-1", "2-2", "3-3", "4-4", "5-5"]
    ]


def test_files_that_span_many_others_are_joined_among_themselves() -> None:
    tight = [file(n, n + 9, 10) for n in range(0, 200, 10)]
    wide = [file(3, 185, 1), file(7, 199, 1)]
    found = names(compaction_due([*wide, *tight], EAGER))
    assert ["3-185", "7-199"] in found
    assert [group[0] for group in found] == ["0-9", "100-109", "3-185"]


def test_keys_of_several_columns_are_ordered_by_all_of_them() -> None:
    files = [DataFile(f"{n}", 40, 1, (7, n), (7, n)) for n in (3, 1, 4, 2)]
    assert names(compaction_due(files, EAGER)) == [["1", "2"], ["3", "4"]]


def test_files_without_bounds_are_joined_with_their_like_only() -> None:
    files = [file(None, None, name="a"), file(1, 2), file(None, None, name="b"), file(3, 4)]
    assert names(compaction_due(files, EAGER)) == [["1-2", "3-4"], ["a", "b"]]


def test_instants_with_and_without_a_zone_and_text_are_ordered() -> None:
    at = [datetime(2024, 1, day, tzinfo=UTC) for day in (3, 1, 2)]
    assert names(compaction_due([file(t, t, name=str(t.day)) for t in at], EAGER)) == [["1", "2", "3"]]
    assert names(compaction_due([file("b", "c"), file("a", "a\U0010ffff", name="a")], EAGER)) == [["a", "b-c"]]


def test_a_step_takes_whole_groups_and_at_least_one() -> None:
    plan = compaction_due([file(n, n, 40) for n in range(6)], EAGER)
    assert plan is not None
    opening = 2 * 256 * 1024
    assert [len(plan.step(limit)) for limit in (1, opening, 2 * opening + 159, 2 * opening + 160, 4 * opening)] == [
        1, 1, 1, 2, 3,
    ]  # fmt: skip


def test_a_step_takes_the_smallest_files_first() -> None:
    plan = CompactionPlan(((file(1, 1, 40), file(2, 2, 10)), (file(3, 3, 10), file(4, 4, 10), file(5, 5, 10))))
    assert [each.path for group in plan.step(1) for each in group] == ["3-3", "4-4", "5-5"]


FILES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, 120)), max_size=40)


@given(FILES)
def test_every_file_is_joined_once_at_most_and_no_group_outgrows_the_target(
    drawn: list[tuple[int, int, int]],
) -> None:
    files = [file(min(a, b), max(a, b), size, f"{n}") for n, (a, b, size) in enumerate(drawn)]
    plan = compaction_due(files, EAGER)
    groups = () if plan is None else plan.groups
    joined = [each.path for group in groups for each in group]
    assert len(joined) == len(set(joined))
    assert all(len(group) > 1 and sum(each.size for each in group) <= TARGET for group in groups)


@given(st.lists(st.integers(1, 49), min_size=2, max_size=60))
def test_of_neighbours_at_most_one_stays_small(sizes: list[int]) -> None:
    plan = compaction_due([file(n, n, size, f"{n}") for n, size in enumerate(sizes)], EAGER)
    assert plan is not None
    left = len(sizes) - plan.files
    joined = [sum(each.size for each in group) for group in plan.groups]
    assert left + sum(size * 2 < TARGET for size in joined) <= 1
