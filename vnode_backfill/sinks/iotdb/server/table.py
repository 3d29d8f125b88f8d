"""Keeps slots in the table model: devices are the tags of one table, a slot is a row of it.

What must be true: what is read is what was written last. The server keeps rows of a table as it keeps aligned devices,
and may return an older value of a field whose newest one was NULL. So no field is ever read whose newest write was NULL
and an older one was not: a row that loses a field is deleted first and then written whole (tried with random writes,
deletions and flushes against a dictionary). Only rows can be deleted here, not fields, so a caller that empties a field
writes the rest of the row again.

- **A row without fields is not a row.** Server 2.0.1-beta may leave one behind where a row was rewritten, read and
  deleted; it is left out of every answer, and none is written.
- **A deletion** takes many rows at once, each by its time and all its tags; so the table must have exactly the tags
  configured. What the server still has in memory is flushed first. Rows that are deleted there come back when the
  server is killed, also with `wal_mode=SYNC`, and other rows of the device may vanish from answers (both seen with
  2.0.1-beta, neither in rows that are in its files).
- **Columns** are made before the first write, and their types are compared first: the server refuses a field of another
  type only after it has written a row without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from iotdb.Session import Session

from vnode_backfill.sinks.iotdb.mapping import Measurement, Points
from vnode_backfill.sinks.iotdb.server.address import IotdbAddress
from vnode_backfill.sinks.iotdb.server.session import (
    IotdbConnection,
    StoredPoints,
    Tablet,
    frames,
    read_column,
)
from vnode_backfill.sinks.iotdb.server.store import WriterSettings, time_condition, type_conflict
from vnode_backfill.sinks.iotdb.server.tablets import table_calls
from vnode_backfill.sinks.iotdb.server.tags import TagNaming, identifier
from vnode_backfill.sinks.iotdb.values import Bools, Ints
from vnode_backfill.words.errors import SinkError

_ROWS_PER_DELETION = 200
_DEVICES_PER_QUESTION = 50
"""The server plans memory for each condition it is given."""


class TableSession(IotdbConnection):
    """Asks and changes one table."""

    def __init__(self, address: IotdbAddress, naming: TagNaming) -> None:
        super().__init__(address)
        self._naming = naming

    def columns(self) -> dict[str, tuple[str, str]]:
        """Category and type of each column of the table, in lower case; none if there is no table."""
        known = {row[0] for row in self.ask("SHOW DATABASES")}
        if self._naming.database not in known:
            return {}
        tables = {row[0] for row in self.ask(f"SHOW TABLES FROM {identifier(self._naming.database)}")}
        if self._naming.table not in tables:
            return {}
        listed = self.ask(f"DESC {self._naming.place}")
        return {row[0] or "": ((row[2] or "").lower(), (row[1] or "").lower()) for row in listed}

    def insert(self, tablet: Tablet) -> None:
        """Write rows; a field that is there is overwritten."""
        self._run(
            f"rows cannot be written to {self._naming.place}",
            lambda session: session.insert_relational_tablet(tablet),
        )

    def rows(self, measurements: Sequence[Measurement], where: str) -> list[StoredPoints]:
        what = f"rows of {self._naming.place} cannot be read"
        return self._run(what, lambda session: list(self._blocks(session, measurements, where)))

    def scan(self, measurements: Sequence[Measurement]) -> Iterator[StoredPoints]:
        what = f"rows of {self._naming.place} cannot be read"
        yield from self._streamed(what, lambda session: self._blocks(session, measurements, ""))

    def _choose(self, session: Session) -> None:
        session.sql_dialect = "table"
        session.database = self._naming.database

    def _blocks(self, session: Session, measurements: Sequence[Measurement], where: str) -> Iterator[StoredPoints]:
        tags = self._naming.tags
        names = ["time", *(tag.name for tag in tags), *(each.name for each in measurements)]
        statement = f"SELECT {', '.join(map(identifier, names))} FROM {self._naming.place} {where}"
        for _, frame in frames(session, statement):
            texts = [pa.array(frame[n + 1].to_numpy(), pa.binary(), from_pandas=True) for n in range(len(tags))]
            device, devices = self._devices([text.cast(pa.string()) for text in texts])
            first = 1 + len(tags)
            columns = [read_column(frame[first + n], each.kind) for n, each in enumerate(measurements)]
            values = pa.table(columns, names=[each.name for each in measurements])
            times = frame[0].to_numpy().astype(np.int64)
            yield _with_fields(StoredPoints(devices, device, times, values))

    def _devices(self, tags: Sequence[pa.Array]) -> tuple[Ints, tuple[str, ...]]:
        """The number of each row's device, and the devices; only distinct values become names."""
        codes = np.zeros(len(tags[0]), dtype=np.int64)
        for texts in tags:
            column = texts.dictionary_encode(null_encoding="encode")
            codes = codes * max(len(column.dictionary), 1) + column.indices.to_numpy()
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
        first = pa.array(np.unique(codes, return_index=True)[1])
        values = zip(*(texts.take(first).to_pylist() for texts in tags), strict=True)
        return codes, tuple(map(self._naming.device, values))


class TableStore:
    """The rows of one table, over one session."""

    def __init__(self, settings: WriterSettings, naming: TagNaming) -> None:
        self._settings, self._naming = settings, naming
        self._measurements = settings.mapping.measurements
        self._session = TableSession(settings.address, naming)
        self._checked = False

    def check(self) -> str:
        there = self._session.columns()
        if not there:
            return f"the table {self._naming.place} is still to be made"
        tags = {name for name, (category, _) in there.items() if category == "tag"}
        if tags != {tag.name for tag in self._naming.tags}:
            raise SinkError(
                f"the table {self._naming.place} has other tags than the configuration names",
                detail=f"Its tags are {', '.join(sorted(tags)) or 'none'}.",
                hint="Name exactly these in `sink.iotdb.tags`, or choose another `sink.iotdb.table`.",
            )
        wrong = [
            (f"{self._naming.place}.{identifier(each.name)}", f"field {each.kind}", " ".join(there[each.name]))
            for each in self._measurements
            if there.get(each.name, ("field", each.kind)) != ("field", each.kind)
        ]
        if wrong:
            raise type_conflict(wrong)
        foreign = sorted(self._fields(there) - {each.name for each in self._measurements})
        beside = (
            f"; what its other fields hold goes with a row that is emptied: {', '.join(foreign)}" if foreign else ""
        )
        return f"the table {self._naming.place} exists, no column has another type{beside}"

    def make(self) -> None:
        self._session.execute(f"CREATE DATABASE IF NOT EXISTS {identifier(self._naming.database)}")
        there = self._session.columns()
        fields = [
            f"{identifier(each.name)} {each.kind.upper()} FIELD"
            for each in self._measurements
            if each.name not in there
        ]
        if there:
            for field in fields:
                self._session.execute(f"ALTER TABLE {self._naming.place} ADD COLUMN {field}")
            return
        columns = [*(f"{identifier(tag.name)} STRING TAG" for tag in self._naming.tags), *fields]
        self._session.execute(f"CREATE TABLE IF NOT EXISTS {self._naming.place} ({', '.join(columns)})")

    def held(self) -> list[str]:
        filled = " OR ".join(
            f"{identifier(name)} IS NOT NULL" for name in sorted(self._fields(self._session.columns()))
        )
        if not filled:
            return []
        found = self._session.ask(f"SELECT time FROM {self._naming.place} WHERE {filled} LIMIT 1")
        return [self._naming.place] if found else []

    def clear(self) -> None:
        if self._session.columns():
            self._session.execute(f"DROP TABLE {self._naming.place}")

    def drop(self, measurement: str) -> None:
        if measurement in self._session.columns():
            self._settings.lease()
            self._session.execute(f"ALTER TABLE {self._naming.place} DROP COLUMN {identifier(measurement)}")

    def check_types(self, devices: Sequence[str]) -> None:  # noqa: ARG002 - all devices have one table's types
        if not self._checked:
            self.check()
            self._checked = True

    def insert(self, points: Points) -> None:
        for tablet in table_calls(points, self._naming, self._measurements, self._settings.tablet_rows):
            self._settings.lease()
            self._session.insert(tablet)

    def empty(self, points: Points) -> None:
        self._settings.lease()
        self._session.flush([identifier(self._naming.database)])
        for start in range(0, len(points), _ROWS_PER_DELETION):
            rows = range(start, min(start + _ROWS_PER_DELETION, len(points)))
            each = (f"(time = {points.times[row]} AND {points.devices[points.device[row]]})" for row in rows)
            self._settings.lease()
            self._session.execute(f"DELETE FROM {self._naming.place} WHERE {' OR '.join(each)}")

    def empty_cells(self, points: Points, cells: Sequence[Bools]) -> Points:
        self.empty(points)
        rest = [
            pc.if_else(pa.array(cell), pa.scalar(None, column.type), column)
            for cell, column in zip(cells, points.values.columns, strict=True)
        ]
        values = pa.table(rest, names=points.values.column_names)
        return Points(points.devices, points.device, points.times, values, points.rows)

    def points(self, devices: Sequence[str], measurements: Sequence[Measurement], times: Ints) -> list[StoredPoints]:
        found: list[StoredPoints] = []
        for start in range(0, len(devices), _DEVICES_PER_QUESTION):
            asked = devices[start : start + _DEVICES_PER_QUESTION]
            any_of = " OR ".join(f"({device})" for device in asked)
            blocks = self._session.rows(measurements, f"WHERE {time_condition(times)} AND ({any_of})")
            found.extend(_of_devices(block, asked) for block in blocks)
        return found

    def scan(self, measurements: Sequence[Measurement]) -> Iterator[StoredPoints]:
        return self._session.scan(measurements)

    def close(self) -> None:
        self._session.close()

    def _fields(self, columns: dict[str, tuple[str, str]]) -> set[str]:
        return {name for name, (category, _) in columns.items() if category == "field"}


def _with_fields(block: StoredPoints) -> StoredPoints:
    """Without the rows that have none."""
    filled = np.zeros(len(block.times), dtype=np.bool_)
    for column in block.values.columns:
        filled |= column.is_valid().to_numpy()
    return _some(block, filled)


def _of_devices(block: StoredPoints, asked: Sequence[str]) -> StoredPoints:
    """Without what an answer holds beyond the question, and with devices that were asked for only."""
    wanted = set(asked)
    known = np.array([device in wanted for device in block.devices], dtype=np.bool_)
    kept = _some(block, known[block.device])
    numbers = np.cumsum(known) - 1
    devices = tuple(device for device in block.devices if device in wanted)
    return StoredPoints(devices, numbers[kept.device], kept.times, kept.values)


def _some(block: StoredPoints, rows: Bools) -> StoredPoints:
    if rows.all():
        return block
    return StoredPoints(block.devices, block.device[rows], block.times[rows], block.values.filter(pa.array(rows)))
