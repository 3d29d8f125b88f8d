"""Versions of the definition are stored with the checkpoint, and only where there are any."""

from __future__ import annotations

import json

import pytest

from consume_upstream.log.statement import FoundStatement
from progress.state.schema_state import NO_CHANGES, CopyNote, DefinitionVersion, SchemaState
from progress.store.rows.schema_rows import schema_from_text, schema_to_text
from tests.unit.progress.state.state_examples import DEFINITION, at
from vnode_backfill.words.columns import Column
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import StateError
from vnode_backfill.words.partitioning import NOT_KNOWN, Partition, Partitioning
from vnode_backfill.words.schema_change import (
    AddColumn,
    DeleteRows,
    DropColumn,
    RenameColumn,
    RetypeColumn,
    TableShape,
)

COUNT = Column.parse("count", "int", nullable=True)
LABEL = Column.parse("label", "enum('x','y z')", nullable=False)
STEPS = (
    AddColumn(COUNT, "3"),
    DropColumn("note"),
    RenameColumn("a", "b"),
    RetypeColumn(LABEL),
    DeleteRows("a", ((None, "5"),)),
)
CARRIED = DefinitionVersion(
    1, at(100), at(110), Epoch(12), "ALTER TABLE …", TableShape(DEFINITION, (COUNT, LABEL)), STEPS
)
EMPTIED = DefinitionVersion(
    2, at(200), at(210, gtids="x:1-9"), Epoch(15), "TRUNCATE orders", TableShape(DEFINITION), emptied=True, gtid="x:9"
)
NOTED = NO_CHANGES.noted(FoundStatement(at(90), at(95), "CREATE INDEX i ON orders (note)"), "none")


@pytest.mark.parametrize(
    "schema",
    [
        SchemaState((CARRIED,)),
        SchemaState((CARRIED, EMPTIED), in_sink=1, notes=NOTED.notes),
        SchemaState((EMPTIED,), in_sink=2, ended="dropped at binlog.000001:300"),
        NOTED,
        SchemaState(in_sink=2),
        SchemaState(partitioning=Partitioning("RANGE", "`id`", (Partition("p0", "10"), Partition("p1", None)))),
        SchemaState(partitioning=NOT_KNOWN),
        SchemaState(cascaded=at(70)),
        SchemaState(
            notes=NOTED.notes,
            copy=CopyNote("2026-03-01T12:00:00+00:00", "another type", "the old copy", "b.1:4", "ALTER"),
        ),
    ],
)
def test_stored_versions_are_read_back_unchanged(schema: SchemaState) -> None:
    assert schema_from_text(schema_to_text(schema)) == schema


def test_table_that_never_changed_has_no_such_text_so_that_earlier_releases_read_its_state() -> None:
    assert schema_to_text(NO_CHANGES) is None
    assert schema_from_text(None) == NO_CHANGES


def test_text_of_a_later_release_is_refused() -> None:
    text = schema_to_text(NOTED)
    assert text is not None
    with pytest.raises(StateError, match="unknown version 2"):
        schema_from_text(json.dumps({**json.loads(text), "v": 2}))


@pytest.mark.parametrize("part", ["definition", "kept", "steps"])
def test_damaged_version_is_refused(part: str) -> None:
    text = schema_to_text(SchemaState((CARRIED,)))
    assert text is not None
    stored = json.loads(text)
    stored["versions"][0][part] = None
    with pytest.raises(StateError, match="version 1 of the stored definition cannot be read"):
        schema_from_text(json.dumps(stored))
