"""Asks a server once what all tables that are opened together need to know, and keeps the connections between them.

A table that is opened asks about itself a few dozen times. By itself it needs a connection for each of ten groups of
questions, and half of the questions are about the server: who it is, and what its log holds.

What must be true is what is true of a table alone. Every connection is to the server that was identified first. What
the log holds was asked after the tables that use it have stored an offset: an offset beyond what is known is asked for
again, and so is the log once what is known of it is half a minute old: a round of opening may plan large tables for
hours, and files are purged meanwhile. Whoever reads the log later compares its identity. A server that takes over in
the middle of a round is another server: the tables that are left are opened by the next round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pymysql.connections import Connection

from consume_upstream.log.identity import LogIdentity
from consume_upstream.log.offset import CdcOffset
from consume_upstream.log.source_log import SourceLog
from consume_upstream.mysql.connection import SourceAddress, connect
from consume_upstream.mysql.kept_connections import KeptConnections
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.positions import start
from consume_upstream.mysql.server import ServerIdentity, check_server, identify

__all__ = ["OpenedTogether"]

_TRUSTED_SECONDS = 1.0
"""Opening a table asks a few dozen questions in that time. Where one fails the table is tried again."""
_KNOWN_SECONDS = 30.0
"""For so long what the log holds is not asked again. Most rounds of opening are shorter."""


class OpenedTogether:
    """One round of opening tables of one server. Safe to use from any thread; the caller closes it.

    A thread that has a connection may ask for one more. So there are at most two for each thread.
    """

    def __init__(self, address: SourceAddress) -> None:
        self.address = address
        self._kept = KeptConnections(self._connect, trusted_for=_TRUSTED_SECONDS)
        self._connecting, self._reading = threading.Lock(), threading.Lock()
        self._identity: ServerIdentity | None = None
        self._logs: dict[bool, SourceLog] = {}
        self._files: dict[tuple[str, str, int], str] = {}
        self._known_until = 0.0

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        """A read-only connection for some questions, with the settings of a new one."""
        with self._kept.lent() as connection:
            yield connection

    def identity(self) -> ServerIdentity:
        """Who the server is."""
        if self._identity is None:
            with self.lent():
                pass
        assert self._identity is not None
        return self._identity

    def source_log(self, table: KnownTable, *, with_time: bool, stored: CdcOffset | None) -> SourceLog:
        """What the log holds, and whether it holds the file of the offset `stored`; `table` is any of this server."""
        with self._reading:
            if time.monotonic() >= self._known_until:
                self._forget_log()
            log = self._logs.get(with_time)
            if log is None or (stored is not None and not _is_within(stored, log)):
                self._files.clear()
                log = self._logs[with_time] = start.read_source_log(table, with_time=with_time)
            return log if stored is None else replace(log, file_now=self._file_now(table, log, stored))

    def forget(self) -> None:
        """Ask again what the log holds: something went wrong that may have to do with it."""
        with self._reading:
            self._forget_log()

    def _forget_log(self) -> None:
        self._logs.clear()
        self._files.clear()
        self._known_until = time.monotonic() + _KNOWN_SECONDS

    def close(self) -> None:
        self._kept.close()

    def _connect(self) -> Connection:
        connection = connect(self.address)
        try:
            with self._connecting:
                if self._identity is None:
                    self._identity = identify(connection)
                    return connection
            check_server(connection, self._identity)
        except BaseException:
            connection.close()
            raise
        return connection

    def _file_now(self, table: KnownTable, log: SourceLog, stored: CdcOffset) -> str:
        """The identity has as many events as the stored one. Most tables have the same. An offset of an earlier release
        has none to compare with."""
        if not stored.log:
            return ""
        place = stored.server, stored.file, LogIdentity.parse(stored.log).events
        if place not in self._files:
            self._files[place] = start.file_now(table, log.files, stored)
        return self._files[place]


def _is_within(stored: CdcOffset, log: SourceLog) -> bool:
    """An offset of another server cannot be compared. It may be beyond what a replica had carried out a moment ago."""
    return stored.server == log.server and stored.in_era(0).order <= log.newest.order
