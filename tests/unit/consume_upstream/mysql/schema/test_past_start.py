"""Which statements a job that begins in the past passes over, and which refuse its beginning."""

from __future__ import annotations

import pytest

from consume_upstream.mysql.schema.past_start import changing_statements, passed_over
from consume_upstream.mysql.statements.table_actions import (
    Cascades,
    ColumnAdded,
    ColumnChanged,
    ColumnDropped,
    ColumnRenamed,
    ContentChanged,
    DefaultChanged,
    KeyChanged,
    Nothing,
    NotUnderstood,
    PartitionsEmptied,
    Repartitioned,
    TableAction,
    TableCame,
    TableEmptied,
    TableGone,
    Unsupported,
)

GONE, CAME = TableGone("dropped"), TableCame("created", empty=True)
IF_MISSING = TableCame("created", if_not_exists=True, empty=True)
RENAMED, SELECTED = TableCame("renamed"), TableCame("created")
INDEX, ADDED, CHANGED = Nothing("CREATE INDEX"), ColumnAdded("c"), ColumnChanged("e", "e")


def changing(*actions: TableAction, primary: bool = True) -> list[int]:
    return [at for at, _ in changing_statements([(action,) for action in actions], primary=primary)]


def passed(*actions: TableAction, rows_after: int | None = None) -> int:
    return passed_over([(action,) for action in actions], rows_after)


@pytest.mark.parametrize(
    "action",
    [
        INDEX,
        DefaultChanged("c"),
        TableEmptied(),
        Repartitioned(),
        PartitionsEmptied("drop", ("p",)),
        IF_MISSING,
        KeyChanged("ADD UNIQUE"),
    ],
)
def test_statement_that_keeps_the_definition_refuses_nothing(action: TableAction) -> None:
    assert changing(action, INDEX) == []


@pytest.mark.parametrize(
    "action",
    [
        RENAMED,
        SELECTED,
        ContentChanged("IMPORT TABLESPACE", brings_rows=True),
        PartitionsEmptied("exchange", ("p",)),
        NotUnderstood("?"),
    ],
)
def test_statement_that_may_bring_rows_is_not_passed_over(action: TableAction) -> None:
    assert passed(INDEX, action, INDEX) == 1


@pytest.mark.parametrize("action", [CAME, ADDED, ContentChanged("CONVERT TO"), PartitionsEmptied("drop", ("p",))])
def test_statement_before_the_first_rows_is_passed_over(action: TableAction) -> None:
    assert passed(INDEX, action, INDEX) == 3


@pytest.mark.parametrize(
    "action",
    [
        CHANGED,
        ADDED,
        ColumnDropped("c"),
        ColumnRenamed("a", "b"),
        ContentChanged("CONVERT TO"),
        Cascades("a foreign key"),
        Unsupported("MyISAM"),
        NotUnderstood("?"),
        GONE,
        CAME,
        TableCame("replaced", empty=True),
        RENAMED,
        SELECTED,
        Nothing("DROP FOREIGN KEY"),
        KeyChanged("DROP CONSTRAINT"),
    ],
)
def test_statement_before_which_the_table_may_have_been_another_refuses_the_beginning(action: TableAction) -> None:
    assert changing(INDEX, action, INDEX) == [1]


def test_every_such_statement_is_found_so_that_a_job_can_begin_after_the_last() -> None:
    assert changing(CHANGED, INDEX, GONE, CAME, TableEmptied()) == [0, 2, 3]


def test_create_if_not_exists_counts_where_the_table_was_gone() -> None:
    assert changing(IF_MISSING, GONE, IF_MISSING, IF_MISSING) == [1, 2]


def test_unique_index_refuses_the_beginning_where_it_may_identify_the_rows() -> None:
    assert changing(KeyChanged("ADD UNIQUE"), primary=False) == [0]


def test_one_clause_that_changes_the_table_is_enough() -> None:
    assert changing_statements([(INDEX, CHANGED)], primary=True)[0][0] == 0


def test_reason_says_what_is_not_known() -> None:
    (index, foreign, renamed, column) = (
        why
        for action in (KeyChanged("ADD UNIQUE"), Nothing("DROP FOREIGN KEY"), RENAMED, CHANGED)
        for _, why in changing_statements([(action,)], primary=False)
    )
    assert "Another key" in index
    assert "outside the log" in foreign
    assert "brought rows" in renamed
    assert "another definition" in column


def test_statements_before_the_first_rows_are_passed_over_whatever_they_do() -> None:
    assert passed(GONE, CAME, CHANGED, ADDED, rows_after=3) == 3
    assert passed(GONE, CAME) == 2
    assert passed(CHANGED, rows_after=0) == 0
    assert passed() == 0


@pytest.mark.parametrize("action", [RENAMED, SELECTED])
def test_statement_that_brings_rows_is_not_passed_over(action: TableAction) -> None:
    assert passed(GONE, action, ADDED, rows_after=3) == 1
