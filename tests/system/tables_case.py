"""Runs a job of many tables on a real server as a user does; see `job_case`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from devkit.comparer import Difference, compare_delta
from devkit.waiting import wait_for
from progress.state.report import TableProgress
from tests.system.job_case import JobCase, Started
from vnode_backfill.words.errors import StateError


@dataclass
class TablesCase(JobCase):
    """One job of every table of `database`, each into a folder of its own; `delta` changes the sink's settings."""

    delta: dict[str, object] = field(default_factory=dict)

    def _settings(self) -> dict[str, object]:
        values = super()._settings()
        source = {"host": self.server.host, "port": self.server.port, "user": self.server.user}
        return {
            **values, "mysql": {**source, "tables": [f"{self.database}.*"], **self.mysql},
            "sink": {"delta": {"path": f"{self.lake}/{{table}}", **self.delta}},
        }  # fmt: skip

    def target(self, table: str) -> Path:
        return self.lake / table

    def name(self, table: str) -> str:
        return f"{self.database}.{table}"

    def tables(self) -> dict[str, TableProgress]:
        """What `status` shows of each table."""
        return {each.name.split(".")[1]: each for each in self.report().tables}

    def until(self, started: Started, reached: str, *tables: str) -> None:
        """Return once these tables are in a phase; the driver must not end before."""

        def all_are() -> bool:
            started.check_running()
            return all(found[table].phase == reached for table in tables) if (found := self._found()) else False

        wait_for(all_are, f"{tables} to be {reached}", seconds=240, state=lambda: str(self._found()))

    def _found(self) -> dict[str, TableProgress]:
        try:
            return self.tables()
        except StateError:
            return {}

    def differences_of(self, table: str, key: tuple[str, ...] = ("id",)) -> list[Difference]:
        with self.server.connect() as connection:
            return compare_delta(connection, self.database, table, key, self.target(table))

    def report_on(self, *flags: str) -> dict[str, object]:
        found = json.loads(self.command("status", "--json", *flags))
        assert isinstance(found, dict)
        return found
