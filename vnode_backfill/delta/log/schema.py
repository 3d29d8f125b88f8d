"""Gives a table other columns in its log, and keeps everything else that the log says of it.

What must be true: properties, comments of columns, the table's id and what it demands of readers stay, whoever has set
them. A table that gets its first column of a type that needs a feature demands the feature from then on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from deltalake import Schema

from vnode_backfill.delta.log.actions import Metadata, Protocol


def schema_text(schema: pa.Schema) -> str:
    """The columns as a log spells them."""
    return str(Schema.from_arrow(schema).to_json())


def with_columns(
    metadata: Metadata, schema: pa.Schema, before: Mapping[str, str], properties: Mapping[str, str]
) -> Metadata:
    """The same table with these columns; `before` has the earlier name of each that was there, comments come along."""
    described = {field["name"]: field.get("metadata") or {} for field in json.loads(metadata.schema_text)["fields"]}
    made = json.loads(schema_text(schema))
    for field in made["fields"]:
        field["metadata"] = described.get(before.get(field["name"], ""), {})
    text = json.dumps(made, separators=(",", ":"), ensure_ascii=False)
    return replace(metadata, schema_text=text, configuration={**metadata.configuration, **properties})


def with_types(protocol: Protocol, text: str) -> Protocol:
    """What a table with these columns demands, beside what it demands already."""
    for feature in sorted(Protocol.of(text).features - protocol.features):
        protocol = protocol.with_feature(feature)
    return protocol
