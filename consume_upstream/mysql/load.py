"""How busy a MySQL or MariaDB server is: the numbers a throttle looks at."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from pymysql.connections import Connection

from consume_upstream.mysql.connection import SourceAddress, connect
from consume_upstream.mysql.facts import log_kept_seconds
from consume_upstream.mysql.session import ask, identify
from vnode_backfill.errors import SourceError, SourceLostError


def threads_running(connection: Connection) -> float:
    """Statements being executed right now, this question included."""
    return float(str(ask(connection, "SHOW GLOBAL STATUS LIKE 'Threads_running'")[0]["Value"]))


def query_number(connection: Connection, sql: str) -> float:
    """The number that a query of the operator's returns in its first column of its first row."""
    rows = ask(connection, sql)
    value = next(iter(rows[0].values())) if rows else None
    try:
        return float(str(value))
    except ValueError as error:
        raise SourceError(f"the throttle query {sql!r} returned {value!r}, not a number") from error


def replica_lag(address: SourceAddress) -> float:
    """Seconds that a replica is behind its source; a replica that is not replicating raises."""
    with closing(connect(address)) as connection:
        identity = identify(connection)
        statement = "SHOW SLAVE STATUS" if identity.flavour == "mariadb" else "SHOW REPLICA STATUS"
        rows = ask(connection, statement)
    names = ("Seconds_Behind_Master", "Seconds_Behind_Source")
    lag = next((rows[0][name] for name in names if rows and name in rows[0]), None)
    if lag is None:
        raise SourceError(f"the replica at {address.host}:{address.port} is not replicating")
    return float(str(lag))


@dataclass(frozen=True, slots=True)
class HeldLog:
    """What the server holds of its log: (number, size) of each file, oldest first, and for how long it keeps a file."""

    files: tuple[tuple[int, int], ...]
    kept_seconds: float | None

    def bytes_before(self, number: int, pos: int) -> int:
        """How much of the held log lies before a point; less than nothing if the point itself is gone."""
        oldest = self.files[0][0]
        if number < oldest:
            return -1
        return sum(size for each, size in self.files if each < number) + pos

    def bytes_after(self, number: int, pos: int) -> int:
        """How much of the held log lies behind a point."""
        size = dict(self.files).get(number, pos)
        return max(0, size - pos) + sum(size for each, size in self.files if each > number)


def read_held_log(connection: Connection) -> HeldLog | None:
    """None where the account may not ask, or nothing is logged."""
    try:
        rows = ask(connection, "SHOW BINARY LOGS")
    except SourceLostError:
        raise
    except SourceError:
        return None
    files = [(int(str(row["Log_name"]).rpartition(".")[2]), int(str(row["File_size"]))) for row in rows]
    return HeldLog(tuple(sorted(files)), log_kept_seconds(connection)) if files else None
