"""Says behind which statements the definition of now is that of the rows: where a job that begins in the past may begin.

Such a job knows only the definition that the server has now. Rows that were logged under another one would be decoded
by this one. Often that fails. It does not where the bytes fit both: ENUM labels in another order, another character
set, two columns that changed places. Then values are wrong, and nothing says so.

So every statement behind the first rows must keep the definition, and one that does not refuses the beginning:

    rows, CREATE INDEX, rows              nothing: columns and key are what they were
    rows, TRUNCATE, rows                  nothing: the same table, and the job empties its target there
    rows, MODIFY e ENUM('b','a'), rows    the MODIFY: the first rows may have had other labels
    rows, DROP, CREATE, rows              both: the first rows are of another table
    rows, CREATE IF NOT EXISTS            nothing: the table was there
    rows, DROP FOREIGN KEY                the statement: until then the key may have changed rows outside the log

Statements before the first rows are passed over, whatever they do. Nothing of the table was logged before them, so a
job that begins behind them misses nothing. That is not so where a statement brings rows that were logged under another
name, or nowhere: RENAME … TO the table, CONVERT PARTITION … TO TABLE, CREATE … SELECT, IMPORT TABLESPACE, or whatever is
not understood. It refuses the beginning. EXCHANGE PARTITION of the table itself brings rows too, and keeps the
definition: the job begins before it, meets it, and copies the table again.
"""

from __future__ import annotations

from collections.abc import Sequence

from consume_upstream.mysql.schema.creation import drops_foreign_key, keeps_rows_in_the_log
from consume_upstream.mysql.statements.table_actions import (
    ContentChanged,
    KeyChanged,
    NotUnderstood,
    PartitionsEmptied,
    Repartitioned,
    TableAction,
    TableCame,
    TableGone,
)

__all__ = ["changing_statements", "passed_over"]

Actions = tuple[TableAction, ...]
_OTHER_DEFINITION = "Rows that were logged before it may have another definition than the table has now."
_OTHER_KEY = "Another key may have identified the rows before it."
_FOREIGN_KEY = "Until then a foreign key may have changed rows of the table outside the log."
_BRINGS_ROWS = "It brought rows that the log does not hold as rows of this table."


def passed_over(chain: Sequence[Actions], before_rows: int | None) -> int:
    """How many of the first statements a job begins behind; `before_rows` of them come before the first rows."""
    before = chain if before_rows is None else chain[:before_rows]
    return next((at for at, actions in enumerate(before) if any(map(_brings_rows, actions))), len(before))


def changing_statements(chain: Sequence[Actions], *, primary: bool) -> list[tuple[int, str]]:
    """The places in `chain` of all statements behind which the table may be another one, each with why.

    `chain` holds the statements after a beginning, up to now. `primary` says whether the table has a primary key now. A
    primary key that came or went is such a statement itself, so without one the key was the same all the time.
    """
    found, existed = [], True
    for at, actions in enumerate(chain):
        reasons = []
        for action in actions:
            reasons.append(_why(action, primary=primary, existed=existed))
            if isinstance(action, TableCame | TableGone):
                existed = isinstance(action, TableCame)
        why = next(filter(None, reasons), "")
        if why:
            found.append((at, why))
    return found


def _why(action: TableAction, *, primary: bool, existed: bool) -> str:
    """Why rows before the action cannot be taken by the definition after it; empty if they can."""
    if isinstance(action, TableCame) and action.if_not_exists and existed:
        return ""
    if drops_foreign_key(action):
        return _FOREIGN_KEY
    if isinstance(action, Repartitioned | PartitionsEmptied) or keeps_rows_in_the_log(action, primary=primary):
        return ""
    if isinstance(action, KeyChanged):
        return _OTHER_KEY
    return _BRINGS_ROWS if _brings_rows(action) else _OTHER_DEFINITION


def _brings_rows(action: TableAction) -> bool:
    match action:
        case TableCame(empty=empty):
            return not empty
        case ContentChanged(brings_rows=brings):
            return brings
        case PartitionsEmptied(kind=kind):
            return kind == "exchange"
        case _:
            return isinstance(action, NotUnderstood)
