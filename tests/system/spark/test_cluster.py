"""On a cluster: executors share nothing with the driver but the network, the lake and what the driver has sent them.

The driver and the executors run an interpreter in which the project is not installed, in folders of their own; what
they know of it comes by the wheel that spark-submit was given.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from devkit.cluster import SparkCluster
from devkit.installation import bare_environment, build_wheel, launcher_of
from devkit.mysql import MariaDbServer
from devkit.orders import create_orders_table
from devkit.waiting import wait_for
from devkit.writer import Workload
from tests.system.job_case import DEADLINE, JobCase, Started, execute
from vnode_backfill.words.errors import StateError

pytestmark = pytest.mark.long
ROWS = 12_000


@dataclass
class Submission:
    """What a user has at hand who submits a job.

    A cluster, a wheel, the launcher out of it, and a folder to stand in.
    """

    cluster: SparkCluster
    wheel: Path
    launcher: Path
    folder: Path

    def command(self, *words: str) -> list[str]:
        memory = ["--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"]
        return self.cluster.submit_command("--py-files", self.wheel, *memory, self.launcher, *words)

    @contextmanager
    def started(self, *words: str) -> Iterator[Started]:
        output = self.folder / "submitted.log"
        with output.open("w") as file:
            process = subprocess.Popen(
                self.command(*words), cwd=self.folder, env=self.environment(), stdout=file, stderr=subprocess.STDOUT
            )
        try:
            yield Started(process, output)
        finally:
            process.kill()
            process.wait()

    def run(self, *words: str, code: int) -> str:
        done = subprocess.run(
            self.command(*words), cwd=self.folder, env=self.environment(), capture_output=True, text=True,
            timeout=DEADLINE, check=False,
        )  # fmt: skip
        printed = done.stdout + done.stderr
        assert done.returncode == code, f"{words[0]} ended with {done.returncode}, not {code}:\n{printed[-6000:]}"
        return printed

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.cluster.environment}


@pytest.fixture
def submission(tmp_path: Path) -> Iterator[Submission]:
    wheel = build_wheel(tmp_path / "wheel")
    launcher = launcher_of(wheel, tmp_path / "launcher")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with SparkCluster(bare_environment(tmp_path / "environment"), tmp_path / "cluster") as cluster:
        yield Submission(cluster, wheel, launcher, folder)


@pytest.fixture
def case(mariadb_server: MariaDbServer, tmp_path: Path) -> Iterator[tuple[JobCase, Workload]]:
    """A table under live traffic, copied slowly enough for a worker to be lost on the way."""
    execute(mariadb_server, None, "CREATE DATABASE cluster")
    with mariadb_server.connect() as connection:
        table = create_orders_table(connection, ROWS, 5, database="cluster", key_step=3)
    settings: dict[str, object] = {
        "workers": 4,
        "limits": {"range_rows": 250, "rows_per_second": 2000, "backoff": "200ms", "max_backoff": "2s"},
    }
    workload = Workload(lambda: mariadb_server.connect("cluster"), table, seed=11, rate=100, large_rows=100)
    yield JobCase(mariadb_server, tmp_path, "cluster", settings=settings), workload
    execute(mariadb_server, None, "DROP DATABASE cluster")


@pytest.mark.timeout(1800)
def test_a_submitted_wheel_copies_a_table_although_a_worker_is_lost_in_mid_snapshot(
    submission: Submission, case: tuple[JobCase, Workload]
) -> None:
    job, workload = case
    config = ("--config", str(job.config))
    with submission.started("run", *config, "--vnodes", "64", "--until", "live") as driver:
        with workload:
            wait_for(lambda: _ranges(job, driver) > 3, "the first ranges", seconds=DEADLINE)
            lost = submission.cluster.workers[1]
            assert lost.executors
            lost.kill()
            at_loss = _ranges(job, driver)
            wait_for(lambda: _ranges(job, driver) > at_loss + 10, "more ranges", seconds=DEADLINE)
        driver.wait(0)
    assert at_loss < ROWS // 250
    assert sum(job.report().phases.values()) == 64
    assert job.differences() == []
    assert "0 differences" in submission.run("verify", *config, code=0)


def _ranges(job: JobCase, driver: Started) -> int:
    driver.check_running()
    try:
        return job.report().ranges
    except StateError:
        return 0
