"""Names a statement in the log that may concern the table, and its place.

A statement is a transaction of its own, and the log can be read up to the point before it and from the point after it.
What it did is found out later (`UpstreamTable.effect_of`): the reader only says that it met one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from consume_upstream.log.offset import CdcOffset
from vnode_backfill.words.errors import BackfillError

__all__ = ["FoundStatement", "LogCut", "MetStatements", "PassedStatement"]


@dataclass(frozen=True, slots=True)
class LogCut:
    """Where a reader ended early, by file number and position: the transaction of a statement begins and ends there."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str
    gtid: str = ""
    timestamp: int = 0


@dataclass(frozen=True, slots=True)
class PassedStatement:
    """A statement about the table that changed neither rows nor columns; `end` is where it ends."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


@dataclass(slots=True)
class MetStatements:
    """What a reader writes down of statements about the table. It ends at the first one that may change something.

    A reader of several tables also writes down why it cannot read this one to the end. Nothing that it has yielded of
    the table counts then.
    """

    cut: LogCut | None = None
    passed: list[PassedStatement] = field(default_factory=list)
    error: BackfillError | None = None
    failed_at: tuple[int, int] | None = None
    """File number and position of a boundary before the error: up to there the table can be read."""
    parent_changed: tuple[int, int] | None = None
    """Where the last statement ends that may have changed a parent of the table: its rows, columns, keys or name."""

    def shift(self, files: int) -> None:
        """Add so much to every file number, as `LogBatch.shifted` does."""
        if self.cut is not None:
            self.cut = replace(self.cut, start=_shifted(self.cut.start, files), end=_shifted(self.cut.end, files))
        self.passed[:] = [
            replace(each, start=_shifted(each.start, files), end=_shifted(each.end, files)) for each in self.passed
        ]
        if self.failed_at is not None:
            self.failed_at = _shifted(self.failed_at, files)
        if self.parent_changed is not None:
            self.parent_changed = _shifted(self.parent_changed, files)


def _shifted(point: tuple[int, int], files: int) -> tuple[int, int]:
    return point[0] + files, point[1]


@dataclass(frozen=True, slots=True)
class FoundStatement:
    """A statement in the log that may concern the table: a transaction of its own between two points."""

    before: CdcOffset
    after: CdcOffset
    text: str
    gtid: str = ""
    logged_at: int = 0
    """Seconds since 1970."""
