"""The effect of a statement is its own, whatever statements about the table follow it in the log."""

from __future__ import annotations

import pytest

from consume_upstream.mysql.positions.statements import effect_of_chain, effect_of_exchange
from consume_upstream.mysql.schema.current_table import CurrentTable
from consume_upstream.mysql.statements.table_actions import (
    ColumnAdded,
    ContentChanged,
    PartitionsEmptied,
    TableAction,
    TableCame,
    TableEmptied,
    TableGone,
)
from tests.unit.progress.state.state_examples import DEFINITION
from vnode_backfill.words.schema_change import (
    Carried,
    DeleteRows,
    Emptied,
    Ended,
    NewCopy,
    NoEffect,
    RowsOfPartitions,
    SetAside,
    StatementEffect,
)

EMPTIED, ADDED, GONE, CAME = (
    (TableEmptied(),),
    (ColumnAdded("c", None),),
    (TableGone("dropped"),),
    (TableCame("created"),),
)


@pytest.mark.parametrize(
    ("chain", "effect"),
    [
        ([], NoEffect()),
        ([()], NoEffect()),
        ([(), EMPTIED], NoEffect()),
        ([EMPTIED], Emptied(DEFINITION)),
        ([EMPTIED, ()], Emptied(DEFINITION)),
    ],
)
def test_statement_about_a_table_of_another_spelling_has_no_effect(
    chain: list[tuple[TableAction, ...]], effect: StatementEffect
) -> None:
    assert effect_of_chain(DEFINITION, chain, CurrentTable(DEFINITION, (), primary=True)) == effect


@pytest.mark.parametrize("chain", [[GONE], [ADDED, GONE], [GONE, CAME, GONE]])
def test_table_that_is_gone_for_good_has_ended_whatever_came_before(chain: list[tuple[TableAction, ...]]) -> None:
    assert effect_of_chain(DEFINITION, chain, None) == Ended("dropped")


def test_table_that_came_back_is_copied_again() -> None:
    found = effect_of_chain(DEFINITION, [GONE, CAME], CurrentTable(DEFINITION, (), primary=True))
    assert isinstance(found, NewCopy)


REFUSED = CurrentTable(DEFINITION, (), primary=True, refused="the table is system-versioned")


@pytest.mark.parametrize("chain", [[(ContentChanged("ADD SYSTEM VERSIONING"),)], [GONE, CAME]])
def test_table_that_only_a_new_copy_would_help_is_set_aside_if_none_can_be_made(
    chain: list[tuple[TableAction, ...]],
) -> None:
    found = effect_of_chain(DEFINITION, chain, REFUSED)
    assert isinstance(found, SetAside)
    assert found.reason.endswith("the table is system-versioned")


EXCHANGED = (PartitionsEmptied("exchange", ("p0",)),)
ROWS_GO = Carried(DEFINITION, (DeleteRows("id", ((None, "9"),)),))


@pytest.mark.parametrize(("gone", "effect"), [("delete", ROWS_GO), ("keep", NoEffect())])
def test_rows_of_a_partition_exchanged_with_an_empty_table_are_those_of_a_dropped_one(
    gone: RowsOfPartitions, effect: StatementEffect
) -> None:
    now = CurrentTable(DEFINITION, (), primary=True)
    assert effect_of_exchange(ROWS_GO, [EXCHANGED], now, came_empty=True, gone=gone) == effect
    assert isinstance(effect_of_exchange(ROWS_GO, [EXCHANGED], now, came_empty=False, gone=gone), NewCopy)


def test_table_that_is_gone_after_an_exchange_has_ended() -> None:
    assert effect_of_exchange(ROWS_GO, [EXCHANGED, GONE], None, came_empty=False, gone="keep") == Ended("dropped")
