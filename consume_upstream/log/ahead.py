"""Says what the log holds of a table behind the offset at which a job would begin."""

from __future__ import annotations

from dataclasses import dataclass

from consume_upstream.log.offset import CdcOffset

__all__ = ["ChangingStatement", "LogAhead"]


@dataclass(frozen=True, slots=True)
class ChangingStatement:
    """A statement before which the table may have been another one; `why` is a sentence.

    `after` is where the log can be read on from; None if rows follow in the statement's own transaction.
    """

    before: CdcOffset
    after: CdcOffset | None
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class LogAhead:
    """`begin` is the offset, or a later one if no row of the table is in the log before that.

    `changing` are the statements after it behind which the definition of now counts, and not before.
    """

    begin: CdcOffset
    changing: tuple[ChangingStatement, ...] = ()
