"""Decides which Delta tables can be replayed here, and which can be written to.

Delta's rule is that whatever changes the work of a reader or a writer has a name in the table's protocol. So names that
are not known are refused. The old protocol versions imply features without naming them. There, what makes a table use
one is looked at: properties, and the metadata of columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache

from vnode_backfill.delta.log.actions import VECTORS, Metadata, Protocol
from vnode_backfill.words.errors import SinkError

_REPLAYED = frozenset(
    {
        "timestampNtz", VECTORS, "columnMapping", "typeWidening", "typeWidening-preview", "variantType",
        "variantType-preview", "variantShredding", "variantShredding-preview", "vacuumProtocolCheck",
    }
)  # fmt: skip
"""Features of readers by which the log keeps its form: which files a version has is found in the same way."""
_WRITTEN = frozenset({"timestampNtz", VECTORS, "appendOnly", "invariants", "vacuumProtocolCheck"})
_NEWEST_READER, _NEWEST_WRITER = 3, 7
_OFF = ("", "false", "none")
_PROPERTIES = {
    "delta.appendOnly": "it may only be appended to",
    "delta.enableChangeDataFeed": "it keeps a change data feed",
    "delta.columnMapping.mode": "its columns are mapped to other names",
    "delta.enableRowTracking": "it tracks rows",
    "delta.enableInCommitTimestamps": "its commits carry timestamps of their own",
    "delta.enableInCommitTimestamps-preview": "its commits carry timestamps of their own",
    "delta.enableIcebergCompatV1": "it is kept readable for Iceberg",
    "delta.enableIcebergCompatV2": "it is kept readable for Iceberg",
    "delta.setTransactionRetentionDuration": "it forgets which transactions have landed",
    "delta.coordinatedCommits.commitCoordinator-preview": "a coordinator makes its commits",
}
_COLUMN_RULES = {
    "delta.invariants": "has an invariant",
    "delta.generationExpression": "is generated",
    "delta.identity.start": "is an identity column",
}


def check_replayable(protocol: Protocol, path: str) -> None:
    """Raise SinkError if it cannot be told which files the table has."""
    unknown = sorted(protocol.reader_features - _REPLAYED)
    newer = protocol.reader > _NEWEST_READER
    if unknown or newer:
        raise SinkError(
            f"the Delta table at {path} cannot be read",
            detail=f"It uses table features that are not supported here: {', '.join(unknown)}."
            if unknown
            else f"It demands readers of version {protocol.reader}.",
            hint="Choose another path, or drop the features with the tool that added them.",
        )


def check_writable(protocol: Protocol, metadata: Metadata, path: str) -> None:
    """Raise SinkError if commits here would not keep what the table promises."""
    reason = unwritable(protocol, metadata)
    if reason:
        raise SinkError(
            f"the Delta table at {path} cannot be written to",
            detail=reason,
            hint="Undo that with the tool that has set it, or choose another path.",
        )


def unwritable(protocol: Protocol, metadata: Metadata) -> str:
    """Why commits here would not keep what the table promises; empty if they do."""
    unknown = sorted(protocol.features - _WRITTEN)
    if unknown:
        return f"It uses table features that are not supported here: {', '.join(unknown)}."
    if protocol.writer > _NEWEST_WRITER:
        return f"It demands writers of version {protocol.writer}."
    return next(_rules(metadata), "")


def append_only(metadata: Metadata) -> bool:
    return metadata.configuration.get("delta.appendOnly", "").lower() not in _OFF


def _rules(metadata: Metadata) -> Iterator[str]:
    for name, value in metadata.configuration.items():
        if name in _PROPERTIES and value.lower() not in _OFF:
            yield f"{name} is {value}: {_PROPERTIES[name]}."
        if name.startswith("delta.constraints."):
            yield f"It has the constraint {name.removeprefix('delta.constraints.')}."
    yield from _column_rules(metadata.schema_text)


@lru_cache(maxsize=64)
def _column_rules(schema_text: str) -> tuple[str, ...]:
    fields = json.loads(schema_text)["fields"]
    return tuple(
        f"Column {field['name']} {_COLUMN_RULES[rule]}."
        for field in fields
        for rule in field.get("metadata") or ()
        if rule in _COLUMN_RULES
    )
