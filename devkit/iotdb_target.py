"""Reads the points of IoTDB devices, or the rows of an IoTDB table, in its own plain way, for `devkit.comparer`.

Shares no code with the sink it judges. The caller says how a device's path and a point's time become columns again:

    IotdbTarget(
        session,
        "root.plant.*.*",
        path={2: PathColumn("region"), 3: PathColumn("sensor", prefix="s", convert=int)},
        time=TimeColumn("at", lambda ticks: EPOCH + timedelta(milliseconds=ticks)),
        measurements={"temp": "temperature"},
    )

    IotdbTable(session, "reading", tags={"region": PathColumn("region")}, time=…, fields={"temp": "temperature"})

A slot is a row; what has no point is None. A row of a table without any field counts as none: servers leave such rows
in tables. Values are the server's own: text, bytes, int, float, bool, date.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from iotdb.Session import Session
from iotdb.table_session import TableSession
from iotdb.utils.IoTDBConstants import TSDataType

from devkit.comparer import Value

_NODE = re.compile(r"`(?:[^`]|``)*`|[^.`]+")


@dataclass(frozen=True, slots=True)
class PathColumn:
    """A column that a node of the path holds after `prefix`."""

    name: str
    prefix: str = ""
    convert: Callable[[str], Value] = str


@dataclass(frozen=True, slots=True)
class TimeColumn:
    name: str
    convert: Callable[[int], Value]


class IotdbTarget:
    """`path` by the number of the node, `root` being 0; `measurements` maps names of the server to columns."""

    def __init__(
        self,
        session: Session,
        devices: str,
        *,
        path: Mapping[int, PathColumn],
        time: TimeColumn,
        measurements: Mapping[str, str],
        convert: Mapping[str, Callable[[Value], Value]] | None = None,
    ) -> None:
        self._session, self._pattern = session, devices
        self._path, self._time = path, time
        self._measurements, self._convert = measurements, convert or {}

    def column_names(self) -> Sequence[str]:
        return [*(each.name for each in self._path.values()), self._time.name, *self._measurements.values()]

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
        for device in sorted(self._devices()):
            nodes = [_bare(node) for node in _NODE.findall(device)]
            fixed = {
                each.name: each.convert(nodes[number].removeprefix(each.prefix)) for number, each in self._path.items()
            }
            for time, points in self._points(device):
                row = {**fixed, self._time.name: self._time.convert(time)}
                for name, column in self._measurements.items():
                    value = points.get(name)
                    convert = self._convert.get(column)
                    row[column] = convert(value) if convert is not None and value is not None else value
                yield tuple(row[column] for column in columns)

    def slots(self) -> list[tuple[str, int, dict[str, Value]]]:
        """Every device, time and its points, without turning them into columns."""
        return [(device, time, points) for device in sorted(self._devices()) for time, points in self._points(device)]

    def _devices(self) -> set[str]:
        answer = self._session.execute_query_statement(f"SHOW TIMESERIES {self._pattern}.*")
        found = set()
        while answer.has_next():
            path = answer.next().get_fields()[0].value.decode()
            found.add(".".join(_NODE.findall(path)[:-1]))
        answer.close_operation_handle()
        return found

    def _points(self, device: str) -> Iterator[tuple[int, dict[str, Value]]]:
        answer = self._session.execute_query_statement(f"SELECT * FROM {device}")
        names = [_bare(_NODE.findall(name)[-1]) for name in answer.get_column_names()[1:]]
        kinds = answer.get_column_types()[1:]
        while answer.has_next():
            record = answer.next()
            # The client reuses the fields of a record for the next one.
            values = [_plain(field.value, kind) for field, kind in zip(record.get_fields(), kinds, strict=True)]
            yield int(record.get_timestamp()), {n: v for n, v in zip(names, values, strict=True) if v is not None}
        answer.close_operation_handle()


class IotdbTable:
    """`tags` and `fields` map names of the server to columns; `session` uses the database of the table."""

    def __init__(
        self,
        session: TableSession,
        table: str,
        *,
        tags: Mapping[str, PathColumn],
        time: TimeColumn,
        fields: Mapping[str, str],
        convert: Mapping[str, Callable[[Value], Value]] | None = None,
    ) -> None:
        self._session, self._table = session, table
        self._tags, self._time = tags, time
        self._fields, self._convert = fields, convert or {}

    def column_names(self) -> Sequence[str]:
        return [*(each.name for each in self._tags.values()), self._time.name, *self._fields.values()]

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[Value, ...]]:
        for tags, time, fields in self.slots():
            row: dict[str, Value] = {self._time.name: self._time.convert(time)}
            for tag, text in zip(self._tags.values(), tags, strict=True):
                row[tag.name] = None if text is None else tag.convert(text)
            for name, column in self._fields.items():
                value, convert = fields.get(name), self._convert.get(column)
                row[column] = convert(value) if convert is not None and value is not None else value
            yield tuple(row[column] for column in columns)

    def slots(self) -> list[tuple[tuple[str | None, ...], int, dict[str, Value]]]:
        """Every row that has a field: its tags, its time, its fields."""
        answer = self._session.execute_query_statement(f'SELECT * FROM "{self._table}"')
        names, kinds = answer.get_column_names(), answer.get_column_types()
        found: list[tuple[tuple[str | None, ...], int, dict[str, Value]]] = []
        while answer.has_next():
            # The client reuses the fields of a record for the next one.
            record = zip(names, answer.next().get_fields(), kinds, strict=True)
            row = {name: _plain(field.value, kind) for name, field, kind in record}
            tags = tuple(None if row[tag] is None else str(row[tag]) for tag in self._tags)
            fields: dict[str, Value] = {
                n: v for n, v in row.items() if n != "time" and n not in self._tags and v is not None
            }
            if fields:
                found.append((tags, int(str(row["time"])), fields))
        answer.close_operation_handle()
        return sorted(found, key=lambda slot: (tuple((t is not None, t or "") for t in slot[0]), slot[1]))


def _bare(node: str) -> str:
    return node[1:-1].replace("``", "`") if node.startswith("`") else node


def _plain(value: object, kind: TSDataType) -> Value:
    if value is None or type(value).__name__ == "NAType":
        return None
    if kind in (TSDataType.TEXT, TSDataType.STRING):
        assert isinstance(value, bytes)
        return value.decode()
    if kind is TSDataType.DATE:
        number = int(str(value))
        return datetime.date(number // 10_000, number // 100 % 100, number % 100)
    if kind in (TSDataType.FLOAT, TSDataType.DOUBLE):
        return float(str(value))
    if kind is TSDataType.BOOLEAN:
        return bool(value)
    if kind is TSDataType.BLOB:
        assert isinstance(value, bytes)
        return value
    return int(str(value))
