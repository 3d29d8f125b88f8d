"""Says what a statement of the source did to the table, in words that the protocol and every sink understand.

A statement has one effect. Most have none, because no row and no column changes. `Carried` ones are followed in the
target without a read of the source: its columns change by steps. Where the content cannot be carried over the table is
copied again.

`TableShape` is what a target holds at one version of the definition: the columns of the source, and those that the
source has dropped and the target keeps. Example, `kept` after two statements under `dropped_columns: keep`:

    statement                     definition   kept   a row changed afterwards
    (created)                     id, a, b            id 1, a 5, b 7
    ALTER TABLE t DROP b          id, a        b      id 1, a 6, b NULL
    ALTER TABLE t ADD b TEXT      id, a, b            the old b is dropped first: a name has one column
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import pyarrow as pa

from vnode_backfill.words.columns import Column, Kind, TableDefinition
from vnode_backfill.words.errors import StateError

__all__ = [
    "AddColumn", "Carried", "ColumnStep", "DropColumn", "Emptied", "Ended", "NewCopy", "NoEffect", "RenameColumn",
    "RetypeColumn", "SetAside", "StatementEffect", "TableShape", "column_from_json", "steps_from_json",
    "steps_to_json",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A new column; rows that are there already have `value`.

    `value` is text that Arrow casts to the column's type; of binary types it is hexadecimal. None is NULL.
    """

    column: Column
    value: str | None = None

    @property
    def scalar(self) -> pa.Scalar:
        kind = self.column.arrow_type
        if self.value is None:
            return pa.scalar(None, kind)
        if pa.types.is_binary(kind):
            return pa.scalar(bytes.fromhex(self.value), kind)
        return pa.scalar(self.value, pa.string()).cast(kind)


@dataclass(frozen=True, slots=True)
class DropColumn:
    name: str


@dataclass(frozen=True, slots=True)
class RenameColumn:
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class RetypeColumn:
    """The column of the same name holds more values than before; every old value is one of the new type."""

    column: Column


ColumnStep = AddColumn | DropColumn | RenameColumn | RetypeColumn


@dataclass(frozen=True, slots=True)
class NoEffect:
    """Neither the rows nor the columns of the table are concerned."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The table has another definition, and the target follows by steps; no row is read."""

    definition: TableDefinition
    steps: tuple[ColumnStep, ...]


@dataclass(frozen=True, slots=True)
class Emptied:
    """The table holds no row after the statement."""

    definition: TableDefinition


@dataclass(frozen=True, slots=True)
class NewCopy:
    """What the table holds now cannot be found from what it held: it has to be read again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The table is gone; `how` is `dropped` or `renamed`."""

    how: str


@dataclass(frozen=True, slots=True)
class SetAside:
    """Nobody can say what the statement did, or the table can no longer be copied."""

    reason: str


StatementEffect = NoEffect | Carried | Emptied | NewCopy | Ended | SetAside


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a target holds: the definition's columns, then those that the source has dropped."""

    definition: TableDefinition
    kept: tuple[Column, ...] = ()

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.definition.columns, *self.kept)

    @property
    def schema(self) -> pa.Schema:
        """All columns are nullable: see `sinks.delta.target`."""
        return pa.schema([pa.field(column.name, column.arrow_type) for column in self.columns])

    def after(self, carried: Carried, *, keep_dropped: bool) -> TableShape:
        """The shape once the steps are carried out."""
        dropped = {step.name for step in carried.steps if isinstance(step, DropColumn)}
        kept = (*self.kept, *(c for c in self.definition.columns if c.name in dropped)) if keep_dropped else self.kept
        names = {column.name.casefold() for column in carried.definition.columns}
        return TableShape(carried.definition, tuple(c for c in kept if c.name.casefold() not in names))


def steps_to_json(steps: Sequence[ColumnStep]) -> list[dict[str, object]]:
    """For the job's state; `steps_from_json` reads it back unchanged."""
    return [{"step": type(step).__name__, **asdict(step)} for step in steps]


def steps_from_json(stored: Sequence[dict[str, object]]) -> tuple[ColumnStep, ...]:
    return tuple(_step(dict(each)) for each in stored)


def _step(stored: dict[str, object]) -> ColumnStep:
    match stored.get("step"):
        case "AddColumn":
            value = stored["value"]
            return AddColumn(column_from_json(stored["column"]), None if value is None else str(value))
        case "DropColumn":
            return DropColumn(str(stored["name"]))
        case "RenameColumn":
            return RenameColumn(str(stored["old"]), str(stored["new"]))
        case "RetypeColumn":
            return RetypeColumn(column_from_json(stored["column"]))
        case unknown:
            raise StateError(f"a stored change of a column is of the unknown kind {unknown!r}")


def column_from_json(stored: object) -> Column:
    if not isinstance(stored, dict):
        raise StateError("a stored change of a column has no column")
    return replace(Column(**{**stored, "kind": Kind(stored["kind"])}), labels=tuple(stored["labels"]))
