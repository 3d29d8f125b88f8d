"""Names a statement in the log that may concern the table, and its place.

A statement is a transaction of its own, and the log can be read up to the point before it and from the point after it.
What it did is found out later (`UpstreamTable.effect_of`): the reader only says that it met one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from consume_upstream.log.offset import CdcOffset

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
    """What a reader writes down of statements about the table. It ends at the first one that may change something."""

    cut: LogCut | None = None
    passed: list[PassedStatement] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FoundStatement:
    """A statement in the log that may concern the table: a transaction of its own between two points."""

    before: CdcOffset
    after: CdcOffset
    text: str
    gtid: str = ""
    logged_at: int = 0
    """Seconds since 1970."""
