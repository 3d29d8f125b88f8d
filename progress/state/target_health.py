"""Says in what shape a job's target is: how many rows of its files are gone, what is to be written again, what it cost.

A merge by deletion vectors leaves rows behind that are gone, and each commit makes the log longer. Both are paid back
beside the epochs. These figures show whether that keeps up. A target that has no vectors has no figures of them, and
one that is no Delta table has none of these figures at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VectorHealth:
    """The part of it that vectors bring: rows that are gone, and bytes of files whose fold is due."""

    gone_rows: int
    worn_bytes: int


@dataclass(frozen=True, slots=True)
class TargetHealth:
    """A target at one moment. What was written and changed counts from the beginning of the run.

    `rows` counts the rows of all files, those that are gone too. `log_bytes` is the size of the commits behind the
    newest checkpoint, `logged_bytes` that of all commits of the run. `written_bytes` is what merges, joins, folds,
    commits and checkpoints have written, `changed_bytes` the size of the changes that were merged, as they are in
    memory.
    """

    files: int
    bytes: int
    rows: int
    log_bytes: int
    logged_bytes: int = 0
    written_bytes: int = 0
    changed_bytes: int = 0
    vectors: VectorHealth | None = None

    @property
    def vector_share(self) -> float | None:
        """How many of the rows in its files are gone, 0 to 1; None where it has no vectors."""
        if self.vectors is None:
            return None
        return self.vectors.gone_rows / self.rows if self.rows else 0.0

    @property
    def fold_debt_bytes(self) -> int | None:
        """Bytes of the files whose fold is due; None where it has no vectors."""
        return None if self.vectors is None else self.vectors.worn_bytes

    @property
    def write_amplification(self) -> float | None:
        """Bytes written per byte changed; None before the first change."""
        return self.written_bytes / self.changed_bytes if self.changed_bytes else None


def healths_together(healths: Sequence[TargetHealth]) -> TargetHealth | None:
    """The targets of many tables as one; None where nobody has looked at any.

    Counts and bytes add up, so each share is that of all rows, or bytes, together: a large table weighs more. A target
    without vectors has no row that is gone. Where no target has vectors, neither has the whole.
    """
    if not healths:
        return None
    vectors = [each.vectors for each in healths if each.vectors is not None]
    return TargetHealth(
        files=sum(each.files for each in healths),
        bytes=sum(each.bytes for each in healths),
        rows=sum(each.rows for each in healths),
        log_bytes=sum(each.log_bytes for each in healths),
        logged_bytes=sum(each.logged_bytes for each in healths),
        written_bytes=sum(each.written_bytes for each in healths),
        changed_bytes=sum(each.changed_bytes for each in healths),
        vectors=_vectors_together(vectors) if vectors else None,
    )


def _vectors_together(vectors: Sequence[VectorHealth]) -> VectorHealth:
    return VectorHealth(sum(each.gone_rows for each in vectors), sum(each.worn_bytes for each in vectors))
