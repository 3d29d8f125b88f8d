"""Says what a statement of the source did to the table, in words that the protocol and every sink understand.

A statement has one effect. Most have none, because no row and no column changes. `Carried` ones are followed in the
target without a read of the source: its columns change by steps, or rows go that a condition names. Where the content
cannot be carried over the table is copied again.

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
from typing import Literal

import pyarrow as pa

from vnode_backfill.words.columns import Column, Kind, TableDefinition
from vnode_backfill.words.errors import StateError
from vnode_backfill.words.partitioning import Partitioning

__all__ = [
    "AddColumn", "Carried", "ColumnStep", "CreatedTable", "DeleteRows", "DropColumn", "Emptied", "Ended", "NewCopy",
    "NoEffect",
    "RenameColumn", "RetypeColumn", "RowsOfPartitions", "SetAside", "StatementEffect", "StatementOutcome",
    "TableShape", "column_from_json", "deletes_rows", "steps_from_json", "steps_to_json",
]  # fmt: skip

RowsOfPartitions = Literal["delete", "keep", "reread"]
"""What becomes of the rows of a partition that the source drops."""


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


Text = str | None


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """Rows are gone whose `column` is one of `values`, or is at least the first and below the second of `ranges`.

    Bounds and values are text that Arrow casts to the column's type; None is no bound. Texts are equal if only spaces
    at their end are different, as in every binary collation that pads. No column of a key is NULL.
    """

    column: str
    ranges: tuple[tuple[Text, Text], ...] = ()
    values: tuple[str, ...] = ()

    def bounds(self, kind: pa.DataType) -> list[tuple[pa.Scalar | None, pa.Scalar | None]]:
        """The ranges in the type in which `compared` has the column."""
        wide = _wide(kind)
        return [(_scalar(low, wide), _scalar(high, wide)) for low, high in self.ranges]

    def matching(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """For each value whether its row goes."""
        import pyarrow.compute as pc  # which `status` does without

        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        bounds, values = self.bounds(values.type), values.cast(_wide(values.type))
        if self.values:
            return pc.is_in(pc.utf8_rtrim(values, " "), pa.array([each.rstrip(" ") for each in self.values]))
        found = pa.repeat(pa.scalar(value=False), len(values))
        for low, high in bounds:
            inside = pa.repeat(pa.scalar(value=True), len(values))
            if low is not None:
                inside = pc.and_(inside, pc.greater_equal(values, low))
            if high is not None:
                inside = pc.and_(inside, pc.less(values, high))
            found = pc.or_(found, inside)
        return pc.fill_null(found, fill_value=False)


def _wide(kind: pa.DataType) -> pa.DataType:
    """A type that holds every bound: one may be beyond the column's own type."""
    return pa.decimal128(38, 0) if pa.types.is_integer(kind) or pa.types.is_decimal(kind) else kind


def _scalar(text: str | None, kind: pa.DataType) -> pa.Scalar | None:
    return None if text is None else pa.scalar(text, pa.string()).cast(kind)


ColumnStep = AddColumn | DropColumn | RenameColumn | RetypeColumn | DeleteRows


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
class CreatedTable:
    """A table as its CREATE has left it: without a row. All that it ever held is in the log after `offset`.

    The offset is in its stored form: whoever continues there knows how to read it.
    """

    definition: TableDefinition
    offset: str


@dataclass(frozen=True, slots=True)
class NewCopy:
    """What the table holds now cannot be found from what it held: it has to be read again.

    With `created` nothing is read: the new copy begins empty, and every row comes by the log.
    """

    reason: str
    created: CreatedTable | None = None


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
class StatementOutcome:
    """What a statement did, and how the table is partitioned after it; None if that is as it was before."""

    effect: StatementEffect
    partitioning: Partitioning | None = None


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


def deletes_rows(steps: Sequence[ColumnStep]) -> bool:
    return any(isinstance(step, DeleteRows) for step in steps)


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
        case "DeleteRows":
            return _delete_rows(stored)
        case unknown:
            raise StateError(f"a stored change of a column is of the unknown kind {unknown!r}")


def _delete_rows(stored: dict[str, object]) -> DeleteRows:
    ranges, values = stored["ranges"], stored["values"]
    if not isinstance(ranges, list) or not isinstance(values, list):
        raise StateError("a stored deletion of rows has no bounds")
    return DeleteRows(str(stored["column"]), tuple((low, high) for low, high in ranges), tuple(map(str, values)))


def column_from_json(stored: object) -> Column:
    if not isinstance(stored, dict):
        raise StateError("a stored change of a column has no column")
    return replace(Column(**{**stored, "kind": Kind(stored["kind"])}), labels=tuple(stored["labels"]))
