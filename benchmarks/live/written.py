"""Counts the bytes that appear under a job's folders, also those that are deleted again, by looking at the folders.

Each look sees every file. A file is its path and its inode, so one that is replaced by renaming counts again, and one
that grows counts with its largest size. What appears and is gone between two looks is missing; so is what a file held
before it was written over in place. Neither data files, vectors, logs nor checkpoints are written so. A file
that a store is putting has `#` and a number after its name; it counts once it has its own name.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_STAGED = re.compile(r"#\d+$")
KINDS = ("data files", "vectors", "log", "checkpoints", "buffer", "state")


class WrittenBytes:
    """What was seen under the lake and under the state, by all looks together."""

    def __init__(self, lake: Path, state: Path) -> None:
        self._lake, self._state = lake, state
        self._sizes: dict[tuple[Path, int], int] = {}

    def look(self) -> dict[str, int]:
        """Look now; the bytes of all that was ever seen, by kind."""
        for path, inode, size in _files(self._lake, self._state):
            self._sizes[path, inode] = max(size, self._sizes.get((path, inode), 0))
        total = dict.fromkeys(KINDS, 0)
        for (path, _), size in self._sizes.items():
            total[self._kind(path)] += size
        return total

    def _kind(self, path: Path) -> str:
        if path.is_relative_to(self._lake):
            return kind_in_lake(path.relative_to(self._lake))
        return "buffer" if "buffer" in path.relative_to(self._state).parts[:-1] else "state"


def kind_in_lake(path: Path) -> str:
    """What a file of a Delta table is, by its path below the table's folder."""
    if path.parts[0] == "_delta_log":
        return "checkpoints" if "checkpoint" in path.name or "_sidecars" in path.parts else "log"
    return "vectors" if path.suffix == ".bin" else "data files"


def _files(*folders: Path) -> Iterator[tuple[Path, int, int]]:
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in itertools.filterfalse(_STAGED.search, names):
                path = Path(parent, name)
                with suppress(FileNotFoundError):
                    found = path.stat()
                    yield path, found.st_ino, found.st_size
