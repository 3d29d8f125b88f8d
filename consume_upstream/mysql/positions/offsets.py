"""Answers two questions about the log: how far is it written, and what is certain to be seen by a read that starts now?

A server writes its log *before* the engine commits, so the end of the log does not answer the second question: a row
can be below it and stay invisible for seconds (semi-sync waiting for a replica, group commit with a delay).

- `written_offset`: everything a reader can see now is at or below it. Right because a transaction becomes visible only
  after it was logged.
- `visible_offset`: what any read that starts later is certain to see.
  - MariaDB: `START TRANSACTION WITH CONSISTENT SNAPSHOT` takes the read view and the binlog position under the lock
    that orders commits, and `binlog_snapshot_position` reports that position: the view holds exactly what is at or
    below it, and every later view holds at least that.
  - MySQL with GTID: a transaction enters `gtid_executed` after its engine commit, so each transaction of the set is
    visible. It is a set, not a point: transactions can commit out of log order.
  - MySQL without GTID, with a watermark table: the position is sampled, then one row is written and committed. With
    `binlog_order_commits` the engine commits in log order, so when our commit returns, everything logged before it is
    visible, and the sampled position is older than our row.
  - MySQL without GTID or watermark table: the position is sampled, then the transactions in flight are listed. What is
    logged at or below the position and not yet visible is among them; once they are gone, all of it is visible.
- `first_offset`: the point from which the job reads the log; everything at or below it is visible.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from pymysql.connections import Connection

from consume_upstream.log.gtid import GtidSet
from consume_upstream.log.offset import CdcOffset, Visibility, VisibleAt, VisibleGtids
from consume_upstream.mysql.positions.first_missing import first_missing_transaction
from consume_upstream.mysql.server import ServerIdentity, ask
from consume_upstream.mysql.sql import quoted
from vnode_backfill.words.errors import SourceError

__all__ = ["Lend", "LogQuestions"]

Lend = Callable[[], AbstractContextManager[Connection]]
"""Gives a connection for the time of a `with` block."""

# The server makes its list of transactions again only when nobody has read it for 0.1 s.
_POLL_SECONDS = 0.15
_MARIADB_SAMPLES = 10
_IN_FLIGHT = """
    SELECT trx_id AS id, trx_mysql_thread_id AS connection, trx_rows_modified AS modified
    FROM information_schema.INNODB_TRX"""


@dataclass(frozen=True, slots=True)
class _Transaction:
    id: str
    owner: int
    """The connection it belongs to."""
    modified: bool


@dataclass(frozen=True, slots=True)
class LogQuestions:
    """Asks one server about its log; takes connections as needed, two at most, and keeps none."""

    connect: Lend
    connect_writable: Lend
    identity: ServerIdentity
    watermark_table: str | None = None
    deadline_seconds: float = 60.0
    era: int = 0

    def written_offset(self) -> CdcOffset:
        with self.connect() as connection:
            return self._written(connection)

    def visible_offset(self) -> Visibility:
        with self.connect() as connection:
            if self.identity.flavour == "mariadb":
                return VisibleAt(self._consistent_snapshot(connection))
            if _gtid_mode(connection) == "ON":
                return VisibleGtids(_executed(connection))
            return VisibleAt(self._without_gtids(connection))

    def first_offset(self) -> CdcOffset:
        """Where the job starts to read the log; every transaction that is not visible yet is above it.

        MySQL with GTID: P is the end of the log, *then* S is what is visible, then the log itself is asked for the
        first transaction outside S, which begins at Q. What is below min(P, Q) is in S and so visible. If a transaction
        outside S was found, the set of transactions below the offset is not known exactly, and none is attached.
        """
        with self.connect() as connection:
            if self.identity.flavour == "mariadb":
                return self._with_gtids(connection, self._consistent_snapshot(connection))
            if _gtid_mode(connection) != "ON":
                return self._without_gtids(connection)
            written = self._written(connection)
            executed = _executed(connection)
        if any(":" in source for source, _ in executed.sources):
            # Tagged GTIDs have another wire form; waiting answers the same question for every server.
            with self.connect() as connection:
                return self._without_gtids(connection)
        with self.connect() as connection:
            missing = first_missing_transaction(connection, executed)
        if missing is None:
            return written
        found = self._offset(missing.file, missing.pos)
        return min(written, found, key=lambda offset: offset.order)

    def _written(self, connection: Connection) -> CdcOffset:
        """The end of the log, with the GTIDs of all that is at or below it.

        MySQL reports both in one answer. MariaDB is asked for its GTIDs before and after: if they are the same they are
        those of the position. If transactions came in between every time, the earlier ones are taken, which hold
        nothing above the position.
        """
        if self.identity.flavour != "mariadb":
            return self._log_end(connection)
        earlier = _binlog_gtids(connection)
        for _ in range(_MARIADB_SAMPLES):
            found = self._log_end(connection)
            later = _binlog_gtids(connection)
            sampled = replace(found, gtids=earlier)
            if later == earlier:
                break
            earlier = later
        return sampled

    def _log_end(self, connection: Connection) -> CdcOffset:
        status = ask(connection, self.identity.log_status)
        if not status:
            raise SourceError(
                "the source writes no binary log",
                hint="Start the server with --log-bin --binlog-format=ROW --binlog-row-image=FULL.",
            )
        gtids = str(status[0].get("Executed_Gtid_Set") or "").replace("\n", "")
        return self._offset(str(status[0]["File"]), int(status[0]["Position"] or 0), gtids)

    def _offset(self, file: str, pos: int, gtids: str = "") -> CdcOffset:
        return CdcOffset.at(self.identity.server, file, pos, gtids=gtids, era=self.era)

    def _consistent_snapshot(self, connection: Connection) -> CdcOffset:
        ask(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        status = {
            str(row["Variable_name"]).lower(): row["Value"]
            for row in ask(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")
        }
        ask(connection, "ROLLBACK")
        if not status.get("binlog_snapshot_file"):
            raise SourceError(
                "the source does not report the log position of a consistent snapshot",
                hint="The binary log must be on: --log-bin --binlog-format=ROW.",
            )
        return self._offset(str(status["binlog_snapshot_file"]), int(status["binlog_snapshot_position"] or 0))

    def _with_gtids(self, connection: Connection, at: CdcOffset) -> CdcOffset:
        answer = ask(connection, "SELECT BINLOG_GTID_POS(%s, %s) AS gtids", (at.file, at.pos))[0]["gtids"]
        return self._offset(at.file, at.pos, str(answer or ""))

    def _without_gtids(self, connection: Connection) -> CdcOffset:
        ordered = ask(connection, "SELECT @@global.binlog_order_commits AS ordered")[0]["ordered"]
        sampled = self._written(connection)
        if self.watermark_table is not None and ordered:
            self._write_watermark(sampled)
        else:
            self._wait_for_transactions(connection)
        return sampled

    def _write_watermark(self, sampled: CdcOffset) -> None:
        """Commit one row to the watermark table: `(id TINYINT PRIMARY KEY, sampled BIGINT UNSIGNED NOT NULL)`."""
        table = ".".join(quoted(part) for part in str(self.watermark_table).split("."))
        with self.connect_writable() as connection:
            ask(
                connection,
                f"INSERT INTO {table} (id, sampled) VALUES (1, 1) ON DUPLICATE KEY UPDATE sampled = sampled + 1",
            )
            if self._written(connection) <= sampled:
                raise SourceError(
                    f"a write to the watermark table {self.watermark_table} did not reach the log",
                    hint="Its database must not be excluded by binlog-do-db or binlog-ignore-db.",
                )

    def _wait_for_transactions(self, connection: Connection) -> None:
        """Until every transaction in flight now is gone. Needs PROCESS.

        The server may answer with an old list while others ask too. So a transaction of our own is started first: a
        list that shows it was made after the position was sampled.
        """
        deadline = time.monotonic() + self.deadline_seconds
        with self.connect() as marker:
            ask(marker, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
            owner = int(ask(marker, "SELECT CONNECTION_ID() AS id")[0]["id"] or 0)
            listed = _in_flight(connection)
            while all(found.owner != owner for found in listed):
                self._next_poll(deadline, "the list of open transactions did not become fresh")
                listed = _in_flight(connection)
            ask(marker, "ROLLBACK")
        # A transaction that has modified nothing cannot be in the log.
        awaited = {found.id for found in listed if found.modified}
        while awaited := awaited & {found.id for found in _in_flight(connection)}:
            self._next_poll(deadline, f"{len(awaited)} transactions are still open, e.g. {min(awaited)}")

    def _next_poll(self, deadline: float, state: str) -> None:
        if time.monotonic() > deadline:
            raise SourceError(
                f"what is visible was not known within {self.deadline_seconds:g} s",
                detail=f"{state[0].upper()}{state[1:]}.",
                hint="End the idle transaction, turn gtid_mode ON, or configure `mysql.watermark_table`.",
            )
        time.sleep(_POLL_SECONDS)


def _binlog_gtids(connection: Connection) -> str:
    return str(ask(connection, "SELECT @@global.gtid_binlog_pos AS gtids")[0]["gtids"])


def _gtid_mode(connection: Connection) -> str:
    return str(ask(connection, "SELECT @@global.gtid_mode AS mode")[0]["mode"])


def _executed(connection: Connection) -> GtidSet:
    return GtidSet.parse(str(ask(connection, "SELECT @@global.gtid_executed AS gtids")[0]["gtids"]))


def _in_flight(connection: Connection) -> list[_Transaction]:
    rows = ask(connection, _IN_FLIGHT)
    return [_Transaction(str(row["id"]), int(row["connection"] or 0), bool(row["modified"])) for row in rows]
