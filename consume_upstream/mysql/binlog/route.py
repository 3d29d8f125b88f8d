"""Finds the events that are rows of our tables, and the transaction and the table each belongs to.

A compiled pass over a block handles the four events that make up nearly all of a log (GTID, TABLE_MAP, rows, XID) and
stops at any other event that may matter, which Python then looks at. So a log of one-row transactions costs no Python
per event.

A transaction opens with its GTID event and closes with XID, or with a QUERY that Python judges. A TABLE_MAP of one of
our tables is accepted here only if its bytes equal those of the last one that was checked against the definition.

A statement may change several tables: it maps all of them, and their row events follow in any order. So what the maps
say holds until the last row event of the statement. Names are found by a hash of their bytes (see `wanted`), and the
row events of a statement are compared with the tables that it maps. The cost of an event does not grow with the
number of tables that are read.

Positions are summed from event sizes, because a header's position has 32 bits and MariaDB 11.4 writes 0 inside
transactions; where a header has one, it must agree.
"""

from __future__ import annotations

import numpy as np

from consume_upstream.mysql.binlog.split import HEADER_BYTES, Bytes, Longs
from consume_upstream.mysql.compiled import compiled, kernel_part

POSITION, TRANSACTION, BEGUN, MAPPED, SERIAL, TRANSACTIONS, LAST_TABLE, ROUTE_STATE_SIZE = 0, 1, 2, 3, 4, 5, 6, 7
"""Slots of the state: end of the last event, open transaction or -1, whether it has begun, how many of our tables the
running statement maps, transactions opened in the whole slice, transactions noted so far, the table of ours that was
mapped last or -1."""

DONE = 0
STOP_REACHED = 1
LOOK = 2
TRANSACTIONS_FULL = 3
WRONG_POSITION = 4
TOO_SHORT = 5

GTID_BYTES = 24
NO_GTID, MYSQL_GTID, MARIADB_GTID = 0, 1, 2
OPEN_END = 0

_ARTIFICIAL = 0x20
_STATEMENT_END = 1
_STANDALONE = 1
_BEGIN = int.from_bytes(b"BEGIN", "little")
_HASH = 0x5BD1E995
_LAST_PLAIN_ROWS = 32
_IGNORED, _LOOKED_AT, _OPENS, _CLOSES, _MAPS, _ROWS, _QUERY, _UNCOUNTED = 0, 1, 2, 3, 4, 5, 6, 7


def _event_classes() -> Longs:
    """What to do with each event type; a type that is not known is looked at, never skipped."""
    classes = np.full(256, _LOOKED_AT, dtype=np.int64)
    for kind in (3, 5, 13, 14, 17, 28, 29, 35, 36, 37, 160, 161, 163):
        classes[kind] = _IGNORED
    classes[[27, 41]] = _UNCOUNTED
    classes[[33, 34, 162]] = _OPENS
    classes[16] = _CLOSES
    classes[19] = _MAPS
    classes[2] = _QUERY
    classes[[23, 24, 25, 30, 31, 32, 39, 166, 167, 168, 169, 170, 171]] = _ROWS
    return classes


CLASSES = _event_classes()


@kernel_part
def _u(data: Bytes, at: int, width: int) -> int:
    value = 0
    for i in range(width):
        value |= int(data[at + i]) << (8 * i)
    return value


@kernel_part
def _same(data: Bytes, at: int, length: int, expected: Bytes, begin: int) -> bool:
    for i in range(length):
        if data[at + i] != expected[begin + i]:
            return False
    return True


@kernel_part
def _hash(data: Bytes, at: int, length: int) -> int:
    """Four bytes at a time; the factor has 31 bits, so that no product leaves 64."""
    value = length
    for i in range(0, length - 3, 4):
        value = ((value ^ _u(data, at + i, 4)) * _HASH) & 0xFFFFFFFF
        value ^= value >> 15
    for i in range(length & ~3, length):
        value = ((value ^ int(data[at + i])) * _HASH) & 0xFFFFFFFF
    return value ^ (value >> 13)


@compiled
def place_names(names: Bytes, bounds: Longs, chosen: Longs, slots: Longs) -> None:
    """Put the chosen names, each `names[bounds[n]:bounds[n + 1]]`, into the slots, whose number is a power of two."""
    for i in range(len(slots)):
        slots[i] = -1
    for i in range(len(chosen)):
        number = chosen[i]
        slot = _hash(names, bounds[number], bounds[number + 1] - bounds[number]) & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number


@kernel_part
def _find(data: Bytes, at: int, end: int, names: Bytes, bounds: Longs, slots: Longs) -> int:
    """The number of the table whose name begins at `at`, or -1: a length, the database, 0, a length, the table, 0."""
    second = at + int(data[at]) + 2
    if second >= end:
        return -1
    length = second + int(data[second]) + 2 - at
    if end - at < length:
        return -1
    slot = _hash(data, at, length) & (len(slots) - 1)
    while slots[slot] >= 0:
        number = slots[slot]
        begin = bounds[number]
        if bounds[number + 1] - begin == length and _same(data, at, length, names, begin):
            return int(number)
        slot = (slot + 1) & (len(slots) - 1)
    return -1


@kernel_part
def _begin(data: Bytes, body: int, end: int, state: Longs) -> int:
    """A QUERY event whose text is the five letters BEGIN; any other is left to Python."""
    if state[TRANSACTION] < 0 or state[BEGUN] != 0 or end - body < 13 + 1 + 5:
        return LOOK
    text = body + 13 + _u(data, body + 11, 2) + int(data[body + 8]) + 1
    if end - text != 5 or _u(data, text, 5) != _BEGIN:
        return LOOK
    state[BEGUN] = 1
    return DONE


@kernel_part
def _open_transaction(
    data: Bytes,
    at: int,
    end: int,
    state: Longs,
    gtids: Bytes,
    gtid_kinds: Longs,
    starts: Longs,
    ends: Longs,
    times: Longs,
    ids: Longs,
    mapped: Longs,
) -> int:
    """Note the transaction that a GTID event opens; nothing is mapped in it yet."""
    if state[TRANSACTION] >= 0:
        return LOOK
    if state[TRANSACTIONS] == len(starts):
        return TRANSACTIONS_FULL
    kind = int(data[at + 4])
    body = at + HEADER_BYTES
    needed = 13 if kind == 162 else 25
    if end - body < needed:
        return TOO_SHORT
    slot = state[TRANSACTIONS]
    target = slot * GTID_BYTES
    for i in range(GTID_BYTES):
        gtids[target + i] = 0
    if kind == 162:
        for i in range(12):
            gtids[target + i] = data[body + i]
        for i in range(4):
            gtids[target + 12 + i] = data[at + 5 + i]
        gtid_kinds[slot] = MARIADB_GTID
        state[BEGUN] = 0 if int(data[body + 12]) & _STANDALONE else 1
    else:
        for i in range(GTID_BYTES):
            gtids[target + i] = data[body + 1 + i]
        gtid_kinds[slot] = MYSQL_GTID if kind == 33 else NO_GTID
        state[BEGUN] = 0
    starts[slot] = state[POSITION]
    ends[slot] = OPEN_END
    times[slot] = _u(data, at, 4)
    state[TRANSACTION] = slot
    state[TRANSACTIONS] = slot + 1
    state[SERIAL] += 1
    _end_statement(state, ids, mapped)
    return DONE


@kernel_part
def _end_statement(state: Longs, ids: Longs, mapped: Longs) -> None:
    for i in range(state[MAPPED]):
        ids[mapped[i]] = -1
    state[MAPPED] = 0


@kernel_part
def _close_transaction(state: Longs, ends: Longs, position: int) -> int:
    if state[TRANSACTION] < 0:
        return LOOK
    ends[state[TRANSACTION]] = position
    state[TRANSACTION] = -1
    return DONE


@kernel_part
def _is_known_map(data: Bytes, at: int, end: int, maps: Bytes, map_bounds: Longs, number: int) -> bool:
    begin = map_bounds[2 * number]
    length = map_bounds[2 * number + 1] - begin
    return end - at == length and _same(data, at, length, maps, begin)


@kernel_part
def _map_table(
    data: Bytes,
    body: int,
    end: int,
    names: Bytes,
    bounds: Longs,
    slots: Longs,
    maps: Bytes,
    map_bounds: Longs,
    ids: Longs,
    mapped: Longs,
    state: Longs,
) -> int:
    """Note that the running statement maps a table of ours. Most often it is the one that was mapped last."""
    at = body + 8
    if end - at < 1:
        return TOO_SHORT
    number = state[LAST_TABLE]
    if number < 0 or state[TRANSACTION] < 0 or not _is_known_map(data, at, end, maps, map_bounds, number):
        number = _find(data, at, end, names, bounds, slots)
        if number < 0:
            return DONE
        if state[TRANSACTION] < 0 or not _is_known_map(data, at, end, maps, map_bounds, number):
            return LOOK
        state[LAST_TABLE] = number
    if ids[number] < 0:
        mapped[state[MAPPED]] = number
        state[MAPPED] += 1
    ids[number] = _u(data, body, 6)
    return DONE


@kernel_part
def _row_table(data: Bytes, body: int, ids: Longs, mapped: Longs, state: Longs) -> int:
    """The table of ours that a row event is of, or -1."""
    table_id = _u(data, body, 6)
    for i in range(state[MAPPED]):
        if ids[mapped[i]] == table_id:
            return int(mapped[i])
    return -1


@compiled
def route_events(
    data: Bytes,
    offsets: Longs,
    sizes: Longs,
    first: int,
    last: int,
    trailer: int,
    counted: bool,
    stop: int,
    classes: Longs,
    names: Bytes,
    bounds: Longs,
    slots: Longs,
    maps: Bytes,
    map_bounds: Longs,
    ids: Longs,
    mapped: Longs,
    touched: Longs,
    state: Longs,
    gtids: Bytes,
    gtid_kinds: Longs,
    starts: Longs,
    ends: Longs,
    times: Longs,
    row_events: Longs,
    row_transactions: Longs,
    row_positions: Longs,
    row_tables: Longs,
) -> tuple[int, int, int]:
    """Go through events `[first, last)` and note transactions and our row events.

    Returns the event it stopped at (not handled; its size not yet counted), the number of row events noted, and why.
    `trailer` is the size of the checksum, `counted` false inside a compressed transaction, whose events share its
    position. """  # fmt: skip
    rows = 0
    for index in range(first, last):
        at, size = offsets[index], sizes[index]
        body, end = at + HEADER_BYTES, at + size - trailer
        if end < body:
            return index, rows, TOO_SHORT
        kind = int(data[at + 4])
        group = classes[kind]
        position = state[POSITION]
        if counted and group != _UNCOUNTED and not (_u(data, at + 17, 2) & _ARTIFICIAL):
            position += size
            told = _u(data, at + 13, 4)
            if told != 0 and told != position & 0xFFFFFFFF:
                return index, rows, WRONG_POSITION
        reason = LOOK if group == _LOOKED_AT else DONE
        if group == _OPENS:
            reason = _open_transaction(data, at, end, state, gtids, gtid_kinds, starts, ends, times, ids, mapped)
        elif group == _CLOSES:
            reason = _close_transaction(state, ends, position)
        elif group == _MAPS:
            reason = _map_table(data, body, end, names, bounds, slots, maps, map_bounds, ids, mapped, state)
        elif group == _QUERY:
            reason = _begin(data, body, end, state)
        elif group == _ROWS:
            if end - body < 8:
                reason = TOO_SHORT
            elif state[TRANSACTION] < 0:
                reason = LOOK
            else:
                table = _row_table(data, body, ids, mapped, state)
                if table >= 0 and kind > _LAST_PLAIN_ROWS:
                    reason = LOOK
                elif table >= 0:
                    row_events[rows] = index
                    row_transactions[rows] = state[TRANSACTION]
                    row_positions[rows] = position
                    row_tables[rows] = table
                    rows += 1
                    touched[table] = state[SERIAL]
                if reason == DONE and _u(data, body + 6, 2) & _STATEMENT_END:
                    _end_statement(state, ids, mapped)
        if reason != DONE:
            return index, rows, reason
        state[POSITION] = position
        if position >= stop:
            return index + 1, rows, STOP_REACHED
    return last, rows, DONE


@compiled
def copy_bodies(
    data: Bytes,
    offsets: Longs,
    sizes: Longs,
    chosen: Longs,
    trailer: int,
    target: Bytes,
    at: int,
    begins: Longs,
    ends: Longs,
) -> int:
    """Copy the bodies of chosen events one after the other to `target[at:]`, which must have room; the new end."""
    for i in range(len(chosen)):
        begin = offsets[chosen[i]] + HEADER_BYTES
        length = sizes[chosen[i]] - HEADER_BYTES - trailer
        target[at : at + length] = data[begin : begin + length]
        begins[i] = at
        ends[i] = at + length
        at += length
    return at


@compiled
def next_file_event(data: Bytes, offsets: Longs, first: int, last: int) -> int:
    """The first ROTATE or FORMAT_DESCRIPTION event at or after `first`, or `last`."""
    for index in range(first, last):
        kind = int(data[offsets[index] + 4])
        if kind in (4, 15):
            return index
    return last
