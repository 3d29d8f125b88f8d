"""What is known of a table's partitions is stored with its definition, and is not part of what the definition says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.tables import table_of
from vnode_backfill.job.open.handoff import fingerprint
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import StateError
from vnode_backfill.words.partitioning import Partition, Partitioning

PLAIN = table_of({"id": "int", "v": "int"}, "id")
PARTITIONED = replace(PLAIN, partitioning=Partitioning("RANGE", "`id`", (Partition("p", "10"), Partition("q", None))))


def test_stored_partitions_are_read_back() -> None:
    found = TableDefinition.from_json(json.loads(json.dumps(PARTITIONED.to_json())))
    assert found.partitioning == PARTITIONED.partitioning


def test_definition_without_partitions_is_stored_as_earlier_releases_did() -> None:
    assert "partitioning" not in PLAIN.to_json()
    assert TableDefinition.from_json(json.loads(json.dumps(PLAIN.to_json()))).partitioning is None


def test_same_table_with_other_partitions_is_the_same() -> None:
    assert PARTITIONED == PLAIN
    assert fingerprint(PARTITIONED) == fingerprint(PLAIN)


def test_damaged_partitions_are_refused() -> None:
    with pytest.raises(StateError, match="partitions of the table cannot be read"):
        Partitioning.from_json({"method": "RANGE"})
