"""`vnode-backfill upgrade` turns the target of a real job over, both ways and through kill -9; the job continues."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import SparkSession

from devkit.mysql import MySqlServer
from devkit.waiting import wait_for
from tests.system.job_case import JobCase, execute
from tests.system.live_job import LiveJob, live_job
from vnode_backfill.job.open.locations import state_store


def changed_and_followed(job: LiveJob, turn: int) -> None:
    """The job follows changes of many rows, in all of its files, and is stopped."""
    case = job.case
    execute(
        case.server, case.database, f"UPDATE orders SET flag = {turn} WHERE id % 17 = {turn}",
        f"DELETE FROM orders WHERE id % 101 = {turn}",
    )  # fmt: skip
    job.start()
    job.until_live()
    job.stop()
    job.assert_equal()


def kill_when_files_are_written(case: JobCase) -> None:
    before = set(case.lake.glob("compacted-*"))
    with case.started("upgrade", "--merge", "rewrite") as command:
        wait_for(
            lambda: command.process.poll() is not None or set(case.lake.glob("compacted-*")) != before,
            "files are written again",
        )
        command.send(signal.SIGKILL)


def has_vectors(job: LiveJob) -> bool:
    loaded = state_store(job.config).load()
    assert loaded is not None
    features = DeltaTable(job.case.lake).protocol().reader_features or []
    assert loaded.record.has_vectors == ("deletionVectors" in features)
    return loaded.record.has_vectors


def test_a_real_job_continues_in_the_other_mode(spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "sink": {"delta": {"path": str(tmp_path / "lake"), "merge": "vectors", "compact_small_files": 0}}
    }
    with live_job(spark, mysql_server, tmp_path, rows=3000, settings=settings) as job:
        case = job.case
        job.start()
        job.until_live()
        assert "vnode-backfill stop" in case.command("upgrade", "--merge", "rewrite", code=1)
        job.stop()
        changed_and_followed(job, 1)
        assert has_vectors(job)
        with pytest.raises(DeltaProtocolError):
            DeltaTable(case.lake).to_pyarrow_table()

        asked = json.loads(case.config.read_text())
        asked["sink"]["delta"]["merge"] = "rewrite"
        case.config.write_text(json.dumps(asked))
        assert "vnode-backfill upgrade --merge rewrite" in case.command("plan", code=2)
        kill_when_files_are_written(case)
        job.assert_equal()
        case.command("upgrade", "--merge", "rewrite")
        assert not has_vectors(job)
        changed_and_followed(job, 2)
        assert DeltaTable(case.lake).to_pyarrow_table().num_rows == DeltaTable(case.lake).count()

        del asked["sink"]["delta"]["merge"]
        case.config.write_text(json.dumps(asked))
        assert "target.merge" in case.command("plan")
        case.command("upgrade", "--merge", "vectors")
        changed_and_followed(job, 3)
        assert has_vectors(job)
