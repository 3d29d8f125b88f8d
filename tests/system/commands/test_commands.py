"""The commands as a user meets them: their exit codes, what they print, what they write, and how they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from devkit.lake import read_lake
from devkit.mysql import MySqlServer
from devkit.orders import create_orders_table
from devkit.spark import REPOSITORY
from devkit.waiting import wait_for
from progress.state.report import JobPhase
from tests.system.job_case import COPIER, DEADLINE, JobCase, Started, create_copier, execute
from vnode_backfill.config.job import MergeMode

ROWS = 1_500
BITMAPS = ("0=0-2,9", "1=3-8", "2=10-15")
SUBMIT = Path(sys.executable).with_name("spark-submit")
STATUS_KEYS = {
    "version", "job", "source", "sink", "phase", "percent", "rows", "estimated_rows", "ranges", "ranges_total",
    "rows_per_second", "eta_seconds", "lag_seconds", "lag_bytes", "buffer_bytes", "rate_limit", "paused",
    "throttled_by", "epoch", "revision", "written", "applied", "driver", "phases", "workers", "requests", "failure",
    "retry", "in_hand", "planning", "lake_age_seconds", "lengthened", "target", "definition",
}  # fmt: skip


@pytest.fixture(scope="module")
def shop(mysql_server: MySqlServer) -> Iterator[str]:
    """A database with a small table of orders, and an account whose password the server's default plugin checks."""
    execute(mysql_server, None, "DROP DATABASE IF EXISTS commands", "CREATE DATABASE commands")
    with mysql_server.connect() as connection:
        create_orders_table(connection, ROWS, 3, database="commands", key_step=2)
    create_copier(mysql_server, "WITH caching_sha2_password BY 'geheim'")
    yield "commands"
    execute(mysql_server, None, "DROP DATABASE commands", f"DROP USER {COPIER}@'127.0.0.1'")


def case_of(server: MySqlServer, folder: Path, **settings: object) -> JobCase:
    return JobCase(server, folder, "commands", settings={"limits": {"range_rows": 200, "backoff": "200ms"}, **settings})


@pytest.fixture(scope="module")
def copied(mysql_server: MySqlServer, shop: str, tmp_path_factory: pytest.TempPathFactory) -> JobCase:
    """A job that spark-submit ran in a folder that is not the project's: it went live, was rescaled by bitmaps and
    stopped.

    Its file names another number of vnodes than its command line.
    """
    folder = tmp_path_factory.mktemp("submitted")
    case = case_of(mysql_server, folder, vnodes=64)
    with submitted(case, "run", "--config", str(case.config), "--vnodes", "16", "--quiet") as driver:
        case.wait_for_phase(JobPhase.LIVE, driver)
        case.command("rescale", *(word for bitmap in BITMAPS for word in ("--bitmap", bitmap)))
        execute(mysql_server, "commands", "UPDATE orders SET flag = 2 WHERE id % 5 = 0")
        wait_for(lambda: len(case.report().workers) == len(BITMAPS), "the job to be rescaled", seconds=DEADLINE)
        execute(mysql_server, "commands", "UPDATE orders SET flag = 3 WHERE id % 7 = 0")
        case.command("stop")
        driver.wait(0)
    return case


@contextmanager
def submitted(case: JobCase, *words: str) -> Iterator[Started]:
    """The command by spark-submit, in the job's own folder; it is killed at the end of the block if it still runs."""
    folder = case.folder
    (folder / "events").mkdir()
    conf = {
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file:{folder}/events", "spark.ui.enabled": "false",
        "spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false",
    }  # fmt: skip
    flags = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    environment = case.process_environment()
    # Nothing may help it to find its own package.
    del environment["PYTHONPATH"]
    launcher = str(REPOSITORY / "vnode_backfill" / "__main__.py")
    line = [str(SUBMIT), "--master", "local[3]", *flags, launcher, *words]
    output = folder / "printed"
    with output.open("w") as file:
        process = subprocess.Popen(line, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield Started(process, output)
    finally:
        process.kill()
        process.wait()


def test_submitted_job_is_rescaled_by_bitmaps_while_it_is_live(copied: JobCase) -> None:
    report = copied.report()
    assert [str(worker.bitmap) for worker in report.workers] == [bitmap.partition("=")[2] for bitmap in BITMAPS]
    assert copied.differences() == []


def test_submitted_job_warns_of_a_master_with_too_few_task_slots(copied: JobCase) -> None:
    printed = (copied.folder / "printed").read_text()
    assert "warning: Spark has 3 task slots for 2 workers, 2 log readers and the merge, which need 5" in printed
    assert "hint: --master local[5]" in printed


def test_submitted_job_keeps_the_master_it_was_given(copied: JobCase) -> None:
    (events,) = (path for path in (copied.folder / "events").iterdir() if not path.name.startswith("."))
    documents = (json.loads(line) for line in events.read_text().splitlines())
    settings = [found["Spark Properties"] for found in documents if found["Event"] == "SparkListenerEnvironmentUpdate"]
    assert {each["spark.master"] for each in settings} == {"local[3]"}
    # Tasks run here, so nobody else has to reach its ports.
    assert {each["spark.driver.bindAddress"] for each in settings} == {"127.0.0.1"}
    assert copied.differences() == []


def test_status_prints_its_documented_schema(copied: JobCase) -> None:
    found = copied.status()
    assert set(found) == STATUS_KEYS
    assert (found["version"], found["phase"], found["percent"], found["rows"]) == (1, "stopped", 100.0, ROWS)
    assert found["phases"] == {"pending": 0, "snapshot": 0, "catch-up": 0, "live": 16}
    assert (found["driver"], found["failure"]) == ("", None)
    vnodes = json.loads(copied.command("status", "--json", "--per-vnode"))["vnodes"]
    assert [vnode["vnode"] for vnode in vnodes] == list(range(16))
    assert "100.00 %" in copied.command("status")


def test_vnode_count_of_a_job_cannot_be_changed(copied: JobCase) -> None:
    printed = copied.run("--vnodes", "32", code=2)
    assert "has 16 vnodes; --vnodes 32 cannot change that" in printed
    assert copied.report().phase is JobPhase.STOPPED


def test_wrong_configuration_is_refused_with_its_path(copied: JobCase, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(copied.config.read_text().replace('"200ms"', '"200"'))
    for name in ("plan", "run", "status", "verify"):
        done = subprocess.run(
            [sys.executable, "-m", "vnode_backfill", name, "--config", wrong], cwd=REPOSITORY, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, "epoch.live" in done.stderr) == (2, True), done.stderr


def test_status_of_a_job_that_does_not_exist_fails(mysql_server: MySqlServer, shop: str, tmp_path: Path) -> None:
    assert "there is no job case" in case_of(mysql_server, tmp_path).command("status", code=1)


def test_plan_writes_nothing(mysql_server: MySqlServer, shop: str, tmp_path: Path) -> None:
    case = case_of(mysql_server, tmp_path)
    config = case.config
    assert "rows in 8 ranges" in case.command("plan")
    found = json.loads(case.command("plan", "--json"))
    assert (found["version"], found["plan"]["ranges"], found["plan"]["vnodes"]) == (1, 8, 16)
    (slots,) = (each for each in found["findings"] if each["check"] == "spark.task_slots")
    assert (slots["level"], slots["fix"]) == ("ok", "")
    told = {each["check"]: each["fact"] for each in found["findings"]}
    # `pytest --merge rewrite` asks for the other way.
    if case.loaded_config().merge_mode is MergeMode.VECTORS:
        assert "deletion vectors" in told["target.merge"]
        assert "within 6h about" in told["target.disk"]
    assert list(tmp_path.iterdir()) == [config]


def test_plan_warns_of_a_master_with_too_few_task_slots(mysql_server: MySqlServer, shop: str, tmp_path: Path) -> None:
    case = case_of(mysql_server, tmp_path)
    assert "Spark has 2 task slots for 2 workers, 2 log readers and the merge, which need 5" in case.command(
        "plan", "--master", "local[2]"
    )


def test_table_without_a_key_is_refused_by_plan_and_run(mysql_server: MySqlServer, shop: str, tmp_path: Path) -> None:
    execute(mysql_server, "commands", "CREATE TABLE keyless (a INT)")
    case = JobCase(mysql_server, tmp_path, "commands", "keyless")
    config = case.config
    for name in ("plan", "run"):
        assert "key" in case.command(name, code=2)
    assert list(tmp_path.iterdir()) == [config]


def test_verify_finds_what_was_planted_and_nothing_else(copied: JobCase) -> None:
    lake = str(copied.lake)
    exact = DeltaTable(lake).version()
    table = DeltaTable(lake)
    table.delete("id = 11")
    table.update({"amount": "amount + 1"}, predicate="id = 21")
    rows = read_lake(lake)
    row = pa.Table.from_pylist([rows.filter(pc.field("id") == 31).to_pylist()[0] | {"id": 32}], schema=rows.schema)
    write_deltalake(lake, row, mode="append")
    printed = copied.command("verify", "--json", code=1)
    DeltaTable(lake).restore(exact)
    found = json.loads(printed.strip().splitlines()[-1])
    assert {(each["kind"], *each["key"]) for each in found["differences"]} == {
        ("missing", "11"), ("different", "21"), ("extra", "32"),
    }  # fmt: skip
    assert copied.differences() == []


def test_sigterm_ends_a_run_at_a_checkpoint_that_holds_everything(
    mysql_server: MySqlServer, shop: str, tmp_path: Path
) -> None:
    case = case_of(mysql_server, tmp_path)
    case.mysql = {"user": COPIER, "password_env": "COPIER_PASSWORD"}
    case.environment = {"COPIER_PASSWORD": "geheim"}
    with case.started("run") as job:
        case.wait_for_phase(JobPhase.LIVE, job)
        execute(
            mysql_server, "commands", "UPDATE orders SET flag = 1 WHERE id < 100", "DELETE FROM orders WHERE id = 101"
        )
        job.send(signal.SIGTERM)
        job.wait(0)
    report = case.report()
    assert (report.phase, report.applied, report.failure) == (JobPhase.STOPPED, report.written, None)
    assert case.differences() == []


def test_statement_stops_a_job_that_is_to_stop_with_a_reason_that_status_shows(
    mysql_server: MySqlServer, shop: str, tmp_path: Path
) -> None:
    execute(
        mysql_server, "commands", "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)"
    )
    case = JobCase(mysql_server, tmp_path, "commands", "t", settings={"schema_changes": "stop"})
    with case.started("run") as job:
        case.wait_for_phase(JobPhase.LIVE, job)
        execute(mysql_server, "commands", "ALTER TABLE t ADD COLUMN w INT FIRST", "INSERT INTO t VALUES (7, 3, 3)")
        printed = job.wait(1)
    assert "ALTER TABLE" in printed
    report = case.report()
    assert report.phase is JobPhase.FAILED
    assert report.failure is not None
    assert report.failure.message in printed
    assert "the job stops before the statement at" in case.command("status")
    assert "ALTER TABLE t ADD COLUMN w INT FIRST" in case.run(code=1)
