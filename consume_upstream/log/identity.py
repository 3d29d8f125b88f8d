"""Identifies a file of a log, because after a reset file names and GTIDs begin again and look the same.

What must be true: a job that stored an offset continues from it only if the file still is the one it has read. Two
things show that:

- The header of a file's first event, the format description: the second in which the file was begun, and the id of the
  server that began it. The event comes with every dump, also with one that starts in the middle of the file; its header
  stays as it is when the file is closed, when the server is restarted, and after a crash (its body does not: `created`
  is 0 in such a dump).
- The events that follow, as many as were below the offset when the identity was taken, and at most `MOST_EVENTS`: the
  GTIDs of the files before, and the first transactions. They are compared when a job is resumed, and distinguish two
  files that were begun within one second.

An identity belongs to one file. It is stored with an offset and is that of the offset's file:

    1794886447-28130-16-9f3a2b1c     begun at 1794886447 by server 28130; CRC32 of the 16 events after the first one

What is compared of an event leaves out what depends on the dump: its length, its end, its flags and its checksum.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import UTC, datetime

from vnode_backfill.words.errors import OffsetError

MOST_EVENTS = 16
_HEADER_BYTES = 19
_COMPARED_HEADER = 9
"""Time, type and server id."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """The identity of one file of a log."""

    began: int
    server_id: int
    events: int = 0
    digest: int = 0

    @classmethod
    def of_description(cls, event: bytes) -> LogIdentity:
        """What a file's first event shows, in whatever dump it comes."""
        return cls(int.from_bytes(event[:4], "little"), int.from_bytes(event[5:9], "little"))

    @classmethod
    def parse(cls, text: str) -> LogIdentity:
        try:
            began, server_id, events, digest = text.split("-")
            return cls(int(began), int(server_id), int(events), int(digest, 16))
        except ValueError as error:
            raise OffsetError(f"{text[:80]!r} is not the identity of a log", detail=str(error)) from error

    def followed_by(self, event: bytes, checksum_bytes: int) -> LogIdentity:
        """The identity with one more event in it."""
        body = event[_HEADER_BYTES : len(event) - checksum_bytes]
        digest = zlib.crc32(body, zlib.crc32(event[:_COMPARED_HEADER], self.digest))
        return LogIdentity(self.began, self.server_id, self.events + 1, digest)

    def begins_as(self, other: LogIdentity) -> bool:
        """Whether both were begun in the same second by the same server."""
        return (self.began, self.server_id) == (other.began, other.server_id)

    def __str__(self) -> str:
        return f"{self.began}-{self.server_id}-{self.events}-{self.digest:08x}"


def what_differs(known: LogIdentity, found: LogIdentity) -> str:
    """How the file that is there now differs from the one that was read; empty if it does not."""
    if not known.begins_as(found):
        return f"The file was begun {_beginning(found)}; the one that was read was begun {_beginning(known)}."
    if known != found:
        return f"The first {known.events} events of the file are not those of the one that was read."
    return ""


def _beginning(identity: LogIdentity) -> str:
    return f"at {datetime.fromtimestamp(identity.began, UTC):%Y-%m-%d %H:%M:%S} UTC by server {identity.server_id}"
