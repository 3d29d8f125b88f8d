"""Says what a commit does to the table: which files come, which go, and which lose rows to a deletion vector.

And it counts what commits have cost: how many bytes were written for how many that changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from vnode_backfill.delta.files import DataFile, FileReceipt, Masked


@dataclass(frozen=True, slots=True)
class Effect:
    """Files that were written and are not visible yet, and what becomes of the files of one version."""

    added: Sequence[FileReceipt] = ()
    removed: Sequence[DataFile] = ()
    masked: Sequence[Masked] = ()

    @property
    def bytes(self) -> int:
        """What was written for it: the new files and the new vectors."""
        vectors = [*(each.vector for each in self.masked), *(each.vector for each in self.added)]
        return sum(file.size for file in self.added) + sum(each.size for each in vectors if each is not None)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.masked)

    def __add__(self, other: Effect) -> Effect:
        return Effect((*self.added, *other.added), (*self.removed, *other.removed), (*self.masked, *other.masked))


@dataclass(slots=True)
class Traffic:
    """What a sink has written and changed since it was opened, and how much of the former were commits. Any thread."""

    written: int = 0
    changed: int = 0
    logged: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def count(self, effect: Effect, logged: int, changed: int = 0) -> None:
        """A commit of `logged` bytes has landed, for changes of so many bytes."""
        with self._lock:
            self.written += effect.bytes + logged
            self.logged += logged
            self.changed += changed

    def checkpointed(self, size: int) -> None:
        with self._lock:
            self.written += size
