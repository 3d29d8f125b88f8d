"""Statements in the log of a test, and what they have done."""

from __future__ import annotations

from consume_upstream.log.statement import FoundStatement
from tests.unit.progress.state.state_examples import DEFINITION, SERVER, at
from vnode_backfill.words.columns import Column
from vnode_backfill.words.schema_change import AddColumn, Carried, Emptied

STEPS = (AddColumn(Column.parse("c", "int", nullable=True), "3"),)
CARRIED = Carried(DEFINITION, STEPS)
EMPTIED = Emptied(DEFINITION)


def statement(pos: int, text: str = "ALTER TABLE orders ADD c INT") -> FoundStatement:
    return FoundStatement(at(pos), at(pos + 10), text, f"{SERVER}:9")
