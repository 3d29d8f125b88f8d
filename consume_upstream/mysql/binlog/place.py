"""Knows where in the log a reader is: the file, the position, and the transaction that is open.

The routing kernel writes most of it (`state`, `book`); this class gives names to what it writes. Everything that
refuses the log refuses it here, so that every message names the place.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from consume_upstream.mysql.binlog import route
from consume_upstream.mysql.binlog.batch import TransactionBook
from consume_upstream.mysql.binlog.events import LogPosition
from vnode_backfill.words.errors import LogFormatError
from vnode_backfill.words.hints import READ_AGAIN

__all__ = ["Place"]


class Place:
    """Where one reader of the log is. `state` and `book` are the kernel's own arrays."""

    def __init__(self, start: LogPosition, book: TransactionBook) -> None:
        self.file = start
        self.book = book
        self.state = np.zeros(route.ROUTE_STATE_SIZE, dtype=np.int64)
        self.state[route.POSITION] = start.pos
        self.state[[route.TRANSACTION, route.LAST_TABLE]] = -1

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.file.file, self.pos)

    @property
    def pos(self) -> int:
        return int(self.state[route.POSITION])

    def advance(self, event: bytes) -> None:
        """Count the size of an event that the kernel did not count."""
        self.state[route.POSITION] += len(event)

    def begin_file(self, position: LogPosition) -> None:
        self.file = position
        self.state[route.POSITION] = position.pos

    @property
    def transaction(self) -> int:
        """The slot of the open transaction in the book; -1 where none is open."""
        return int(self.state[route.TRANSACTION])

    @property
    def begun(self) -> bool:
        """Whether a transaction of several events is open: a statement alone does not count as one."""
        return bool(self.state[route.BEGUN])

    @property
    def skipping(self) -> bool:
        """Whether the caller does not want the open transaction."""
        self.book.judge(int(self.state[route.TRANSACTIONS]))
        return self.transaction >= 0 and bool(self.book.skipped[self.transaction])

    def begin_transaction(self) -> None:
        self.state[route.BEGUN] = 1

    def close_transaction(self) -> None:
        """The transaction ends at the position that is reached."""
        if self.transaction >= 0:
            self.book.ends[self.transaction] = self.pos
        self.state[route.TRANSACTION] = -1

    def open_statement(self, event_bytes: int) -> tuple[tuple[int, int], str, int]:
        """Where the transaction of the statement that ends here begins, its global id, and its time."""
        slot = self.transaction
        if slot < 0:
            return (self.file.number, self.pos - event_bytes), "", 0
        return (self.file.number, int(self.book.starts[slot])), self.book.gtid(slot), int(self.book.times[slot])

    def forget_open_transaction(self) -> None:
        """The log is read up to where the open transaction begins."""
        if self.transaction >= 0:
            self.state[route.TRANSACTIONS] = self.transaction
        self.state[route.TRANSACTION] = -1

    def keep_open_transaction(self) -> None:
        """Forget every transaction but the open one, which becomes the first of the next batch."""
        slot = self.transaction
        self.book.keep(slot)
        self.state[route.TRANSACTIONS] = 0 if slot < 0 else 1
        self.state[route.TRANSACTION] = min(slot, 0)

    def refuse(self, what: str, detail: str, hint: str = "") -> NoReturn:
        hint = hint or f"Look at the event with mysqlbinlog. To continue without it: {READ_AGAIN}"
        raise LogFormatError(f"{what} (binlog {self.position.file}:{self.position.pos})", detail=detail, hint=hint)
