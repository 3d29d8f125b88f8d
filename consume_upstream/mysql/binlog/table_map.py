"""Checks that the table which the log describes still is the table whose definition the job stored.

A row image has no names, signs or labels; it is read by the definition stored with the job. So every TABLE_MAP of the
table is compared with that definition: number of columns, type bytes, lengths, precision, fraction digits, label
widths, and, where the server writes them, signs, names and labels. A disagreement names the column and stops the job: a
column is never mapped silently to another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NoReturn

from consume_upstream.mysql.binlog.events import Cursor
from consume_upstream.mysql.schema.charsets import charset_named
from vnode_backfill.words.columns import Column, Kind, TableDefinition, listed_label
from vnode_backfill.words.errors import LogFormatError, SchemaChangedError
from vnode_backfill.words.hints import NEW_COPY

Flavour = Literal["mysql", "mariadb"]

_KEPT_MAPS = 4096
"""Of so many tables what the log said last is remembered."""

INT_TYPES = {1: 1, 2: 2, 3: 9, 4: 3, 8: 8}
_BLOB_PREFIX = {
    "tinytext": 1, "text": 2, "mediumtext": 3, "longtext": 4, "tinyblob": 1, "blob": 2, "mediumblob": 3, "longblob": 4,
}  # fmt: skip
_META_BYTES = {
    4: 1,
    5: 1,
    246: 2,
    16: 2,
    15: 2,
    254: 2,
    253: 2,
    247: 2,
    248: 2,
    252: 1,
    245: 1,
    255: 1,
    17: 1,
    18: 1,
    19: 1,
    140: 1,
    141: 2,
    242: 1,
}
_NUMERIC = {1, 2, 3, 4, 5, 8, 9, 13, 246}
_OLD_TEMPORAL = {7: "TIMESTAMP", 11: "TIME", 12: "DATETIME"}
_COMPRESSED = {140, 141}


@dataclass(frozen=True, slots=True)
class WireType:
    """How the log describes a column: type byte, metadata, and its size in a row image."""

    code: int
    meta: bytes
    layout: int
    """Bytes of a value; or minus the bytes of the length before it."""


def wire_type(column: Column, flavour: Flavour) -> WireType:
    """What a TABLE_MAP must say about `column`, and how its values are laid out."""
    match column.kind:
        case Kind.INT:
            return WireType(INT_TYPES[column.width], b"", column.width)
        case Kind.FLOAT:
            return WireType(4, b"\x04", 4)
        case Kind.DOUBLE:
            return WireType(5, b"\x08", 8)
        case Kind.DECIMAL:
            return WireType(246, bytes((column.precision, column.scale)), decimal_bytes(column.precision, column.scale))
        case Kind.BIT:
            return WireType(16, bytes((column.width % 8, column.width // 8)), (column.width + 7) // 8)
        case Kind.DATE:
            return WireType(10, b"", 3)
        case Kind.YEAR:
            return WireType(13, b"", 1)
        case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            code, width = {Kind.DATETIME: (18, 5), Kind.TIMESTAMP: (17, 4), Kind.TIME: (19, 3)}[column.kind]
            return WireType(code, bytes((column.scale,)), width + (column.scale + 1) // 2)
        case _:
            return _variable_type(column, flavour)


def _variable_type(column: Column, flavour: Flavour) -> WireType:
    match column.kind:
        case Kind.ENUM:
            width = 1 if len(column.labels) < 256 else 2
            return WireType(254, bytes((247, width)), width)
        case Kind.SET:
            width = (len(column.labels) + 7) // 8
            width = width if width <= 4 else 8
            return WireType(254, bytes((248, width)), width)
        case Kind.JSON if flavour == "mysql":
            return WireType(245, b"\x04", -4)
        case Kind.JSON:
            return WireType(252, b"\x04", -4)
        case Kind.GEOMETRY:
            return WireType(255, b"\x04", -4)
        case Kind.UUID | Kind.INET6:
            return _fixed_string(16)
        case Kind.INET4:
            return _fixed_string(4)
        case _:
            return _string_type(column)


def _string_type(column: Column) -> WireType:
    prefix = _BLOB_PREFIX.get(column.type_name)
    if prefix is not None:
        return WireType(252, bytes((prefix,)), -prefix)
    length = column.width * (charset_named(column.charset).max_bytes if column.kind is Kind.STRING else 1)
    if column.type_name in ("char", "binary"):
        return _fixed_string(length)
    return WireType(15, length.to_bytes(2, "little"), -1 if length < 256 else -2)


def _fixed_string(length: int) -> WireType:
    """CHAR and BINARY: the two high bits of the length hide, inverted, in the type byte of the metadata."""
    return WireType(254, bytes((0xFE ^ ((length >> 4) & 0x30), length & 0xFF)), -1 if length < 256 else -2)


_LEFTOVER_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_bytes(precision: int, scale: int) -> int:
    """Nine digits take four bytes; before and after the point each has its own leftover group."""
    whole = precision - scale
    return whole // 9 * 4 + _LEFTOVER_BYTES[whole % 9] + scale // 9 * 4 + _LEFTOVER_BYTES[scale % 9]


@dataclass(frozen=True, slots=True)
class TableMap:
    """What a TABLE_MAP event says of a table. The optional part is empty where the server does not write it."""

    database: str
    table: str
    types: bytes
    metas: tuple[bytes, ...]
    unsigned: tuple[bool, ...] = ()
    """One per numeric column."""
    names: tuple[str, ...] = ()
    labels: tuple[tuple[bytes, ...], ...] = ()
    """One tuple per ENUM column, then one per SET column."""


@dataclass(slots=True)
class _Optional:
    unsigned: tuple[bool, ...] = ()
    names: tuple[str, ...] = ()
    enums: list[tuple[bytes, ...]] = field(default_factory=list)
    sets: list[tuple[bytes, ...]] = field(default_factory=list)


@lru_cache(maxsize=_KEPT_MAPS)
def accepted_map(body: bytes, definition: TableDefinition, flavour: Flavour) -> TableMap:
    """What an event says, by its body after the id and the flags. Raises unless it describes exactly the definition.

    A table has the same map in every dump until its definition changes, so of many tables each is read and compared
    once, not once per epoch.
    """
    found = read_table_map(body)
    check_table_map(found, definition, flavour)
    return found


def read_table_map(body: bytes) -> TableMap:
    cursor = Cursor(body)
    database = cursor.text(cursor.number(1))
    cursor.take(1)
    table = cursor.text(cursor.number(1))
    cursor.take(1)
    types = cursor.take(cursor.length())
    meta = Cursor(cursor.take(cursor.length()))
    metas = tuple(meta.take(_META_BYTES.get(code, 0)) for code in types)
    cursor.take((len(types) + 7) // 8)
    optional = _read_optional(cursor, sum(code in _NUMERIC for code in types))
    return TableMap(
        database, table, types, metas, optional.unsigned, optional.names,
        (*optional.enums, *optional.sets),
    )  # fmt: skip


def _read_optional(cursor: Cursor, numeric: int) -> _Optional:
    found = _Optional()
    while cursor.left:
        kind = cursor.number(1)
        part = Cursor(cursor.take(cursor.length()))
        if kind == 1:
            bits = part.take((numeric + 7) // 8)
            found.unsigned = tuple(bool(bits[i // 8] & (0x80 >> i % 8)) for i in range(numeric))
        elif kind == 4:
            found.names = tuple(_read_names(part))
        elif kind in (5, 6):
            (found.sets if kind == 5 else found.enums).extend(_read_labels(part))
    return found


def _read_names(part: Cursor) -> list[str]:
    names = []
    while part.left:
        names.append(part.text(part.length()))
    return names


def _read_labels(part: Cursor) -> list[tuple[bytes, ...]]:
    columns = []
    while part.left:
        columns.append(tuple(part.take(part.length()) for _ in range(part.length())))
    return columns


def check_table_map(found: TableMap, definition: TableDefinition, flavour: Flavour) -> None:
    """Raise unless `found` describes exactly the stored definition."""
    if len(found.types) != len(definition.columns):
        _changed(
            definition,
            f"has {len(found.types)} columns in the log",
            f"{len(definition.columns)} are stored with the job.",
        )
    for index, column in enumerate(definition.columns):
        _check_type(definition, column, found.types[index], found.metas[index], flavour)
    for column, name in zip(definition.columns, found.names, strict=False):
        if column.name.casefold() != name.casefold():
            _changed(definition, f"has a column {name} in the log", f"In its place the job stored {column.name}.")
    _check_signs(found, definition)
    _check_labels(found, definition)


def _check_type(definition: TableDefinition, column: Column, code: int, meta: bytes, flavour: Flavour) -> None:
    expected = wire_type(column, flavour)
    if (code, meta) == (expected.code, expected.meta):
        return
    if code in _OLD_TEMPORAL:
        raise LogFormatError(
            f"column {column.name} of {definition.database}.{definition.table} is stored in the old temporal format",
            detail=f"The log holds it as {_OLD_TEMPORAL[code]} of servers before MySQL 5.6.",
            hint=f"Rebuild the table once: ALTER TABLE `{definition.table}` FORCE "
            "(MariaDB: with mysql56_temporal_format=ON).",
        )
    if code in _COMPRESSED:
        raise LogFormatError(
            f"column {column.name} of {definition.database}.{definition.table} is COMPRESSED, which is not decoded",
            hint="Remove COMPRESSED from the column's definition.",
        )
    _changed(
        definition,
        f"has another type of column {column.name} in the log",
        f"The log says type {code} ({meta.hex() or '-'}), "
        f"the stored {column.type_name} is {expected.code} ({expected.meta.hex() or '-'}).",
    )


def _check_signs(found: TableMap, definition: TableDefinition) -> None:
    numeric = [c for c, code in zip(definition.columns, found.types, strict=True) if code in _NUMERIC]
    for column, unsigned in zip(numeric, found.unsigned, strict=False):
        # YEAR has no sign; servers disagree on what they write for it.
        if column.kind is not Kind.YEAR and column.unsigned != unsigned:
            word = "unsigned" if unsigned else "signed"
            _changed(definition, f"has column {column.name} {word} in the log", "The job stored the other sign.")


def label_columns(definition: TableDefinition) -> list[Column]:
    """The columns with labels in the order in which a TABLE_MAP lists them: ENUM, then SET."""
    return [c for kind in (Kind.ENUM, Kind.SET) for c in definition.columns if c.kind is kind]


def _check_labels(found: TableMap, definition: TableDefinition) -> None:
    if not found.labels:
        return
    columns = label_columns(definition)
    if len(columns) != len(found.labels):
        _changed(definition, "has another number of ENUM and SET columns in the log", "Their labels cannot be matched.")
    for column, raw in zip(columns, found.labels, strict=True):
        charset = charset_named(column.charset)
        labels = tuple(charset.decode(label) for label in raw)
        # Of MySQL the stored labels are as the server shows them, which is less than the log holds (see `labels`).
        if labels != column.labels and tuple(map(listed_label, labels)) != column.labels:
            _changed(
                definition, f"has other labels of column {column.name} in the log",
                f"The log says {', '.join(labels[:20])}; the job stored {', '.join(column.labels[:20])}.",
            )  # fmt: skip


def _changed(definition: TableDefinition, what: str, detail: str) -> NoReturn:
    raise SchemaChangedError(
        f"table {definition.database}.{definition.table} {what}",
        detail=detail,
        hint=f"No statement in the log says so: a session may have changed it with sql_log_bin = 0. {NEW_COPY}",
    )
