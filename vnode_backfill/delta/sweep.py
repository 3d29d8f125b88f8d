"""Finds files of a Delta table that nobody needs any more.

What must be true: a file that a live file of the table is made of is never named, nor one that a reader of an older
version within the retention needs, nor one that a task has written and the driver will still commit. A file of the
table is made of a data file and, if it has one, of the file that holds its vector.

    live, in any form                              → kept
    part of the version that readers were told of  → kept
    removed, longer ago than the retention         → goes
    removed, within the retention                  → kept
    of an epoch that this job may still commit     → kept
    never named by a commit, older than a day      → goes
    below a folder or with a name that begins with `_` or `.`   → not looked at, except vectors in `_dv`
    the same in the folder of a copy that took the table's place   → like the above, its old log included
    in the folder of any other copy                → not looked at: it is being made, and its own log names its files

Epochs of a new copy begin again at 1, so a high number alone does not say that a file waits to be committed: one that
is older than the job is not the job's. Most files of the copy before it have removals. Those of a version that readers
were told of outlive them.

Why the order of questions matters: the folder is listed first, then the live files are asked for, then the removals. A
file that is removed in between counts as live, and one that is added in between is young.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from urllib.parse import unquote

from vnode_backfill.delta.copies import COPIES
from vnode_backfill.delta.files import DeletionVector
from vnode_backfill.delta.log.names import LOG
from vnode_backfill.delta.log.removals import Removals
from vnode_backfill.delta.log.replay import TableVersion, in_threads
from vnode_backfill.delta.steps import Step, carried_out
from vnode_backfill.delta.storage import Storage, StoredFile
from vnode_backfill.delta.vectors import FOLDER, path_of, vector_path

UNCOMMITTED_HOURS = 24
"""A file that was never committed is left alone for so long, whatever the retention."""
_CLOCKS = timedelta(hours=1)
_OF_EPOCH = re.compile(r"e(\d+)-")
_ABSOLUTE = "*/"
"""Begins the key of a file that is named by an absolute path."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What may go at `now`; `retention` is how long removed files are kept for readers."""

    now: datetime
    retention: timedelta
    newest_epoch: int = 0
    """The newest epoch that has landed. Files named for it or a later one may still be committed, however old."""
    placed: frozenset[str] = frozenset()
    """The copies that took the table's place: no file of theirs is waiting to be committed."""
    begun: datetime | None = None
    """When the job was created whose epochs these are. Its clock and the store's may differ by an hour."""

    def unneeded(
        self,
        listed: Iterable[StoredFile],
        live: Callable[[], TableVersion],
        removals: Callable[[], Removals],
        told: TableVersion | None = None,
    ) -> list[str]:
        """The paths of files that nobody needs; whatever the version `told` is made of is needed."""
        found = [file for file in listed if self._is_looked_at(file.path)]
        kept = parts_of(live()) | (set() if told is None else parts_of(told))
        removed = _last_removed(removals())
        return [file.path for file in found if not kept & _keys(file.path) and self._may_go(file, removed)]

    def _is_looked_at(self, path: str) -> bool:
        folders = path.split("/")
        if folders[0] == COPIES:
            return len(folders) > 2 and folders[1] in self.placed and (folders[2] == LOG or _is_of_table(folders[2:]))
        return _is_of_table(folders)

    def _may_go(self, file: StoredFile, removed: Mapping[str, int]) -> bool:
        times = [removed[key] for key in _keys(file.path) if key in removed]
        if times:
            return datetime.fromtimestamp(max(times) / 1000, UTC) < self.now - self.retention
        if self._may_be_committed(file):
            return False
        return file.modified < self.now - max(self.retention, timedelta(hours=UNCOMMITTED_HOURS))

    def _may_be_committed(self, file: StoredFile) -> bool:
        written = _OF_EPOCH.match(file.path)
        if written is None or int(written[1]) < self.newest_epoch:
            return False
        return self.begun is None or file.modified >= self.begun - _CLOCKS


def parts_of(table: TableVersion) -> set[str]:
    """The keys of all files that a version is made of: data files, and those that hold their vectors."""
    return {place for file in table.files.values() for place in _places(file.path, file.vector)}


def lost_parts(table: TableVersion, listed: Iterable[StoredFile]) -> set[str]:
    """The files of a version that are not in its folder any more; one with an absolute path is not looked for."""
    there = {file.path for file in listed}
    return {part for part in parts_of(table) if part not in there and not part.startswith(_ABSOLUTE)}


def swept(storage: Storage, paths: Iterable[str]) -> list[str]:
    """Delete the files; their paths."""
    gone = list(paths)

    def remove(path: str) -> None:
        with carried_out(Step.SWEEP_FILE, storage):
            storage.remove_file(path)

    in_threads(remove, gone)
    return gone


def _is_of_table(folders: Sequence[str]) -> bool:
    """Whether a path may be that of a data file, or of a file of vectors."""
    hidden = [part for part in folders if part.startswith(("_", "."))]
    return not hidden or (hidden == [FOLDER] and folders[0] == FOLDER)


def _last_removed(removals: Removals) -> Mapping[str, int]:
    """When each file was removed last, in milliseconds, by its key."""
    found: dict[str, int] = {}
    vectors = ((path_of(storage, place), time) for (storage, place), time in removals.vectors.items())
    for path, time in chain(((unquote(path), time) for path, time in removals.files.items()), vectors):
        if path is not None:
            key = _key(path)
            found[key] = max(time, found.get(key, time))
    return found


def _places(path: str, vector: DeletionVector | None) -> list[str]:
    """The keys of the files that a file of the table is made of."""
    held = None if vector is None else vector_path(vector)
    return [_key(each) for each in (path, held) if each is not None]


def _key(path: str) -> str:
    """A path below the table's folder, or the name in an absolute one, which may lead to the folder in many ways."""
    return f"{_ABSOLUTE}{path.rpartition('/')[2]}" if path.startswith("/") or _SCHEME.match(path) else path


def _keys(path: str) -> set[str]:
    """The keys under which a file of the folder may be named."""
    return {path, f"{_ABSOLUTE}{path.rpartition('/')[2]}"}
