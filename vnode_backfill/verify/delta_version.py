"""Reads the target as a comparison sees it: one version of a Delta table, its files, and its columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from consume_upstream.upstream_table import Stretch, ValueForms
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.sinks.delta.follow.change import KEPT_COLUMNS
from vnode_backfill.sinks.delta.keys.bounds import may_hold
from vnode_backfill.verify.result import Difference, DifferenceKind
from vnode_backfill.verify.tasks import TargetFiles
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import SinkError
from vnode_backfill.words.key import KeyPart
from vnode_backfill.words.key_range import Bound, KeyRange

__all__ = ["TargetView", "open_target"]

_NOT_READ_BY_FILES = frozenset({"columnMapping"})
_NAMES = {
    pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint",
    pa.float32(): "float", pa.float64(): "double", pa.date32(): "date",
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), "string"),
    **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), "binary"),
}  # fmt: skip
_PRUNING = 4_000_000
"""How many pairs of a file and a range are looked at before reading all files is cheaper."""


@dataclass(frozen=True, slots=True, eq=False)
class TargetView:
    """A version of the target. `told` holds columns that cannot be compared, `columns` those that are, key included."""

    storage: Storage
    definition: TableDefinition
    version: int
    files: tuple[DataFile, ...]
    told: tuple[Difference, ...]
    columns: tuple[str, ...]
    values: ValueForms

    @property
    def rows(self) -> int:
        """About how many rows there are."""
        return sum(file.live_rows or 0 for file in self.files)

    def lanes(self, count: int, files: Sequence[DataFile] | None = None) -> list[TargetFiles]:
        """The files, or some of them, in at most `count` parts of about the same size."""
        chosen = sorted(self.files if files is None else files, key=lambda file: -file.size)
        sizes, lanes = [0] * count, [list[DataFile]() for _ in range(count)]
        for file in chosen:
            lane = sizes.index(min(sizes))
            sizes[lane] += file.size + 50_000
            lanes[lane].append(file)
        return [
            TargetFiles(self.storage, tuple(each), self.definition, self.columns, self.values) for each in lanes if each
        ]

    def files_of(self, stretches: Sequence[Stretch], parts: Sequence[KeyPart]) -> list[DataFile]:
        """The files that may hold a key of the stretches."""
        if not parts or len(stretches) * len(self.files) > _PRUNING:
            return list(self.files)
        ranges = [_as_range(stretch) for stretch in stretches]
        return [file for file in self.files if may_hold(file, ranges, parts[0])]


def open_target(definition: TableDefinition, storage: Storage, values: ValueForms) -> TargetView:
    """The target at its newest version. Demands the key columns: without them no row can be found."""
    path = storage.path
    log = DeltaLog(storage, "", "the target table", 0)
    with storage_errors(
        f"the Delta table at {path} cannot be read", hint="Check that the path is right and reachable."
    ):
        found = log.find()
        if found is None:
            raise SinkError(f"the Delta table at {path} cannot be read", detail="There is no Delta table.")
        _check_readable(found, path)
        schema = _without_kept(found, definition)
        files = tuple(log.files(found, definition.key))
        version = found.version
    told = _column_differences(definition, schema)
    apart = {difference.column for difference in told}
    columns = tuple(column.name for column in definition.columns if column.name not in apart)
    return TargetView(storage, definition, version, files, tuple(told), columns, values)


def _without_kept(table: TableVersion, definition: TableDefinition) -> pa.Schema:
    """The target's columns but those that the source has dropped and the target keeps: nothing compares with them."""
    kept = json.loads(table.metadata.configuration.get(KEPT_COLUMNS) or "[]")
    source = set(definition.arrow_schema.names)
    return pa.schema([field for field in table.schema if field.name in source or field.name not in kept])


def _check_readable(table: TableVersion, path: str) -> None:
    found = table.protocol.features & _NOT_READ_BY_FILES
    partitions = table.metadata.partition_columns
    if found or partitions:
        raise SinkError(
            f"the Delta table at {path} is not one that this system writes",
            detail=f"It uses {', '.join(sorted(found))}."
            if found
            else f"It is partitioned by {', '.join(partitions)}.",
        )


def _as_range(stretch: Stretch) -> KeyRange:
    if stretch.after is None:
        return stretch.range
    return KeyRange(Bound(stretch.after, b""), stretch.range.high, closed=stretch.range.closed)


def _column_differences(definition: TableDefinition, target: pa.Schema) -> list[Difference]:
    source_types, target_types = _types(definition.arrow_schema), _types(target)
    names = [*source_types, *(name for name in target_types if name not in source_types)]
    apart = [name for name in names if source_types.get(name) != target_types.get(name)]
    lost = [name for name in definition.key if name in apart]
    if lost:
        raise SinkError(
            f"key column {lost[0]} of the target is not the source's",
            detail=f"Expected {source_types[lost[0]]}, found {target_types.get(lost[0], 'no such column')}.",
        )
    return [
        Difference(DifferenceKind.DIFFERENT, (), name, source_types.get(name), target_types.get(name)) for name in apart
    ]


def _types(schema: pa.Schema) -> dict[str, str]:
    """The columns' types as Spark's SQL calls them."""
    return {field.name: _type_name(field.type) for field in schema}


def _type_name(kind: pa.DataType) -> str:
    """The name of a type; one that this system never writes keeps Arrow's name."""
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _NAMES.get(kind, str(kind))
