"""A dump is received in blocks of events; a very large event is received only where it is wanted."""

from __future__ import annotations

import io
from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

import pytest
from pymysql.connections import Connection

from consume_upstream.mysql.binlog.dump import NO_REPLICA, DumpStream
from consume_upstream.mysql.binlog.events import LogPosition
from tests.unit.consume_upstream.mysql.binlog.made_log import event
from vnode_backfill.words.errors import SourceLostError


def packet(number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


def dump_of(sent: bytes) -> DumpStream:
    wire = SimpleNamespace(
        _sock=SimpleNamespace(settimeout=lambda _: None), _rfile=io.BufferedReader(cast(io.RawIOBase, io.BytesIO(sent))),
        _read_timeout=1.0, _execute_command=lambda *_: None, _force_close=lambda: None,
        cursor=lambda: nullcontext(SimpleNamespace(execute=lambda _: None)),
    )  # fmt: skip
    return DumpStream(lambda: cast(Connection, wire), NO_REPLICA, "mysql", LogPosition("log.000001", 4))


def test_events_end_before_one_that_is_too_large_for_the_driver() -> None:
    small, begins_large = event(2, bytes(40)), b"\xff\xff\xff\x02" + bytes(1000)
    sent = packet(1, b"\0" + small) + begins_large
    assert [block.event(0) for block in dump_of(sent).blocks(large=False)] == [small]
    with pytest.raises(SourceLostError, match="connection lost"):
        list(dump_of(sent).blocks())
