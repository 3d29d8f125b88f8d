"""Gives the actions of a Delta log as values: what the table is, which files it has; and writes them as JSON.

A file of the log keeps the words that it was added with: its path as the log spells it, its statistics as text. An
action that names it again must repeat them exactly, and a DECIMAL must not pass through a float. What is asked of the
statistics is read from the text once, and kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import Schema

from vnode_backfill.delta.files import DataFile, DeletionVector, FileReceipt
from vnode_backfill.delta.log.statistics import Bounds, ColumnTypes, read_statistics, without_tight_bounds
from vnode_backfill.words.errors import SinkError

Action: TypeAlias = Mapping[str, object]
NOTE = "vnodeBackfill"
"""What a commit of ours says of itself is under this name in its information."""
NOTES = "notes"
"""There, a commit that stands for several has the notes of all."""
TXN_ID = "txnId"
VECTORS = "deletionVectors"
USES_VECTORS = "delta.enableDeletionVectors"
_VECTOR_BYTES = "vnodeBackfill.vectorBytes"
"""A tag of a file: how many bytes all vectors together have that were written for it."""
_UNESCAPED = "/=!$&'()*+,;@~"
_IMPLIED = (
    (2, "appendOnly"), (2, "invariants"), (3, "checkConstraints"), (4, "changeDataFeed"), (4, "generatedColumns"),
    (5, "columnMapping"), (6, "identityColumns"),
)  # fmt: skip
"""From which writer version on each feature is demanded without being named."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """Which readers and writers the table demands."""

    reader: int
    writer: int
    reader_features: frozenset[str] = frozenset()
    writer_features: frozenset[str] = frozenset()

    @property
    def features(self) -> frozenset[str]:
        return self.reader_features | self.writer_features

    @classmethod
    def of(cls, schema_text: str, features: frozenset[str] = frozenset()) -> Protocol:
        """The least that a table of this schema and with these features demands."""
        if "timestamp_ntz" in column_types(schema_text).values():
            features |= {"timestampNtz"}
        return cls(3, 7, features, features) if features else cls(1, 2)

    def with_feature(self, feature: str) -> Protocol:
        """What the table demands if readers and writers must know the feature too.

        The old versions demand features without naming them; from version 7 on all of them are named.
        """
        implied = frozenset(name for version, name in _IMPLIED if self.writer >= version and self.writer < 7)
        mapped = {"columnMapping"} if self.reader == 2 else frozenset[str]()
        return Protocol(3, 7, self.reader_features | mapped | {feature}, self.writer_features | implied | {feature})

    def without_feature(self, feature: str) -> Protocol:
        """The least that the table demands if nobody has to know the feature any more."""
        readers, writers = self.reader_features - {feature}, self.writer_features - {feature}
        if not readers and writers <= {name for version, name in _IMPLIED if version == 2}:
            return Protocol(1, 2)
        return Protocol(3 if readers else 1, 7, readers, writers)

    @classmethod
    def from_action(cls, action: Action) -> Protocol:
        return cls(
            _int(action["minReaderVersion"]),
            _int(action["minWriterVersion"]),
            frozenset(_texts(action.get("readerFeatures"))),
            frozenset(_texts(action.get("writerFeatures"))),
        )

    def to_action(self) -> Action:
        versions: dict[str, object] = {"minReaderVersion": self.reader, "minWriterVersion": self.writer}
        if self.reader >= 3:
            versions["readerFeatures"] = sorted(self.reader_features)
        if self.writer >= 7:
            versions["writerFeatures"] = sorted(self.writer_features)
        return versions


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the table is: columns, partitions, properties."""

    id: str
    schema_text: str
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    created: int | None = None

    @classmethod
    def from_action(cls, action: Action) -> Metadata:
        created = action.get("createdTime")
        return cls(
            str(action["id"]),
            str(action["schemaString"]),
            tuple(_texts(action.get("partitionColumns"))),
            {name: value or "" for name, value in _pairs(action.get("configuration"))},
            _text_or_none(action.get("name")),
            _text_or_none(action.get("description")),
            None if created is None else _int(created),
        )

    def to_action(self) -> Action:
        return {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": self.schema_text,
            "partitionColumns": list(self.partition_columns),
            "createdTime": self.created,
            "configuration": dict(self.configuration),
        }


@lru_cache(maxsize=64)
def arrow_schema(schema_text: str) -> pa.Schema:
    """The columns of a schema as the log spells it."""
    return pa.schema(Schema.from_json(schema_text).to_arrow())


@lru_cache(maxsize=64)
def column_types(schema_text: str) -> ColumnTypes:
    """Delta's names of the types of the columns; of a nested column an empty one."""
    fields = json.loads(schema_text)["fields"]
    return {each["name"]: each["type"] if isinstance(each["type"], str) else "" for each in fields}


@dataclass(frozen=True, slots=True, eq=False)
class LiveFile:
    """A file of a version, with the words that it was added with."""

    name: str
    size: int
    modified: int
    stats: str = ""
    vector: DeletionVector | None = None
    partition: tuple[tuple[str, str | None], ...] = ()
    tags: tuple[tuple[str, str | None], ...] = ()
    _described: dict[tuple[str, ...], DataFile] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> str:
        return unquote(self.name) if "%" in self.name else self.name

    @property
    def identity(self) -> tuple[str, str | None]:
        return self.path, None if self.vector is None else self.vector.id

    def describe(self, columns: tuple[str, ...], types: ColumnTypes) -> DataFile:
        """The file with the bounds of these columns."""
        found = self._described.get(columns)
        if found is None:
            bounds = read_statistics(self.stats, columns, types) if self.stats else Bounds.unknown(len(columns))
            found = DataFile(
                self.path, self.size, bounds.rows, bounds.low, bounds.high, self.vector, self._vector_bytes
            )
            self._described[columns] = found
        return found

    @classmethod
    def from_action(cls, action: Action) -> LiveFile:
        vector = action.get("deletionVector")
        return cls(
            str(action["path"]),
            _int(action["size"]),
            _int(action.get("modificationTime") or 0),
            str(action.get("stats") or ""),
            DeletionVector.from_action(_mapping(vector)) if vector else None,
            tuple(_pairs(action.get("partitionValues"))),
            tuple(_pairs(action.get("tags"))),
        )

    @classmethod
    def added(cls, receipt: FileReceipt, now: int) -> LiveFile:
        stats = without_tight_bounds(receipt.stats) if receipt.vector and receipt.stats else receipt.stats
        return cls(quote(receipt.path, safe=_UNESCAPED), receipt.size, now, stats, receipt.vector)

    def masked(self, vector: DeletionVector) -> LiveFile:
        """The same file with another vector. Its bounds are then those of all rows, no longer of those that count."""
        if not self.stats:
            raise SinkError(
                f"the log does not say how many rows {self.path} has, so rows of it cannot be marked as deleted",
                hint="Write the file again with another tool, for example Spark's OPTIMIZE.",
            )
        stats = without_tight_bounds(self.stats)
        tags = {**dict(self.tags), _VECTOR_BYTES: str(self._vector_bytes + vector.size)}
        return LiveFile(self.name, self.size, self.modified, stats, vector, self.partition, tuple(tags.items()))

    @property
    def _vector_bytes(self) -> int:
        """Of all vectors that were written for it; where another writer has dropped the tag, of the one it has."""
        stated = dict(self.tags).get(_VECTOR_BYTES) or ""
        return int(stated) if stated.isdecimal() else self.vector.size if self.vector else 0

    def to_add(self, *, data_change: bool) -> Action:
        action: dict[str, object] = {
            "path": self.name,
            "partitionValues": dict(self.partition),
            "size": self.size,
            "modificationTime": self.modified,
            "dataChange": data_change,
        }
        if self.stats:
            action["stats"] = self.stats
        if self.tags:
            action["tags"] = dict(self.tags)
        return self._with_vector(action)

    def to_remove(self, now: int, *, data_change: bool) -> Action:
        return self._with_vector(
            {
                "path": self.name,
                "deletionTimestamp": now,
                "dataChange": data_change,
                "extendedFileMetadata": True,
                "partitionValues": dict(self.partition),
                "size": self.size,
            }
        )

    def _with_vector(self, action: dict[str, object]) -> Action:
        return action if self.vector is None else {**action, "deletionVector": self.vector.to_action()}


def parse_commit(data: bytes, name: str) -> list[tuple[str, Action]]:
    """The actions of a commit, each with its kind."""
    try:
        lines = [json.loads(line) for line in data.split(b"\n") if line.strip()]
        return [(kind, _mapping(action)) for line in lines for kind, action in line.items()]
    except (ValueError, TypeError, AttributeError) as error:
        raise SinkError(f"the commit {name} is not one of a Delta log", detail=str(error)) from error


def commit_text(actions: Iterable[tuple[str, Action]]) -> bytes:
    lines = (json.dumps({kind: action}, separators=(",", ":"), ensure_ascii=False) for kind, action in actions)
    return "".join(f"{line}\n" for line in lines).encode()


def removed_identity(action: Action) -> tuple[str, str | None]:
    vector = action.get("deletionVector")
    return unquote(str(action["path"])), DeletionVector.from_action(_mapping(vector)).id if vector else None


def note_of(data: bytes, app: str, epoch: int, name: str) -> str | None:
    """What a commit says of itself if it is that of this application and epoch."""
    if app.encode() not in data:
        return None
    for kind, action in parse_commit(data, name):
        told = json.loads(str(action.get(NOTE) or "{}")) if kind == "commitInfo" else {}
        for each in told.get(NOTES, [told]):
            if each.get("app") == app and each.get("epoch") == epoch:
                return str(each["note"])
    return None


def transaction_id(data: bytes, name: str) -> str | None:
    """The random number of a commit, if it has one."""
    found = [action.get(TXN_ID) for kind, action in parse_commit(data, name) if kind == "commitInfo"]
    return _text_or_none(found[0]) if found else None


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} is not an object")
    return value


def _int(value: object) -> int:
    return int(str(value))


def _texts(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _pairs(value: object) -> list[tuple[str, str | None]]:
    """The members of an object, or of the list of pairs as which Parquet holds one."""
    pairs = value.items() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [(str(name), _text_or_none(each)) for name, each in pairs]
