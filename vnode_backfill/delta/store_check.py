"""Tries whether a store keeps the condition that commits rely on: a file is written only if there is none.

The answer is that of the disk or of the bucket, not of a folder in it. So each is tried once by a process, and not once
for each table of a job. A store that is refused is tried again: it may be repaired.
"""

from __future__ import annotations

from collections.abc import Hashable
from uuid import uuid4

from vnode_backfill.delta.log.names import LOG
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.words.errors import SinkError

__all__ = ["check_store"]

_RIGHT: set[Hashable] = set()
"""The disks and buckets that this process has tried."""


def check_store(storage: Storage, what: str) -> None:
    """Refuse a store that would let two commits make the same version; `what` names the table. Demands the folder."""
    with storage_errors(f"{what} cannot be written to at {storage.path}"):
        device = storage.device
        if device in _RIGHT:
            return
        if _keeps_condition(storage):
            _RIGHT.add(device)
            return
    raise SinkError(
        f"{storage.path} is in a store that cannot hold a Delta table that is written to",
        detail="It wrote a file on condition that there is none, although there was one. Commits would be lost.",
        hint="Use a store that keeps this condition (S3, GCS, Azure, a local disk), or a newer version of this one.",
    )


def _keeps_condition(storage: Storage) -> bool:
    name = f"{LOG}/.probe-{uuid4()}"
    storage.put_new(name, b"")
    try:
        storage.put_new(name, b"")
    except FileExistsError:
        return True
    finally:
        storage.remove_file(name)
    return False
