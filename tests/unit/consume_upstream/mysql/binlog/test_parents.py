"""A statement about a parent is written down for its child: the parent is no longer what the child's copy knows of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consume_upstream.log.statement import MetStatements
from consume_upstream.mysql.binlog.batch import TransactionBook
from consume_upstream.mysql.binlog.events import LogPosition, Statement
from consume_upstream.mysql.binlog.judge import TableJudge
from consume_upstream.mysql.binlog.place import Place
from tests.unit.progress.state.state_examples import DEFINITION

PARENT = replace(DEFINITION, database="shop", table="parent", primary=True)
WHERE = (1, 400)


def judged(text: str, parent: str = "parent") -> MetStatements:
    met = MetStatements()
    place = Place(LogPosition("binlog.000001", WHERE[1]), TransactionBook(None))
    judge = TableJudge(place, DEFINITION, "mysql", met=met, parents=[replace(PARENT, table=parent)])
    judge.judge_for_parents(Statement("shop", text.encode()))
    return met


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE parent ADD c INT",
        "ALTER TABLE parent RENAME COLUMN id TO number",
        "ALTER TABLE parent ADD FOREIGN KEY (g) REFERENCES grandparent (id) ON DELETE CASCADE",
        "ALTER TABLE parent DROP PRIMARY KEY, ADD PRIMARY KEY (code)",
        "ALTER TABLE parent RENAME TO other",
        "RENAME TABLE parent TO old, new TO parent",
        "RENAME TABLE x TO parent",
        "DROP TABLE parent",
        "TRUNCATE parent",
        "DELETE FROM parent",
        "ALTER TABLE parent SOMETHING NEW",
        "DROP DATABASE shop",
    ],
)
def test_what_may_change_a_parent_is_written_down_and_cuts_nothing(text: str) -> None:
    assert judged(text) == MetStatements(parent_changed=WHERE)


def test_a_statement_about_another_table_is_not() -> None:
    assert judged("ALTER TABLE parent ADD c INT", "other") == MetStatements()


@pytest.mark.parametrize(
    "text",
    [
        "CREATE INDEX i ON parent (a)",
        "CREATE UNIQUE INDEX i ON parent (a)",
        "ALTER TABLE parent COMMENT 'x', ALTER a SET DEFAULT 3",
        "ALTER TABLE parent DROP FOREIGN KEY f",
        "ALTER TABLE parent ADD FOREIGN KEY (g) REFERENCES grandparent (id)",
    ],
)
def test_what_provably_cannot_matter_is_not(text: str) -> None:
    assert judged(text) == MetStatements()


def test_files_of_another_era_are_counted_there_too() -> None:
    met = judged("DROP TABLE parent")
    met.shift(100)
    assert met.parent_changed == (101, 400)
