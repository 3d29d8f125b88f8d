"""A statement about a parent ends the reading of its child: rows of the parent have another definition after it."""

from __future__ import annotations

import pytest

from consume_upstream.log.statement import MetStatements
from consume_upstream.mysql.binlog.batch import TransactionBook
from consume_upstream.mysql.binlog.events import LogPosition, Statement
from consume_upstream.mysql.binlog.judge import TableJudge
from consume_upstream.mysql.binlog.place import Place
from tests.unit.progress.state.state_examples import DEFINITION
from vnode_backfill.words.errors import LogFormatError

OWN = (DEFINITION.database, DEFINITION.table)


def judged(text: str, *parents: tuple[str, str]) -> MetStatements:
    met = MetStatements()
    place = Place(LogPosition("binlog.000001", 400), TransactionBook(None))
    TableJudge(place, DEFINITION, "mysql", met=met, parents=parents).judge_for_parents(Statement("shop", text.encode()))
    return met


@pytest.mark.parametrize("text", ["ALTER TABLE parent ADD c INT", "DROP TABLE parent", "RENAME TABLE x TO parent"])
def test_statement_that_may_change_a_parent_cuts_the_log_of_its_child(text: str) -> None:
    assert judged(text, ("shop", "parent")).cut is not None
    assert judged(text, ("shop", "other")).cut is None


def test_statement_that_changes_nothing_of_a_parent_is_passed() -> None:
    assert judged("CREATE INDEX i ON parent (a)", ("shop", "parent")) == MetStatements()


def test_table_that_is_its_own_parent_judges_a_statement_once() -> None:
    assert judged(f"ALTER TABLE {OWN[0]}.{OWN[1]} ADD c INT", OWN).cut is None


def test_changes_of_a_parent_as_a_statement_are_refused() -> None:
    with pytest.raises(LogFormatError):
        judged("DELETE FROM parent", ("shop", "parent"))
