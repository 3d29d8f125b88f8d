"""Target, state and buffer in an object store: one set of options reaches everything that reads or writes there.

The store refuses everybody who does not have the key of `storage.options`, and this process has no other credentials.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake
from pyarrow.fs import FileSelector
from pyspark.sql import SparkSession

from devkit.comparer import compare_delta
from devkit.lake import read_lake
from devkit.mysql import MySqlServer
from devkit.object_store import ObjectStore
from tests.system.live_job import LiveJob, live_job, writing
from vnode_backfill.commands import requests
from vnode_backfill.commands.compact import compact
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.delta.storage import Storage
from vnode_backfill.job.run.loop import Until
from vnode_backfill.words.errors import BackfillError

pytestmark = pytest.mark.long


def settings_for(store: ObjectStore, **options: str) -> dict[str, object]:
    return {
        "sink": {"delta": {"path": f"{store.url}/lake/orders"}},
        "state": {"path": f"{store.url}/_backfill", "lease": "30s"},
        "storage": {"options": {**store.options, **options}},
    }


def differences(job: LiveJob, store: ObjectStore, folder: Path) -> int:
    """Compared by way of a local copy."""
    found = read_lake(f"{store.url}/lake/orders", options=store.options)
    write_deltalake(folder / "copy", found, mode="overwrite")
    with job.case.server.connect() as connection:
        return len(compare_delta(connection, job.case.database, "orders", ("id",), folder / "copy"))


def test_a_job_lives_in_an_object_store(spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path) -> None:
    with ObjectStore("bucket") as store, live_job(spark, mysql_server, tmp_path, settings=settings_for(store)) as job:
        with writing(job):
            job.start()
            job.until_live()
            job.ask(lambda config: resnapshot(config, only="0-3", where_key=None, everything=False))
            job.until_live()
        job.stop()
        assert differences(job, store, tmp_path) == 0
        compact(job.config)
        with writing(job, seed=9):
            job.start()
            job.until_live()
        job.stop()
        assert differences(job, store, tmp_path) == 0
        assert requests.drop(job.config) == 0
        assert not in_store(store, "_backfill/case/buffer")
        assert in_store(store, "lake/orders")


def in_store(store: ObjectStore, folder: str) -> bool:
    files = Storage.of(f"{store.url}/{folder}", store.options).filesystem()
    return bool(files.get_file_info(FileSelector("", recursive=True, allow_not_found=True)))


def test_wrong_credentials_are_refused_before_anything_is_written(
    spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path
) -> None:
    with (
        ObjectStore("bucket") as store,
        live_job(
            spark, mysql_server, tmp_path, rows=100, settings=settings_for(store, AWS_ACCESS_KEY_ID="somebody")
        ) as job,
        pytest.raises(BackfillError, match="s3://bucket"),
    ):
        job.start(Until.LIVE)
