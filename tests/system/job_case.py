"""A job on a real server as a user runs it: a YAML file, commands in processes of their own, and a comparison by other code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from devkit.comparer import Difference, compare_delta
from devkit.mysql import SqlServer
from devkit.spark import REPOSITORY

KILLED = -9


@dataclass
class JobCase:
    """One job from `database.table` of a server into a lake below `folder`."""

    server: SqlServer
    folder: Path
    database: str
    table: str = "orders"
    key: tuple[str, ...] = ("id",)
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def config(self) -> Path:
        path = self.folder / "job.yaml"
        if not path.exists():
            # JSON is YAML, and needs no quoting rules.
            path.write_text(json.dumps(self._settings()))
        return path

    def _settings(self) -> dict[str, object]:
        server = self.server
        return {
            "job": "case",
            "mysql": {"host": server.host, "port": server.port, "user": server.user, "database": self.database, "table": self.table},
            "sink": {"delta": {"path": str(self.lake)}},
            "state": {"path": str(self.folder / "state"), "lease": "10s"},
            "vnodes": 16,
            "workers": 2,
            "epoch": {"backfill": "1s", "live": "200ms"},
            "limits": {"backoff": "200ms", "max_backoff": "2s"},
            "ui": {"port": 0},
            "spark": {
                "spark.ui.enabled": "false",
                "spark.driver.memory": "1g",
                "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            },
            **self.settings,
        }  # fmt: skip

    def run(self, *flags: str, kill: str | None = None, code: int = 0, seconds: float = 240) -> str:
        """`vnode-backfill run …`, killed at a seam if asked for; the exit code must be `code`. Returns what it printed."""
        expected = KILLED if kill else code
        return self.command("run", *flags, kill=kill, code=expected, seconds=seconds)

    def to_live(self) -> None:
        self.run("--until", "live")

    def command(self, name: str, *flags: str, kill: str | None = None, code: int = 0, seconds: float = 240) -> str:
        done = subprocess.run(
            self._line(name, flags, kill), cwd=REPOSITORY, env=self._environment(), capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip
        printed = done.stdout + done.stderr
        assert done.returncode == code, f"{name} ended with {done.returncode}, not {code}:\n{printed[-6000:]}"
        return printed

    def start(self, name: str, *flags: str) -> subprocess.Popen[str]:
        """The command in the background."""
        return subprocess.Popen(
            self._line(name, flags, None), cwd=REPOSITORY, env=self._environment(), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def _line(self, name: str, flags: tuple[str, ...], kill: str | None) -> list[str]:
        launcher = ["-m", "devkit.crash", "--kill", kill, "--"] if kill else ["-m", "vnode_backfill"]
        quiet = ["--quiet"] if name == "run" else []
        return [sys.executable, *launcher, name, "--config", str(self.config), *quiet, *flags]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}

    def status(self) -> dict[str, object]:
        found = json.loads(self.command("status", "--json"))
        assert isinstance(found, dict)
        return found

    def differences(self) -> list[Difference]:
        with self.server.connect() as connection:
            return compare_delta(connection, self.database, self.table, self.key, self.lake)
