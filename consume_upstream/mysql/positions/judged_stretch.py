"""Lets a judge look at every event of a stretch of the log, for what it says about the table and not for its rows.

The log is read under a server id that no reader of the job has, if there are so many: other tables of the job may be
captured meanwhile. Two stretches are never read at once by one process.
"""

from __future__ import annotations

from threading import Lock

from consume_upstream.mysql.binlog.dump import DumpStream
from consume_upstream.mysql.binlog.events import LogPosition
from consume_upstream.mysql.binlog.judge import EventJudge
from consume_upstream.mysql.binlog.reader import LogSlice
from consume_upstream.mysql.known_table import KnownTable

__all__ = ["judge_stretch"]

_ONE_AT_A_TIME = Lock()


def judge_stretch(table: KnownTable, judge: EventJudge, start: LogPosition, stop: LogPosition) -> None:
    """Judge the events in `(start, stop]`; raises what the judge raises. `judge` must begin at `start`."""
    if start.order >= stop.order:
        return
    with _ONE_AT_A_TIME:
        _read(table, LogSlice(judge, stop), start)


def _read(table: KnownTable, part: LogSlice, start: LogPosition) -> None:
    stream = DumpStream(table.connect, _server_id(table), table.identity.flavour, start)
    try:
        for block in stream.blocks():
            for _ in part.take(block):
                pass
            if part.finished:
                return
        part.raise_unfinished()
    finally:
        stream.close()


def _server_id(table: KnownTable) -> int:
    """The last but one: the readers of a job take the first ones, and those who compare take the last."""
    first, last = table.server_ids
    return max(first, last - 1)
