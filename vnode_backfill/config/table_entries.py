"""Configures the tables of a job: an entry of `mysql.tables` names one table or a pattern, and what is different there.

An entry is a text, or a mapping with the settings that are not the job's. Of all entries that match a table exactly one
counts: the one that names it, else the first pattern in the file. Nothing is merged from several entries, so that one
look at one entry shows what a table has of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import (
    AfterValidator,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    Strict,
    model_serializer,
    model_validator,
)

from vnode_backfill.config.choices import DroppedColumns, DroppedPartitions, MergeMode, SchemaChanges, ZeroDates
from vnode_backfill.config.iotdb import DecimalAs, DevicePath, Duplicates, IotdbType, TableTemplate, TimeColumn
from vnode_backfill.config.values import Count, CountOrZero, Flag, Place, Section, Text, between
from vnode_backfill.words.table_name import TableName, TablePattern

DEFAULT_PRIORITY = 100
HIGHEST_PRIORITY = 1_000_000
_LONGEST_NAME = 64
"""Characters of the name of a database or of a table, on every server."""


def _pattern(value: object) -> TablePattern:
    if isinstance(value, TablePattern):
        return value
    if not isinstance(value, str):
        raise ValueError("must be text; quote it if it looks like a number")  # noqa: TRY004 - pydantic wants it
    found = TablePattern.parse(value)
    if any("\0" in part or len(part) > 4 * _LONGEST_NAME for part in (found.database, found.table)):
        raise ValueError("must not hold NUL, nor a name that is longer than a server allows")
    if found.exact and max(len(found.exact.database), len(found.exact.table)) > _LONGEST_NAME:
        raise ValueError(f"must not hold a name of more than {_LONGEST_NAME} characters")
    return found


def _encodable(value: TablePattern) -> TablePattern:
    if any("\ud800" <= letter <= "\udfff" for letter in value.text):
        raise ValueError("must not hold a code point that is not a character")
    return value


Pattern = Annotated[
    TablePattern, PlainValidator(_pattern), AfterValidator(_encodable), PlainSerializer(lambda found: found.text)
]


class DeltaTableConfig(Section):
    """What a table has in place of `sink.delta`."""

    path: Place | None = None
    replace: Flag | None = None
    merge: MergeMode | None = None


class IotdbTableConfig(Section):
    """What a table has in place of `sink.iotdb`."""

    device: DevicePath | None = None
    database: TableTemplate | None = None
    table: TableTemplate | None = None
    tags: tuple[Text, ...] | None = None
    time: TimeColumn | None = None
    include: tuple[Text, ...] | None = None
    exclude: tuple[Text, ...] | None = None
    rename: Mapping[Text, Text] | None = None
    types: Mapping[Text, IotdbType] | None = None
    decimal: DecimalAs | None = None
    aligned: Flag | None = None
    duplicates: Duplicates | None = None
    replace: Flag | None = None
    dead_letter: Place | None = None


class TableEntry(Section):
    """A table or a pattern, and what is different there; a key that is not given is as the job's."""

    table: Pattern
    priority: Annotated[int, Strict(), between(0, HIGHEST_PRIORITY)] = DEFAULT_PRIORITY
    rows_per_second: CountOrZero | None = None
    range_rows: Count | None = None
    zero_dates: ZeroDates | None = None
    schema_changes: SchemaChanges | None = None
    dropped_columns: DroppedColumns | None = None
    dropped_partitions: DroppedPartitions | None = None
    delta: DeltaTableConfig | None = None
    iotdb: IotdbTableConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: object) -> object:
        """A text is an entry without settings. `zero_dates: null` is a value here, too."""
        if isinstance(data, str):
            return {"table": data}
        if isinstance(data, Mapping) and "zero_dates" in data and data["zero_dates"] is None:
            return {**data, "zero_dates": ZeroDates.NULL.value}
        return data

    @model_serializer(mode="wrap")
    def _given(self, dump: SerializerFunctionWrapHandler) -> dict[str, object]:
        """Only what was given: the absence of `zero_dates` is not its value null."""
        return {key: value for key, value in dump(self).items() if value is not None}


def entry_of(entries: Sequence[TableEntry], name: TableName, *, fold_case: bool) -> TableEntry | None:
    """The entry that counts for a table: the one that names it, else the first pattern; None if none matches."""
    matching = [entry for entry in entries if entry.table.matches(name, fold_case=fold_case)]
    return next((entry for entry in matching if entry.table.exact), matching[0] if matching else None)
