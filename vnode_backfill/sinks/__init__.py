"""Defines what the rest of the system may ask of a target, whatever it is.

The promises correctness rests on, kept by every sink and proven by one suite of tests:

- where the target has commits, what a task writes is invisible until the driver commits it; where it has none, what a
  lost attempt wrote and no later one wrote again is gone after the next commit;
- each of `commit_reads` and `apply` takes effect once per epoch: a second call changes nothing and returns what the
  first one did;
- appended and replaced ranges of one epoch are two transactions with different ids, so that a crash between them can be
  seen;
- a deleted key is gone;
- a change of columns takes effect once per version of the definition, for all rows at once where the target has
  commits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, TypeVar

import pyarrow as pa

from vnode_backfill.delta.files import FileReceipt
from vnode_backfill.delta.storage import Storage
from vnode_backfill.sinks.changes import Changes
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.schema_change import ColumnStep, TableShape

__all__ = ["FileReceipt", "RangeWriter", "ReadReceipt", "Sink", "TaskRunner", "Weighing"]

Weighing: TypeAlias = Callable[[Sequence[pa.Array]], Sequence[pa.Array | None] | None]
"""The database's sort keys of a batch of key columns: None for a column the client compares, or if it compares all."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class TaskRunner(Protocol):
    """Runs a function on each item, somewhere, and gives the results in order."""

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]: ...


@dataclass(frozen=True, slots=True)
class ReadReceipt:
    """One range that was read to its end: how many rows, and the files that hold them (none for no row)."""

    ordinal: int
    rows: int
    files: tuple[FileReceipt, ...] = ()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def within(self, folder: str) -> ReadReceipt:
        """The same, as it is named where the files' own folder is `folder`."""
        files = tuple(replace(file, path=f"{folder}/{file.path}") for file in self.files)
        return replace(self, files=files)


def receipts_to_json(receipts: Sequence[ReadReceipt]) -> str:
    """What a commit says it holds: ranges, rows, and paths; the files' statistics are beside them in the log."""
    return json.dumps([[r.ordinal, r.rows, [[f.path, f.size, f.rows] for f in r.files]] for r in receipts])


def receipts_from_json(text: str) -> tuple[ReadReceipt, ...]:
    return tuple(
        ReadReceipt(ordinal, rows, tuple(FileReceipt(*file) for file in files))
        for ordinal, rows, files in json.loads(text)
    )


class RangeWriter(Protocol):
    """Writes ranges inside Spark tasks; can be pickled."""

    def write(self, epoch: Epoch, ordinal: int, attempt: int, batches: Iterable[pa.RecordBatch]) -> ReadReceipt:
        """Write the rows of one range; nothing counts yet. If `batches` raises, so does this, without a receipt."""
        ...


class Sink(Protocol):
    """A target. The methods are called from the driver, never two of them at the same time."""

    @property
    def needs_window(self) -> bool:
        """Whether `apply` wants every change of its window, with offsets and before images, not only the last ones."""
        ...

    @property
    def staging(self) -> Storage | None:
        """Where workers may leave the changes of a large merge; None if every change set goes through the driver."""
        ...

    @property
    def has_vectors(self) -> bool:
        """Whether rows of the target may be deleted by vectors, which earlier releases would lose. Once prepared."""
        ...

    @property
    def is_beside(self) -> bool:
        """Whether rows go to a new copy beside the target, which shows something else until `put_in_place`."""
        ...

    def use(self, shape: TableShape) -> None:
        """Write and read rows of this shape from now on; never during another call. The target stays as it is."""
        ...

    def change(
        self, version: int, shape: TableShape, steps: Sequence[ColumnStep], tasks: TaskRunner | None = None
    ) -> None:
        """Make the target hold `shape`, to which the steps of one statement lead, and use it from then on.

        Takes effect once per version. SinkError if the target cannot follow; it is as before then.
        """
        ...

    def empty(self, version: int, shape: TableShape) -> None:
        """Take every row away, as the change to this version of the definition, and use its shape from then on."""
        ...

    def schema_version(self) -> int:
        """The newest version that `change` or `empty` has brought; 0 if there was none.

        A driver that was cut off after one of them finds here that it must call it again before anything else: rows of
        the shape before are refused.
        """
        ...

    def put_in_place(self) -> None:
        """Let the target hold what the copy beside it holds, all at once. Nothing happens if there is no copy."""
        ...

    def prepare(self) -> None:
        """Make the target ready, or refuse it because it holds rows of somebody else. A second call changes nothing."""
        ...

    def writer(self) -> RangeWriter: ...

    def landed_reads(self, epoch: Epoch) -> tuple[tuple[ReadReceipt, ...] | None, tuple[ReadReceipt, ...] | None]:
        """What the target holds of this epoch's appended and of its replaced ranges; None for what has not landed."""
        ...

    def commit_reads(
        self,
        epoch: Epoch,
        appended: Sequence[ReadReceipt],
        replaced: Sequence[ReadReceipt],
        plan: SplitPlan,
        weights: Weighing | None = None,
    ) -> tuple[ReadReceipt, ...]:
        """Make the ranges visible. Of a replaced one, everything that the target holds of its keys is removed first.

        Returns what the target holds of this epoch: where an earlier attempt has landed, its receipts and not ours.
        """
        ...

    def apply(self, epoch: Epoch, changes: Changes, tasks: TaskRunner | None = None) -> None:
        """Apply the last change of each key, all at once if the target can. `tasks` runs large work on the cluster."""
        ...

    def merged(self, epoch: Epoch) -> bool:
        """Whether `apply` has taken effect for this epoch; an epoch without effect need not have."""
        ...

    def key_extremes(self, weights: Weighing | None = None) -> list[Key]:
        """Keys of the target among which its smallest and its largest are; none if it is empty."""
        ...

    def version(self) -> int | None:
        """The newest version of the target, which readers can ask for later; None where it has no versions."""
        ...

    def keep(self, version: int | None) -> None:
        """Let readers ask for this version, however old, until another one is named, or None.

        It holds for this process. Nothing happens where the target has no versions.
        """
        ...

    def close(self) -> None: ...
