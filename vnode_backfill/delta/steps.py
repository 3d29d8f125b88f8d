"""Names the steps in which a Delta table changes on disk, and calls `seam` before and after each of them.

What must be true: a process that ends at any seam leaves a table whose rows are right, and whoever continues finds what
has landed. Each step is one effect: a file that nobody refers to yet, a commit, or a file that nobody needs any more.
Crash tests kill the process at each seam (`devkit.crash`). In production nothing happens there.

    merge        WriteFile, WriteVectors, CommitMerge
    fold, join   WriteFold or WriteJoin, WriteVectors where rows went meanwhile, CommitFold or CommitJoin
    upkeep       SweepFile for each file that goes, MakeCheckpoint, CleanFile for each commit that goes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Literal

from vnode_backfill.delta.storage import Storage


class Step(StrEnum):
    """One effect on a table's folder."""

    WRITE_FILE = "WriteFile"
    WRITE_VECTORS = "WriteVectors"
    COMMIT_MERGE = "CommitMerge"
    WRITE_FOLD = "WriteFold"
    COMMIT_FOLD = "CommitFold"
    WRITE_JOIN = "WriteJoin"
    COMMIT_JOIN = "CommitJoin"
    SWEEP_FILE = "SweepFile"
    MAKE_CHECKPOINT = "MakeCheckpoint"
    CLEAN_FILE = "CleanFile"


StepSeam = Callable[[Literal["before", "after"], Step, str], None]
"""Gets the moment, the step and the path of the table's folder."""


def no_seam(moment: Literal["before", "after"], step: Step, path: str) -> None:
    """Nothing happens between steps in production."""


seam: StepSeam = no_seam


@contextmanager
def carried_out(step: Step, storage: Storage) -> Iterator[None]:
    """Encloses a step. One that fails has no seam after it."""
    seam("before", step, storage.path)
    yield
    seam("after", step, storage.path)
