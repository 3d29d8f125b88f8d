"""Runs a job on a real server as a user does: from a YAML file, by commands that are processes, compared by other code.

Where no process has to die, `JobHere` runs the same job inside the test, on a Spark that tests share. The test can then
act between the plan and the first read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from devkit.comparer import Difference, compare_delta
from devkit.mysql import SqlServer
from devkit.spark import REPOSITORY
from devkit.waiting import wait_for
from progress.state.backfill_state import BackfillState, Failure
from progress.state.report import JobPhase, Report
from vnode_backfill.commands.status import read_report
from vnode_backfill.config.job import Config, load_config
from vnode_backfill.decide.coordinator import Coordinator
from vnode_backfill.decide.protocol import Ending
from vnode_backfill.job.open.open import job_of, open_configured
from vnode_backfill.job.open.opened import Opened
from vnode_backfill.job.open.renew import renew
from vnode_backfill.job.open.sink import change_buffer, open_sink
from vnode_backfill.job.run.loop import PerformsOrders, Until
from vnode_backfill.job.run.services import Services
from vnode_backfill.words.errors import StateError
from vnode_backfill.words.schema_change import NewCopy

KILLED = -9
DEADLINE = 480.0
"""Seconds until a command or a wait counts as hung; an idle machine needs a small part of it."""
COPIER = "copier"
"""The account of `create_copier`: it may do what a job needs and nothing else, and its connections are the job's."""

ASKED_MERGE = "VNODE_BACKFILL_TESTS_MERGE"
"""The environment variable in which `pytest --merge` says how tables are changed whose test does not care."""

SqlRow = tuple[object, ...]
_numbers = count(1)


def in_asked_mode(settings: dict[str, object]) -> dict[str, object]:
    """The settings of a job, with the way of merging that the run of tests asks for if they name none themselves."""
    sink, asked = settings["sink"], os.environ.get(ASKED_MERGE)
    if asked is None or not isinstance(sink, dict) or "delta" not in sink:
        return settings
    return {**settings, "sink": {**sink, "delta": {"merge": asked, **sink["delta"]}}}


def execute(server: SqlServer, database: str | None, *statements: str) -> None:
    """Run statements one by one, each committed."""
    with server.connect(database) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def fetch(server: SqlServer, database: str | None, statement: str) -> list[SqlRow]:
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


def create_copier(server: SqlServer, identified: str = "BY ''") -> None:
    """The account `COPIER`, made again; `identified` is what follows IDENTIFIED."""
    execute(
        server, None, f"DROP USER IF EXISTS {COPIER}@'127.0.0.1'",
        f"CREATE USER {COPIER}@'127.0.0.1' IDENTIFIED {identified}",
        f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT, PROCESS ON *.* TO {COPIER}@'127.0.0.1'",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Started:
    """A command in the background, and where it prints to."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, code: int, *, seconds: float = DEADLINE) -> str:
        """Wait for its end, which must have this exit code; what it printed."""
        try:
            found: object = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            found = f"nothing after {seconds:g} s"
        printed = self.output.read_text(errors="replace")
        assert found == code, f"ended with {found}, not {code}:\n{printed[-6000:]}"
        return printed

    def check_running(self) -> None:
        assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.output.read_text()[-6000:]}"


@dataclass
class JobCase:
    """One job from `database.table` of a server into a lake below `folder`; `settings` and `mysql` change the YAML."""

    server: SqlServer
    folder: Path
    database: str
    table: str = "orders"
    key: tuple[str, ...] = ("id",)
    settings: dict[str, object] = field(default_factory=dict)
    mysql: dict[str, object] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def config(self) -> Path:
        path = self.folder / "job.yaml"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # JSON is YAML, and needs no quoting rules.
            path.write_text(json.dumps(in_asked_mode(self._settings())))
        return path

    def _settings(self) -> dict[str, object]:
        server = self.server
        return {
            "job": "case",
            "mysql": {
                "host": server.host, "port": server.port, "user": server.user, "database": self.database,
                "table": self.table, **self.mysql,
            },
            "sink": {"delta": {"path": str(self.lake)}},
            "state": {"path": str(self.folder / "state"), "lease": "10s"},
            "vnodes": 16,
            "workers": 2,
            "epoch": {"backfill": "1s", "live": "200ms"},
            "limits": {"backoff": "200ms", "max_backoff": "2s"},
            "ui": {"port": 0},
            "spark": {"spark.ui.enabled": "false", "spark.driver.memory": "1g"},
            **self.settings,
        }  # fmt: skip

    def use(self, **settings: object) -> None:
        """Continue with other settings."""
        self.settings = {**self.settings, **settings}
        self.config.unlink(missing_ok=True)

    def loaded_config(self) -> Config:
        return load_config(self.config, env={**os.environ, **self.environment})

    def run(self, *flags: str, kill: str | None = None, code: int = 0, seconds: float = DEADLINE) -> str:
        """`vnode-backfill run …`, killed at a seam if asked for; returns what it printed. It must end with `code`."""
        expected = KILLED if kill else code
        return self.command("run", *flags, kill=kill, code=expected, seconds=seconds)

    def to_live(self) -> None:
        self.run("--until", "live")

    def command(self, name: str, *flags: str, kill: str | None = None, code: int = 0, seconds: float = DEADLINE) -> str:
        done = subprocess.run(
            self._line(name, flags, kill), cwd=REPOSITORY, env=self.process_environment(), capture_output=True,
            text=True, timeout=seconds, check=False,
        )  # fmt: skip
        printed = done.stdout + done.stderr
        assert done.returncode == code, f"{name} ended with {done.returncode}, not {code}:\n{printed[-6000:]}"
        return printed

    @contextmanager
    def started(self, name: str, *flags: str, kill: str | None = None) -> Iterator[Started]:
        """The command in the background, killed at a seam if asked for, or at the end of the block if it still runs."""
        output = self.folder / f"{name}-{next(_numbers)}.log"
        with output.open("w") as file:
            process = subprocess.Popen(
                self._line(name, flags, kill), cwd=REPOSITORY, env=self.process_environment(), stdout=file,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            yield Started(process, output)
        finally:
            process.kill()
            process.wait()

    def _line(self, name: str, flags: tuple[str, ...], kill: str | None) -> list[str]:
        launcher = ["-m", "devkit.crash", "--kill", kill, "--"] if kill else ["-m", "vnode_backfill"]
        quiet = ["--quiet"] if name == "run" else []
        return [sys.executable, *launcher, name, "--config", str(self.config), *quiet, *flags]

    def process_environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable, **self.environment}

    def status(self) -> dict[str, object]:
        found = json.loads(self.command("status", "--json"))
        assert isinstance(found, dict)
        return found

    def report(self) -> Report:
        """What `status` shows, without a process for it."""
        return read_report(self.loaded_config())

    def wait_for_phase(self, phase: JobPhase, started: Started, *, seconds: float = DEADLINE) -> None:
        """Return once a driver works in this phase; the command that is waited for must not end before."""

        def reached() -> bool:
            started.check_running()
            try:
                return self.report().phase is phase
            except StateError:
                return False

        wait_for(reached, f"the job to be in phase {phase}", seconds=seconds)

    kept_columns: tuple[str, ...] = ()
    """Columns of the target that the source has dropped."""

    def differences(self) -> list[Difference]:
        with self.server.connect() as connection:
            return compare_delta(
                connection, self.database, self.table, self.key, self.lake, ignore_columns=self.kept_columns
            )

    def here(self, spark: SparkSession) -> JobHere:
        """The job, opened in this process: created and planned if it does not exist."""
        config = self.loaded_config()
        opened = open_configured(config, asked_vnodes=None, say=print)
        return JobHere(config, spark, opened)


class JobHere:
    """One run of a job in this process. It ends the way a driver ends: the lease is given back."""

    def __init__(self, config: Config, spark: SparkSession, opened: Opened) -> None:
        self._config, self._spark = config, spark
        self._take(opened)
        self.failure: Failure | None = None
        self.ending: Ending | None = None
        self.copies = 1
        """How many were begun: a statement may make another one necessary."""
        self.ended = False
        self.before_renewal: Callable[[], None] = lambda: None
        """Called when the job has stopped before a statement and a new copy is about to begin."""
        self.errors: list[str] = []
        """What was retried, in the order it went wrong."""

    def _take(self, opened: Opened) -> None:
        config, self._opened = self._config, opened
        services = Services(
            config, self._spark, opened.table, open_sink(config, opened.record, opened.store, opened.table),
            change_buffer(config, opened.record, opened.store), opened.store,
        )  # fmt: skip
        self._job = job_of(services, opened, self)
        self.state: BackfillState = opened.state

    @property
    def ranges_read(self) -> int:
        return sum(len(vnode.reads) for vnode in self.state.vnodes)

    @property
    def ranges_planned(self) -> int:
        return len(self._opened.plan.ranges)

    def look(self, coordinator: Coordinator, performer: PerformsOrders) -> None:  # noqa: ARG002 - a watcher's form
        self.state = coordinator.saved
        error = coordinator.last_error
        if error is not None and (not self.errors or self.errors[-1] != error.message):
            self.errors.append(error.message)

    def close(self, coordinator: Coordinator, performer: PerformsOrders) -> None:  # noqa: ARG002 - a watcher's form
        self.state = coordinator.saved

    def run(self, until: Until = Until.LIVE) -> Failure | None:
        try:
            self.state, self.failure = self._job.run(until)
            while isinstance(self._job.ending, NewCopy):
                self.before_renewal()
                self._take(renew(self._config, self._opened.store, self._job.ending.reason, self._job.ending.created))
                self.copies += 1
                if self._stop_asked:
                    self._job.ask_to_stop()
                self.state, self.failure = self._job.run(until)
            self.ending = self._job.ending
        finally:
            self.ended = True
            self._opened.store.release()
        return self.failure

    @contextmanager
    def running(self, until: Until = Until.LIVE) -> Iterator[JobHere]:
        """Run in a thread during the block. The block's end waits for the job, and stops one that would not end."""
        thread = threading.Thread(target=self.run, args=(until,), name="job")
        thread.start()
        try:
            yield self
        except BaseException:
            self._ask_to_stop()
            raise
        finally:
            if until is Until.STOPPED:
                self._ask_to_stop()
            thread.join()

    _stop_asked = False

    def _ask_to_stop(self) -> None:
        self._stop_asked = True
        self._job.ask_to_stop()

    def wait_until_read(self, ranges: int, *, seconds: float = 120) -> None:
        wait_for(
            lambda: self.ranges_read >= ranges or self.ended, f"{ranges} ranges to be read",
            seconds=seconds, state=lambda: f"{self.ranges_read} of {self.ranges_planned}, {self.errors}",
        )  # fmt: skip


def reached_live(case: JobCase, spark: SparkSession) -> Sequence[Difference]:
    """Run to live and compare; a job that failed shows its reason."""
    failure = case.here(spark).run()
    assert failure is None, failure
    return case.differences()
