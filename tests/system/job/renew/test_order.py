"""A new copy begins in an order that leaves a whole job at every point, also where something happens in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, SqlServer
from devkit.proxy import TcpProxy
from devkit.waiting import wait_for
from tests.system.job_case import JobCase, execute
from vnode_backfill.commands.requests import pause, resume
from vnode_backfill.delta.copies import has_copy
from vnode_backfill.delta.storage import Storage
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.job.run.loop import Until
from vnode_backfill.words.errors import FencedError, StateError


@pytest.fixture(scope="module")
def server() -> Iterator[SqlServer]:
    with MariaDbServer({}) as started:
        yield started


@pytest.fixture
def case(server: SqlServer, tmp_path: Path) -> Iterator[JobCase]:
    """A job on a table of forty rows in four ranges."""
    execute(
        server, None, "DROP DATABASE IF EXISTS renewed", "CREATE DATABASE renewed", "USE renewed",
        "CREATE TABLE renewed.t (id INT PRIMARY KEY, a INT, b INT)",
        "INSERT INTO renewed.t SELECT seq, seq * 2, seq FROM seq_1_to_40",
    )  # fmt: skip
    yield JobCase(server, tmp_path, "renewed", "t", settings={"vnodes": 4, "limits": {"range_rows": 10}})
    execute(server, None, "DROP DATABASE IF EXISTS renewed")


def changed(case: JobCase, *statements: str) -> None:
    execute(case.server, case.database, *statements)


def copy_of(case: JobCase) -> str:
    """The id of the job that the state holds now."""
    loaded = state_store(case.loaded_config()).load()
    assert loaded is not None
    return loaded.record.id


def test_statement_between_the_definition_and_the_first_offset_is_waited_out(
    case: JobCase, spark: SparkSession
) -> None:
    """It is in no log that the new copy reads, and the definition that the copy has read does not hold it."""
    with TcpProxy(case.server.host, case.server.port) as proxy:
        case.mysql = {"port": proxy.port}
        assert case.here(spark).run() is None
        changed(case, "ALTER TABLE t MODIFY a VARCHAR(12)")
        job = case.here(spark)

        def between() -> None:
            held = proxy.hold(b"START TRANSACTION WITH CONSISTENT SNAPSHOT")

            def change() -> None:
                held.wait()
                changed(case, "ALTER TABLE t ADD c INT NOT NULL DEFAULT 7 FIRST", "UPDATE t SET c = 8 WHERE id < 5")
                proxy.heal()

            threading.Thread(target=change).start()

        job.before_renewal = between
        assert job.run() is None
    assert case.differences() == []


def test_copy_is_discarded_only_when_another_one_has_replaced_it(case: JobCase, spark: SparkSession) -> None:
    """The driver loses its lease right before the commit that would begin the next copy."""
    assert case.here(spark).run() is None
    case.use(state={"path": str(case.folder / "state"), "lease": "5s"})
    pause(case.loaded_config())
    changed(case, "ALTER TABLE t MODIFY a VARCHAR(12)")
    job = case.here(spark)
    with job.running(Until.STOPPED):
        wait_for(lambda: job.copies == 2, "a new copy", seconds=60)
    first, lake = copy_of(case), Storage.of(str(case.lake))
    assert has_copy(lake, first)

    changed(case, "ALTER TABLE t MODIFY b VARCHAR(12)")
    again, other = case.here(spark), state_store(case.loaded_config())

    def taken_over() -> bool:
        try:
            other.acquire_lease("another driver", case.loaded_config().state.lease)
        except StateError:
            return False
        return True

    again.before_renewal = lambda: wait_for(taken_over, "the lease to run out", seconds=60)
    with pytest.raises(FencedError):
        again.run(Until.STOPPED)
    other.release()
    assert copy_of(case) == first
    assert has_copy(lake, first)

    resume(case.loaded_config())
    last = case.here(spark)
    assert last.run() is None
    assert case.differences() == []
