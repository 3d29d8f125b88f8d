"""A slice of the log ends where the first transaction begins that is far enough, in logs of both servers."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pytest

from consume_upstream.log.batch import Transaction
from consume_upstream.log.continuity import check_log_goes_on
from consume_upstream.log.gtid import GtidSet, MariaDbGtidPosition
from consume_upstream.log.offset import CdcOffset
from consume_upstream.mysql.binlog.dump import EventBlock
from consume_upstream.mysql.binlog.events import LogPosition
from consume_upstream.mysql.positions import slice_end
from consume_upstream.mysql.positions.slice_end import LogSkim, find_slice_end, first_end, patience
from tests.unit.consume_upstream.mysql.binlog.log_bytes import FLAVOURS, CapturedLog, Flavour, block_of
from tests.unit.consume_upstream.mysql.binlog.made_log import DESCRIPTION, SERVER, MadeLog, event, query

FILE = "log.000001"
FAR = 1 << 40
UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"


def transactions(log: CapturedLog) -> list[Transaction]:
    found = {each.start: each for batch in log.batches() for each in batch.transactions}
    return list(found.values())


def skim(log: Sequence[bytes], length: int, *, stop: int = FAR, blocks: int = 1) -> tuple[LogSkim, LogPosition | None]:
    """Skim a file that is sent in so many blocks."""
    found = LogSkim(LogPosition(FILE, 4), LogPosition(FILE, stop), length)
    size = -(-len(log) // blocks)
    for first in range(0, len(log), size):
        end = found.take(block_of(log[first : first + size]))
        if end is not None:
            return found, end
        if found.is_over:
            break
    return found, None


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("blocks", [1, 7])
def test_slice_ends_before_the_first_transaction_that_is_far_enough(
    flavour: Flavour, checksums: bool, blocks: int
) -> None:
    log = CapturedLog.load(flavour)
    log = log if checksums else log.without_checksums()
    starts = [transaction.start[1] for transaction in transactions(log)]
    for length in range(0, log.end, 50):
        expected = next((start for start in starts if start - 4 >= length), None)
        _, end = skim(log.events, length, blocks=blocks)
        assert (end.pos if end else None) == expected


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_end_is_before_the_offset_that_was_sampled(flavour: Flavour) -> None:
    log = CapturedLog.load(flavour)
    starts = [transaction.start[1] for transaction in transactions(log)]
    for start in starts:
        assert skim(log.events, start - 4, stop=start)[1] is None
        assert skim(log.events, start - 4, stop=start + 1)[1] == LogPosition(FILE, start)


@pytest.mark.parametrize("blocks", [1, 5])
def test_transactions_up_to_the_end_are_known_mysql(blocks: int) -> None:
    log = CapturedLog.load("mysql")
    known = transactions(log)
    for number, transaction in enumerate(known):
        found, _ = skim(log.events, transaction.start[1] - 4, blocks=blocks)
        expected = GtidSet.parse(",".join(each.gtid for each in known[:number]))
        other = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-3"
        assert found.passed.added_to(other) == str(GtidSet.parse(other).union(expected))
        assert found.passed.added_to("") == ""


@pytest.mark.parametrize("blocks", [1, 5])
def test_transactions_up_to_the_end_are_known_mariadb(blocks: int) -> None:
    log = CapturedLog.load("mariadb")
    known = transactions(log)
    for number, transaction in enumerate(known[1:], 1):
        found, _ = skim(log.events, transaction.start[1] - 4, blocks=blocks)
        last = MariaDbGtidPosition.parse(known[number - 1].gtid).domains[0]
        assert found.passed.added_to(f"7-1-1,{last[0]}-9-1") == str(MariaDbGtidPosition((last, (7, 1, 1))))


def test_anonymous_transactions_leave_none_known() -> None:
    begins = event(34, bytes(25))
    found, end = skim([DESCRIPTION, begins, query("BEGIN"), event(16, bytes(8)), begins], 200)
    assert end is not None
    assert found.passed.added_to("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-3") == ""


def test_transactions_of_several_servers_and_with_gaps_are_known() -> None:
    log = MadeLog()
    for number in (1, 2, 4):
        log.transactions = number - 1
        log.change()
    other = b"\1" + bytes(16) + struct.pack("<Q", 9) + bytes(17)
    log.events += [event(33, other), query("BEGIN"), event(16, bytes(8)), event(33, other)]
    found, _ = skim(log.events, sum(map(len, log.events[:-1])))
    expected = "00000000-0000-0000-0000-000000000000:9,00010203-0405-0607-0809-0a0b0c0d0e0f:1-2:4"
    assert found.passed.added_to("00010203-0405-0607-0809-0a0b0c0d0e0f:1") == expected
    assert SERVER.hex() in expected.replace("-", "")


def rotate(file: str, *, made_up: bool = False) -> bytes:
    sent = bytearray(event(4, struct.pack("<Q", 4) + file.encode()))
    sent[17] = 0x20 if made_up else 0
    return bytes(sent)


def test_slice_goes_on_in_the_next_file_until_it_is_long_enough() -> None:
    first, second = MadeLog(), MadeLog()
    first.change()
    for _ in range(3):
        second.change()
    sent = [rotate(FILE, made_up=True), *first.events, rotate("log.000002"), rotate("log.000002", made_up=True)]
    lengths = [len(each) for each in second.events]
    length = sum(map(len, first.events)) + len(rotate("log.000002")) + sum(lengths[:4]) + 1
    found = LogSkim(LogPosition(FILE, 4), LogPosition("log.000002", FAR), length)
    end = found.take(block_of([*sent, *second.events]))
    assert end == LogPosition("log.000002", 4 + sum(lengths[:7]))
    assert LogSkim(LogPosition(FILE, 4), LogPosition("log.000002", 4), 1 << 20).take(block_of(sent)) is None


def test_what_the_server_makes_up_for_a_dump_has_no_place_in_the_file() -> None:
    log = MadeLog()
    for _ in range(3):
        log.change()
    made_up = bytearray(event(27, bytes(40)))
    encryption = event(164, bytes(17))
    where = sum(map(len, log.events[:4]))
    sent = [*log.events[:4], bytes(made_up), encryption, *log.events[4:]]
    assert skim(sent, where)[1] == LogPosition(FILE, 4 + where)
    assert skim(sent, where + 1)[1] == LogPosition(FILE, 4 + sum(map(len, log.events[:7])))


def test_dump_that_begins_in_a_file_is_described_without_being_moved() -> None:
    log = MadeLog()
    for _ in range(2):
        log.change()
    start = 4 + sum(map(len, log.events[:4]))
    found = LogSkim(LogPosition(FILE, start), LogPosition(FILE, FAR), 0)
    assert found.take(block_of([rotate(FILE, made_up=True), DESCRIPTION, *log.events[4:]])) == LogPosition(FILE, start)


def test_log_that_comes_slowly_is_not_cut() -> None:
    log = MadeLog()
    log.change()
    log.change()
    blocks = [block_of(log.events[:4]), block_of(log.events[4:])]
    length = sum(map(len, log.events[:4]))
    ends = LogPosition(FILE, 4), LogPosition(FILE, FAR)
    assert first_end(LogSkim(*ends, length), blocks, float("inf")) == LogPosition(FILE, 4 + length)
    assert first_end(LogSkim(*ends, length), blocks, float("-inf")) is None


def test_longer_slice_may_take_longer() -> None:
    """A larger `limits.log_memory` must not make one epoch of a backlog."""
    seconds = [patience(length * 1024 * 1024) for length in (1, 64, 256, 4096)]
    assert seconds == [3.0, 3.0, 12.0, 15.0]


def test_slice_does_not_end_where_no_dump_can_begin() -> None:
    log = MadeLog()
    log.change()
    log.change()
    beyond = 2**32 + 100
    found = LogSkim(LogPosition(FILE, beyond), LogPosition("log.000002", FAR), 0)
    following = [rotate("log.000002"), rotate("log.000002", made_up=True), *log.events]
    end = found.take(block_of([*log.events[1:], *following]))
    assert end is not None
    assert end.file == "log.000002"


class Dump:
    """A dump of made events, in place of a server's."""

    def __init__(self, events: Sequence[bytes]) -> None:
        self.events = events

    def blocks(self, *, large: bool) -> Iterator[EventBlock]:
        assert not large
        yield block_of(self.events)

    def close(self) -> None: ...


def sampled_at(pos: int, gtids: str) -> CdcOffset:
    return CdcOffset.at("server", FILE, pos, gtids=gtids)


def ends_at(log: MadeLog, length: int, upto: CdcOffset, monkeypatch: pytest.MonkeyPatch) -> CdcOffset | None:
    """The end of a slice of a log that was read up to transaction 1 before its file began."""
    monkeypatch.setattr(slice_end, "DumpStream", lambda *_: Dump(log.events))
    return find_slice_end(pytest.fail, "mysql", sampled_at(4, f"{UUID}:1"), upto, length)


def test_slice_does_not_end_after_a_transaction_that_is_logged_and_not_executed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that waits for a replica's acknowledgement is in no sample: the log would seem to have lost it."""
    log = MadeLog()
    log.transactions = 1
    for _ in range(4):
        log.change()
    before_the_last = sum(map(len, log.events[:-3]))
    for executed in ("1-3", "1-2:4-5", "1"):
        assert ends_at(log, before_the_last, sampled_at(FAR, f"{UUID}:{executed}"), monkeypatch) is None
    upto = sampled_at(FAR, f"{UUID}:1-5")
    end = ends_at(log, before_the_last, upto, monkeypatch)
    assert end is not None
    assert (end.pos, end.gtids) == (4 + before_the_last, f"{UUID}:1-4")
    check_log_goes_on(end, upto)
