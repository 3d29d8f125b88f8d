"""Looks ahead from the offsets at which jobs would begin: what the log holds of each table from there up to now.

What must be true: if nothing that changes the definition is found, the known definition is that of all rows after the
offset, up to the first statement that the running job meets. Why it is: the definition was read twice after the offset
had been chosen or before (`job.open.begin`), the second time after the table was opened, which waits for a statement
that is logged and not done. Both were equal. The end of the log is asked for after that.

    definition ── offset ── definition again ── end of the log
                  └─────────── looked at ──────────────┘

A statement that was logged before the second reading is in it. One that was logged later is in the stretch, or behind
its end, where the job meets it with the definition before it. None is in neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from consume_upstream.log.ahead import ChangingStatement, LogAhead
from consume_upstream.log.offset import CdcOffset
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.positions.logged_statements import (
    CollectsStatements,
    LoggedStatement,
    collected_statements,
)
from consume_upstream.mysql.schema.past_start import changing_statements, passed_over
from consume_upstream.mysql.server import ask

__all__ = ["ahead_of", "look_ahead"]


def look_ahead(tables: Sequence[tuple[KnownTable, CdcOffset]]) -> list[LogAhead]:
    """What the log holds of each table after its offset. All are of one server, and the log is read once."""
    asked = tables[0][0]
    end = asked.written_offset()
    with asked.connect() as connection:
        folds = ask(connection, "SELECT @@lower_case_table_names AS folds")[0]["folds"]
    collected = collected_statements(tables, end, folds=bool(int(folds or 0)))
    return [
        ahead_of(after, found, primary=table.definition.primary)
        for (table, after), found in zip(tables, collected, strict=True)
    ]


def ahead_of(after: CdcOffset, collected: CollectsStatements, *, primary: bool) -> LogAhead:
    """Where a table begins that would begin at `after`, and what changes it behind that."""
    found = collected.found
    passed = passed_over([each.actions for each in found], collected.before_rows)
    begin = _point(after, found[passed - 1].at.end) if passed else after
    later = found[passed:]
    changing = changing_statements([each.actions for each in later], primary=primary)
    return LogAhead(begin, tuple(_changing(after, later[at], why) for at, why in changing))


def _changing(after: CdcOffset, statement: LoggedStatement, why: str) -> ChangingStatement:
    cut = statement.at
    return ChangingStatement(
        _point(after, cut.start), _point(after, cut.end) if statement.alone else None, cut.text, why
    )


def _point(of: CdcOffset, at: tuple[int, int]) -> CdcOffset:
    """A point of the same log. The identity of its file is known if it is the same file."""
    number, pos = at
    return replace(of, number=number, pos=pos, gtids="", log=of.log if number == of.number else "")
