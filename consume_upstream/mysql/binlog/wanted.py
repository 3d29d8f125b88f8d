"""Holds the tables that a reader of the log wants, in the arrays by which the routing kernel finds them.

A table is a number: its place among those that were asked for. The kernel finds it by the bytes of its name, in a
table of slots that is at least half empty, and compares the rest of a TABLE_MAP with the last one that was checked.
A table that is given up has no slot any more: its events then cost what those of any other table cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from consume_upstream.mysql.binlog import route
from consume_upstream.mysql.binlog.split import Bytes, Longs
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import LawBrokenError

__all__ = ["WantedTables"]

_MAP_BYTES = 4096


class WantedTables:
    """Names, checked maps and ids of tables. `ids`, `mapped` and `touched` are written by the kernel."""

    def __init__(self, definitions: Sequence[TableDefinition], state: Longs) -> None:
        names = [_name_bytes(definition.database, definition.table) for definition in definitions]
        count = len(names)
        if len(set(names)) < count:
            # One of the two would be given the rows of both, and nobody would miss them.
            twice = next(each for each, name in zip(definitions, names, strict=True) if names.count(name) > 1)
            raise LawBrokenError(f"{twice.database}.{twice.table} is asked for twice in one reading of the log")
        self.names = _array(b"".join(names))
        self.bounds = np.cumsum([0, *map(len, names)], dtype=np.int64)
        self.slots = np.empty(1 << (2 * count).bit_length(), dtype=np.int64)
        self.maps: Bytes = np.zeros(_MAP_BYTES, dtype=np.uint8)
        """The checked maps, at `map_bounds`; a table without one has an empty stretch, which equals no map."""
        self.map_bounds = np.zeros(2 * count, dtype=np.int64)
        self.ids = np.full(count, -1, dtype=np.int64)
        self.mapped = np.zeros(count, dtype=np.int64)
        self.touched = np.full(count, -1, dtype=np.int64)
        """By table the number of the last transaction that changed it; the first one is 1."""
        self._state = state
        self._left = dict(enumerate(names))
        self._numbers = {name: number for number, name in enumerate(names)}
        self._used = 0
        self._place()

    @property
    def left(self) -> tuple[int, ...]:
        """The tables whose rows are still wanted."""
        return tuple(self._left)

    def find(self, body: bytes) -> int:
        """The table that a TABLE_MAP is of, given from its database's name on; -1 if it is not wanted."""
        second = body[0] + 2
        name = body[: second + body[second] + 2] if second < len(body) else b""
        number = self._numbers.get(name, -1)
        return number if number in self._left else -1

    def of_rows(self, table_id: int) -> int:
        """The table of a row event with this id; -1 if the running statement maps none."""
        mapped = self.mapped[: self._state[route.MAPPED]].tolist()
        return next((number for number in mapped if self.ids[number] == table_id), -1)

    def check(self, number: int, body: bytes, table_id: int) -> None:
        """Rows of the table follow, and its map is as the definition says: the kernel may accept its like."""
        self._keep_map(number, body)
        if self.ids[number] < 0:
            self.mapped[self._state[route.MAPPED]] = number
            self._state[route.MAPPED] += 1
        self.ids[number] = table_id
        self._state[route.LAST_TABLE] = number

    def end_statement(self) -> None:
        self.ids[:] = -1
        self._state[route.MAPPED] = 0

    def is_touched(self, number: int) -> bool:
        """Whether the transaction that was opened last has changed the table."""
        return bool(self.touched[number] == self._state[route.SERIAL])

    def touch(self, number: int) -> None:
        self.touched[number] = self._state[route.SERIAL]

    def give_up(self, number: int) -> None:
        """No more rows of the table are wanted."""
        self._left.pop(number, None)
        self.map_bounds[2 * number : 2 * number + 2] = 0
        self.ids[number] = -1
        self._state[route.LAST_TABLE] = -1
        self._place()

    def _place(self) -> None:
        route.place_names(self.names, self.bounds, np.array(self.left, dtype=np.int64), self.slots)

    def _keep_map(self, number: int, body: bytes) -> None:
        if self._used + len(body) > len(self.maps):
            self._pack_maps(len(body))
        begin, self._used = self._used, self._used + len(body)
        self.maps[begin : self._used] = np.frombuffer(body, dtype=np.uint8)
        self.map_bounds[2 * number : 2 * number + 2] = begin, self._used

    def _pack_maps(self, room: int) -> None:
        """Leave out the maps that were replaced, and make room."""
        spans = self.map_bounds.reshape(-1, 2)
        held = [(number, self.maps[low:high].copy()) for number, (low, high) in enumerate(spans.tolist()) if low < high]
        self.maps = np.zeros(2 * (sum(len(body) for _, body in held) + room) + _MAP_BYTES, dtype=np.uint8)
        self._used = 0
        for number, body in held:
            self._keep_map(number, body.tobytes())


def _array(data: bytes) -> Bytes:
    return np.frombuffer(bytearray(data or b"\0"), dtype=np.uint8)


@lru_cache(maxsize=4096)
def _name_bytes(database: str, table: str) -> bytes:
    """Database and table as a TABLE_MAP has them."""
    return b"".join(bytes((len(name),)) + name + b"\0" for name in (database.encode(), table.encode()))
