"""Finds where a slice of the log may end: the first start of a transaction so many bytes after an offset.

A job that is far behind takes the log in slices (`decide.next_epoch`), and a file of the log may be a gigabyte long. So
a boundary inside a file is needed, and the server can only be asked for events in order. The log is skimmed: it is
received once more, and of each event only type and size are looked at. That takes a small part of the time in which
the same bytes are captured, unless the way to the server is slow: then the log must not be received twice, and no
boundary is looked for any longer than `patience` says. Nor is one looked for after an event of 16 MB or more: it
would have to be received as a whole, in the driver, whatever its size.

What must be true: the slice ends between two transactions, and its position is exact. Why it is:

- A transaction begins with its GTID event, also where it is anonymous, and no transaction is open before one. The
  reader that captures the slice refuses the log otherwise.
- Positions are summed from sizes, as that reader sums them, and it refuses an end that it does not meet.
- A dump cannot begin beyond 4 GB of a file. Such a file is a single huge transaction and what came after it, so the
  slice then ends in the next one.

A job may continue from the end of a slice on another server, so the transactions up to there belong to it: those of the
offset before, and those that were passed. They are left out where they are not known.

MySQL writes a transaction to its log before it counts it as executed, and with semi-synchronous replication it may wait
for seconds in between. A sample holds only executed transactions. Where one that was passed is not in the sample there
is no end of a slice. With it the log would seem to have lost it at the next sample. Without it the set would have a
hole that no later slice fills, and a job that moves to another server would begin there, before statements that it has
followed. Such a transaction is near the end of the log, so little is left to be divided. The offset before may have such
a hole itself, since its sample. No slice fills that one either, and a job that moves to another server meanwhile copies
the table again if it has followed a statement since (`decide.log_switch`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from uuid import UUID

import numpy as np
import numpy.typing as npt

from consume_upstream.log.gtid import GtidSet, MariaDbGtidPosition, sampled_of
from consume_upstream.log.offset import CdcOffset
from consume_upstream.mysql.binlog import route
from consume_upstream.mysql.binlog.dump import NO_REPLICA, ConnectionFactory, DumpStream, EventBlock
from consume_upstream.mysql.binlog.events import HEADER_BYTES, EventKind, LogPosition, read_rotate
from consume_upstream.mysql.binlog.split import Bytes, Longs
from consume_upstream.mysql.binlog.table_map import Flavour

__all__ = ["LogSkim", "find_slice_end", "first_end", "patience"]

PATIENCE_SECONDS, PATIENCE_BYTES = 3.0, 64 * 1024 * 1024
"""64 MB that take longer come over less than 200 Mbit/s, or the machine has no time for them. A longer slice may take
longer."""
_MOST_PATIENCE = 15.0
_FILE_START, _LAST_START = 4, 2**32
_ARTIFICIAL = 0x20
_HEARTBEATS = (27, 41)
_ANONYMOUS, _MYSQL, _TAGGED, _MARIADB = 34, 33, 42, 162
_BEGINS = (_MYSQL, _ANONYMOUS, _TAGGED, _MARIADB)


def find_slice_end(
    connect: ConnectionFactory, flavour: Flavour, after: CdcOffset, upto: CdcOffset, length: int
) -> CdcOffset | None:
    """The first boundary at least `length` bytes of the log after `after`; None if `upto` comes before it, or if a
    transaction before it is not in the sample `upto`.

    It has the identity of its file where that is the file of `after` or `upto`. The connection is used up.
    """
    skim = LogSkim(LogPosition(after.file, after.pos), LogPosition(upto.file, upto.pos), length)
    with closing(DumpStream(connect, NO_REPLICA, flavour, LogPosition(after.file, after.pos))) as stream:
        found = first_end(skim, stream.blocks(large=False), time.monotonic() + patience(length))
    if found is None:
        return None
    end = replace(upto, number=upto.number - upto.file_number + found.number, pos=found.pos, log="")
    logged = skim.passed.added_to(after.gtids)
    if sampled_of(logged, upto.gtids) != logged:
        return None
    end = replace(end, gtids=logged)
    log = next((offset.log for offset in (after, upto) if offset.number == end.number and offset.log), "")
    return replace(end, log=log)


def patience(length: int) -> float:
    """How many seconds a boundary so many bytes further is looked for; all tables of a job wait meanwhile."""
    return min(PATIENCE_SECONDS * max(1.0, length / PATIENCE_BYTES), _MOST_PATIENCE)


def first_end(skim: LogSkim, blocks: Iterable[EventBlock], deadline: float) -> LogPosition | None:
    """Where the slice ends; None if the log ends first, or it is not found before the deadline of a steady clock."""
    for block in blocks:
        found = skim.take(block)
        if found is not None or skim.is_over or time.monotonic() > deadline:
            return found
    return None


@dataclass
class _Passed:
    """The transactions that were passed: of MySQL their numbers by server, of MariaDB the last one of each domain."""

    numbers: dict[bytes, list[Longs]] = field(default_factory=dict)
    last: dict[int, tuple[int, int]] = field(default_factory=dict)
    known: bool = True

    def take(self, data: Bytes, begins: Longs, kinds: npt.NDArray[np.uint8]) -> None:
        """`begins` is where each GTID event is in the block."""
        self.known = self.known and not np.isin(kinds, (_TAGGED, _ANONYMOUS)).any()
        if not self.known or not len(begins):
            return
        if kinds[0] == _MARIADB:
            self._take_mariadb(data, begins)
        else:
            servers = _field(data, begins + HEADER_BYTES + 1, 16)
            numbers = _field(data, begins + HEADER_BYTES + 17, 8).view("<i8").ravel()
            for server in np.unique(servers, axis=0):
                of = numbers[(servers == server).all(axis=1)]
                self.numbers.setdefault(server.tobytes(), []).append(of)

    def _take_mariadb(self, data: Bytes, begins: Longs) -> None:
        numbers = _field(data, begins + HEADER_BYTES, 8).view("<i8").ravel()
        domains = _field(data, begins + HEADER_BYTES + 8, 4).view("<u4").ravel()
        servers = _field(data, begins + 5, 4).view("<u4").ravel()
        for domain in np.unique(domains):
            at = int(np.flatnonzero(domains == domain)[-1])
            self.last[int(domain)] = (int(servers[at]), int(numbers[at]))

    def added_to(self, gtids: str) -> str:
        """All transactions up to the end of the slice, given those up to its beginning; empty if they are not known."""
        if not gtids or not self.known:
            return ""
        if self.last:
            before = {domain: (server, at) for domain, server, at in MariaDbGtidPosition.parse(gtids).domains}
            after = sorted({**before, **self.last}.items())
            return str(MariaDbGtidPosition(tuple((domain, *at) for domain, at in after)))
        passed = [f"{UUID(bytes=server)}:{part}" for server, of in self.numbers.items() for part in _intervals(of)]
        return str(GtidSet.parse(",".join((gtids, *passed))))


class LogSkim:
    """Goes through the events of a dump from `start` on, until a slice is long enough or `stop` comes."""

    def __init__(self, start: LogPosition, stop: LogPosition, length: int) -> None:
        self._file, self._pos, self._stop, self._left = start, start.pos, stop, length
        self.passed = _Passed()
        self.is_over = start.order >= stop.order

    def take(self, block: EventBlock) -> LogPosition | None:
        """Pass the events of a block; the end of the slice if it is among them."""
        at, count = 0, len(block.offsets)
        while at < count and not self.is_over:
            fence = route.next_file_event(block.data, block.offsets, at, count)
            found = self._pass(block, slice(at, fence)) if at < fence else None
            if found is not None:
                return found
            if fence < count:
                self._file_event(block.event(fence))
            at = fence + 1
        return None

    def _pass(self, block: EventBlock, part: slice) -> LogPosition | None:
        """Pass events of one file. Those that the server makes up for this dump are not in the file."""
        data, offsets, sizes = block.data, block.offsets[part], block.sizes[part]
        kinds, made_up = data[offsets + 4], (data[offsets + 17] & _ARTIFICIAL) != 0
        made_up |= np.isin(kinds, _HEARTBEATS)
        unplaced = (data[offsets + 13] | data[offsets + 14] | data[offsets + 15] | data[offsets + 16]) == 0
        made_up |= (kinds == EventKind.START_ENCRYPTION) & unplaced
        lengths = np.where(made_up, 0, sizes)
        ends = self._pos + np.cumsum(lengths)
        begins = ends - lengths
        opens = np.isin(kinds, _BEGINS)
        far = opens & (begins - self._pos >= self._left) & (begins < _LAST_START) & self._before_stop(begins)
        last = int(np.argmax(far)) if far.any() else len(kinds)
        opened = np.flatnonzero(opens[:last])
        self.passed.take(data, offsets[opened], kinds[opened])
        if last < len(kinds):
            self.is_over = True
            return LogPosition(self._file.file, int(begins[last]))
        self._move(int(ends[-1]))
        return None

    def _before_stop(self, positions: Longs) -> npt.NDArray[np.bool_]:
        same = self._file.number == self._stop.number
        return positions < self._stop.pos if same else np.ones(len(positions), np.bool_)

    def _move(self, pos: int) -> None:
        self._left -= pos - self._pos
        self._pos = pos
        self.is_over = self._file.number == self._stop.number and pos >= self._stop.pos

    def _file_event(self, event: bytes) -> None:
        """ROTATE names the file that follows; a file's first event counts if the dump begins there."""
        made_up = bool(event[17] & _ARTIFICIAL)
        if event[4] != EventKind.ROTATE:
            if self._pos == _FILE_START:
                self._move(self._pos + len(event))
            return
        following = read_rotate(event)
        if not made_up:
            self._move(self._pos + len(event))
        if following.number != self._file.number:
            self._file, self._pos = following, following.pos
            self.is_over = following.order >= self._stop.order


def _field(data: Bytes, begins: Longs, width: int) -> npt.NDArray[np.uint8]:
    """So many bytes from each place on, a row for each."""
    return np.ascontiguousarray(data[begins[:, None] + np.arange(width)])


def _intervals(parts: list[Longs]) -> list[str]:
    numbers = np.unique(np.concatenate(parts))
    breaks = np.flatnonzero(np.diff(numbers) > 1)
    firsts, lasts = numbers[np.r_[0, breaks + 1]], numbers[np.r_[breaks, len(numbers) - 1]]
    return [f"{first}-{last}" for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]
