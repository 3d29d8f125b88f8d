"""An IoTDB server as far as the sink knows one, in a dictionary, so that thousands of histories can be run.

It has the semantics that were observed on a real server: a NULL writes nothing and erases nothing, a write overwrites,
a delete of nothing succeeds. `before_effect` is called before each write and delete: there another writer can come in
between.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from vnode_backfill.config.iotdb import IotdbType
from vnode_backfill.sinks.iotdb.mapping import Measurement
from vnode_backfill.sinks.iotdb.server.paths import Nodes, path_of, split_path
from vnode_backfill.sinks.iotdb.server.session import Series, StoredPoints, Tablet
from vnode_backfill.sinks.iotdb.server.tags import TagNaming
from vnode_backfill.sinks.iotdb.values import WIRE_TYPES, Precision

Cell = int | float | str
_TYPES = {2: IotdbType.INT64, 4: IotdbType.DOUBLE, 5: IotdbType.TEXT, 11: IotdbType.STRING}


class ModelServer:
    """Used in place of a session; every session of a history is this one."""

    connections = 1

    def __init__(self) -> None:
        self.slots: dict[tuple[str, int], dict[str, Cell]] = {}
        self.kinds: dict[tuple[str, str], IotdbType] = {}
        self.before_effect: Callable[[], None] = lambda: None

    def insert(self, tablets: Sequence[Tablet], *, aligned: bool) -> None:  # noqa: ARG002 - as a session has it
        self.before_effect()
        for tablet in tablets:
            for name, kind, time, value in _cells(tablet):
                self.kinds[tablet.target, name] = kind
                self.slots.setdefault((tablet.target, time), {})[name] = value

    def delete(self, paths: Sequence[str], at: int) -> None:
        self.before_effect()
        for path in paths:
            device, _, name = path.rpartition(".")
            slot = self.slots.get((device, at), {})
            for each in list(slot) if name == "*" else [split_path(name)[0]]:
                slot.pop(each, None)
            if not slot:
                self.slots.pop((device, at), None)

    def points(
        self, devices: Sequence[str], measurements: Sequence[tuple[str, IotdbType]], where: str = ""
    ) -> list[StoredPoints]:
        names = [name for name, _ in measurements]
        found = [
            (devices.index(device), time, slot)
            for (device, time), slot in sorted(self.slots.items())
            if device in devices and _is_asked_for(where, time) and set(names) & set(slot)
        ]
        values = {
            name: pa.array([slot.get(name) for _, _, slot in found], WIRE_TYPES[kind]) for name, kind in measurements
        }
        numbers = np.array([number for number, _, _ in found], dtype=np.int64)
        times = np.array([time for _, time, _ in found], dtype=np.int64)
        return [StoredPoints(tuple(devices), numbers, times, pa.table(values))] if found else []

    def scan(self, devices: Sequence[Nodes], measurements: Sequence[tuple[str, IotdbType]]) -> Iterator[StoredPoints]:
        yield from self.points([path_of(nodes) for nodes in devices], measurements)

    def types(self, devices: Sequence[str], measurements: Sequence[str]) -> list[Series]:
        return [
            Series(split_path(device), name, str(kind))
            for (device, name), kind in self.kinds.items()
            if device in devices and name in measurements
        ]

    def series(self, pattern: str) -> list[Series]:  # noqa: ARG002 - everything is of one template
        return [Series(split_path(device), name, str(kind)) for (device, name), kind in self.kinds.items()]

    def ask(self, statement: str) -> list[tuple[str | None, ...]]:  # noqa: ARG002 - no listing is needed
        return []

    def execute(self, statement: str) -> None:
        """Databases come into being by themselves here."""

    def has_points(self, device: str) -> bool:
        return any(each == device for each, _ in self.slots)

    def flush(self, databases: Sequence[str]) -> bool:  # noqa: ARG002 - nothing is lost here
        return True

    def precision(self) -> Precision:
        return Precision.MILLISECONDS

    def close(self) -> None:
        """There is nothing to close."""


class ModelTable:
    """Used in place of a session with a table of the server: only whole rows can be deleted, by time and tags."""

    def __init__(self, server: ModelServer, naming: TagNaming) -> None:
        self._server, self._naming = server, naming

    def columns(self) -> dict[str, tuple[str, str]]:
        """The table comes into being by itself here."""
        return {}

    def insert(self, tablet: Tablet) -> None:
        self._server.before_effect()
        rows: dict[int, dict[str, Cell]] = {}
        for name, _, row, value in _cells(replace(tablet, times=_numbers(tablet.rows))):
            rows.setdefault(row, {})[name] = value
        for row, time in enumerate(struct.unpack(f">{tablet.rows}q", tablet.times)):
            tags = [str(rows[row].pop(tag.name)) for tag in self._naming.tags]
            self._server.slots.setdefault((self._naming.device(tags), time), {}).update(rows[row])

    def execute(self, statement: str) -> None:
        if not statement.startswith("DELETE"):
            return
        self._server.before_effect()
        for time, device in re.findall(r"\(time = (-?\d+) AND ([^)]*)\)", statement):
            self._server.slots.pop((device, int(time)), None)

    def flush(self, databases: Sequence[str]) -> bool:
        return self._server.flush(databases)

    def rows(self, measurements: Sequence[Measurement], where: str) -> list[StoredPoints]:
        devices = dict.fromkeys(device for device, _ in self._server.slots if not where or f"({device})" in where)
        times = re.sub(r"AND \(\(.*", "", where)
        return self._server.points(list(devices), [(each.name, each.kind) for each in measurements], times)

    def scan(self, measurements: Sequence[Measurement]) -> Iterator[StoredPoints]:
        yield from self.rows(measurements, "")

    def close(self) -> None:
        """There is nothing to close."""


def _numbers(rows: int) -> bytes:
    return struct.pack(f">{rows}q", *range(rows))


def _is_asked_for(where: str, time: int) -> bool:
    numbers = [int(number) for number in re.findall(r"-?\d+", where)]
    if not numbers:
        return True
    return numbers[0] <= time <= numbers[1] if ">=" in where else time in numbers


def _cells(tablet: Tablet) -> Iterator[tuple[str, IotdbType, int, Cell]]:
    """Take a tablet apart again, byte by byte."""
    times = struct.unpack(f">{tablet.rows}q", tablet.times)
    columns, place = [], 0
    for code in tablet.types:
        column: list[Cell] = []
        for _ in range(tablet.rows):
            if code in (5, 11):
                (length,) = struct.unpack_from(">i", tablet.values, place)
                column.append(tablet.values[place + 4 : place + 4 + length].decode())
                place += 4 + length
            else:
                column.extend(struct.unpack_from(">q" if code == 2 else ">d", tablet.values, place))
                place += 8
        columns.append(column)
    for number, column in enumerate(columns):
        bits = b""
        if place < len(tablet.values):
            size = tablet.rows // 8 + 1 if tablet.values[place] else 0
            bits = tablet.values[place + 1 : place + 1 + size]
            place += 1 + size
        for row, value in enumerate(column):
            if not bits or not bits[row // 8] >> row % 8 & 1:
                yield split_path(tablet.measurements[number])[0], _TYPES[tablet.types[number]], times[row], value
