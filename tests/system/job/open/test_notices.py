"""A job that earlier releases ran on a server that compresses transactions is told once to compare source and target."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from devkit.mysql import MySqlServer, SqlServer
from tests.system.job.open.startup_case import source_on
from tests.system.job_case import JobCase, execute
from vnode_backfill.commands.run import say_once
from vnode_backfill.job.open.open import open_configured

TOLD = "could lose rows of transactions that the server had compressed"
FORGET = "TRUNCATE TABLE performance_schema.binary_log_transaction_compression_stats"


@pytest.fixture
def case(source_server: SqlServer, database: str, tmp_path: Path) -> JobCase:
    execute(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", "INSERT INTO t VALUES (1, 'a')")
    if source_server.flavour == "mysql":
        execute(source_server, None, FORGET)
    return JobCase(source_server, tmp_path, database, "t")


@pytest.fixture
def compressing(source_server: SqlServer) -> Iterator[None]:
    name = "binlog_transaction_compression" if source_server.flavour == "mysql" else "log_bin_compress"
    execute(source_server, None, f"SET GLOBAL {name} = ON")
    yield
    execute(source_server, None, f"SET GLOBAL {name} = OFF")


def opened_as_by_run(case: JobCase, capsys: pytest.CaptureFixture[str]) -> str:
    """Open the job and say what `run` says once; what was printed."""
    config = case.loaded_config()
    opened = open_configured(config, asked_vnodes=None, say=print)
    try:
        say_once(config, opened)
    finally:
        opened.store.release()
    return capsys.readouterr().err


def as_an_earlier_release_leaves_it(case: JobCase, job: str = "case") -> None:
    shutil.rmtree(case.folder / "state" / job / "notices")


@pytest.mark.usefixtures("compressing")
def test_job_of_an_earlier_release_is_told_once(case: JobCase, capsys: pytest.CaptureFixture[str]) -> None:
    assert opened_as_by_run(case, capsys) == ""
    as_an_earlier_release_leaves_it(case)
    printed = opened_as_by_run(case, capsys)
    # MariaDB compresses events, not transactions: no release lost anything there.
    assert (TOLD in printed, "vnode-backfill verify" in printed) == ((case.server.flavour == "mysql"),) * 2
    assert opened_as_by_run(case, capsys) == ""


@pytest.mark.parametrize("source_server", ["mysql"], indirect=True)
def test_job_of_an_earlier_release_is_told_of_sessions_that_compress(
    case: JobCase, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opened_as_by_run(case, capsys) == ""
    as_an_earlier_release_leaves_it(case)
    assert opened_as_by_run(case, capsys) == "", "nobody compresses"
    as_an_earlier_release_leaves_it(case)
    execute(
        case.server,
        case.database,
        "SET SESSION binlog_transaction_compression = ON",
        "INSERT INTO t VALUES (2, REPEAT('b', 500))",
    )
    assert TOLD in opened_as_by_run(case, capsys)


def test_job_of_an_earlier_release_is_told_of_labels_it_read_wrongly(
    source_server: SqlServer, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(source_server, database, r"CREATE TABLE t (id INT PRIMARY KEY, e ENUM('c\\d', 'x'))")
    case = JobCase(source_server, tmp_path, database, "t")
    assert opened_as_by_run(case, capsys) == ""
    as_an_earlier_release_leaves_it(case)
    with_labels_as_listed(tmp_path / "state" / "case" / "jobs")
    assert "wrote labels of e wrongly" in opened_as_by_run(case, capsys)
    assert opened_as_by_run(case, capsys) == ""


def with_labels_as_listed(jobs: Path) -> None:
    """Store the label as earlier releases did, with the escape that the server lists it with."""
    stored = DeltaTable(str(jobs)).to_pyarrow_table()
    texts = [text.replace(r"c\\d", r"c\\\\d") for text in stored["definition"].to_pylist()]
    changed = stored.set_column(stored.column_names.index("definition"), "definition", pa.array(texts))
    assert changed != stored
    write_deltalake(str(jobs), changed, mode="overwrite")


@pytest.mark.long
def test_copy_of_an_earlier_release_is_told_of_by_the_job_that_follows_it(
    mysql_server: MySqlServer, tmp_path: Path
) -> None:
    """What `run` prints, and the hint followed."""
    with source_on(mysql_server, tmp_path, rows=200) as source:
        source.job("copy", {"startup_mode": "snapshot"}).run()
        follow = source.job("follow", {"startup_mode": "specific", "specific": {"from_job": "copy"}})
        shutil.rmtree(tmp_path / "state" / "copy" / "notices")
        execute(mysql_server, None, "SET GLOBAL binlog_transaction_compression = ON")
        try:
            assert TOLD in follow.run("--until", "live")
            assert TOLD not in follow.run("--until", "live")
        finally:
            execute(mysql_server, None, "SET GLOBAL binlog_transaction_compression = OFF")
        assert json.loads(follow.command("verify", "--json"))["equal"] is True
