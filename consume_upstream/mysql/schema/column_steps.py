"""Decides what becomes of a column in a target: which value an added one has, and which types can be carried over.

What must hold: a step leaves in the target exactly what the server shows for the same rows, without reading them. Where
the server may convert, round, pad, cut or compute a value, the answer is `Unknown`, and the table is copied again.

- A default is shown by the server. Of a FLOAT it shows six digits, of a text no character beyond U+FFFF, and MySQL cuts
  at a zero byte. These count only as far as the statement's own literal agrees.
- A literal of a TIMESTAMP depends on the session's time zone, a zero date on what the job makes of it.
- Generated columns may depend on the type of others: `CONCAT(f)` is another text once `f` is a DOUBLE.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from consume_upstream.mysql.schema.current_table import CurrentColumn, Default, DefaultKind
from vnode_backfill.words.columns import Column, Kind, listed_label
from vnode_backfill.words.schema_change import AddColumn, ColumnStep, RenameColumn, RetypeColumn

__all__ = ["Unknown", "added_step", "rename_steps", "retyped_step"]

_TEXT_GROWTH = ("tinytext", "text", "mediumtext", "longtext")
_BLOB_GROWTH = ("tinyblob", "blob", "mediumblob", "longblob")
_BEYOND = {"", "utf8mb4", "utf16", "utf16le", "utf32", "gb18030"}


class Unknown(Exception):  # noqa: N818 # not an error of the job: an answer
    """Nobody can say what the column holds; the text is the reason."""


def rename_steps(pairs: Sequence[tuple[str, str]]) -> tuple[RenameColumn, ...]:
    """Renames that can be carried out one after the other; columns that exchange names pass through a free one."""
    left = {old: new for old, new in pairs if old != new}
    taken = {old.casefold() for old, _ in pairs}
    found: list[RenameColumn] = []
    while left:
        ready = [old for old, new in left.items() if new.casefold() not in taken - {old.casefold()}]
        old = ready[0] if ready else next(iter(left))
        new = left.pop(old)
        if not ready:
            aside = _unused(taken | {name.casefold() for name in left.values()} | {new.casefold()}, old)
            left[aside], new = new, aside
        found.append(RenameColumn(old, new))
        taken = (taken - {old.casefold()}) | {new.casefold()}
    return tuple(found)


def _unused(taken: set[str], name: str) -> str:
    aside = f"{name}_"
    while aside.casefold() in taken:
        aside += "_"
    return aside


def added_step(column: Column, current: CurrentColumn, literal: str | None) -> AddColumn:
    """The new column with the value of rows that were there before; `literal` is what the statement says itself."""
    if current.generated or current.auto_increment:
        raise Unknown(f"the server computes the values of column {column.name}")
    match current.default.kind:
        case DefaultKind.NULL:
            return AddColumn(column, None)
        case DefaultKind.NONE:
            return AddColumn(column, _implicit(column))
        case DefaultKind.EXPRESSION:
            raise Unknown(f"the default of column {column.name} is an expression")
        case DefaultKind.LITERAL:
            return _checked(AddColumn(column, _literal(column, current, current.default, literal)))


def _checked(step: AddColumn) -> AddColumn:
    """A value that Arrow does not take would fail in the target."""
    try:
        step.scalar  # noqa: B018 # computed for its refusal
    except (pa.ArrowInvalid, ValueError):
        raise Unknown(f"the default {step.value!r} of column {step.column.name} is not a value") from None
    return step


def _implicit(column: Column) -> str:
    """What the server puts into rows where a column is NOT NULL and has no default."""
    match column.kind:
        case Kind.INT | Kind.FLOAT | Kind.DOUBLE | Kind.YEAR:
            return "0"
        case Kind.DECIMAL if column.precision <= 38:
            return "0"
        case Kind.BIT:
            return _bits(column, 0)
        case Kind.STRING | Kind.SET:
            return ""
        case Kind.BINARY:
            return "00" * column.width if column.type_name == "binary" else ""
        case Kind.ENUM if not _in_doubt(column):
            return column.labels[0]
        case Kind.JSON:
            return "null"
        case Kind.UUID:
            return "00000000-0000-0000-0000-000000000000"
        case Kind.INET4:
            return "0.0.0.0"
        case Kind.INET6:
            return "::"
        case Kind.TIME:
            return "00:00:00" + (f".{'0' * column.scale}" if column.scale else "")
        case _:
            raise Unknown(f"column {column.name} is NOT NULL without a default, and its implicit value is not known")


def _bits(column: Column, value: int) -> str:
    return str(bool(value)).lower() if column.width == 1 else value.to_bytes((column.width + 7) // 8, "big").hex()


def _literal(column: Column, current: CurrentColumn, default: Default, literal: str | None) -> str:
    shown = default.text
    match column.kind:
        case Kind.INT | Kind.YEAR:
            return str(int(shown))
        case Kind.DECIMAL if column.precision <= 38:
            return shown
        case Kind.UUID | Kind.INET4 | Kind.INET6:
            return shown
        case Kind.FLOAT | Kind.DOUBLE:
            return _real(column, current, shown, literal)
        case Kind.BIT:
            return _bits(column, int(shown[2:-1] or "0", 2))
        case Kind.STRING | Kind.ENUM | Kind.SET:
            return _text(column, shown, literal)
        case Kind.DATE | Kind.DATETIME if not re.match(r"0000|\d{4}-00|\d{4}-\d\d-00", shown):
            return shown
        case Kind.TIME if re.fullmatch(r"-?\d{2,3}:\d\d:\d\d(\.\d+)?", shown) and _fraction(shown) == column.scale:
            return shown
        case _:
            raise Unknown(f"the default {shown!r} of column {column.name} has no certain value")


def _fraction(shown: str) -> int:
    return len(shown.partition(".")[2])


def _real(column: Column, current: CurrentColumn, shown: str, literal: str | None) -> str:
    """A DOUBLE is shown with all its digits, a FLOAT is not."""
    if float(shown) == 0:
        return "0"
    if "(" in current.column_type:
        raise Unknown(f"the default of column {column.name} is rounded")
    if column.kind is Kind.DOUBLE:
        return shown
    if literal is None or not re.fullmatch(r"[-+]?[0-9.]+", literal):
        raise Unknown(f"the default of column {column.name} is a FLOAT, which the server shows rounded")
    return str(np.float32(float(literal)))


def _text(column: Column, shown: str, literal: str | None) -> str:
    """The statement's own text, where the server shows the same as far as it can."""
    value = literal.rstrip(" ") if literal is not None and column.type_name == "char" else literal
    if value is None or listed_label(value) != shown:
        raise Unknown(f"the default of column {column.name} is a text that the server may not show as it is")
    if column.kind is Kind.ENUM and value not in column.labels:
        raise Unknown(f"the default of column {column.name} is not a label as it is written")
    if column.kind is Kind.SET and not set(value.split(",")) <= {*column.labels, ""}:
        raise Unknown(f"the default of column {column.name} is not a set of labels as it is written")
    return value


def retyped_step(
    old: Column,
    new: Column,
    current: CurrentColumn,
    *,
    in_key: bool,
    computed: bool,
    computed_before: bool,
    strict: bool = False,
) -> ColumnStep | None:
    """The step for a column whose definition a statement gave again; None if the target has nothing to do.

    `computed` is whether the table has generated columns, `computed_before` whether it may have had some. A `strict`
    statement is refused where a NULL would have to become another value, so one that was carried out met none. Tried on
    both servers with every type: only a TIMESTAMP becomes the time of now all the same.
    """
    if current.generated:
        raise Unknown(f"the server computes the values of column {new.name}")
    kept = strict and new.kind is not Kind.TIMESTAMP and not current.auto_increment
    if old.nullable and not new.nullable and not kept:
        raise Unknown(f"column {new.name} became NOT NULL, and the server may have replaced its NULLs")
    if new.kind in (Kind.FLOAT, Kind.DOUBLE) and "(" in current.column_type:
        raise Unknown(f"column {new.name} is rounded to {current.column_type}")
    if _in_doubt(old) or _in_doubt(new):
        raise Unknown(f"column {new.name} has labels that the server may not show as they are")
    if _same_type(old, new):
        return None
    shows_digits = old.kind in (Kind.FLOAT, Kind.DECIMAL)
    if computed or (computed_before and shows_digits) or not _widens(old, new, in_key=in_key):
        raise Unknown(f"column {new.name} was {_type(old)} and is {_type(new)}")
    return RetypeColumn(new)


def _in_doubt(column: Column) -> bool:
    return column.charset in _BEYOND and any("?" in label for label in column.labels)


def _type(column: Column) -> str:
    size = f"({column.width})" if column.width and column.kind is not Kind.INT else ""
    digits = f"({column.precision},{column.scale})" if column.precision else f"({column.scale})" * bool(column.scale)
    text = f" {column.charset} {column.collation}".rstrip()
    return f"{column.type_name}{size}{digits}{' unsigned' * column.unsigned}{text}"


def _facts(column: Column) -> tuple[object, ...]:
    return (column.kind, column.type_name, column.width, column.unsigned, column.precision, column.scale,
            column.charset, column.collation, column.labels)  # fmt: skip


def _same_type(old: Column, new: Column) -> bool:
    return _facts(old) == _facts(new)


def _widens(old: Column, new: Column, *, in_key: bool) -> bool:
    """Whether every value of the old type is the same value in the new one."""
    if (old.unsigned, old.charset, old.collation) != (new.unsigned, new.charset, new.collation):
        return False
    match (old.kind, new.kind):
        case (Kind.INT, Kind.INT):
            return new.width >= old.width
        case _ if in_key:
            return False
        case (Kind.DECIMAL, Kind.DECIMAL):
            whole = new.precision - new.scale >= old.precision - old.scale
            return new.precision <= 38 and new.scale >= old.scale and whole
        case (Kind.FLOAT, Kind.DOUBLE):
            return True
        case (Kind.STRING, Kind.STRING):
            return _grows(old, new, "varchar", _TEXT_GROWTH) or (
                old.type_name == new.type_name == "char" and new.width >= old.width
            )
        case (Kind.BINARY, Kind.BINARY):
            return _grows(old, new, "varbinary", _BLOB_GROWTH)
        case (Kind.ENUM, Kind.ENUM) | (Kind.SET, Kind.SET):
            return new.labels[: len(old.labels)] == old.labels
        case _:
            return False


def _grows(old: Column, new: Column, variable: str, family: tuple[str, ...]) -> bool:
    """The longest VARCHAR or VARBINARY fits into a TEXT or BLOB, but not into a TINYTEXT or TINYBLOB."""
    if old.type_name == variable:
        return (new.type_name == variable and new.width >= old.width) or new.type_name in family[1:]
    if old.type_name not in family or new.type_name not in family:
        return False
    return family.index(new.type_name) >= family.index(old.type_name)
