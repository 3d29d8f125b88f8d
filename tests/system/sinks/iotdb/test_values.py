"""Every type through a whole job into IoTDB, both models: by the snapshot and by the log, compared point by point."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from devkit.comparer import Difference, SourceTable, Value, compare
from devkit.iotdb import IotdbServer
from devkit.iotdb_target import IotdbTable, IotdbTarget, PathColumn, TimeColumn
from devkit.mysql import SqlServer
from tests.system.consume_upstream.mysql.test_value_matrix import ValueTable, write
from tests.system.consume_upstream.mysql.value_types import LARGE, Types, all_types
from tests.system.job_case import execute, reached_live
from tests.system.sinks.iotdb.iotdb_job import EPOCH, IotdbJob

pytestmark = pytest.mark.long

EXTRA = "grp INT AS (id % 3) STORED, at DATETIME(6) AS ('2024-05-01' + INTERVAL id SECOND) STORED"
"""The device and the time of a row."""


def types_of(flavour: str) -> Types:
    """Without what IoTDB rejects: a DATE before the year 1000, and values that no call of it takes."""
    kept = (kind for kind in all_types(flavour, "FULL") if kind not in LARGE)
    return tuple(
        tuple("'1000-01-01'" if literal == "'0001-01-01'" and kind[0] == "DATE" else literal for literal in kind)
        for kind in kept
    )


def _moment(ticks: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=ticks)


def _back(declaration: str) -> Callable[[Value], Value] | None:
    """How a point of the column becomes the source's value again."""
    name = declaration.split("(", maxsplit=1)[0].split(" ", maxsplit=1)[0]
    if declaration.startswith("BIGINT UNSIGNED") or (
        name == "DECIMAL" and not declaration.startswith(("DECIMAL(39", "DECIMAL(65"))
    ):
        return lambda value: Decimal(str(value))
    if name == "FLOAT":
        return lambda value: float(np.float32(str(value)))
    if name == "DATETIME":
        return lambda value: _moment(int(str(value)))
    if name == "TIMESTAMP":
        return lambda value: _moment(int(str(value))).replace(tzinfo=datetime.UTC)
    return None


@dataclass
class ValuesJob(IotdbJob):
    """The table of every type into devices `root.<database>.g<grp>`, or into the table `t` with the tag `grp`."""

    types: Types = field(kw_only=True)
    model: str = "tree"

    def _settings(self) -> dict[str, object]:
        self.iotdb = {"time": {"column": "at"}, "tablet_rows": 20}
        if self.model == "tree":
            self.iotdb |= {"device": f"root.{self.database}.g{{grp}}"}
        else:
            self.iotdb |= {"model": "table", "device": None, "database": self.database, "tags": ["grp"]}
        return super()._settings()

    def differences(self, *, ignore_columns: Sequence[str] = ()) -> list[Difference]:  # noqa: ARG002 - none here
        names = {f"c{number}": kind[0] for number, kind in enumerate(self.types)}
        convert = {name: back for name, kind in names.items() if (back := _back(kind))}
        columns = {name: name for name in ("id", *names)}
        with self.server.connect() as connection:
            source = SourceTable(connection, self.database, self.table, self.key)
            return list(compare(source, self._target(columns, convert)).differences)

    def _target(
        self, columns: Mapping[str, str], convert: Mapping[str, Callable[[Value], Value]]
    ) -> IotdbTarget | IotdbTable:
        time = TimeColumn("at", _moment)
        if self.model == "tree":
            path = {2: PathColumn("grp", "g", int)}
            return IotdbTarget(
                self.target.session(),
                f"root.{self.database}.*",
                path=path,
                time=time,
                measurements=columns,
                convert=convert,
            )
        tags, session = {"grp": PathColumn("grp", convert=int)}, self.target.table_session(self.database)
        return IotdbTable(session, "t", tags=tags, time=time, fields=columns, convert=convert)


@pytest.fixture(autouse=True)
def password(iotdb: IotdbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "IOTDB_PASSWORD", iotdb.password)


@pytest.fixture(scope="module")
def iotdb() -> Iterator[IotdbServer]:
    with IotdbServer(precision="us", wal_mode="SYNC") as server:
        yield server


@pytest.mark.parametrize("model", ["tree", "table"])
def test_every_value_becomes_a_point(
    source_server: SqlServer, iotdb: IotdbServer, tmp_path: Path, spark: SparkSession, model: str
) -> None:
    types, database = types_of(source_server.flavour), f"points_{source_server.flavour}_{model}"
    table = ValueTable(types)
    execute(source_server, None, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    created = table.create.replace("id INT PRIMARY KEY,", f"id INT PRIMARY KEY, {EXTRA},")
    write(source_server, database, iter((created, *table.inserts(1))))
    case = ValuesJob(source_server, tmp_path, database, "t", target=iotdb, types=types, model=model)
    assert reached_live(case, spark) == []
    write(source_server, database, table.changes())
    assert reached_live(case, spark) == []
    execute(source_server, None, f"DROP DATABASE {database}")
