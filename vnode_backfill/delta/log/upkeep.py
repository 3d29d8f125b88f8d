"""Keeps a log short: a checkpoint now and then, and old commits deleted.

What must be true: whoever opens the table, or goes back to a version within the log's retention, finds every commit
that is needed; and a job finds the notes of its newest epoch. Why it is: commits are deleted only below a complete
checkpoint that is itself older than the retention. So the log that is left begins with a checkpoint. And nothing is
deleted from the first commit on whose note may be asked for, nor from the version on that readers were told of: that
checkpoint is not behind either of them.

No commit between that version and the newest one is deleted, though nobody goes back to them. Whoever holds a version
believes it as long as its commit is there, so nothing may be missing behind a commit that is left.

A table that nobody commits to gets no checkpoint: one is due for commits, not for time that passes.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from deltalake import DeltaTable

from vnode_backfill.delta.log.names import LOG, LogNames, commit_name, version_of
from vnode_backfill.delta.log.replay import TableVersion, in_threads
from vnode_backfill.delta.steps import Step, carried_out
from vnode_backfill.delta.storage import Storage

_INTERVAL = 100
_RETENTION = timedelta(days=30)
_DURATION = re.compile(r"\s*(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?\s*", re.IGNORECASE)


def checkpoint_due(table: TableVersion) -> bool:
    """Whether as many commits as the table's interval says are behind the newest checkpoint."""
    stated = table.metadata.configuration.get("delta.checkpointInterval", "")
    interval = int(stated) if stated.isdecimal() and int(stated) else _INTERVAL
    return table.version - table.checkpoint >= interval


def waits_since(storage: Storage, table: TableVersion, moment: datetime) -> bool:
    """Whether a commit behind the newest checkpoint is older than `moment`."""
    first = storage.modified(commit_name(table.checkpoint + 1))
    return first is not None and first < moment


def make_checkpoint(storage: Storage, table: TableVersion) -> int:
    """Write the checkpoint of this version, and return its size. A second call writes the same again."""
    with carried_out(Step.MAKE_CHECKPOINT, storage):
        DeltaTable(storage.path, version=table.version, storage_options=dict(storage.options)).create_checkpoint()
    parts = dict(LogNames.of(storage.list_names(LOG, after=f"{table.version:020d}")).checkpoints).get(table.version, ())
    return sum(storage.size_of(part) for part in parts)


def clean(storage: Storage, table: TableVersion, needed_from: int, now: datetime) -> list[str]:
    """Delete what a log no longer needs; nothing of `needed_from` or behind it. What was deleted."""
    if table.metadata.configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "false":
        return []
    names = storage.list_names(LOG)
    first = _first_kept(storage, LogNames.of(names), needed_from, now - log_retention(table))
    old = [f"{LOG}/{name}" for name in names if (version := version_of(name)) is not None and version < first]

    def remove(name: str) -> None:
        with carried_out(Step.CLEAN_FILE, storage):
            storage.remove_file(name)

    in_threads(remove, old)
    return old


def log_retention(table: TableVersion) -> timedelta:
    """How long commits are kept; Delta's default if the table does not say."""
    found = _DURATION.fullmatch(table.metadata.configuration.get("delta.logRetentionDuration", ""))
    return _RETENTION if found is None else timedelta(**{f"{found[2].lower()}s": int(found[1])})


def _first_kept(storage: Storage, names: LogNames, needed_from: int, horizon: datetime) -> int:
    """The newest checkpoint that is older than `horizon` and not behind what is needed; -1 if there is none."""
    first = -1
    for version, parts in names.checkpoints:
        modified = [storage.modified(part) for part in parts]
        if version > needed_from or any(each is None or each >= horizon for each in modified):
            break
        first = version
    return first
