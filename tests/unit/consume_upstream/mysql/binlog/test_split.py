"""Packets of a dump: events are found however the bytes arrive, and nothing but the end packet is an end."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consume_upstream.mysql.binlog import split
from consume_upstream.mysql.binlog.split import Bytes, Longs, split_events, split_packets


def event(body: bytes) -> bytes:
    return struct.pack("<IBIIIH", 0, 2, 1, 19 + len(body), 0, 0) + body


def packet(payload: bytes, sequence: int) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([sequence & 255]) + payload


def stream_of(bodies: list[bytes]) -> bytes:
    return b"".join(packet(b"\0" + event(body), 1 + i) for i, body in enumerate(bodies))


def places() -> tuple[Longs, Longs]:
    return np.zeros(600, dtype=np.int64), np.zeros(600, dtype=np.int64)


def array(data: bytes) -> Bytes:
    return np.frombuffer(bytearray(data), dtype=np.uint8)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=8), st.lists(st.integers(1, 50), max_size=20))
def test_events_are_found_however_the_bytes_arrive(bodies: list[bytes], steps: list[int]) -> None:
    data = stream_of(bodies)
    offsets, sizes = places()
    count, at, sequence, status = 0, 0, 1, split.NEED_MORE
    for end in (*np.cumsum(steps).tolist(), len(data)):
        filled = min(end, len(data))
        count, at, sequence, status = split_packets(array(data), at, filled, sequence, offsets, sizes, count)
        assert status == split.NEED_MORE
    assert at == len(data)
    assert [data[o : o + s] for o, s in zip(offsets[:count], sizes[:count], strict=True)] == [event(b) for b in bodies]


@pytest.mark.parametrize(
    ("last", "status"),
    [
        (packet(b"\xfe\0\0\0\0", 3), split.END_PACKET),
        (packet(b"\xff\xd4\x04#HY000gone", 3), split.ERROR_PACKET),
        (packet(b"\0" + event(b"x"), 4), split.OUT_OF_SEQUENCE),
        (packet(b"\0" + event(b"x")[:-1], 3), split.MALFORMED),
        (packet(b"\0short", 3), split.MALFORMED),
        (packet(b"\x07" + event(b"x"), 3), split.MALFORMED),
        (b"\0\0\0\x03\0", split.MALFORMED),
        (b"\xff\xff\xff\x03\0", split.LARGE_PACKET),
    ],
)
def test_what_is_no_event_ends_the_split_with_its_reason(last: bytes, status: int) -> None:
    data = stream_of([b"a", b"b"]) + last
    offsets, sizes = places()
    found = split_packets(array(data), 0, len(data), 1, offsets, sizes, 0)
    assert (found[0], found[1], found[3]) == (2, len(data) - len(last), status)


def test_sequence_numbers_go_round() -> None:
    data = stream_of([b"x"] * 520)
    offsets, sizes = places()
    assert split_packets(array(data), 0, len(data), 1, offsets, sizes, 0) == (520, len(data), 9, split.NEED_MORE)


def test_room_for_events_is_not_exceeded() -> None:
    data = stream_of([b"x"] * 5)
    offsets, sizes = places()
    count, at, _, status = split_packets(array(data), 0, len(data), 1, offsets[:3], sizes[:3], 0)
    assert (count, status) == (3, split.FULL)
    assert at == len(stream_of([b"x"] * 3))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(0, 30))
def test_events_without_packets_are_found_and_a_rest_stays(bodies: list[bytes], cut: int) -> None:
    data = b"".join(map(event, bodies))
    kept = max(0, len(data) - cut)
    offsets, sizes = places()
    count, at, _ = split_events(array(data), 0, kept, offsets, sizes)
    assert at <= kept
    assert [data[o : o + s] for o, s in zip(offsets[:count], sizes[:count], strict=True)] == [
        event(b) for b in bodies[:count]
    ]
    assert count == len(bodies) or at + len(event(bodies[count])) > kept
