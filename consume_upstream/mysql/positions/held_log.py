"""Reads what a MySQL or MariaDB server holds of its log: its files, and for how long it keeps one."""

from __future__ import annotations

from dataclasses import dataclass

from pymysql.connections import Connection

from consume_upstream.log.offset import CdcOffset
from consume_upstream.mysql.preflight.facts import log_kept_seconds
from consume_upstream.mysql.server import ask
from vnode_backfill.words.errors import SourceError, SourceLostError

__all__ = ["HeldFiles", "read_held_log"]


@dataclass(frozen=True, slots=True)
class HeldFiles:
    """(number, size) of each file that the server holds, oldest first, and for how long it keeps a file."""

    files: tuple[tuple[int, int], ...]
    kept_seconds: float | None

    def bytes_before(self, offset: CdcOffset) -> int:
        """How much of the held log is before a point; less than nothing if the point itself is gone."""
        number = offset.file_number
        if number < self.files[0][0]:
            return -1
        return sum(size for each, size in self.files if each < number) + offset.pos

    def bytes_after(self, offset: CdcOffset) -> int:
        """How much of the held log is after a point."""
        number, pos = offset.file_number, offset.pos
        size = dict(self.files).get(number, pos)
        return max(0, size - pos) + sum(size for each, size in self.files if each > number)


def read_held_log(connection: Connection) -> HeldFiles | None:
    """None where the account may not ask, or nothing is logged."""
    try:
        rows = ask(connection, "SHOW BINARY LOGS")
    except SourceLostError:
        raise
    except SourceError:
        return None
    files = [(int(str(row["Log_name"]).rpartition(".")[2]), int(str(row["File_size"]))) for row in rows]
    return HeldFiles(tuple(sorted(files)), log_kept_seconds(connection)) if files else None
