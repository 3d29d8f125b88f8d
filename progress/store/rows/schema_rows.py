"""Turns the versions of a table's definition into the text that a checkpoint holds, and back into the same versions.

A job whose table never changed has no such text, so its checkpoints stay as releases before this one wrote them, and
they read them. One with it they refuse, because they know every key of the document: they would merge rows of one
version into a table of another.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from consume_upstream.log.offset import CdcOffset
from progress.state.schema_state import NO_CHANGES, CopyNote, DefinitionVersion, SchemaState, StatementNote
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import StateError
from vnode_backfill.words.partitioning import Partitioning
from vnode_backfill.words.schema_change import TableShape, column_from_json, steps_from_json, steps_to_json

__all__ = ["schema_from_text", "schema_to_text"]

_VERSION = 1


def schema_to_text(schema: SchemaState) -> str | None:
    """The text, or None where nothing ever happened."""
    if schema == NO_CHANGES:
        return None
    stored: dict[str, object] = {
        "v": _VERSION,
        "in_sink": schema.in_sink,
        "ended": schema.ended,
        "versions": [_version_to_json(version) for version in schema.versions],
        "notes": [[note.at.to_json(), note.statement, note.effect] for note in schema.notes],
    }
    if schema.partitioning is not None:
        stored["partitioning"] = schema.partitioning.to_json()
    if schema.copy is not None:
        stored["copy"] = asdict(schema.copy)
    if schema.cascaded is not None:
        stored["cascaded"] = schema.cascaded.to_json()
    return json.dumps(stored)


def schema_from_text(text: str | None) -> SchemaState:
    if text is None:
        return NO_CHANGES
    stored = json.loads(text)
    if stored.get("v") != _VERSION:
        raise StateError(f"the stored definitions have the unknown version {stored.get('v')!r}")
    return SchemaState(
        versions=tuple(_version_from_json(each) for each in stored["versions"]),
        in_sink=int(stored["in_sink"]),
        notes=tuple(StatementNote(CdcOffset.from_json(at), said, effect) for at, said, effect in stored["notes"]),
        ended=str(stored["ended"]),
        partitioning=Partitioning.from_json(stored.get("partitioning")),
        copy=CopyNote(**stored["copy"]) if "copy" in stored else None,
        cascaded=CdcOffset.from_json(stored["cascaded"]) if "cascaded" in stored else None,
    )


def _version_to_json(version: DefinitionVersion) -> dict[str, object]:
    return {
        "number": version.number,
        "before": version.before.to_json(),
        "after": version.after.to_json(),
        "since": version.since,
        "statement": version.statement,
        "definition": version.shape.definition.to_json(),
        "kept": [asdict(column) for column in version.shape.kept],
        "steps": steps_to_json(version.steps),
        "emptied": version.emptied,
        **({"gtid": version.gtid} if version.gtid else {}),
    }


def _version_from_json(stored: dict[str, object]) -> DefinitionVersion:
    definition, kept, steps = stored["definition"], stored["kept"], stored["steps"]
    if not isinstance(definition, dict) or not isinstance(kept, list) or not isinstance(steps, list):
        raise StateError(f"version {stored.get('number')!r} of the stored definition cannot be read")
    shape = TableShape(TableDefinition.from_json(definition), tuple(column_from_json(column) for column in kept))
    return DefinitionVersion(
        number=int(str(stored["number"])),
        before=CdcOffset.from_json(str(stored["before"])),
        after=CdcOffset.from_json(str(stored["after"])),
        since=Epoch(int(str(stored["since"]))),
        statement=str(stored["statement"]),
        shape=shape,
        steps=steps_from_json(steps),
        emptied=bool(stored["emptied"]),
        gtid=str(stored.get("gtid", "")),
    )
