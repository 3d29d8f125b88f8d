"""Names what one logged statement does to the table, as far as its text alone can say.

A statement is a list of these in the order of its clauses. Types, defaults and keys are not among them: the server is
asked for the definition that came out (`schema.derive`), so no type is ever parsed from a text. Names are spelled as
the statement spells them; columns compare without regard to case.

What is not in this list does not exist: a clause that nobody understands is `NotUnderstood`, never `Nothing`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "After", "Cascades", "ColumnAdded", "ColumnChanged", "ColumnDropped", "ColumnRenamed", "ContentChanged", "DefaultChanged",
    "First", "KeyChanged", "NotUnderstood", "Nothing", "PartitionsEmptied", "Position", "Repartitioned", "TableAction",
    "TableCame", "TableEmptied", "TableGone", "Unsupported",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class First:
    """Before all other columns."""


@dataclass(frozen=True, slots=True)
class After:
    """After the column that has this name once the statement is done."""

    name: str


Position = First | After


@dataclass(frozen=True, slots=True)
class Nothing:
    """Neither rows nor columns nor the key are concerned."""

    what: str


@dataclass(frozen=True, slots=True)
class ColumnAdded:
    """A new column, the last one if no position is said."""

    name: str
    position: Position | None = None
    if_not_exists: bool = False
    default: str | None = None
    """The text or number after DEFAULT, if it is one without escapes; the server shows some values rounded or cut."""


@dataclass(frozen=True, slots=True)
class ColumnDropped:
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class ColumnChanged:
    """CHANGE or MODIFY: another type, perhaps another name, at its old place if no position is said."""

    old: str
    new: str
    position: Position | None = None
    if_exists: bool = False
    strict: bool = False
    """Whether the server would have refused the statement where it could not keep a value."""


@dataclass(frozen=True, slots=True)
class ColumnRenamed:
    """Another name and nothing else."""

    old: str
    new: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DefaultChanged:
    """Another default for future rows. It matters to a column that was added just before: see `schema.derive`."""

    name: str


@dataclass(frozen=True, slots=True)
class KeyChanged:
    """A unique index came, went or has another name. It may be the one that identifies the rows."""

    what: str


@dataclass(frozen=True, slots=True)
class TableEmptied:
    """TRUNCATE."""


@dataclass(frozen=True, slots=True)
class PartitionsEmptied:
    """DROP, TRUNCATE, EXCHANGE or CONVERT PARTITION; no names are all partitions."""

    kind: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repartitioned:
    """Rows stay, and are in other partitions: the `new` ones come in the place of the `old`; None are any."""

    old: tuple[str, ...] | None = None
    new: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TableGone:
    """`how` is `dropped` or `renamed`."""

    how: str


@dataclass(frozen=True, slots=True)
class TableCame:
    """A table has our name that had none or another one; `how` is `created`, `replaced` or `renamed`."""

    how: str
    if_not_exists: bool = False
    empty: bool = False
    """Whether the statement brings no row: CREATE TABLE. Rows of its SELECT follow in the same transaction."""


@dataclass(frozen=True, slots=True)
class ContentChanged:
    """Values, rows or the primary key change in a way that the log does not show."""

    reason: str
    brings_rows: bool = False
    """Whether rows come that the log holds under another name, or not at all."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The table becomes one that cannot be copied."""

    reason: str


@dataclass(frozen=True, slots=True)
class Cascades(Unsupported):
    """A foreign key that changes rows of the table outside the log: only who looks at its parent can copy it."""


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """The statement may do anything to the table."""

    reason: str


TableAction = (
    Nothing | ColumnAdded | ColumnDropped | ColumnChanged | ColumnRenamed | DefaultChanged | KeyChanged | TableEmptied
    | PartitionsEmptied | Repartitioned | TableGone | TableCame | ContentChanged | Unsupported | NotUnderstood
)  # fmt: skip
