"""Keeps connections of one server between questions, so that a question is not a login.

What must be true: a connection that failed is never used again, and one that the server has closed meanwhile is
replaced before a question is asked over it. How many there are at once is the caller's business: there are never more
than are lent at one time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pymysql.connections import Connection

from consume_upstream.mysql.connection import source_errors
from vnode_backfill.words.errors import SourceError

__all__ = ["KeptConnections"]


class KeptConnections:
    """Connections that `connect` opens. Safe to use from any thread; `close` ends those that are not lent."""

    def __init__(self, connect: Callable[[], Connection], *, trusted_for: float = 0.0) -> None:
        """A connection that was used in the last `trusted_for` seconds is not asked for a sign of life, unless another
        one has failed since: a server that goes away takes all of them with it."""
        self._connect, self._trusted_for = connect, trusted_for
        self._lock = threading.Lock()
        self._idle: list[tuple[Connection, float]] = []
        self._closed, self._failed_at = False, 0.0

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        connection = self._taken() or self._connect()
        try:
            yield connection
        except BaseException:
            self._failed_at = time.monotonic()
            _end(connection)
            raise
        self._give_back(connection)

    def close(self) -> None:
        """Connections that are lent end when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            _end(connection)

    def _taken(self) -> Connection | None:
        """An idle connection that still answers."""
        with self._lock:
            if not self._idle:
                return None
            connection, used = self._idle.pop()
        if used > self._failed_at and time.monotonic() - used < self._trusted_for:
            return connection
        try:
            with source_errors(f"asking {connection.host}:{connection.port} for a sign of life"):
                connection.ping(reconnect=False)
        except SourceError:
            _end(connection)
            return None
        return connection

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed and connection.open:
                self._idle.append((connection, time.monotonic()))
                return
        _end(connection)


def _end(connection: Connection) -> None:
    """Close it, unless the driver library has done so: closing twice would raise, and hide what went wrong."""
    if connection.open:
        connection.close()
