"""Reads a file's statistics as the log holds them: JSON text, whose values have the types of the table's columns.

What must be true: a bound is the value that was written, exactly, or it is unknown. So numbers with a point are read as
decimals and become floats only where the column is one. Where a value does not fit its type the bound is unknown, and
the file may hold anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from json import JSONDecoder
from typing import TypeAlias

import numpy as np

from vnode_backfill.delta.files import Value

ColumnTypes: TypeAlias = Mapping[str, str]
_TIGHT = "tightBounds"
_DECODER = JSONDecoder()


@dataclass(frozen=True, slots=True)
class Bounds:
    """What statistics say of some columns, in the order they were asked for."""

    rows: int | None
    low: tuple[Value | None, ...]
    high: tuple[Value | None, ...]

    @classmethod
    def unknown(cls, columns: int) -> Bounds:
        return cls(None, (None,) * columns, (None,) * columns)


def read_statistics(text: str, columns: Sequence[str], types: ColumnTypes) -> Bounds:
    """The rows of a file and the bounds of `columns`; None where the text does not say."""
    try:
        found = json.loads(text, parse_float=Decimal)
    except ValueError:
        return Bounds.unknown(len(columns))
    low, high = found.get("minValues") or {}, found.get("maxValues") or {}
    return Bounds(
        found.get("numRecords"),
        tuple(_decode(types.get(name, ""), low.get(name)) for name in columns),
        tuple(_decode(types.get(name, ""), high.get(name)) for name in columns),
    )


def without_tight_bounds(text: str) -> str:
    """The same statistics, saying that a bound need not be the value of a row that still counts.

    Every other member keeps its text: reading and writing it again would change a DECIMAL.
    """
    kept = [f"{json.dumps(name)}:{value}" for name, value in _members(text) if name != _TIGHT]
    return "{" + ",".join([*kept, f'"{_TIGHT}":false']) + "}"


def _members(text: str) -> Iterator[tuple[str, str]]:
    """The members of a JSON object, each value as its text."""
    at = _skip(text, 0) + 1
    while text[_skip(text, at)] != "}":
        name, at = _DECODER.raw_decode(text, _skip(text, at))
        start = _skip(text, _skip(text, at) + 1)
        _, at = _DECODER.raw_decode(text, start)
        yield name, text[start:at]
        at = _skip(text, at)
        at += text[at] == ","


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _decode(kind: str, value: object) -> Value | None:
    decoder = _DECODERS.get(kind.partition("(")[0])
    if decoder is None or value is None:
        return None
    try:
        return decoder(value)
    except (ValueError, TypeError, ArithmeticError):
        return None


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _decimal(value: object) -> Decimal:
    if not isinstance(value, int | Decimal | str) or isinstance(value, bool):
        raise TypeError
    return Decimal(value)


def _double(value: object) -> float:
    if not isinstance(value, int | Decimal | float) or isinstance(value, bool):
        raise TypeError
    return float(value)


def _single(value: object) -> float:
    return float(np.float32(_double(value)))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _instant(value: object) -> datetime:
    found = datetime.fromisoformat(_text(value))
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _local_time(value: object) -> datetime:
    return datetime.fromisoformat(_text(value)).replace(tzinfo=None)


def _day(value: object) -> date:
    return date.fromisoformat(_text(value))


_DECODERS: Mapping[str, Callable[[object], Value]] = {
    "byte": _integer,
    "short": _integer,
    "integer": _integer,
    "long": _integer,
    "float": _single,
    "double": _double,
    "decimal": _decimal,
    "string": _text,
    "boolean": _truth,
    "date": _day,
    "timestamp": _instant,
    "timestamp_ntz": _local_time,
}
