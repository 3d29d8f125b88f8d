"""Identifies a server, and asks it small questions by the text protocol."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pymysql.connections import Connection
from pymysql.cursors import DictCursor

from consume_upstream.mysql.binlog.table_map import Flavour
from consume_upstream.mysql.connection import source_errors
from vnode_backfill.words.errors import SourceError

__all__ = ["Cell", "Flavour", "ServerIdentity", "ask", "check_server", "identify"]

Cell = str | bytes | int | float | None


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Flavour and version decide which statements are sent; `server` is the name offsets carry.

    MySQL has a UUID per data directory. MariaDB has none, but its server id must be unique in a replication topology.
    """

    flavour: Flavour
    version: tuple[int, int, int]
    server: str

    @property
    def log_status(self) -> str:
        """The statement that shows the end of the log; MySQL renamed it in 8.2 and removed the old name in 8.4."""
        renamed = self.flavour == "mysql" and self.version >= (8, 2, 0)
        return "SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS"


def ask(connection: Connection, statement: str, values: Sequence[object] = ()) -> list[Mapping[str, Cell]]:
    """The rows of a small answer, by column name."""
    attempt = f"asking {connection.host}:{connection.port} {' '.join(statement.split())[:200]!r}"
    with source_errors(attempt), connection.cursor(DictCursor) as cursor:
        cursor.execute(statement, tuple(values) if values else None)
        return list(cursor.fetchall())


def identify(connection: Connection) -> ServerIdentity:
    text = str(ask(connection, "SELECT VERSION() AS version")[0]["version"])
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", text)
    version = (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)
    flavour: Flavour = "mariadb" if "mariadb" in text.lower() else "mysql"
    return ServerIdentity(flavour, version, _server_name(connection, flavour))


def check_server(connection: Connection, identity: ServerIdentity) -> None:
    """Refuse another server than the one the job knows: positions mean nothing there, and its rows may be older."""
    answering = _server_name(connection, identity.flavour)
    if answering != identity.server:
        raise SourceError(
            f"another server answers: {answering} instead of {identity.server}",
            hint="Point the job back at its server, or create the job again on the other one.",
        )


def _server_name(connection: Connection, flavour: Flavour) -> str:
    if flavour == "mariadb":
        return f"server-id-{int(ask(connection, 'SELECT @@global.server_id AS id')[0]['id'] or 0)}"
    return str(ask(connection, "SELECT @@global.server_uuid AS id")[0]["id"])
