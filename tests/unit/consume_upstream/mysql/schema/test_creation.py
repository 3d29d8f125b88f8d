"""Which CREATE in the log has left the table empty, and as the server defines it now."""

from __future__ import annotations

import pytest

from consume_upstream.mysql.schema.creation import last_creation
from consume_upstream.mysql.statements.table_actions import (
    ColumnAdded,
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
)

GONE, CAME = TableGone("dropped"), TableCame("created", empty=True)
IF_MISSING = TableCame("created", if_not_exists=True, empty=True)
WITH_ROWS, ADDED, KEY = TableCame("renamed"), ColumnAdded("c"), KeyChanged("CREATE UNIQUE INDEX")


def creation(*actions: TableAction, primary: bool = True) -> int | None:
    return last_creation([(action,) for action in actions], primary=primary)


@pytest.mark.parametrize(
    ("actions", "place"),
    [
        ((GONE, CAME), 1),
        ((CAME,), 0),
        ((GONE, IF_MISSING), 1),
        ((GONE, CAME, IF_MISSING), 1),
        ((GONE, CAME, ADDED, GONE, CAME), 4),
        ((ADDED, GONE, CAME), 2),
        ((GONE, CAME, TableEmptied(), Nothing("CREATE INDEX"), DefaultChanged("c"), KEY), 1),
    ],
)
def test_last_create_counts(actions: tuple[TableAction, ...], place: int) -> None:
    assert creation(*actions) == place


@pytest.mark.parametrize(
    "actions",
    [(), (GONE,), (IF_MISSING,), (GONE, CAME, GONE), (GONE, WITH_ROWS), (GONE, CAME, GONE, WITH_ROWS), (ADDED,)],
)
def test_table_that_was_there_or_came_with_rows_was_not_created(actions: tuple[TableAction, ...]) -> None:
    assert creation(*actions) is None


@pytest.mark.parametrize(
    "later",
    [ADDED, ContentChanged("IMPORT"), NotUnderstood("?"), Repartitioned(), PartitionsEmptied("drop", ("p",))],
)
def test_table_that_may_be_another_since_is_read(later: TableAction) -> None:
    assert creation(GONE, CAME, later) is None


@pytest.mark.parametrize("later", [Nothing("DROP FOREIGN KEY"), KeyChanged("DROP CONSTRAINT")])
def test_table_whose_rows_a_foreign_key_may_have_changed_is_read(later: TableAction) -> None:
    assert creation(GONE, CAME, later) is None
    assert creation(later, GONE, CAME) == 2


def test_another_index_may_identify_the_rows_of_a_table_without_a_primary_key() -> None:
    assert creation(GONE, CAME, KEY, primary=False) is None


def test_actions_of_one_statement_come_in_order() -> None:
    assert last_creation([(GONE, WITH_ROWS), (GONE, CAME)], primary=True) == 1
    assert last_creation([(GONE, CAME), (GONE, WITH_ROWS)], primary=True) is None
