"""Looks at what the log holds behind a beginning in the past, and refuses one whose rows nobody could decode.

A job stores the definition that the server has now. What must be true: it is the definition of the first rows that the
job reads, and of all rows up to the first statement that it meets. A job that begins at what is visible now needs no
proof. Neither does one that takes over from another job: the handoff holds the definition at its offset, and
`handoff.handoff_for` compares it. All others begin at a point of which only the log can say something. So the log is
read from there to its end, before anything is written (`UpstreamTable.look_ahead`). A statement in it that may have
changed the table refuses the job. A later one is met by the running job, which knows the definition before it.

Statements before the first rows of the table are passed over: the job begins behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from consume_upstream.log.ahead import ChangingStatement, LogAhead
from consume_upstream.upstream_table import UpstreamTable
from vnode_backfill.config.job import Config
from vnode_backfill.decide.start_point import Latest, Saved
from vnode_backfill.job.open.begin import Beginning
from vnode_backfill.words.errors import PlanRefusedError

__all__ = ["followable", "followed", "is_past"]

Begun = tuple[Config, UpstreamTable, Beginning]


def is_past(beginning: Beginning) -> bool:
    """Whether only the log can say how the table was defined where the job begins."""
    return beginning.handoff is None and not isinstance(beginning.start.from_, Latest | Saved)


def followable(config: Config, table: UpstreamTable, beginning: Beginning) -> Beginning:
    """The beginning, or a later one that misses nothing; raises where the log changes the table behind it."""
    (found,) = followed([(config, table, beginning)])
    if isinstance(found, PlanRefusedError):
        raise found
    return found


def followed(begun: Sequence[Begun]) -> list[Beginning | PlanRefusedError]:
    """The same for several tables of one server, in the same order. The log is read once for all of them."""
    past = [(table, beginning.first) for _, table, beginning in begun if is_past(beginning)]
    ahead = iter(past[0][0].look_ahead(past) if past else ())
    return [
        _judged(config, table, beginning, next(ahead)) if is_past(beginning) else beginning
        for config, table, beginning in begun
    ]


def _judged(
    config: Config, table: UpstreamTable, beginning: Beginning, ahead: LogAhead
) -> Beginning | PlanRefusedError:
    if ahead.changing:
        return _refusal(config, beginning, ahead.changing)
    if ahead.begin == beginning.first:
        return beginning
    first = table.identified(ahead.begin)
    passed = f"statements about the table before its first rows in the log are passed over: the job begins at {first}"
    start = replace(beginning.start, notes=(*beginning.start.notes, passed))
    return replace(beginning, start=start, first=first)


def _refusal(config: Config, beginning: Beginning, changing: Sequence[ChangingStatement]) -> PlanRefusedError:
    found, name = changing[0], f"{config.mysql.database}.{config.mysql.table}"
    more = f" Of {len(changing)} such statements the last is at {changing[-1].before}." if len(changing) > 1 else ""
    return PlanRefusedError(
        f"{name} may have been another table at {beginning.first}, where the job would begin: the log at "
        f"{found.before} holds {found.text}",
        detail=f"{found.why} A job that begins before it would write wrong rows or values.{more}",
        hint=_hint(config, changing[-1]),
    )


def _hint(config: Config, last: ChangingStatement) -> str:
    copy = "mysql.cdc.startup_mode: initial (or snapshot), which copies the table"
    if last.after is None:
        return f"Use {copy}."
    point = f"{{file: {last.after.file}, pos: {last.after.pos}}}"
    every = " The point counts for every table of the job." if config.among_many else ""
    return (
        f"Begin right after it: mysql.cdc.startup_mode: specific, mysql.cdc.specific: {point}. What was changed before "
        f"that point, and not after it, is not copied then.{every} Or use {copy}."
    )
