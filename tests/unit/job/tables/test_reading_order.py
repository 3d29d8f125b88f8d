"""Small tables are read first, a priority counts before the size, and an epoch reads no more than it has time for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vnode_backfill.job.tables.reading_order import Unread, rows_to_read


def test_small_tables_come_first_and_share_what_an_epoch_has_time_for() -> None:
    tables = [Unread("b", 100, 400, 400), Unread("a", 100, 30, 30), Unread("c", 100, 500, 500)]
    assert rows_to_read(tables, 10, 10, workers=2) == {"a": 100, "b": 85}


def test_priority_counts_before_size() -> None:
    tables = [Unread("small", 100, 10, 10), Unread("urgent", 1, 10_000, 10_000)]
    assert list(rows_to_read(tables, 10, 10, workers=1)) == ["urgent"]


def test_a_table_larger_than_an_epoch_is_read_all_the_same() -> None:
    assert rows_to_read([Unread("huge", 100, 10**9, 10**9)], 10, 0, workers=4) == {"huge": 1}


def test_the_limit_of_one_table_slows_no_other() -> None:
    tables = [Unread("a", 100, 400, 400, rows_per_second=4), Unread("b", 100, 400, 400), Unread("c", 100, 500, 500)]
    assert rows_to_read(tables, 10, 10, workers=2) == {"a": 10, "b": 50}


def test_a_table_with_a_limit_takes_no_more_time_than_it_needs() -> None:
    tables = [Unread("a", 100, 4, 4, rows_per_second=4), Unread("b", 100, 400, 400)]
    assert rows_to_read(tables, 10, 10, workers=2) == {"a": 2, "b": 90}


def test_tables_that_all_have_a_limit_share_the_whole_epoch() -> None:
    tables = [Unread("a", 100, 30, 30, rows_per_second=4), Unread("b", 100, 400, 400, rows_per_second=4)]
    assert rows_to_read(tables, 10, 10, workers=1) == {"a": 40, "b": 10}


UNREAD = st.builds(Unread, st.text(min_size=1), st.integers(0, 5), st.integers(0, 10**6), st.integers(1, 10**6))


@given(st.lists(UNREAD, min_size=1, unique_by=lambda each: each.name), st.integers(0, 10**5), st.integers(1, 8))
def test_somebody_reads_and_nobody_overtakes(tables: list[Unread], rows: int, workers: int) -> None:
    chosen = rows_to_read(tables, 1, rows, workers)
    order = [each.name for each in sorted(tables, key=lambda each: (each.priority, each.rows, each.name))]
    assert chosen
    assert list(chosen) == order[: len(chosen)]
    assert all(0 < share <= max(1, rows) for share in chosen.values())
