"""Keeps a table in a folder below another one's, and moves its files into the other's log without writing them again.

A copy is a Delta table of its own in `_copies/<name>` of the table that it will replace. Readers of that table do not
see it: they follow the log, and nobody's VACUUM looks into a folder whose name begins with an underscore. When the copy
takes the table's place, the table's log names the copy's files by their paths below the table, vectors too:

    in the copy's log     e3-r7.parquet                    vector  _dv + 20 letters
    in the table's log    _copies/4f1c/e3-r7.parquet       vector  _copies/4f1c/_dv + the same letters
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from urllib.parse import quote

from vnode_backfill.delta.files import DeletionVector
from vnode_backfill.delta.log.actions import LiveFile
from vnode_backfill.delta.log.names import LOG
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.delta.vectors import UUID_LETTERS

COPIES = "_copies"


def folder_of(name: str) -> str:
    """The folder of a copy, below that of the table."""
    return f"{COPIES}/{name}"


def copy_in(table: Storage, name: str) -> Storage:
    """The copy of this name beside a table; it need not be there."""
    return replace(table, path=f"{table.path}/{folder_of(name)}")


def has_copy(table: Storage, name: str) -> bool:
    """Whether there is such a copy, with a log of its own."""
    with storage_errors(f"copies beside {table.path} cannot be looked up"):
        return bool(copy_in(table, name).list_names(LOG))


def discard_copies(table: Storage, kept: Collection[str]) -> list[str]:
    """Delete every copy beside a table but those that are `kept`. The names of those that went."""
    with storage_errors(f"copies beside {table.path} cannot be deleted"):
        gone = [name for name in table.list_folders(COPIES) if name not in kept]
        for name in gone:
            copy_in(table, name).remove()
    return gone


def moved(files: Iterable[LiveFile], folder: str) -> list[LiveFile]:
    """Files of a table in `folder` as the table above it names them."""
    return [
        LiveFile(
            f"{quote(folder)}/{file.name}",
            file.size,
            file.modified,
            file.stats,
            file.vector and moved_vector(file.vector, folder),
            file.partition,
            file.tags,
        )
        for file in files
    ]


def moved_vector(vector: DeletionVector, folder: str) -> DeletionVector:
    """A vector of a table in `folder` as the table above it names it; an absolute place stays."""
    if vector.storage != "u":
        return vector
    below, encoded = vector.place[:-UUID_LETTERS], vector.place[-UUID_LETTERS:]
    return replace(vector, place=f"{folder}/{below}{encoded}" if below else f"{folder}{encoded}")
