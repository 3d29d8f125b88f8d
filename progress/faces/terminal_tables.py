"""Draws the tables of a job of many in a terminal: one line that counts them, then the ones that matter most.

    tables     62: 1 failed, 1 set aside, 20 snapshot, 40 live
               shop.payments     failed              access denied for user 'copier'
               shop.orders       snapshot   61.20 %  183,600 of about 300,000 rows
               shop.items        live      100.00 %  12,000 rows, 1.2 s old

Where not all of them fit, those that failed or are set aside come first, then those that are least far, the largest of
them first. Otherwise they are in the report's order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from progress.faces.figures import duration
from progress.state.report import REMOVED, SET_ASIDE, JobPhase, TableProgress

__all__ = ["Line", "Span", "by_importance", "counted_tables", "lost_tables", "table_lines"]

Span = tuple[str, str]
"""A text and the name of its colour, empty for none."""
Line = Sequence[Span]

_ORDER = (JobPhase.FAILED, SET_ASIDE, *(phase for phase in JobPhase if phase is not JobPhase.FAILED), REMOVED)
_COLOUR = {
    JobPhase.FAILED: "red", SET_ASIDE: "red", JobPhase.LIVE: "green", JobPhase.PAUSED: "cyan", JobPhase.STOPPED: "cyan",
}  # fmt: skip
_WIDEST_NAME = 40
_PHASE = 10
_PERCENT = 10


def by_importance(tables: Sequence[TableProgress]) -> list[TableProgress]:
    """Failed ones, then what is least far, then the largest."""
    return sorted(
        tables,
        key=lambda each: (
            each.phase == REMOVED,
            not _is_lost(each),
            not each.error,
            each.percent,
            -each.estimated_rows,
            each.name,
        ),
    )


def table_lines(tables: Sequence[TableProgress], width: int, height: int, label: int) -> list[Line]:
    """At most `height` lines; none for a job of one table."""
    if not tables or height < 1:
        return []
    shown = by_importance(tables)[: height - 1] if len(tables) > height - 1 else tables
    left = "" if len(shown) == len(tables) else f"; {len(shown)} shown"
    name = min(max((len(each.name) for each in shown), default=0), _WIDEST_NAME, max(width // 3, 8))
    first: Line = [(f"{'tables':<{label}}", "dim"), (f"{len(tables):,}: {_counted(tables)}{left}", "")]
    return [first, *(_line(each, name, label) for each in shown)]


def counted_tables(tables: Sequence[TableProgress]) -> str:
    """How many tables there are and how far they are, for one line; empty for a job of one table."""
    return f"{len(tables):,} tables: {_counted(tables)}" if tables else ""


def lost_tables(tables: Sequence[TableProgress]) -> tuple[str, ...]:
    """The tables that are not copied."""
    return tuple(each.name for each in tables if _is_lost(each))


def _counted(tables: Sequence[TableProgress]) -> str:
    counts = Counter(each.phase for each in tables)
    return ", ".join(f"{counts[phase]:,} {phase}" for phase in _ORDER if counts[phase])


def _line(table: TableProgress, name: int, label: int) -> Line:
    short = table.name if len(table.name) <= name else f"…{table.name[1 - name :]}"
    percent = "" if _is_lost(table) or table.phase == REMOVED else f"{table.percent:.2f} %"
    phase = (f"{table.phase:<{_PHASE}}", _COLOUR.get(table.phase, "yellow"))
    note = (f"  {_note(table)}", "red" if table.error else "")
    return [(" " * label, ""), (f"{short:<{name}}  ", ""), phase, (f"{percent:>{_PERCENT}}", ""), note]


def _note(table: TableProgress) -> str:
    if table.error:
        return table.error
    if table.phase == REMOVED:
        return "not copied by request; its target stays"
    if table.phase in (JobPhase.SNAPSHOT, JobPhase.PAUSED):
        return f"{table.rows:,} of about {table.estimated_rows:,} rows"
    parts = [f"{table.rows:,} rows"]
    if table.lag_seconds:
        parts.append(f"{duration(table.lag_seconds)} behind")
    if table.lake_age_seconds:
        parts.append(f"{duration(table.lake_age_seconds)} old")
    return ", ".join(parts)


def _is_lost(table: TableProgress) -> bool:
    return table.phase in (JobPhase.FAILED, SET_ASIDE)
