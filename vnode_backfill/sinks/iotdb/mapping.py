"""Turns a row of the source into points: its device, its time, its measurements, and the key they belong to.

What must be true: a row becomes one *slot*, a device and a time, and one point per measurement that is not NULL. The
same row always becomes the same slot and points. A row that cannot become points exactly is rejected with column, value
and reason. A row whose measurements are all NULL leaves no point, because IoTDB keeps none.

**Which key a slot belongs to.** Points carry no key, and two keys of the source may fall on one slot. So each slot
shows its key. If device and time columns make the whole key, the slot itself does. Else the key columns that are
measurements do (by default all are). Else, where a key column is left out or stored rounded, one more measurement does:
`_key`, with the key as text. What is stored beside the slot to show its key is the *owner* here. So detection is exact
and usually costs nothing.

    reading(region, sensor, at, temp), key (region, sensor, at)     shown by the slot
    reading(id, sensor, at, temp), key (id)                         owner `id`
    the same with `exclude: [id]`                                   owner `_key`

Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from vnode_backfill.config.iotdb import IotdbSinkConfig, IotdbType, TimeUnit
from vnode_backfill.sinks.iotdb.server.paths import DeviceTemplate
from vnode_backfill.sinks.iotdb.server.tags import TagNaming
from vnode_backfill.sinks.iotdb.values import (
    Bools,
    Converted,
    Ints,
    Precision,
    as_text,
    converted,
    default_type,
    from_text,
    from_ticks,
    in_ticks,
    is_exact,
    possible_types,
    restored,
)
from vnode_backfill.words.columns import Kind, TableDefinition
from vnode_backfill.words.errors import ConfigError
from vnode_backfill.words.key import Key, keys_of
from vnode_backfill.words.key_range import key_from_text, key_to_text

KEY_MEASUREMENT = "_key"
_REFUSED_NAMES = {"time", "timestamp", ""}
_LOWEST = -(2**63)


Slot = tuple[str, int]
"""A device's name and a time."""


class DeviceNaming(Protocol):
    """How devices are named; a name is a text that one device only has, in the server's own spelling."""

    @property
    def text(self) -> str:
        """The text that messages show."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the source that make a device."""
        ...

    @property
    def told(self) -> frozenset[str]:
        """Those of them whose values can be read from the name."""
        ...

    @property
    def takes_null(self) -> bool:
        """Whether NULL is a value like others; else such rows are rejected."""
        ...

    def device(self, values: Sequence[str | None]) -> str:
        """The name for a row whose `columns` have these texts."""
        ...

    def values_of(self, device: str) -> Mapping[str, str | None] | None:
        """The texts of the `told` columns; None for a device that has no such name."""
        ...


@dataclass(frozen=True, slots=True)
class Measurement:
    """A column of the source as a measurement; `column` is None for the one that holds the key as text."""

    name: str
    kind: IotdbType
    column: str | None


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a row cannot become points."""

    row: int
    column: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Points:
    """Rows as points. Row number n goes to `devices[device[n]]` at `times[n]`; NULL in `values` is no point."""

    devices: tuple[str, ...]
    device: npt.NDArray[np.int64]
    times: Ints
    values: pa.Table
    rows: pa.Table
    """The rows of the source they were made from."""

    def __len__(self) -> int:
        return len(self.times)

    def take(self, places: Ints | Bools) -> Points:
        """Some of the points, in the order asked for."""
        chosen = np.flatnonzero(places) if places.dtype == np.bool_ else places
        picked = pa.array(chosen)
        return Points(
            self.devices,
            self.device[chosen],
            self.times[chosen],
            self.values.take(picked).combine_chunks(),
            self.rows.take(picked).combine_chunks(),
        )

    def by_slot(self) -> Points:
        """The same points by device and time; those of one slot stay in order."""
        order = np.lexsort((self.times, self.device))
        return self if bool(np.all(order[1:] > order[:-1])) else self.take(order)


@dataclass(frozen=True, slots=True)
class PointMapping:
    """How rows of one table become points of one server. Can be pickled."""

    definition: TableDefinition
    naming: DeviceNaming
    time: str
    unit: TimeUnit
    precision: Precision
    measurements: tuple[Measurement, ...]
    owner: tuple[Measurement, ...]
    """Those that show whose a slot is; none if the slot itself does."""

    @classmethod
    def of(
        cls,
        config: IotdbSinkConfig,
        definition: TableDefinition,
        precision: Precision,
        key_measurement: str = KEY_MEASUREMENT,
    ) -> PointMapping:
        """Raises ConfigError with the YAML path of what does not fit the table."""
        naming = _naming(config, definition)
        _check_columns(config, definition, naming)
        measurements = tuple(_measurements(config, definition, naming))
        owner = _owner(definition, naming, config.time.column, measurements, key_measurement)
        if any(each.column is None for each in owner):
            measurements = (*measurements, *owner)
        _check_names(measurements, naming)
        return cls(
            definition, naming, config.time.column, config.time.unit or TimeUnit.MICROSECONDS, precision,
            measurements, owner,
        )  # fmt: skip

    def points(self, rows: pa.Table) -> tuple[Points, tuple[Rejection, ...]]:
        """The rows as points, in their order, without those that are rejected."""
        rows = self._canonical(rows)
        judged = _Judged(rows)
        times = judged.column(self.time, self._times(_array(rows, self.time)), demanded=True)
        for name in self.naming.columns:
            judged.column(name, self._nameable(_array(rows, name)), demanded=not self.naming.takes_null)
        values = {
            each.name: judged.column(
                each.column, converted(_array(rows, each.column), each.kind, self.precision), demanded=False
            )
            for each in self.measurements
            if each.column is not None
        }
        kept = judged.kept()
        if kept is not None:
            times, rows = times.take(kept), rows.take(kept).combine_chunks()
            values = {name: column.take(kept) for name, column in values.items()}
        if any(each.column is None for each in self.owner):
            values[self.owner[0].name] = pa.array([key_to_text(key) for key in self.keys(rows)], pa.string())
        device, devices = self._devices(rows)
        table = pa.table({each.name: values[each.name] for each in self.measurements})
        return Points(devices, device, times.to_numpy(), table, rows), judged.rejections

    def _nameable(self, values: pa.Array) -> Converted:
        if not isinstance(self.naming, TagNaming) or not pa.types.is_string(values.type):
            return Converted(values)
        cut = pc.fill_null(pc.ends_with(values, "\0"), fill_value=False).to_numpy(zero_copy_only=False)
        return Converted(
            values, cut if cut.any() else None, "ends with a NUL character, which is cut off a tag when it is read"
        )

    def _canonical(self, rows: pa.Table) -> pa.Table:
        """The columns of the source in their own types: a merge widens text."""
        schema = pa.schema([field.with_nullable(True) for field in self.definition.arrow_schema])
        return rows.select(schema.names).cast(schema).combine_chunks()

    def keys(self, rows: pa.Table) -> list[Key]:
        """The keys of rows of the source, or of `stored_keys`."""
        columns = [_array(rows, name) for name in self.definition.key]
        return keys_of(self.definition.key_parts, columns)

    def stored_keys(self, devices: Sequence[str], device: Ints, times: Ints, owner: pa.Table) -> pa.Table:
        """The key columns of stored slots, whose `owner` measurements were read back. The inverse of `points`."""
        if any(each.column is None for each in self.owner):
            keys = [key_from_text(text) for text in owner.column(self.owner[0].name).to_pylist()]
            schema = self.definition.arrow_schema
            columns = zip(*keys, strict=True) if keys else [() for _ in self.definition.key]
            arrays = [
                pa.array(values, schema.field(n).type) for n, values in zip(self.definition.key, columns, strict=True)
            ]
            return pa.table(arrays, names=list(self.definition.key))
        by_column = {each.column: each for each in self.owner}
        arrays = []
        for name in self.definition.key:
            kind = self.definition.column(name).arrow_type
            if name in by_column:
                stored = owner.column(by_column[name].name).combine_chunks()
                arrays.append(restored(stored, by_column[name].kind, self.precision, kind))
            elif name == self.time:
                arrays.append(from_ticks(pa.array(times), self.unit, self.precision, kind))
            else:
                arrays.append(self._told(name, kind, devices).take(pa.array(device)))
        return pa.table(arrays, names=list(self.definition.key))

    def _told(self, name: str, kind: pa.DataType, devices: Sequence[str]) -> pa.Array:
        values = [self.naming.values_of(device) or {} for device in devices]
        return from_text(pa.array([found[name] for found in values], pa.string()), kind)

    def _times(self, values: pa.Array) -> Converted:
        return in_ticks(values, self.unit, self.precision, (_LOWEST, self.precision.highest))

    def _devices(self, rows: pa.Table) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
        """Each device once, and the number of each row's. Only distinct values become text."""
        codes = np.zeros(rows.num_rows, dtype=np.int64)
        for number, name in enumerate(self.naming.columns):
            column = _array(rows, name).dictionary_encode(null_encoding="encode")
            codes = codes * max(len(column.dictionary), 1) + column.indices.to_numpy()
            if number:
                codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
        first = np.empty(int(codes.max(initial=-1)) + 1, dtype=np.int64)
        # Of a place that is assigned several times the last one counts: backwards, the first row.
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        distinct = rows.select(self.naming.columns).take(pa.array(first))
        texts = [as_text(_array(distinct, name)).to_pylist() for name in self.naming.columns]
        names = (
            [self.naming.device(values) for values in zip(*texts, strict=True)] if texts else [self.naming.device(())]
        )
        return _merged(codes, names)


def _merged(device: npt.NDArray[np.int64], paths: list[str]) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Different values may make one path, where a node holds two columns."""
    devices = tuple(dict.fromkeys(paths))
    if len(devices) == len(paths):
        return device, devices
    numbers = {path: number for number, path in enumerate(devices)}
    return np.array([numbers[path] for path in paths], dtype=np.int64)[device], devices


class _Judged:
    """Which rows are rejected, each for the first reason found."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._bad = np.zeros(rows.num_rows, dtype=np.bool_)
        self._found: list[Rejection] = []

    def column(self, name: str, found: Converted, *, demanded: bool) -> pa.Array:
        """Note what is wrong with a column; a `demanded` one must not be NULL."""
        if found.refused is not None:
            self._reject(name, found.refused, found.reason)
        if demanded and found.values.null_count:
            self._reject(name, found.values.is_null().to_numpy(zero_copy_only=False), "is NULL")
        return found.values

    def kept(self) -> pa.Array | None:
        """The numbers of the rows that are not rejected; None if that is all."""
        return pa.array(np.flatnonzero(~self._bad)) if self._bad.any() else None

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        return tuple(sorted(self._found, key=lambda rejection: rejection.row))

    def _reject(self, name: str, refused: Bools, reason: str) -> None:
        for row in np.flatnonzero(refused & ~self._bad):
            value = self._rows.column(name)[int(row)].as_py()
            self._found.append(Rejection(int(row), name, "NULL" if value is None else str(value), reason))
        self._bad |= refused


def _array(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _naming(config: IotdbSinkConfig, definition: TableDefinition) -> DeviceNaming:
    if config.device is None:
        return TagNaming.of(config, definition.table)
    template = DeviceTemplate.parse(config.device)
    if template.database is None:
        raise ConfigError(
            f"sink.iotdb.device: the node after root names the database; in {template.text} it must be fixed text of "
            "letters, digits and _"
        )
    return template


def _check_columns(config: IotdbSinkConfig, definition: TableDefinition, naming: DeviceNaming) -> None:
    known = {column.name for column in definition.columns}
    device = "tags" if config.device is None else "device"
    named: Mapping[str, Sequence[str]] = {
        device: naming.columns,
        "time.column": (config.time.column,),
        "include": config.include,
        "exclude": config.exclude,
        "rename": tuple(config.rename),
        "types": tuple(config.types),
    }
    for key, columns in named.items():
        unknown = [column for column in columns if column not in known]
        if unknown:
            raise ConfigError(
                f"sink.iotdb.{key}: {definition.database}.{definition.table} has no column {', '.join(unknown)}",
                detail=f"Its columns are {', '.join(sorted(known))}.",
            )
    _check_time(config, definition)
    inexact = [n for n in naming.columns if pa.types.is_floating(definition.column(n).arrow_type)]
    if inexact:
        raise ConfigError(f"sink.iotdb.{device}: a device cannot be named by the floating-point column {inexact[0]}")


def _check_time(config: IotdbSinkConfig, definition: TableDefinition) -> None:
    column = definition.column(config.time.column)
    if column.kind not in (Kind.DATETIME, Kind.TIMESTAMP, Kind.INT):
        raise ConfigError(
            f"sink.iotdb.time.column: {column.name} has the type {column.type_name}; "
            "must be a column of type DATETIME, TIMESTAMP or BIGINT"
        )
    if (column.kind is Kind.INT) == (config.time.unit is None):
        wanted = "must be s, ms, us or ns" if column.kind is Kind.INT else "must not be given"
        raise ConfigError(f"sink.iotdb.time.unit: {wanted} for the column {column.name} of type {column.type_name}")


def _measurements(config: IotdbSinkConfig, definition: TableDefinition, naming: DeviceNaming) -> list[Measurement]:
    """Every column that makes no device and no time, or exactly those included."""
    taken = {*naming.columns, config.time.column}
    found = []
    for column in definition.columns:
        included = column.name in config.include if config.include else column.name not in taken
        if not included or column.name in config.exclude:
            continue
        kind = config.types.get(column.name) or default_type(column.arrow_type, config.decimal)
        if kind not in possible_types(column.arrow_type):
            allowed = ", ".join(possible_types(column.arrow_type))
            raise ConfigError(
                f"sink.iotdb.types.{column.name}: {column.type_name} cannot be {kind}; must be one of {allowed}"
            )
        name = config.rename.get(column.name, column.name)
        found.append(Measurement(name.lower() if isinstance(naming, TagNaming) else name, kind, column.name))
    if not found:
        raise ConfigError(
            "sink.iotdb: no column is left to be a measurement",
            hint="Name one in `sink.iotdb.include`; it may be one that makes the device path or the time.",
        )
    return found


def _owner(
    definition: TableDefinition,
    naming: DeviceNaming,
    time: str,
    measurements: Sequence[Measurement],
    key_measurement: str,
) -> tuple[Measurement, ...]:
    untold = [name for name in definition.key if name not in naming.told and name != time]
    by_column = {each.column: each for each in measurements}
    carried = [
        by_column[name]
        for name in untold
        if name in by_column and is_exact(definition.column(name).arrow_type, by_column[name].kind)
    ]
    if len(carried) == len(untold):
        return tuple(carried)
    return (Measurement(key_measurement, IotdbType.TEXT, None),)


def _check_names(measurements: Sequence[Measurement], naming: DeviceNaming) -> None:
    if isinstance(naming, TagNaming):
        _check_table_names(
            [*((tag.name, tag.column) for tag in naming.tags), *((m.name, m.column) for m in measurements)]
        )
        return
    names = [each.name for each in measurements]
    for each in measurements:
        if each.name.casefold() in _REFUSED_NAMES or set(each.name) & {"\t", "\n"}:
            raise _refused_name("measurement", each.name, each.column)
        if names.count(each.name) > 1:
            raise ConfigError(f"sink.iotdb.rename: two measurements would be called {each.name!r}")


def _check_table_names(names: Sequence[tuple[str, str | None]]) -> None:
    """Names in lower case with their columns."""
    taken: dict[str, str | None] = {}
    for name, column in names:
        if name in ("time", ""):
            raise _refused_name("column", name, column)
        if name in taken:
            raise ConfigError(
                f"sink.iotdb.rename: two columns of the table would be called {name!r}",
                detail=f"They are made of {taken[name] or 'the key'} and {column or 'the key'}; "
                "the server folds names to lower case.",
                hint=f"Give one another name: `rename: {{{column or taken[name]}: {name}_}}`.",
            )
        taken[name] = column


def _refused_name(what: str, name: str, column: str | None) -> ConfigError:
    return ConfigError(
        f"sink.iotdb.rename: the server accepts no {what} called {name!r}",
        hint=f"Give it another name: `rename: {{{column}: {column}_}}`.",
    )
