"""Only one driver writes: a second one is refused, and one that slept through its lease cannot commit when it wakes."""

from __future__ import annotations

import signal
from pathlib import Path

from devkit.mysql import MariaDbServer
from devkit.orders import create_orders_table
from devkit.waiting import wait_for
from devkit.writer import Workload
from progress.state.report import JobPhase
from tests.system.job_case import JobCase, execute
from vnode_backfill.job.open.locations import state_store


def test_second_driver_is_refused_and_a_sleeping_one_is_fenced(mariadb_server: MariaDbServer, tmp_path: Path) -> None:
    execute(mariadb_server, None, "CREATE DATABASE drivers")
    with mariadb_server.connect() as connection:
        table = create_orders_table(connection, 4_000, 9, database="drivers", key_step=3)
    settings: dict[str, object] = {
        "state": {"path": str(tmp_path / "state"), "lease": "5s"},
        "limits": {"range_rows": 100, "rows_per_second": 500, "backoff": "200ms"},
    }
    case = JobCase(mariadb_server, tmp_path, "drivers", settings=settings)
    with Workload(lambda: mariadb_server.connect("drivers"), table, seed=13, rate=200), case.started("run") as first:
        case.wait_for_phase(JobPhase.SNAPSHOT, first)
        wait_for(lambda: case.report().ranges > 0, "the first ranges", seconds=180, state=case.report)
        assert f"process {first.pid}" in case.run("--until", "live", code=1)
        first.send(signal.SIGSTOP)
        wait_for(lambda: driver_of(case) is None, "the sleeping driver's lease to run out")
        with case.started("run", "--until", "live") as second:
            wait_for(lambda: driver_of(case) == second.pid, "the second driver to take over")
            # Both are awake now, the first one in the middle of an epoch that the second one repeats.
            first.send(signal.SIGCONT)
            # It is refused by its state or by the target, whichever it meets first.
            assert "nother driver took" in first.wait(1)
            second.wait(0)
    case.to_live()
    assert case.differences() == []
    execute(mariadb_server, None, "DROP DATABASE drivers")


def driver_of(case: JobCase) -> int | None:
    lease = state_store(case.loaded_config()).current_lease()
    return None if lease is None else lease.process.pid
