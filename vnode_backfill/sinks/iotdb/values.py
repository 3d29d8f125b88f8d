"""Converts values of the source to values of IoTDB and back, column by column, and changes none silently.

What must be true: a cell that the measurement's type cannot hold exactly is refused, with the reason, and never
rounded, wrapped or cut. And a key column that was stored in an exact type is read back as the very same value. The two
exceptions are asked for by name: DECIMAL and whole numbers as `double`, and doubles as `float`, are rounded to the
nearest number.

| Arrow                        | IoTDB by default | also, if `types` says so            |
|------------------------------|------------------|-------------------------------------|
| int8, 16, 32                 | INT32            | INT64, FLOAT, DOUBLE, BOOLEAN, text |
| int64                        | INT64            | INT32, FLOAT, DOUBLE, BOOLEAN, text |
| decimal128                   | DOUBLE or TEXT   | FLOAT, INT32, INT64, text           |
| float32, float64             | FLOAT, DOUBLE    | DOUBLE, FLOAT, text                 |
| bool                         | BOOLEAN          | INT32, INT64, text                  |
| string                       | TEXT             | STRING, BLOB                        |
| binary                       | BLOB             |                                     |
| date32                       | DATE             | text                                |
| timestamp[us], with zone UTC | TIMESTAMP        | INT64 (the same number), text       |

A TIMESTAMP counts in the server's precision; DATE is the number 20240531. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from vnode_backfill.config.iotdb import DecimalAs, IotdbType, TimeUnit

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_INT32, _INT64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_TEXTS = (IotdbType.TEXT, IotdbType.STRING)
_WHOLE = pa.decimal128(38, 0)


class Precision(StrEnum):
    """What one tick of the server's clock is."""

    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"

    @property
    def ticks(self) -> int:
        """In a second."""
        return _TICKS[TimeUnit(self.value)]

    @property
    def highest(self) -> int:
        """The latest time the server accepts: a later one counts as a mistaken unit."""
        return {"ms": 10**13, "us": 10**16, "ns": 2**63 - 1}[self.value]


_TICKS = {
    TimeUnit.SECONDS: 1,
    TimeUnit.MILLISECONDS: 10**3,
    TimeUnit.MICROSECONDS: 10**6,
    TimeUnit.NANOSECONDS: 10**9,
}
WIRE_TYPES: dict[IotdbType, pa.DataType] = {
    IotdbType.BOOLEAN: pa.bool_(), IotdbType.INT32: pa.int32(), IotdbType.INT64: pa.int64(),
    IotdbType.FLOAT: pa.float32(), IotdbType.DOUBLE: pa.float64(), IotdbType.TEXT: pa.string(),
    IotdbType.STRING: pa.string(), IotdbType.TIMESTAMP: pa.int64(), IotdbType.DATE: pa.int32(),
    IotdbType.BLOB: pa.binary(),
}  # fmt: skip
"""What a column of points is made of, before it is written and after it was read."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A column of points; where `refused`, the value is NULL here because the type cannot hold it."""

    values: pa.Array
    refused: Bools | None = None
    reason: str = ""


def default_type(source: pa.DataType, decimals: DecimalAs) -> IotdbType:
    """The type of a measurement for which the configuration names none."""
    if pa.types.is_decimal(source):
        return IotdbType(decimals.value)
    return next(kind for accepts, kind in _DEFAULTS if accepts(source))


_DEFAULTS: tuple[tuple[Callable[[pa.DataType], bool], IotdbType], ...] = (
    (pa.types.is_int64, IotdbType.INT64),
    (pa.types.is_integer, IotdbType.INT32),
    (pa.types.is_float32, IotdbType.FLOAT),
    (pa.types.is_float64, IotdbType.DOUBLE),
    (pa.types.is_boolean, IotdbType.BOOLEAN),
    (pa.types.is_date, IotdbType.DATE),
    (pa.types.is_timestamp, IotdbType.TIMESTAMP),
    (pa.types.is_binary, IotdbType.BLOB),
    (pa.types.is_string, IotdbType.TEXT),
)


def possible_types(source: pa.DataType) -> tuple[IotdbType, ...]:
    """Every type a column of `source` can be stored in."""
    whole, real, text = (IotdbType.INT32, IotdbType.INT64), (IotdbType.FLOAT, IotdbType.DOUBLE), _TEXTS
    if pa.types.is_integer(source):
        return (*whole, *real, IotdbType.BOOLEAN, *text)
    if pa.types.is_decimal(source):
        return (*real, *whole, *text)
    if pa.types.is_floating(source):
        return (*real, *text)
    if pa.types.is_boolean(source):
        return (IotdbType.BOOLEAN, *whole, *text)
    if pa.types.is_date(source):
        return (IotdbType.DATE, *text)
    if pa.types.is_timestamp(source):
        return (IotdbType.TIMESTAMP, IotdbType.INT64, *text)
    return (IotdbType.BLOB,) if pa.types.is_binary(source) else (*text, IotdbType.BLOB)


def is_exact(source: pa.DataType, kind: IotdbType) -> bool:
    """Whether `restored` gives back what was stored, so that it can show a key."""
    if kind in (IotdbType.FLOAT, IotdbType.DOUBLE):
        return False
    return not pa.types.is_floating(source)


def converted(values: pa.Array, kind: IotdbType, precision: Precision) -> Converted:
    """The column as points of type `kind`, which must be one of `possible_types`."""
    source = values.type
    match kind:
        case IotdbType.TEXT | IotdbType.STRING:
            return Converted(as_text(values))
        case IotdbType.BLOB:
            return Converted(values.cast(pa.binary()))
        case IotdbType.BOOLEAN if not pa.types.is_boolean(source):
            return _within(values, (0, 1), pa.bool_(), "is neither 0 nor 1")
        case IotdbType.INT32 | IotdbType.INT64 if not pa.types.is_timestamp(source):
            bounds = _INT32 if kind is IotdbType.INT32 else _INT64
            return _within(values, bounds, WIRE_TYPES[kind], f"is not a whole number that {kind.upper()} can hold")
        case IotdbType.FLOAT:
            return _as_float(values)
        case IotdbType.DATE:
            return _as_date(values)
        case IotdbType.TIMESTAMP | IotdbType.INT64:
            return in_ticks(values, TimeUnit.MICROSECONDS, precision, _INT64)
        case _:
            return Converted(values.cast(WIRE_TYPES[kind], safe=False))


def in_ticks(values: pa.Array, unit: TimeUnit, precision: Precision, bounds: tuple[int, int]) -> Converted:
    """Instants, or whole numbers of `unit`, as ticks of the server; refused if digits would be lost or out of range."""
    numbers = _whole_numbers(values)
    reason = f"does not fit a time of the server in whole {precision}, at most {bounds[1]}"
    if precision.ticks >= _TICKS[unit]:
        factor = precision.ticks // _TICKS[unit]
        limits = -(-bounds[0] // factor), bounds[1] // factor
        held = _within(numbers, limits, pa.int64(), reason)
        return Converted(pc.multiply(held.values, factor), held.refused, reason)
    factor = _TICKS[unit] // precision.ticks
    limits = max(bounds[0] * factor, _INT64[0]), min(bounds[1] * factor, _INT64[1])
    held = _within(numbers, limits, pa.int64(), reason)
    # Division cuts towards zero, so that what it lost is what multiplying does not bring back.
    ticks = pc.divide(held.values, factor)
    lossy = _true(pc.not_equal(pc.multiply(ticks, factor), held.values))
    refused = lossy if held.refused is None else lossy | held.refused
    return _refusing(ticks, refused, reason)


def from_ticks(ticks: pa.Array, unit: TimeUnit, precision: Precision, source: pa.DataType) -> pa.Array:
    """The inverse of `in_ticks`."""
    if precision.ticks >= _TICKS[unit]:
        numbers = pc.divide(ticks, precision.ticks // _TICKS[unit])
    else:
        numbers = pc.multiply(ticks, _TICKS[unit] // precision.ticks)
    if pa.types.is_timestamp(source):
        return numbers.cast(pa.timestamp("us")).cast(source) if source.tz is None else numbers.cast(source)
    return numbers.cast(source)


def restored(values: pa.Array, kind: IotdbType, precision: Precision, source: pa.DataType) -> pa.Array:
    """Points of type `kind` as the source had them, for pairs that `is_exact`."""
    if pa.types.is_timestamp(source) and kind in (IotdbType.TIMESTAMP, IotdbType.INT64):
        return from_ticks(values, TimeUnit.MICROSECONDS, precision, source)
    if kind is IotdbType.DATE:
        texts = [
            None if n is None else f"{n // 10_000:04d}-{n // 100 % 100:02d}-{n % 100:02d}" for n in values.to_pylist()
        ]
        return pa.array(texts, pa.string()).cast(source)
    if kind in _TEXTS:
        return from_text(values, source)
    return values.cast(source)


def as_text(values: pa.Array) -> pa.Array:
    """Each value as text that no other value has: plain digits, ISO dates, hexadecimal bytes."""
    source = values.type
    if pa.types.is_binary(source) or pa.types.is_large_binary(source):
        return pa.array([None if value is None else value.hex() for value in values.to_pylist()], pa.string())
    texts = values.cast(pa.string())
    if pa.types.is_decimal(source) and pc.any(pc.match_substring(texts, "E")).as_py():
        plain = [None if value is None else format(value, "f") for value in values.to_pylist()]
        return pa.array(plain, pa.string())
    return texts


def from_text(texts: pa.Array, source: pa.DataType) -> pa.Array:
    """The inverse of `as_text`."""
    if pa.types.is_binary(source):
        return pa.array([None if text is None else bytes.fromhex(text) for text in texts.to_pylist()], source)
    if pa.types.is_timestamp(source) and source.tz is not None:
        return pc.replace_substring_regex(texts, "Z$", "").cast(pa.timestamp("us")).cast(pa.int64()).cast(source)
    if pa.types.is_decimal(source):
        return pa.array([None if text is None else Decimal(text) for text in texts.to_pylist()], source)
    return texts.cast(source)


def _whole_numbers(values: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
    return values


def _within(values: pa.Array, bounds: tuple[int, int], kind: pa.DataType, reason: str) -> Converted:
    """Whole numbers from `bounds[0]` to `bounds[1]` as `kind`, the others refused."""
    if pa.types.is_boolean(values.type):
        return Converted(values.cast(kind))
    low, high = bounds
    if pa.types.is_decimal(values.type):
        whole = pc.floor(values)
        fraction = pc.not_equal(whole, values)
        wide = whole.cast(_WHOLE)
        outside = pc.or_(
            pc.less(wide, pa.scalar(Decimal(low), _WHOLE)), pc.greater(wide, pa.scalar(Decimal(high), _WHOLE))
        )
        refused = _true(pc.or_(fraction, outside))
    elif _never_leaves(values.type, bounds):
        return Converted(values.cast(kind))
    else:
        wide = values.cast(pa.int64())
        refused = _true(pc.or_(pc.less(wide, low), pc.greater(wide, high)))
    kept = _refusing(wide, refused, reason)
    return Converted(kept.values.cast(pa.int64()).cast(kind), kept.refused, kept.reason)


def _never_leaves(whole: pa.DataType, bounds: tuple[int, int]) -> bool:
    half = 2 ** (whole.bit_width - 1)
    return bool(pa.types.is_signed_integer(whole) and bounds[0] <= -half and half - 1 <= bounds[1])


def _as_float(values: pa.Array) -> Converted:
    wide = values.cast(pa.float64(), safe=False)
    narrow = wide.cast(pa.float32(), safe=False)
    lost = pc.and_(pc.is_finite(wide), pc.invert(pc.is_finite(narrow)))
    return _refusing(narrow, _true(lost), "is too large for FLOAT")


def _as_date(values: pa.Array) -> Converted:
    year, month, day = pc.year(values), pc.month(values), pc.day(values)
    number = pc.add(pc.add(pc.multiply(year, 10_000), pc.multiply(month, 100)), day)
    refused = _true(pc.or_(pc.less(year, 1000), pc.greater(year, 9999)))
    return _refusing(number.cast(pa.int32()), refused, "is a date before the year 1000 or after 9999")


def _refusing(values: pa.Array, refused: Bools, reason: str) -> Converted:
    if not refused.any():
        return Converted(values)
    return Converted(pc.if_else(pa.array(refused), pa.scalar(None, values.type), values), refused, reason)


def _true(found: pa.Array) -> Bools:
    result: Bools = pc.fill_null(found, fill_value=False).to_numpy(zero_copy_only=False)
    return result
