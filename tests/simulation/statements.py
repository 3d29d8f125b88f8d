"""Says what statements of the model source mean: how the log shows them, and what each does to the table."""

from __future__ import annotations

from dataclasses import replace

from consume_upstream.log.statement import FoundStatement
from tests.simulation.source import ModelSource, Statement, Transaction
from vnode_backfill.words.columns import Column, Kind, TableDefinition
from vnode_backfill.words.schema_change import (
    AddColumn,
    Carried,
    ColumnStep,
    CreatedTable,
    DeleteRows,
    DropColumn,
    Emptied,
    NewCopy,
    NoEffect,
    StatementEffect,
    TableShape,
)


def found_statement(transaction: Transaction, source: ModelSource) -> FoundStatement:
    statement = transaction.statement
    assert statement is not None
    text = f"{statement.kind} {statement.value}"
    before = replace(transaction.start, gtids=source.gtids_before(transaction.start))
    after = replace(transaction.end, gtids=source.gtids_before(transaction.end))
    return FoundStatement(before, after, text, transaction.gtid)


def statement_of(text: str) -> Statement:
    kind, value = text.split()
    return Statement(kind, int(value))


def effect_of(statement: Statement) -> StatementEffect:
    steps: tuple[ColumnStep, ...]
    match statement.kind:
        case "add":
            steps = (AddColumn(_column("b"), str(statement.value)),)
            return Carried(shape_of(2).definition, steps)
        case "drop":
            return Carried(shape_of(1).definition, (DropColumn("b"),))
        case "purge":
            first, end = statement.partition.start, statement.partition.stop
            return Carried(shape_of(1).definition, (DeleteRows("a", ((str(first), str(end)),)),))
        case "truncate":
            return Emptied(shape_of(1).definition)
        case "convert":
            return NewCopy("every row changed")
        case _:
            return NoEffect()


def created_again(shape: TableShape, found: FoundStatement) -> StatementEffect:
    """The table is empty after the statement, and has this shape."""
    return NewCopy("it was created again", CreatedTable(shape.definition, found.after.to_json()))


def shape_of(columns: int) -> TableShape:
    names = ("a", "b")[:columns]
    return TableShape(TableDefinition("d", "t", tuple(_column(name) for name in names), ("a",)))


def _column(name: str) -> Column:
    return Column(name, Kind.INT, "bigint", nullable=True, width=8)
