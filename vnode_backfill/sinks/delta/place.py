"""Puts a copy of a job in the place of the table that it was made beside.

What must be true: readers see the old table, whole, until one commit, and the new copy, whole, from then on. The job
that made the copy goes on where it was: what it has committed beside counts as committed in the table. Why it is:

- The commit removes every file of the table and adds every file of the copy, under its path below the table. It carries
  the job's transactions out of the copy's log, `prepare` included, and the notes of its newest epoch.
- Whoever opens the job looks for that mark. So a crash before the commit finds the copy beside, and one after it finds
  the table; there is nothing in between.
- A driver that was replaced cannot put the copy in place any more: its successor fences the table, too, and looks once
  more for the mark afterwards (`ends_beside`).
- Jobs that wrote to the table before can commit no more: their driver generation is set to one that none can follow.
- A compaction of the old table finds its files gone. One of the copy commits to the copy's log, which nobody reads any
  more; what it wrote is swept up.
"""

from __future__ import annotations

from contextlib import suppress

from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.copies import folder_of, has_copy
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.storage import Storage
from vnode_backfill.sinks import receipts_from_json, receipts_to_json
from vnode_backfill.sinks.delta.target import FOR_GOOD, PREPARE, fence, overtaken_is_retryable
from vnode_backfill.words.errors import OvertakenError, SinkUnavailableError

_TRIES = 10


def is_beside(table: Storage, job_id: str) -> bool:
    """Whether this job's rows are in a copy of their own that has not taken the table's place."""
    if not has_copy(table, job_id):
        return False
    found = DeltaLog(table, job_id, "the target table").find()
    return found is None or f"{job_id}/{PREPARE}" not in found.transactions


def ends_beside(log: DeltaLog) -> bool:
    """Make this driver the only one that may put the job's copy in place. True if it is in place already.

    Without this, a driver that slept could put in place what the copy was before its successor went on.
    """
    if log.find() is None:
        return False
    with overtaken_is_retryable():
        fence(log)
    return log.version_of(log.open(), PREPARE) > 0


def put_in_place(log: DeltaLog, copy: DeltaLog) -> TableVersion:
    """Let the table of `log` hold what the `copy` holds, in one commit. The new version; a second call changes nothing.

    Demands that nothing of this job is under way.
    """
    for _ in range(_TRIES):
        table = log.find()
        if table is not None and log.version_of(table, PREPARE):
            return table
        held = copy.open()
        copy.check_generation(held)
        with suppress(OvertakenError):
            made = log.take_in(table, held, folder_of(log.job_id), _notes(copy, held), FOR_GOOD)
            if table is not None and table.has_vectors and not made.has_vectors:
                # Readers that do not know vectors must not meet the commits before.
                log.checkpoint(made)
            return made
    raise SinkUnavailableError(f"a copy could not take the place of {log.storage.path}: overtaken {_TRIES} times")


def _notes(copy: DeltaLog, held: TableVersion) -> dict[str, str]:
    """The notes of the newest epoch, with the paths that files have below the table."""
    return {app: _moved(note, folder_of(copy.job_id)) for app, note in copy.newest_notes(held).items()}


def _moved(note: str, folder: str) -> str:
    if not note:
        return note
    moved = [receipt.within(folder) for receipt in receipts_from_json(note)]
    return receipts_to_json(moved)
