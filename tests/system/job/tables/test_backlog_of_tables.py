"""Tables of one job go through a backlog together: the log is read once, also for those that are quiet in most of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MySqlServer
from tests.system.job.tables.many_tables import Here, Tables, fresh
from tests.system.job_case import execute
from vnode_backfill.decide.protocol import Action, BufferChanges
from vnode_backfill.job.run import order_threads

DATABASE = "far_behind"
LIMITS = {"log_memory": "4MB", "retries": 8, "backoff": "50ms", "max_backoff": "2s"}


@pytest.fixture
def case(mysql_server: MySqlServer, tmp_path: Path) -> Tables:
    execute(mysql_server, None, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    case = fresh(mysql_server, DATABASE, tmp_path, limits=LIMITS)
    case.create("busy", "large")
    case.create("quiet", "numbers")
    case.create("still", "numbers")
    return case


def test_tables_stay_together_in_a_backlog(case: Tables, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Here(case, spark).run() == {}
    for number in range(8):
        execute(case.server, DATABASE, f"UPDATE busy SET t = REPEAT('{number}', 3000)")
    execute(case.server, DATABASE, "UPDATE quiet SET v = v + 1")
    stretches: list[tuple[tuple[int, int], tuple[int, int]]] = []

    def note(moment: str, action: Action) -> None:
        if moment == "before" and isinstance(action, BufferChanges):
            stretches.append((action.after.order, action.intent.written.order))

    monkeypatch.setattr(order_threads, "seam", note)
    assert Here(case, spark).run() == {}
    slices = sorted({stretch for stretch in stretches if stretch[1][1] - stretch[0][1] >= 1024 * 1024})
    assert len(slices) >= 3
    assert all(stretches.count(each) == 3 for each in slices)
    assert case.wrong() == {}
