"""Reads a source table and a target, each in its own plain way, and says row by row where they differ.

Shares no code with what it judges: the source is read by pymysql over the text protocol, a Delta table by `deltalake`,
and the canonical value of each column is computed here, in the simplest Python that is right:

    BIGINT UNSIGNED      Decimal                 TIMESTAMP   datetime in UTC
    DECIMAL up to 38     Decimal, else text      DATETIME    datetime without zone
    BIT(1), BIT(n)       bool, bytes             TIME(f)     text `-838:59:59.000` with f digits
    ENUM, SET, JSON      the server's text       YEAR        int
    zero dates           None

Values are equal when they are equal and of one type: 1, Decimal(1) and True are three different values.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from deltalake import DeltaTable
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from devkit.errors import DevkitError
from devkit.lake import read_batches
from devkit.orders import quote

Value = str | bytes | bool | int | float | Decimal | datetime.date | datetime.datetime | datetime.timedelta | None
Key = tuple[Value, ...]
BATCH_ROWS = 20_000
ZERO_DATE_TYPES = {"date", "datetime", "timestamp"}


class DifferenceKind(StrEnum):
    MISSING = "missing"
    """The source has the row, the target has not."""
    EXTRA = "extra"
    """The target has a row the source has not, or has it twice."""
    DIFFERENT = "different"
    """Both have the row; `column` differs. With an empty key: only one of them has the column."""


@dataclass(frozen=True, slots=True)
class Difference:
    kind: DifferenceKind
    key: Key
    column: str | None = None
    source: Value = None
    target: Value = None


@dataclass(frozen=True, slots=True)
class Comparison:
    source_rows: int
    target_rows: int
    differences: tuple[Difference, ...]


class Target(Protocol):
    """A copy of a table that can be read without the code that made it."""

    def column_names(self) -> Sequence[str]: ...

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
        """All rows, in any order, values in their canonical form."""
        ...


class DeltaTarget:
    """A Delta table, read by `deltalake`."""

    def __init__(self, path: Path | str, *, version: int | None = None) -> None:
        self._table = DeltaTable(str(path), version=version)

    def column_names(self) -> Sequence[str]:
        return [field.name for field in self._table.schema().fields]

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
        for batch in read_batches(self._table, columns):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of MySQL or MariaDB, read over a connection of the caller's."""

    connection: Connection[Cursor]
    database: str
    table: str
    key: tuple[str, ...]


def compare_delta(
    connection: Connection[Cursor],
    database: str,
    table: str,
    key_columns: Sequence[str],
    delta_path: Path | str,
    *,
    ignore_columns: Sequence[str] = (),
) -> list[Difference]:
    """The differences between the table and its copy in Delta; an empty list when there are none."""
    source = SourceTable(connection, database, table, tuple(key_columns))
    return list(compare(source, DeltaTarget(delta_path), ignore_columns=ignore_columns).differences)


def compare(source: SourceTable, target: Target, *, ignore_columns: Sequence[str] = ()) -> Comparison:
    """Compare every row and column. The source is read in one consistent snapshot; it should be quiet.

    Keys must be equal as values, so text keys are compared exactly, not by their collation.
    """
    definitions = [column for column in _definitions(source) if column.name not in ignore_columns]
    in_target = set(target.column_names()) - set(ignore_columns)
    differences = _column_differences({column.name for column in definitions}, in_target)
    shared = [column for column in definitions if column.name in in_target]
    names = [column.name for column in shared]
    if not set(source.key) <= set(names):
        raise DevkitError(f"key columns {source.key} are not in both tables", detail=f"Both have {names}.")
    key_places = [names.index(name) for name in source.key]
    expected = {_key(row, key_places): row for row in _source_rows(source, shared)}
    rows = _RowComparison(names, dict(expected))
    target_rows = 0
    for row in target.rows(names):
        target_rows += 1
        differences += rows.take(_key(row, key_places), row)
    differences += rows.missing()
    return Comparison(len(expected), target_rows, tuple(differences))


class _RowComparison:
    """Crosses off the source's rows as the target's arrive."""

    def __init__(self, names: Sequence[str], expected: dict[Key, tuple[Value, ...]]) -> None:
        self._names = names
        self._expected = expected

    def take(self, key: Key, row: tuple[Value, ...]) -> list[Difference]:
        wanted = self._expected.pop(key, None)
        if wanted is None:
            return [Difference(DifferenceKind.EXTRA, key)]
        return [
            Difference(DifferenceKind.DIFFERENT, key, name, source, target)
            for name, source, target in zip(self._names, wanted, row, strict=True)
            if type(source) is not type(target) or source != target
        ]

    def missing(self) -> list[Difference]:
        return [Difference(DifferenceKind.MISSING, key) for key in self._expected]


def _key(row: tuple[Value, ...], places: Sequence[int]) -> Key:
    return tuple(row[place] for place in places)


def _column_differences(source: set[str], target: set[str]) -> list[Difference]:
    missing = [Difference(DifferenceKind.DIFFERENT, (), name, "present", "absent") for name in sorted(source - target)]
    extra = [Difference(DifferenceKind.DIFFERENT, (), name, "absent", "present") for name in sorted(target - source)]
    return missing + extra


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: str
    """`bigint`, `enum`, …"""
    full_type: str
    """`bigint(20) unsigned`, `enum('a','b')`, …"""
    precision: int
    fraction: int
    """Digits after the point of a second."""

    @property
    def expression(self) -> str:
        # A FLOAT's text has only six digits; as a DOUBLE it has all of them.
        return f"{quote(self.name)} + 0e0" if self.type == "float" else quote(self.name)


def _definitions(source: SourceTable) -> list[_Column]:
    with source.connection.cursor() as cursor:
        cursor.execute(
            "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, COALESCE(NUMERIC_PRECISION, 0),"
            " COALESCE(DATETIME_PRECISION, 0) FROM information_schema.COLUMNS"
            " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
            (source.database, source.table),
        )
        columns = [_Column(str(name), str(kind), str(full), int(p), int(f)) for name, kind, full, p, f in cursor]
    if not columns:
        raise DevkitError(f"table {source.database}.{source.table} does not exist")
    return columns


def _source_rows(source: SourceTable, columns: Sequence[_Column]) -> Iterator[tuple[Value, ...]]:
    expressions = ", ".join(column.expression for column in columns)
    converters = [_converter(column) for column in columns]
    with source.connection.cursor() as cursor:
        cursor.execute("SELECT @@session.time_zone")
        (zone,) = cursor.fetchone() or ("SYSTEM",)
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT {expressions} FROM {quote(source.database)}.{quote(source.table)}")
        for row in cursor.fetchall():
            yield tuple(convert(value) for convert, value in zip(converters, row, strict=True))
        cursor.execute("SET time_zone = %s", (zone,))


def _converter(column: _Column) -> Callable[[Value], Value]:
    if column.type == "bigint" and "unsigned" in column.full_type:
        return _or_none(lambda value: Decimal(int(str(value))))
    if column.type == "decimal" and column.precision > 38:
        return _or_none(lambda value: format(value, "f") if isinstance(value, Decimal) else value)
    if column.type == "bit":
        return _or_none(_bit(column.precision))
    if column.type == "time":
        return _or_none(_time_text(column.fraction))
    if column.type == "timestamp":
        return _or_none(_utc)
    if column.type in ZERO_DATE_TYPES:
        return _or_none(_real_date)
    return lambda value: value


def _or_none(convert: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda value: None if value is None else convert(value)


def _bit(width: int) -> Callable[[Value], Value]:
    def convert(value: Value) -> Value:
        assert isinstance(value, bytes)
        number = int.from_bytes(value, "big")
        return bool(number) if width == 1 else number.to_bytes((width + 7) // 8, "big")

    return convert


def _time_text(digits: int) -> Callable[[Value], Value]:
    def convert(value: Value) -> Value:
        assert isinstance(value, datetime.timedelta)
        microseconds = value // datetime.timedelta(microseconds=1)
        sign = "-" if microseconds < 0 else ""
        seconds, fraction = divmod(abs(microseconds), 1_000_000)
        text = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return f"{text}.{fraction:06d}"[: len(text) + 1 + digits] if digits else text

    return convert


def _real_date(value: Value) -> Value:
    # pymysql leaves a date that does not exist, such as 0000-00-00, as text.
    return None if isinstance(value, str) else value


def _utc(value: Value) -> Value:
    real = _real_date(value)
    return real.replace(tzinfo=datetime.UTC) if isinstance(real, datetime.datetime) else real
