"""Reads from SHOW GRANTS what the connected account may do to one table and to the server.

A privilege counts at the level where it works: reading the log only globally, SELECT globally, on the database or on
the table. SELECT on single columns does not count, because every column is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pymysql.connections import Connection

from consume_upstream.mysql.server import ask

__all__ = ["Privileges", "parse_grants", "read_grants", "read_privileges"]

_LEVEL = r"(?:\*|`(?:[^`]|``)*`)"
_GRANT = re.compile(rf"GRANT (?P<names>.+?) ON (?:TABLE )?(?P<level>{_LEVEL}\.{_LEVEL}) TO ", re.IGNORECASE)
_NAME = re.compile(r"[A-Z][A-Z _]*(\([^)]*\))?", re.IGNORECASE)
_ALL = "ALL PRIVILEGES"


@dataclass(frozen=True, slots=True)
class Privileges:
    """Upper-case names of what is granted on the whole server, and on the table by any level."""

    server: frozenset[str]
    table: frozenset[str]

    @property
    def may_select(self) -> bool:
        return bool({"SELECT", _ALL} & self.table)

    @property
    def may_read_log(self) -> bool:
        """Receive the binary log as a replica does."""
        return bool({"REPLICATION SLAVE", "REPLICATION REPLICA", _ALL} & self.server)

    @property
    def may_ask_position(self) -> bool:
        """SHOW MASTER STATUS, SHOW BINARY LOGS."""
        return bool({"REPLICATION CLIENT", "BINLOG MONITOR", "SUPER", _ALL} & self.server)

    @property
    def may_see_transactions(self) -> bool:
        return bool({"PROCESS", _ALL} & self.server)

    @property
    def may_see_prepared(self) -> bool:
        """XA RECOVER, or the list of transactions, in which a prepared one has no connection."""
        return self.may_see_transactions or "XA_RECOVER_ADMIN" in self.server


def read_grants(connection: Connection) -> tuple[str, ...]:
    """What the account holds, for `parse_grants`; including what the session's active roles hold."""
    return tuple(str(next(iter(row.values()))) for row in ask(connection, "SHOW GRANTS"))


def read_privileges(connection: Connection, database: str, table: str) -> Privileges:
    return parse_grants(read_grants(connection), database, table)


def parse_grants(lines: Iterable[str], database: str, table: str) -> Privileges:
    server: set[str] = set()
    on_table: set[str] = set()
    for line in lines:
        found = _GRANT.match(line)
        if found is None:
            continue
        names = _privilege_names(found["names"])
        if found["level"] == "*.*":
            server |= names
        if _covers(found["level"], database, table):
            on_table |= names
    return Privileges(frozenset(server), frozenset(on_table))


def _privilege_names(text: str) -> set[str]:
    whole = (match for match in _NAME.finditer(text) if match[1] is None)
    return {_ALL if match[0].strip().upper() == "ALL" else match[0].strip().upper() for match in whole}


def _covers(level: str, database: str, table: str) -> bool:
    if level == "*.*":
        return True
    granted_database, granted_table = (found[0] for found in re.finditer(_LEVEL, level))
    if granted_table == "*":
        return _like(_unquoted(granted_database), database)
    return _unquoted(granted_database) == database and _unquoted(granted_table) == table


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`")


def _like(pattern: str, name: str) -> bool:
    """Database names in GRANT are LIKE patterns: `_` any character, `%` any number, backslash escapes."""
    tokens = re.findall(r"\\.|.", pattern, re.DOTALL)
    translated = "".join({"_": ".", "%": ".*"}.get(token, re.escape(token[-1])) for token in tokens)
    return re.fullmatch(translated, name, re.DOTALL | re.IGNORECASE) is not None
