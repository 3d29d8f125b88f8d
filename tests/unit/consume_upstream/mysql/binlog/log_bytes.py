"""Captured logs of both servers, taken apart and put together again without a server."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from consume_upstream.log.batch import LogBatch
from consume_upstream.mysql.binlog.dump import EventBlock
from consume_upstream.mysql.binlog.events import LogPosition
from consume_upstream.mysql.binlog.reader import WantedTable, open_slice
from vnode_backfill.words.columns import TableDefinition

Flavour = Literal["mysql", "mariadb"]
FLAVOURS: tuple[Flavour, ...] = ("mysql", "mariadb")
Change = tuple[int, list[str], list[str]]

_DATA = Path(__file__).parents[4] / "data"


@dataclass(frozen=True, slots=True)
class CapturedLog:
    """A log file's events from the first on, and what a server's SELECT said they hold."""

    flavour: Flavour
    definition: TableDefinition
    events: tuple[bytes, ...]
    gtids: tuple[str, ...]
    changes: tuple[Change, ...]

    @classmethod
    def load(cls, flavour: Flavour) -> CapturedLog:
        facts = json.loads((_DATA / f"log_{flavour}.json").read_text())
        events = tuple(split(_DATA.joinpath(f"log_{flavour}.bin").read_bytes()[4:]))
        changes = tuple((op, before, after) for op, before, after in facts["changes"])
        return cls(flavour, TableDefinition.from_json(facts["definition"]), events, tuple(facts["gtids"]), changes)

    def without_checksums(self) -> CapturedLog:
        """The same log as a server writes it with binlog_checksum = NONE; headers tell no position."""
        description = bytearray(self.events[0])
        description[-5] = 0
        shorter = (_with_size(event[:-4]) for event in self.events[1:])
        return replace(self, events=(bytes(description), *shorter))

    def with_event(self, index: int, event: bytes) -> CapturedLog:
        return replace(self, events=(*self.events[:index], event, *self.events[index + 1 :]))

    @property
    def end(self) -> int:
        return 4 + sum(map(len, self.events))

    def batches(self, stop: int | None = None) -> list[LogBatch]:
        """Read it all, from the file's start to `stop` or its end."""
        stop = stop or self.end
        wanted = [WantedTable(self.definition)]
        log = open_slice(wanted, self.flavour, LogPosition("log.000001", 4), LogPosition("log.000001", stop))
        found = [batch.rows for batch in log.take(block_of(self.events))]
        if not log.finished:
            log.raise_unfinished()
        return found

    def read(self) -> list[Change]:
        return [change for batch in self.batches() for change in changes_of(batch)]


def changes_of(batch: LogBatch) -> Iterator[Change]:
    images = ([[repr(v) for v in row.values()] for row in image.to_pylist()] for image in (batch.before, batch.after))
    return zip(batch.op.tolist(), *images, strict=True)


def split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at + 9)
        yield data[at : at + size]
        at += size


def block_of(events: Sequence[bytes]) -> EventBlock:
    sizes = np.array([len(event) for event in events], dtype=np.int64)
    data = np.frombuffer(bytearray(b"".join(events)), dtype=np.uint8)
    return EventBlock(data, np.cumsum(sizes) - sizes, sizes)


def _with_size(event: bytes) -> bytes:
    return event[:9] + struct.pack("<II", len(event), 0) + event[17:]
