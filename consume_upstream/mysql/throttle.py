"""Reads the numbers that a throttle looks at: how busy a server is, and how far its replicas are behind."""

from __future__ import annotations

from contextlib import closing

from pymysql.connections import Connection

from consume_upstream.mysql.connection import SourceAddress, connect
from consume_upstream.mysql.server import ask, identify
from vnode_backfill.words.errors import SourceError

__all__ = ["query_number", "replica_lag", "threads_running"]


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
