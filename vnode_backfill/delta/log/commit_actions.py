"""Makes the actions of a commit: which files it removes and adds, and which transactions it carries.

What must be true: a removal names a file that the version has, with the vector that it has. Any other has no effect,
and the rows of the file are in the table twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from vnode_backfill.delta.copies import moved
from vnode_backfill.delta.files import DataFile, FileReceipt, Masked
from vnode_backfill.delta.log.actions import NOTE, VECTORS, Action, LiveFile
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.words.errors import LawBrokenError


def file_actions(
    table: TableVersion,
    added: Sequence[FileReceipt],
    removed: Sequence[DataFile],
    masked: Sequence[Masked],
    *,
    data_change: bool,
) -> list[tuple[str, Action]]:
    """The one place where removals are made: each of a file that the version has, with the vector that it has."""
    now = milliseconds()
    gone = [_live(table, file) for file in (*removed, *(each.file for each in masked))]
    if len({file.name for file in gone}) < len(gone):
        raise LawBrokenError(f"a commit behind version {table.version} would remove a file twice")
    new = [
        *(_live(table, each.file).masked(each.vector) for each in masked),
        *(LiveFile.added(receipt, now) for receipt in added),
    ]
    check_vectors(table, new)
    return [
        *(("remove", file.to_remove(now, data_change=data_change)) for file in gone),
        *(("add", file.to_add(data_change=data_change)) for file in new),
    ]


def replacing_actions(
    table: TableVersion | None, copy: TableVersion, folder: str, marks: Mapping[str, int]
) -> list[tuple[str, Action]]:
    """What makes the table hold what its copy in `folder` holds, with these transactions.

    It stays the same table for its readers: its id, its name and the properties that others have set are kept.
    """
    now, known = milliseconds(), table or copy
    stays = {k: v for k, v in known.metadata.configuration.items() if not k.startswith(f"{NOTE}.")}
    metadata = replace(
        known.metadata,
        schema_text=copy.metadata.schema_text,
        partition_columns=(),
        configuration={**stays, **copy.metadata.configuration},
    )
    return [
        ("protocol", copy.protocol.to_action()),
        ("metaData", metadata.to_action()),
        *(("txn", transaction(app, version, now)) for app, version in marks.items()),
        *(("remove", file.to_remove(now, data_change=True)) for file in (table.files.values() if table else ())),
        *(("add", file.to_add(data_change=True)) for file in moved(copy.files.values(), folder)),
    ]


def _live(table: TableVersion, file: DataFile) -> LiveFile:
    found = table.files.get(file.identity)
    if found is None:
        raise LawBrokenError(
            f"{file.path} with the vector {file.identity[1]} is not in version {table.version} and cannot be removed",
        )
    return found


def check_vectors(table: TableVersion, files: Sequence[LiveFile]) -> None:
    vectors = [file.vector for file in files if file.vector is not None]
    if vectors and VECTORS not in table.protocol.features:
        raise LawBrokenError(f"version {table.version} has no deletion vectors, and a commit would add {len(vectors)}")
    if any(vector.storage == "i" for vector in vectors):
        raise LawBrokenError("a deletion vector would be kept in the log itself, which some readers do not survive")


def transaction(app: str, version: int, now: int) -> Action:
    return {"appId": app, "version": version, "lastUpdated": now}


def milliseconds() -> int:
    return int(time.time() * 1000)
