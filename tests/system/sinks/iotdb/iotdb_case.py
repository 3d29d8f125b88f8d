"""One table, one IoTDB database, and sinks that copy the one into the other as different drivers would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest

from consume_upstream.buffer import buffer_schema
from devkit.comparer import Value
from devkit.iotdb import IotdbServer
from devkit.iotdb_target import IotdbTable, IotdbTarget, PathColumn, TimeColumn
from tests.tables import Row, batch, plan, table_of
from vnode_backfill.config.iotdb import IotdbSinkConfig
from vnode_backfill.sinks import ReadReceipt
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.iotdb.server.store import LeaseCheck, no_lease
from vnode_backfill.sinks.iotdb.settlement import SourceRows
from vnode_backfill.sinks.iotdb.sink import Existing, IotdbOptions, IotdbSink
from vnode_backfill.words import change
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key_range import SplitPlan

_databases = count(1)

READINGS = table_of(
    {"id": "bigint", "region": "varchar(50)", "sensor": "int", "at": "bigint", "temp": "double", "note": "text"}, "id"
)
"""The key is a measurement; the slot does not show it."""
SLOTTED = table_of(
    {"region": "varchar(50)", "sensor": "int", "at": "bigint", "temp": "double", "note": "text"},
    "region",
    "sensor",
    "at",
)
"""The slot shows the key."""

EVERY_TYPE = {
    "region": "varchar(9)", "sensor": "int", "at": "datetime(3)", "tiny": "tinyint", "whole": "int unsigned",
    "big": "bigint unsigned", "price": "decimal(20,4)", "ratio": "float", "exact": "double", "flag": "bit(1)",
    "bits": "bit(12)", "text": "text", "day": "date", "moment": "timestamp(3)", "clock": "time", "raw": "blob",
    "kind": "enum('a','b')", "year": "year",
}  # fmt: skip
EVERY_VALUE: Row = (
    "eu", 1, datetime(2024, 5, 1, 12, 0, 0, 1000), -128, 2**32 - 1, Decimal(2**64 - 1), Decimal("-0.0001"), 0.1, -1e300,
    True, b"\x0f\xff", "é\0", date(1000, 1, 1), datetime(1999, 12, 31, 23, 59, 59, 999_000, UTC), "-838:59:59",
    b"\0\xff\0", "b", 2155,
)  # fmt: skip
EVERY_POINT: Mapping[str, object] = {
    "tiny": -128, "whole": 2**32 - 1, "big": "18446744073709551615", "price": "-0.0001", "exact": -1e300,
    "ratio": pytest.approx(0.1, rel=1e-6), "flag": True, "bits": b"\x0f\xff", "text": "é\0", "day": date(1000, 1, 1),
    "moment": 946684799999, "clock": "-838:59:59", "raw": b"\0\xff\0", "kind": "b", "year": 2155,
}  # fmt: skip
"""A row of `EVERY_TYPE` and the points it becomes at 1714564800001, decimals as text."""

Change: TypeAlias = tuple[ChangeOp, Row | None, Row | None]
"""An operation with the row before and after it."""


def reading(
    number: int, at: int, temp: float | None = 1.0, note: str | None = "n", region: str = "eu", sensor: int = 1
) -> Row:
    return (number, region, sensor, at, temp, note)


def row(case: IotdbCase, *values: object, **named: object) -> Row:
    """A reading, without its id where the table has none."""
    made = reading(*values, **named)  # type: ignore[arg-type]
    return made if case.definition is READINGS else made[1:]


@dataclass
class IotdbCase:
    """`database` is the node below root; the template's devices are `root.<database>.<region>.s<sensor>`."""

    server: IotdbServer
    folder: Path
    definition: TableDefinition = READINGS
    database: str = ""
    source_rows: SourceRows | None = None
    lease: LeaseCheck = no_lease

    def __post_init__(self) -> None:
        self.database = self.database or f"case{next(_databases)}"

    def config(self, **overrides: object) -> IotdbSinkConfig:
        plain: dict[str, object] = {
            "host": self.server.host,
            "port": self.server.port,
            "device": f"root.{self.database}.{{region}}.s{{sensor}}",
            "time": {"column": "at", "unit": "ms"},
            "timeout": "20s",
        }
        return IotdbSinkConfig.model_validate({**plain, **overrides})

    def sink(self, job: str = "job", existing: Existing = Existing.REFUSE, **overrides: object) -> IotdbSink:
        """As a driver makes it when it starts."""
        options = IotdbOptions(
            str(self.folder / f"receipts-{job}"),
            self.server.password,
            existing=existing,
            source_rows=self.source_rows,
            lease=self.lease,
        )
        made = IotdbSink(self.config(**overrides), self.definition, job, options)
        made.prepare()
        return made

    def read(self, sink: IotdbSink, ordinal: int, *rows: Row, epoch: int = 1, attempt: int = 0) -> ReadReceipt:
        return sink.writer().write(Epoch(epoch), ordinal, attempt, [batch(self.definition, rows)])

    def append(self, sink: IotdbSink, *rows: Row, epoch: int = 1, ordinal: int = 0) -> None:
        sink.commit_reads(Epoch(epoch), [self.read(sink, ordinal, *rows, epoch=epoch)], [], self.plan())

    def plan(self) -> SplitPlan:
        return (
            plan(self.definition, (0,), (10,), (20,), (1_000,))
            if self.definition.key == ("id",)
            else plan(self.definition)
        )

    def apply(self, sink: IotdbSink, *changes: Change, epoch: int = 1) -> None:
        sink.apply(Epoch(epoch), window(self.definition, changes))

    def slots(self) -> list[tuple[str, int, dict[str, Value]]]:
        """What a plain reader sees: device without the database, time, points."""
        session = self.server.session()
        target = IotdbTarget(session, f"root.{self.database}.*.*", path={}, time=TimeColumn("at", int), measurements={})
        found = [(device.removeprefix(f"root.{self.database}."), at, points) for device, at, points in target.slots()]
        session.close()
        return found

    def lose(self, at: int) -> None:
        """Empty the slot of the device `eu.s1` at a time, as another writer may have."""
        session = self.server.session()
        session.delete_data_in_range([f"root.{self.database}.eu.s1.*"], at, at)
        session.close()

    def rows(self) -> list[Row]:
        """The same as readings, of a template without oddities, in key order."""
        found: list[Row] = []
        for device, at, points in self.slots():
            region, sensor = device.split(".")
            values = (region, int(sensor.removeprefix("s")), at, points.get("temp"), points.get("note"))
            row = (points.get("id"), *values) if self.definition.key == ("id",) else values
            found.append(row)  # type: ignore[arg-type]
        return sorted(found, key=repr)


@dataclass
class TableCase(IotdbCase):
    """The same in the table model: rows of `<database>.readings` with the tags `region` and `sensor`."""

    def config(self, **overrides: object) -> IotdbSinkConfig:
        plain: dict[str, object] = {
            "host": self.server.host, "port": self.server.port, "model": "table", "database": self.database,
            "table": "Readings", "tags": ["region", "sensor"], "time": {"column": "at", "unit": "ms"}, "timeout": "20s",
        }  # fmt: skip
        return IotdbSinkConfig.model_validate({**plain, **overrides})

    def table_rows(self) -> list[tuple[tuple[str | None, ...], int, dict[str, Value]]]:
        """What a plain reader sees: tags, time, fields."""
        session = self.server.table_session(self.database)
        tags = {name: PathColumn(name) for name in ("region", "sensor")}
        found = IotdbTable(session, "readings", tags=tags, time=TimeColumn("at", int), fields={}).slots()
        session.close()
        return found

    def slots(self) -> list[tuple[str, int, dict[str, Value]]]:
        return [(f"{region}.s{sensor}", at, fields) for (region, sensor), at, fields in self.table_rows()]

    def lose(self, at: int) -> None:
        self.execute(f"DELETE FROM readings WHERE time = {at} AND region = 'eu' AND sensor = '1'")

    def rows(self) -> list[Row]:
        found: list[Row] = []
        for (region, sensor), at, fields in self.table_rows():
            values = (region, None if sensor is None else int(sensor), at, fields.get("temp"), fields.get("note"))
            row = (fields.get("id"), *values) if self.definition.key == ("id",) else values
            found.append(row)  # type: ignore[arg-type]
        return sorted(found, key=repr)

    def execute(self, *statements: str) -> None:
        """Of somebody else."""
        session = self.server.table_session(self.database)
        for statement in statements:
            session.execute_non_query_statement(statement)
        session.close()


def window(definition: TableDefinition, changes: Sequence[Change]) -> MemoryChanges:
    """Changes in the order of the log, as a merge hands them to this sink."""
    names = [column.name for column in definition.columns]
    rows = []
    for pos, (op, before, after) in enumerate(changes):
        image = dict(zip(names, after or before or (), strict=True))
        if op is ChangeOp.DELETE:
            image = {name: value if name in definition.key else None for name, value in image.items()}
        old = {change.BEFORE_PREFIX + n: v for n, v in zip(names, before, strict=True)} if before else {}
        place = {change.VNODE: 0, change.EPOCH: 1, change.FILE: 1, change.POS: pos, change.ROW: 0, change.HALF: 0}
        rows.append({**place, change.OP: int(op), change.TIMESTAMP: 0, **image, **old})
    return MemoryChanges(pa.Table.from_pylist(rows, schema=buffer_schema(definition)), definition.key)
