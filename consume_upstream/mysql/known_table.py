"""Describes a table of a known server: where and who the server is, what the table looks like, how both are read.

Everything in this package that reads needs some of it. The description holds no connection and can be pickled. `table`
adds what the rest of the system may ask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pymysql.connections import Connection

from consume_upstream.log.cascade import CascadingParent
from consume_upstream.log.offset import CdcOffset
from consume_upstream.mysql.connection import SourceAddress, connect
from consume_upstream.mysql.positions.offsets import Lend, LogQuestions
from consume_upstream.mysql.rows.result_rows import ZeroDates
from consume_upstream.mysql.server import ServerIdentity, check_server
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import SourceError

if TYPE_CHECKING:
    from consume_upstream.mysql.opened_together import OpenedTogether

__all__ = ["KnownTable"]


@dataclass(frozen=True, slots=True)
class KnownTable:
    """Address, definition and how to read: all a worker needs."""

    address: SourceAddress
    definition: TableDefinition
    identity: ServerIdentity
    zero_dates: ZeroDates = "null"
    watermark_table: str | None = None
    visibility_timeout: float = 60.0
    server_ids: tuple[int, int] = (5400, 5499)
    """The first and last id under which the log may be read; each reader takes its own."""
    era: int = 0
    """Which of the job's logs this server's is (see `offset`); every offset returned or taken here is of it."""
    follows_parents: bool = False
    """Whether foreign keys may change rows of the table outside the log, because their tables are looked at."""
    parents: tuple[CascadingParent, ...] = ()
    """Those tables, where they are known: they are of a copy, and stored with it."""
    together: OpenedTogether | None = field(default=None, compare=False, repr=False)
    """Set while the table is opened with others: what they ask by."""

    def connect(self) -> Connection:
        """A read-only connection to the server the job knows, and to no other; the caller closes it."""
        return self._connect(read_only=True)

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        """A read-only connection for some questions: one of its own, or one of those that tables are opened by."""
        if self.together is not None:
            with self.together.lent() as connection:
                yield connection
            return
        with self.connect() as connection:
            yield connection

    def written_offset(self) -> CdcOffset:
        return self.log_questions().written_offset()

    def log_questions(self, connect: Lend | None = None) -> LogQuestions:
        """Asked over new connections, or over those that `connect` lends."""
        return LogQuestions(
            connect=connect or self.lent,
            connect_writable=partial(self._connect, read_only=False),
            identity=self.identity,
            watermark_table=self.watermark_table,
            deadline_seconds=self.visibility_timeout,
            era=self.era,
        )

    def _connect(self, *, read_only: bool) -> Connection:
        connection = connect(self.address, read_only=read_only)
        try:
            check_server(connection, self.identity)
        except SourceError:
            connection.close()
            raise
        return connection
