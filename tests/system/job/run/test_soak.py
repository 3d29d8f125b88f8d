"""Long runs: minutes of random kills under live traffic, and one very large transaction. `scripts/test soak` runs them.

`VNODE_BACKFILL_SOAK_SECONDS` sets how long the kills go on (600 unless told), `VNODE_BACKFILL_SOAK_SEED` which ones
they are; the seed of a run is printed. What a seed cannot repeat is the moment in which a process dies: that depends on
the machine. The servers compress their logs unless `VNODE_BACKFILL_SOAK_COMPRESSION` is `off`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from benchmarks.process_tree import Metered
from devkit.lake import count_lake
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.orders import WorkloadTable, create_orders_table
from devkit.waiting import wait_for
from devkit.writer import Workload
from progress.state.report import JobPhase
from tests.system.job.run.python_workers import kill_python_workers
from tests.system.job_case import JobCase, execute
from vnode_backfill.commands.compact import compact
from vnode_backfill.words.errors import StateError

SECONDS = float(os.environ.get("VNODE_BACKFILL_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("VNODE_BACKFILL_SOAK_SEED", "0")) or int(time.time())
COMPRESSED = os.environ.get("VNODE_BACKFILL_SOAK_COMPRESSION", "on") != "off"
COMPRESSION: dict[type[SqlServer], dict[str, str | None]] = {
    MySqlServer: {"binlog-transaction-compression": "ON"},
    MariaDbServer: {"log-bin-compress": "ON", "log-bin-compress-min-len": "10"},
}
"""Given when a server starts, so that one that was killed compresses again."""
KILLS_PER_ROUND = 4
LONGEST_LIFE = 40.0
"""Seconds until a driver is killed, at most: enough for some of them to go live and to join files."""
pytestmark = pytest.mark.soak


@dataclass
class Soak:
    """One job that is killed again and again, and the story of what was done to it."""

    case: JobCase
    table: WorkloadTable
    random: Random
    story: list[str] = field(default_factory=list)

    def tell(self, what: str) -> None:
        self.story.append(what)
        print(what, flush=True)

    def round(self, number: int) -> None:
        """Some lives and deaths under traffic, then quiet, live, and equal."""
        with self._writing(seed=self.random.randrange(2**31)):
            for _ in range(KILLS_PER_ROUND):
                self.random.choice((self._kill_driver, self._kill_driver, self._kill_workers, self._restart_server))()
                self.random.choice((self._nothing, self._rescale, self._resnapshot, self._compact))()
        self.tell(f"round {number}: quiet, to live")
        self.case.run("--until", "live", seconds=600)
        differences = self.case.differences()
        assert differences == [], f"{len(differences)} differences, the first {differences[:3]}, after {self.story}"

    @contextmanager
    def _writing(self, seed: int) -> Iterator[None]:
        self.tell(f"traffic with seed {seed}")
        case = self.case
        with Workload(lambda: case.server.connect(case.database), self.table, seed=seed, rate=200, large_rows=500):
            yield

    def _life(self) -> float:
        return self.random.uniform(1.0, LONGEST_LIFE)

    def _kill_driver(self) -> None:
        with self.case.started("run") as driver:
            life = self._life()
            _lives(driver.process, life)
            self.tell(f"driver killed after {life:.1f} s")

    def _kill_workers(self) -> None:
        with self.case.started("run") as driver:
            life = self._life()
            _lives(driver.process, life)
            killed = kill_python_workers(driver.pid)
            self.tell(f"{killed} Python workers killed after {life:.1f} s")
            _lives(driver.process, self._life())
            driver.check_running()

    def _restart_server(self) -> None:
        if not self._exists():
            # A job that is not created yet says at once that there is no server, and ends.
            self._kill_driver()
            return
        with self.case.started("run") as driver:
            life = self._life()
            _lives(driver.process, life)
            self.case.server.kill()
            self.case.server.start()
            self.tell(f"server killed and started after {life:.1f} s")
            _lives(driver.process, self._life())
            driver.check_running()

    def _nothing(self) -> None:
        """Most operators ask for nothing."""

    def _rescale(self) -> None:
        self._ask("rescale", "--workers", str(self.random.choice((1, 2, 3))))

    def _resnapshot(self) -> None:
        self._ask("resnapshot", "--only", str(self.random.randrange(16)))

    def _compact(self) -> None:
        if self._exists():
            compact(self.case.loaded_config())
            self.tell("compact")

    def _ask(self, name: str, *flags: str) -> None:
        if self._exists():
            self.case.command(name, *flags)
            self.tell(f"{name} {' '.join(flags)}")

    def _exists(self) -> bool:
        """Whether any driver has lived long enough to create the job."""
        try:
            self.case.report()
        except StateError:
            return False
        return True


def _lives(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Let it live so long; it must not end by itself."""
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise AssertionError(f"the driver ended by itself with {code}")


@pytest.fixture(params=[MySqlServer, MariaDbServer], ids=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    with request.param(COMPRESSION[request.param] if COMPRESSED else {}) as started:
        yield started


@pytest.mark.timeout(SECONDS + 1800)
def test_a_job_killed_at_random_for_minutes_ends_equal(server: SqlServer, tmp_path: Path) -> None:
    print(
        f"\nVNODE_BACKFILL_SOAK_SEED={SEED} VNODE_BACKFILL_SOAK_SECONDS={SECONDS:g} compressed={COMPRESSED}", flush=True
    )
    execute(server, None, "CREATE DATABASE soak")
    with server.connect() as connection:
        table = create_orders_table(connection, 100_000, 3, database="soak", key_step=3)
    settings: dict[str, object] = {
        "sink": {"delta": {"path": str(tmp_path / "lake"), "target_file_size": "2MB", "compact_small_files": 20}},
        "limits": {"backoff": "200ms", "max_backoff": "2s", "range_rows": 1000, "rows_per_second": 10_000},
    }
    soak = Soak(JobCase(server, tmp_path, "soak", settings=settings), table, Random(SEED))
    ends, number = time.monotonic() + SECONDS, 0
    while number == 0 or time.monotonic() < ends:
        number += 1
        soak.round(number)


MILLION = 1_000_000
FAR = 10_000_000


@pytest.mark.timeout(1800)
def test_a_transaction_of_a_million_rows_is_taken_in_bounded_memory(
    mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    execute(mariadb_server, None, "DROP DATABASE IF EXISTS million", "CREATE DATABASE million")
    with mariadb_server.connect() as connection:
        create_orders_table(connection, 1000, 3, database="million")
        create_orders_table(connection, MILLION, 4, database="million", table="stock")
    case = JobCase(mariadb_server, tmp_path, "million")
    with case.started("run") as driver:
        case.wait_for_phase(JobPhase.LIVE, driver)
        with Metered(driver.pid) as quiet:
            wait_for(lambda: quiet.usage.peak_rss_bytes > 0, "a look at the memory")
        with Metered(driver.pid) as busy:
            execute(mariadb_server, "million", _copy_statement(mariadb_server))
            wait_for(
                lambda: _rows(case.lake) == MILLION + 1000, "the rows", seconds=600, state=lambda: _rows(case.lake)
            )
        driver.send(signal.SIGTERM)
        driver.wait(0)
    grown = busy.usage.peak_rss_bytes - quiet.usage.peak_rss_bytes
    print(f"\nat rest {quiet.usage.peak_rss_bytes >> 20} MB, at most {busy.usage.peak_rss_bytes >> 20} MB", flush=True)
    assert grown < 2 << 30
    assert case.differences() == []


def _copy_statement(server: SqlServer) -> str:
    with server.connect("million") as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'million' AND TABLE_NAME = 'stock'"
        )
        names = [str(row[0]) for row in cursor.fetchall()]
    columns = ", ".join(f"`{name}`" for name in names)
    values = ", ".join(f"`{name}` + {FAR}" if name == "id" else f"`{name}`" for name in names)
    return f"INSERT INTO orders ({columns}) SELECT {values} FROM stock"


def _rows(lake: Path) -> int:
    return count_lake(lake)
