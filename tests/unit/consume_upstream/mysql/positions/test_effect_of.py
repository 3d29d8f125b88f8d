"""The effect of a statement is its own, whatever statements about the table follow it in the log."""

from __future__ import annotations

import pytest

from consume_upstream.mysql.positions.statements import effect_of_chain
from consume_upstream.mysql.schema.current_table import CurrentTable
from consume_upstream.mysql.statements.table_actions import ColumnAdded, TableAction, TableCame, TableEmptied, TableGone
from tests.unit.progress.state.state_examples import DEFINITION
from vnode_backfill.words.schema_change import Emptied, Ended, NewCopy, NoEffect, StatementEffect

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
