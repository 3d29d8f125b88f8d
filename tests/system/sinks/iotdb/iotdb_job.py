"""Jobs from a table of a real server into devices of a real IoTDB, compared point by point by separate code."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path

from devkit.comparer import Difference, SourceTable, Value, compare
from devkit.iotdb import IotdbServer
from devkit.iotdb_target import IotdbTable, IotdbTarget, PathColumn, TimeColumn
from devkit.mysql import SqlServer
from devkit.operations import WorkloadMix
from tests.system.job_case import JobCase
from vnode_backfill.commands.cli import execute

EPOCH = datetime.datetime(1970, 1, 1)
NO_SHARED_TIMES = replace(WorkloadMix(), large=0)
"""Rows that one statement inserts have one time, and would be duplicates."""


def _decimal(value: Value) -> Value:
    return Decimal(str(value))


@dataclass
class IotdbJob(JobCase):
    """One job of `orders` into `root.<database>.<state>` at `created`; the key is a measurement.

    The server must count in microseconds.
    """

    target: IotdbServer = field(kw_only=True)
    iotdb: dict[str, object] = field(default_factory=dict)
    job: str = "case"
    state: Path | None = None
    lease: str = "5s"

    def _settings(self) -> dict[str, object]:
        points: dict[str, object] = {
            "host": self.target.host, "port": self.target.port, "user": self.target.user,
            "password_env": "IOTDB_PASSWORD", "device": f"root.{self.database}.{{state}}",
            "time": {"column": "created"}, "decimal": "text", "timeout": "20s", "tablet_rows": 500, **self.iotdb,
        }  # fmt: skip
        self.environment.setdefault("IOTDB_PASSWORD", self.target.password)
        state = self.state or self.folder / "state"
        return {
            **super()._settings(),
            "job": self.job,
            "sink": {"iotdb": points},
            "state": {"path": str(state), "lease": self.lease},
        }

    def differences(self, *, ignore_columns: Sequence[str] = ()) -> list[Difference]:  # noqa: ARG002 - none here
        columns = ("id", "big", "name", "amount", "doc", "score", "flag", "day")
        session = self.target.session()
        points = IotdbTarget(
            session,
            f"root.{self.database}.*",
            path={2: PathColumn("state")},
            time=TimeColumn("created", lambda ticks: EPOCH + datetime.timedelta(microseconds=ticks)),
            measurements={name: name for name in columns},
            convert={"big": _decimal, "amount": _decimal},
        )
        with self.server.connect() as connection:
            source = SourceTable(connection, self.database, self.table, self.key)
            found = list(compare(source, points).differences)
        session.close()
        return found

    def here_command(self, *words: str) -> int:
        """A command that needs no Spark, in this process; its exit code."""
        return execute([words[0], "--config", str(self.config), *words[1:]])


@dataclass
class IotdbTableJob(IotdbJob):
    """The same job into the table `<database>.orders` with the tag `state`."""

    def _settings(self) -> dict[str, object]:
        self.iotdb = {"model": "table", "device": None, "database": self.database, "tags": ["state"], **self.iotdb}
        return super()._settings()

    def differences(self, *, ignore_columns: Sequence[str] = ()) -> list[Difference]:  # noqa: ARG002 - none here
        columns = ("id", "big", "name", "amount", "doc", "score", "flag", "day")
        session = self.target.table_session(self.database)
        rows = IotdbTable(
            session,
            "orders",
            tags={"state": PathColumn("state")},
            time=TimeColumn("created", lambda ticks: EPOCH + datetime.timedelta(microseconds=ticks)),
            fields={name: name for name in columns},
            convert={"big": _decimal, "amount": _decimal},
        )
        with self.server.connect() as connection:
            source = SourceTable(connection, self.database, self.table, self.key)
            found = list(compare(source, rows).differences)
        session.close()
        return found


def points_of(target: IotdbServer, database: str) -> list[tuple[str, int, dict[str, Value]]]:
    """Everything below the database, as a plain reader sees it."""
    session = target.session()
    reader = IotdbTarget(session, f"root.{database}.**", path={}, time=TimeColumn("at", int), measurements={})
    found = reader.slots()
    session.close()
    return found


def rows_of(server: SqlServer, database: str) -> int:
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM orders")
        (count,) = cursor.fetchone() or (0,)
        return int(count)
