"""Holds what a source's log contains now: where it begins and ends, and which transactions are gone from it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from consume_upstream.log.offset import CdcOffset

__all__ = ["FIRST_POSITION", "LogFile", "SourceLog"]

FIRST_POSITION = 4
"""Every binlog file begins with four bytes of magic; its first event is here."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log, as the server lists it."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class SourceLog:
    """What the server's log holds now. Files are listed oldest first; `newest` carries the executed GTIDs.

    `purged_gtids` are those whose events are gone: MySQL's gtid_purged, MariaDB's GTID position at the start of the
    oldest file; empty without GTIDs. `last_gtids` are, on MariaDB, the last of each domain and writer. `oldest_at` is
    when the oldest event was written, `now` the server's clock. `file_now` is the identity that the file of the job's
    stored offset has now; empty where there is no such offset or file.
    """

    server: str
    files: tuple[LogFile, ...]
    newest: CdcOffset
    now: datetime
    purged_gtids: str = ""
    oldest_at: datetime | None = None
    last_gtids: tuple[str, ...] = ()
    file_now: str = ""

    @property
    def oldest(self) -> CdcOffset:
        return CdcOffset.at(self.server, self.files[0].name, FIRST_POSITION)
