"""The identity of a log's file: the same in every dump of the file, another one for every other file."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

import pytest

from consume_upstream.log.batch import LogBatch
from consume_upstream.log.identity import LogIdentity, what_differs
from consume_upstream.log.offset import CdcOffset
from consume_upstream.mysql.binlog.events import LogPosition
from consume_upstream.mysql.binlog.reader import LogSlice, WantedTable, open_slice
from tests.unit.consume_upstream.mysql.binlog.log_bytes import FLAVOURS, CapturedLog, Flavour, block_of
from vnode_backfill.words.errors import OffsetError, SourceError

KNOWN = LogIdentity(1794886447, 28130, 16, 0x0F3A2B1C)


def identity_of(log: CapturedLog, checksum_bytes: int) -> LogIdentity:
    identity = LogIdentity.of_description(log.events[0])
    for event in log.events[1:4]:
        identity = identity.followed_by(event, checksum_bytes)
    return identity


def begun(event: bytes, *, second: int) -> bytes:
    """A format description with another time in its header, and the checksum that belongs to it."""
    body = bytearray(struct.pack("<I", second) + event[4:-4])
    body[17] = 0  # The file is closed.
    return bytes(body) + struct.pack("<I", zlib.crc32(body))


def test_an_identity_is_the_same_after_it_was_stored_as_text() -> None:
    assert LogIdentity.parse(str(KNOWN)) == KNOWN
    offset = CdcOffset("server", "binlog", 3, 880, gtids="0-1-7", log=str(KNOWN))
    stored = CdcOffset.from_json(offset.to_json())
    assert (stored, stored.gtids, stored.log) == (offset, "0-1-7", str(KNOWN))


def test_an_offset_of_an_earlier_release_has_no_identity() -> None:
    text = CdcOffset("server", "binlog", 3, 880).to_json()
    assert "log" not in text.replace("binlog", "")
    assert CdcOffset.from_json(text).log == ""


@pytest.mark.parametrize("text", ["1-2-3", "1-2-3-4-5", "a-2-3-4", "1-2-3-xyz", ""])
def test_text_that_is_no_identity_is_refused(text: str) -> None:
    with pytest.raises(OffsetError, match="is not the identity of a log"):
        LogIdentity.parse(text)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_what_depends_on_the_dump_does_not_count(flavour: Flavour) -> None:
    log = CapturedLog.load(flavour)
    assert identity_of(log, 4) == identity_of(log.without_checksums(), 0)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_another_event_behind_the_first_one_is_another_file(flavour: Flavour) -> None:
    log = CapturedLog.load(flavour)
    event = bytearray(log.events[2])
    event[25] ^= 1
    known, found = identity_of(log, 4), identity_of(log.with_event(2, bytes(event)), 4)
    assert what_differs(known, known) == ""
    assert what_differs(known, found) == "The first 3 events of the file are not those of the one that was read."


def test_a_file_with_fewer_events_than_were_read_is_another_one() -> None:
    assert "The first 16 events" in what_differs(KNOWN, replace(KNOWN, events=2))


@pytest.mark.parametrize("other", [replace(KNOWN, began=KNOWN.began + 1), replace(KNOWN, server_id=7)])
def test_another_time_or_server_is_another_file(other: LogIdentity) -> None:
    told = what_differs(KNOWN, other)
    assert "the one that was read was begun at 2026-11-17 03:34:07 UTC by server 28130" in told


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_reader_refuses_another_file_before_it_hands_out_a_change(flavour: Flavour) -> None:
    log = CapturedLog.load(flavour)
    known = identity_of(log, 4)
    assert sum(map(len, read(log, known))) == len(log.changes)
    with pytest.raises(SourceError, match=r"read up to log\.000001:4, and the server now has another log") as refused:
        read(log.with_event(0, begun(log.events[0], second=known.began + 1)), known)
    assert "resnapshot --all" in refused.value.hint
    assert not refused.value.retryable


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_only_the_first_file_of_a_dump_is_compared(flavour: Flavour) -> None:
    log = CapturedLog.load(flavour)
    part = slice_of(log, identity_of(log, 4))
    later = begun(log.events[0], second=1)
    list(part.take(block_of(log.events[:1])))
    list(part.take(block_of([later])))
    assert part.known is None


def slice_of(log: CapturedLog, known: LogIdentity) -> LogSlice:
    wanted = [WantedTable(log.definition)]
    part = open_slice(wanted, log.flavour, LogPosition("log.000001", 4), LogPosition("log.000001", log.end))
    part.known = known
    return part


def read(log: CapturedLog, known: LogIdentity) -> list[LogBatch]:
    return [batch.rows for batch in slice_of(log, known).take(block_of(log.events))]
