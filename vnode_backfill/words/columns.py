"""Gives each column of the source its canonical type, the same from the snapshot and from the log.

One table decides: `Column.arrow_type`. Both readers build their Arrow columns from it and the sinks create their
tables from it, so a value cannot differ by the way it came. A type that has no exact canonical form is refused when
the job is planned.

| source                                    | Arrow                     | Spark           |
|-------------------------------------------|---------------------------|-----------------|
| TINYINT, SMALLINT, MEDIUMINT, INT, BIGINT | int8, 16, 32, 32, 64      | byte .. long    |
| the same UNSIGNED                         | int16, 32, 32, 64, decimal128(20, 0) | short .. decimal |
| DECIMAL(p <= 38, s) / larger              | decimal128(p, s) / string | decimal / string |
| FLOAT, DOUBLE                             | float32, float64          | float, double   |
| BIT(1) / BIT(n)                           | bool / binary (big-endian) | boolean / binary |
| CHAR .. TEXT, ENUM, SET, UUID, INET       | string                    | string          |
| JSON                                      | string, the server's text | string          |
| BINARY .. BLOB, GEOMETRY                  | binary                    | binary          |
| DATE, YEAR                                | date32, int16             | date, short     |
| DATETIME(f)                               | timestamp[us]             | timestamp_ntz   |
| TIMESTAMP(f)                              | timestamp[us, UTC]        | timestamp       |
| TIME(f)                                   | string `-838:59:59.000000` (always f digits) | string |
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

import pyarrow as pa

from vnode_backfill.words.errors import PlanRefusedError, StateError
from vnode_backfill.words.key import KeyKind, KeyPart
from vnode_backfill.words.partitioning import Partitioning


class Kind(StrEnum):
    """The family a source type belongs to; width, sign and scale are beside it in `Column`."""

    INT = "int"
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    BIT = "bit"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"
    YEAR = "year"
    ENUM = "enum"
    SET = "set"
    JSON = "json"
    GEOMETRY = "geometry"
    UUID = "uuid"
    INET4 = "inet4"
    INET6 = "inet6"


_INT_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_SIGNED_ARROW = {1: pa.int8(), 2: pa.int16(), 3: pa.int32(), 4: pa.int32(), 8: pa.int64()}
_UNSIGNED_ARROW = {1: pa.int16(), 2: pa.int32(), 3: pa.int32(), 4: pa.int64(), 8: pa.decimal128(20, 0)}
_ARROW = {
    Kind.FLOAT: pa.float32(), Kind.DOUBLE: pa.float64(), Kind.BINARY: pa.binary(), Kind.GEOMETRY: pa.binary(),
    Kind.DATE: pa.date32(), Kind.DATETIME: pa.timestamp("us"), Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.YEAR: pa.int16(), Kind.STRING: pa.string(), Kind.TIME: pa.string(), Kind.ENUM: pa.string(),
    Kind.SET: pa.string(), Kind.JSON: pa.string(), Kind.UUID: pa.string(), Kind.INET4: pa.string(),
    Kind.INET6: pa.string(),
}  # fmt: skip
_TEXT = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
_BYTES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_GEOMETRY = {
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geometrycollection", "geomcollection",
}  # fmt: skip
_PLAIN = {
    "float": Kind.FLOAT, "double": Kind.DOUBLE, "date": Kind.DATE, "year": Kind.YEAR, "json": Kind.JSON,
    "uuid": Kind.UUID, "inet4": Kind.INET4, "inet6": Kind.INET6,
}  # fmt: skip
_TEMPORAL = {"datetime": Kind.DATETIME, "timestamp": Kind.TIMESTAMP, "time": Kind.TIME}
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_ESCAPED = re.compile(r"''|\\[0nr\\]")
_ESCAPES = {"''": "'", "\\0": "\0", "\\n": "\n", "\\r": "\r", "\\\\": "\\"}
_BEYOND_BMP = re.compile("[\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the source table as its definition was when the job was created."""

    name: str
    kind: Kind
    type_name: str
    nullable: bool
    width: int = 0
    """INT: bytes (1, 2, 3, 4, 8). BIT: bits. CHAR, VARCHAR, BINARY, VARBINARY: declared length."""
    unsigned: bool = False
    precision: int = 0
    scale: int = 0
    """DECIMAL: digits after the point. DATETIME, TIMESTAMP, TIME: digits of the fraction."""
    charset: str = ""
    collation: str = ""
    labels: tuple[str, ...] = ()

    @property
    def arrow_type(self) -> pa.DataType:
        if self.kind is Kind.INT:
            return (_UNSIGNED_ARROW if self.unsigned else _SIGNED_ARROW)[self.width]
        if self.kind is Kind.DECIMAL:
            return pa.decimal128(self.precision, self.scale) if self.precision <= 38 else pa.string()
        if self.kind is Kind.BIT:
            return pa.bool_() if self.width == 1 else pa.binary()
        return _ARROW[self.kind]

    @classmethod
    def parse(cls, name: str, column_type: str, *, nullable: bool, charset: str = "", collation: str = "") -> Column:
        """Read a column from `information_schema.columns`; `column_type` is `int(10) unsigned` or `enum('a','b')`."""
        text = column_type.strip()
        type_name = re.split(r"[\s(]", text, maxsplit=1)[0].lower()
        type_name = {"integer": "int", "numeric": "decimal", "real": "double", "boolean": "tinyint"}.get(
            type_name, type_name
        )
        argument = re.search(r"\(([\d,\s]+)\)", text) if type_name not in ("enum", "set") else None
        numbers = tuple(int(part) for part in argument.group(1).split(",")) if argument else ()
        unsigned = bool(re.search(r"\bunsigned\b|\bzerofill\b", text, re.IGNORECASE)) and type_name not in (
            "enum",
            "set",
        )
        found = _family(type_name, numbers, text)
        if found is None:
            raise PlanRefusedError(
                f"column {name} has the type {column_type!r}, which has no exact canonical value",
                hint="Leave the table out, or change the column's type.",
            )
        return replace(
            found, name=name, nullable=nullable, unsigned=unsigned, charset=charset or "", collation=collation or ""
        )

    def key_part(self) -> KeyPart:
        """How this column takes part in a key; refused where the client could not order it exactly."""
        match self.kind:
            case Kind.INT:
                return KeyPart(self.name, KeyKind.UINT if self.unsigned else KeyKind.INT)
            case Kind.YEAR:
                return KeyPart(self.name, KeyKind.INT)
            case Kind.DECIMAL if self.precision <= 38:
                return KeyPart(self.name, KeyKind.DECIMAL, self.scale)
            case Kind.STRING:
                return KeyPart(self.name, KeyKind.TEXT)
            case Kind.BINARY:
                return KeyPart(self.name, KeyKind.BINARY)
            case Kind.DATE:
                return KeyPart(self.name, KeyKind.DATE)
            case Kind.DATETIME | Kind.TIMESTAMP:
                return KeyPart(self.name, KeyKind.DATETIME)
            case _:
                raise PlanRefusedError(
                    f"key column {self.name} has the type {self.type_name}, whose order the client cannot compute",
                    hint="Set `executor: single`, which walks the key in the server's own order.",
                )


def _family(type_name: str, numbers: tuple[int, ...], text: str) -> Column | None:
    """A nameless column with what the type's name and arguments decide."""

    def column(kind: Kind, *, width: int = 0, precision: int = 0, scale: int = 0) -> Column:
        return Column("", kind, type_name, nullable=True, width=width, precision=precision, scale=scale)

    first = numbers[0] if numbers else 0
    if type_name in _PLAIN or type_name in _GEOMETRY:
        return column(_PLAIN.get(type_name, Kind.GEOMETRY))
    if type_name in ("enum", "set"):
        labels = tuple(_ESCAPED.sub(lambda found: _ESCAPES[found[0]], label) for label in _LABEL.findall(text))
        return replace(column(Kind(type_name)), labels=labels)
    facts: dict[str, dict[str, int]] = {
        **{name: {"width": width} for name, width in _INT_BYTES.items()},
        **{name: {"width": first} for name in (*_TEXT, *_BYTES)},
        **{name: {"scale": first} for name in _TEMPORAL},
        "binary": {"width": first or 1},
        "bit": {"width": first or 1},
        "decimal": {"precision": first or 10, "scale": numbers[1] if len(numbers) > 1 else 0},
    }
    kinds = {
        **dict.fromkeys(_INT_BYTES, Kind.INT), **dict.fromkeys(_TEXT, Kind.STRING),
        **dict.fromkeys(_BYTES, Kind.BINARY),
        **_TEMPORAL, "bit": Kind.BIT, "decimal": Kind.DECIMAL,
    }  # fmt: skip
    return column(kinds[type_name], **facts[type_name]) if type_name in kinds else None


def listed_label(label: str) -> str:
    """A label as the server lists it: its dictionary has no characters beyond U+FFFF and shows `?` for each."""
    return _BEYOND_BMP.sub("?", label)


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """The source table as it was when the job was created: every column in order, and the key in index order."""

    database: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    partitioning: Partitioning | None = field(default=None, compare=False)
    """How the table was partitioned then; rows are read and written alike whatever it is, so it is not compared."""
    primary: bool = field(default=False, compare=False)
    """Whether the key is the primary one: then no other index can become what identifies the rows.

    False where an earlier release has not stored it.
    """

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(self.column(name) for name in self.key)

    @property
    def key_parts(self) -> tuple[KeyPart, ...]:
        return tuple(column.key_part() for column in self.key_columns)

    @property
    def arrow_schema(self) -> pa.Schema:
        """Only key columns are NOT NULL: a zero date becomes NULL in a column that the source declares NOT NULL."""
        return pa.schema([pa.field(c.name, c.arrow_type, nullable=c.name not in self.key) for c in self.columns])

    def to_json(self) -> dict[str, object]:
        """Versioned, for the `jobs` table; `from_json` reads it back unchanged."""
        stored = asdict(self)
        del stored["partitioning"]
        if self.partitioning is not None:
            stored["partitioning"] = self.partitioning.to_json()
        if not self.primary:
            del stored["primary"]
        return {"version": 1, **stored}

    @classmethod
    def from_json(cls, stored: dict[str, object]) -> TableDefinition:
        if stored.get("version") != 1:
            raise StateError(f"table definition has the unknown version {stored.get('version')!r}")
        columns = stored["columns"]
        key = stored["key"]
        if not isinstance(columns, list) or not isinstance(key, list):
            raise StateError("the stored table definition has no columns or no key")
        return cls(
            database=str(stored["database"]),
            table=str(stored["table"]),
            columns=tuple(
                Column(**{**column, "kind": Kind(column["kind"]), "labels": tuple(column["labels"])})
                for column in columns
            ),
            key=tuple(key),
            partitioning=Partitioning.from_json(stored.get("partitioning")),
            primary=bool(stored.get("primary")),
        )


def relabelled(stored: TableDefinition, now: TableDefinition) -> tuple[str, ...] | None:
    """The columns whose labels an earlier release stored as the server lists them, escapes and `?` included.

    Empty if both are the same; None if the table has changed otherwise.
    """
    old = {column.name: column for column in stored.columns}
    columns = tuple(replace(c, labels=old[c.name].labels) if c.name in old else c for c in now.columns)
    if replace(now, columns=columns) != stored:
        return None
    different = [column for column in now.columns if column.labels != old[column.name].labels]
    if any(old[column.name].labels != tuple(map(_escaped, column.labels)) for column in different):
        return None
    return tuple(column.name for column in different)


def _escaped(label: str) -> str:
    marks = {plain: escaped for escaped, plain in _ESCAPES.items() if plain != "'"}
    return "".join(marks.get(character, character) for character in listed_label(label))


def what_changed(stored: TableDefinition, now: TableDefinition) -> str:
    """How a table differs from what it was, in words."""
    old, new = {c.name: c for c in stored.columns}, {c.name: c for c in now.columns}
    facts = [f"column {name} is gone" for name in old if name not in new]
    facts += [f"column {name} is new" for name in new if name not in old]
    facts += [
        f"column {name} was {old[name]}, is {new[name]}" for name in old if name in new and old[name] != new[name]
    ]
    if stored.key != now.key:
        facts.append(f"the key was {stored.key}, is {now.key}")
    return "; ".join(facts) or "the order of its columns changed"
