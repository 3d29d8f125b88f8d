"""Asks the driver's own questions, over at most two connections that stay open.

A job that is live asks the source every second, throttle checks ask every few seconds, and the server orders the keys
of text tables. A connection each time would be a login a second at somebody's production server.

What must be true: the job never has more connections than workers + log readers + 2, so a question waits while both are
in use. A connection that failed is never used again. One that the server has closed meanwhile is replaced before a
question is asked over it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from pymysql.connections import Connection

from consume_upstream.log.offset import CdcOffset, Visibility
from consume_upstream.mysql import throttle
from consume_upstream.mysql.kept_connections import KeptConnections
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.positions.file_identity import take_identity
from consume_upstream.mysql.positions.held_log import HeldFiles, read_held_log
from consume_upstream.mysql.positions.offsets import LogQuestions
from consume_upstream.mysql.positions.slice_end import find_slice_end
from consume_upstream.mysql.rows.session import MySqlSession
from consume_upstream.upstream_table import UpstreamTable
from vnode_backfill.words.errors import BackfillError, LawBrokenError, OffsetError, SourceError

CONNECTIONS = 2
_SLICES = 16


class DriverSource:
    """Lends connections to the driver's threads. Safe to call from any of them; `close` ends what is not lent."""

    def __init__(self, table: KnownTable, connections: _Connections | None = None) -> None:
        self.table = table
        self._connections = connections or _Connections(table)

    def of(self, table: UpstreamTable) -> DriverSource:
        """Questions about another table of the same server, over the same connections."""
        if not isinstance(table, KnownTable):
            raise LawBrokenError(f"{table.definition.table} is not a table of this server")
        return DriverSource(table, self._connections)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A read-only connection for one question; the caller that has it must not ask for a second one."""
        with self._connections.lent() as connection:
            yield connection

    @contextmanager
    def session(self) -> Iterator[MySqlSession]:
        with self.connection() as connection:
            session = MySqlSession(self.table, connection)
            yield session
            session.forget()

    def written_offset(self, last: CdcOffset) -> CdcOffset:
        """The end of the log, with the identity of its file.

        While the file is the same it is the identity of `last`, which the reader of the log compares.
        """
        written = self._questions().written_offset()
        if last.log and written.number == last.number:
            return replace(written, log=last.log)
        with self.connection() as connection:
            identity = take_identity(lambda: connection, self.table.identity.flavour, written)
        return replace(written, log=str(identity))

    def slice_end(self, after: CdcOffset, upto: CdcOffset, length: int) -> CdcOffset | None:
        """A boundary at least `length` bytes of the log after `after` and before `upto`; None if there is none.

        What is wrong with the log is for its reader to say: here it only means that no boundary is known. A connection
        that was lost says nothing about the log. The whole of a backlog must not become one epoch because of it.
        """
        first, last = after.in_era(0), upto.in_era(0)
        try:
            found = self._connections.slices.end(first, last, length, lambda: self._find_slice_end(first, last, length))
        except (SourceError, OffsetError) as error:
            if error.retryable:
                raise
            return None
        return None if found is None else found.in_era(upto.era)

    def _find_slice_end(self, after: CdcOffset, upto: CdcOffset, length: int) -> CdcOffset | None:
        flavour = self.table.identity.flavour
        with self.connection() as connection:
            found = find_slice_end(lambda: connection, flavour, after, upto, length)
        if found is None or found.log:
            return found
        with self.connection() as connection:
            return replace(found, log=str(take_identity(lambda: connection, flavour, found)))

    def visible_offset(self) -> Visibility:
        return self._questions().visible_offset()

    def held_log(self) -> HeldFiles | None:
        """What the source holds of its log now."""
        with self.connection() as connection:
            return read_held_log(connection)

    def threads_running(self) -> float:
        """Statements being executed right now, this question included."""
        with self.connection() as connection:
            return throttle.threads_running(connection)

    def query_number(self, query: str) -> float:
        """The number that a query of the operator's returns in its first column of its first row."""
        with self.connection() as connection:
            return throttle.query_number(connection, query)

    def replica_lag(self, host: str, port: int) -> float:
        """Seconds that a replica is behind its source, asked over a connection that is opened for this question."""
        return throttle.replica_lag(replace(self.table.address, host=host, port=port))

    def close(self) -> None:
        self._connections.close()

    def _questions(self) -> LogQuestions:
        return self.table.log_questions(self.connection)


class KnownSlices:
    """Remembers where slices of the log end: tables at one offset are given one end, and the log is skimmed once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, int, int, int], tuple[CdcOffset | None, tuple[int, int]]] = {}
        """What was found from an offset on, and up to where it was looked for. A log that was reset has the same offsets."""

    def end(
        self, after: CdcOffset, upto: CdcOffset, length: int, find: Callable[[], CdcOffset | None]
    ) -> CdcOffset | None:
        """What was found from this offset on, or else is found now; it is before `upto`."""
        place = (after.server, after.log, *after.order, length)
        with self._lock:
            found, looked = self._known.get(place, (None, (0, 0)))
            if looked != upto.order and (found is None or found.order >= upto.order):
                if len(self._known) >= _SLICES:
                    self._known.clear()
                self._known[place] = None, upto.order
                try:
                    found = find()
                except BackfillError as error:
                    if error.retryable:
                        del self._known[place]
                    raise
                self._known[place] = found, upto.order
            return found


class _Connections:
    """A few connections to the server of a table, and what its tables need to know only once."""

    def __init__(self, table: KnownTable) -> None:
        self._free = threading.Semaphore(CONNECTIONS)
        self._kept = KeptConnections(table.connect)
        self.slices = KnownSlices()

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        with self._free, self._kept.lent() as connection:
            yield connection

    def close(self) -> None:
        self._kept.close()
