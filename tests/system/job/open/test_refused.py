"""Exit code 2 means that nothing was written: what can be refused is found first, and `plan` finds it as `run` does."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.mysql import MySqlServer
from tests.hostile_values import SECRET, VALUES, Bench, case, keys
from tests.system.job_case import JobCase, execute

SAMPLED = 8


@pytest.fixture(scope="module")
def database(mysql_server: MySqlServer) -> Iterator[str]:
    """Two tables: of good rows, and of a key that begins with a zero date."""
    name = "refused"
    execute(
        mysql_server, None, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}",
        f"CREATE TABLE {name}.orders (id INT PRIMARY KEY, v INT)", f"INSERT INTO {name}.orders VALUES (1, 1), (2, 2)",
        f"CREATE TABLE {name}.zero (d DATE, n INT, PRIMARY KEY (d, n))",
    )  # fmt: skip
    with mysql_server.connect(name) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute("INSERT INTO zero VALUES ('0000-00-00', 1), ('2020-01-01', 2)")
        connection.commit()
    yield name
    execute(mysql_server, None, f"DROP DATABASE {name}")


def refused(job: JobCase, *flags: str, plan: int = 2) -> str:
    """What `run` printed; it and `plan` have left the folder as it was."""
    assert job.config.exists()
    before = sorted(job.folder.rglob("*"))
    planned, ran = job.command("plan", code=plan), job.run(*flags, code=2)
    assert "Traceback" not in planned + ran
    assert SECRET not in planned + ran
    assert sorted(job.folder.rglob("*")) == before
    return ran


def test_a_page_that_cannot_be_served_is_refused_before_anything_is_written(
    mysql_server: MySqlServer, database: str, tmp_path: Path
) -> None:
    job = JobCase(mysql_server, tmp_path, database, settings={"ui": {"host": "203.0.113.7", "port": 18321}})
    assert "ui.host: cannot listen on 203.0.113.7" in refused(job)


@pytest.mark.parametrize("key", ["state", "sink"])
def test_a_path_that_cannot_become_a_folder_is_refused_before_anything_is_written(
    mysql_server: MySqlServer, database: str, tmp_path: Path, key: str
) -> None:
    below = {"path": f"{tmp_path}/file/x"}
    settings: dict[str, object] = {key: below if key == "state" else {"delta": below}}
    (tmp_path / "file").touch()
    told = refused(JobCase(mysql_server, tmp_path, database, settings=settings))
    assert f"{'state' if key == 'state' else 'sink.delta'}.path is {tmp_path}/file/x" in told
    assert f"it cannot be written\n  detail: {tmp_path}/file is not a folder" in told


@pytest.mark.parametrize("executor", ["parallel", "single"])
def test_a_zero_date_at_the_head_of_the_key_is_refused_before_anything_is_written(
    mysql_server: MySqlServer, database: str, tmp_path: Path, executor: str
) -> None:
    job = JobCase(mysql_server, tmp_path, database, "zero", settings={"executor": executor})
    assert "column `d` of the key holds 0000-00-00" in refused(job)


def test_a_master_that_spark_does_not_know_is_refused_before_anything_is_written(
    mysql_server: MySqlServer, database: str, tmp_path: Path
) -> None:
    job = JobCase(mysql_server, tmp_path, database, settings={"storage": {"options": {"KEY": SECRET}}})
    told = refused(job, "--master", f"local[{SECRET}]", plan=0)
    assert "Spark could not be started\n  detail: org.apache.spark.SparkException: Could not parse Master URL" in told


@pytest.mark.long
@pytest.mark.parametrize("spark", [{"spark.driver.memory": "1k"}, {"spark.driver.extraJavaOptions": "-Xmx1x"}])
def test_a_jvm_that_does_not_start_is_refused_before_anything_is_written(
    mysql_server: MySqlServer, database: str, tmp_path: Path, spark: dict[str, str]
) -> None:
    job = JobCase(mysql_server, tmp_path, database, settings={"spark": spark})
    assert "Spark could not be started" in refused(job, plan=0)


@pytest.mark.long
def test_a_job_that_exists_fails_with_1_where_spark_is_needed_and_cannot_be_started(
    mysql_server: MySqlServer, database: str, tmp_path: Path
) -> None:
    job = JobCase(mysql_server, tmp_path, database)
    job.to_live()
    good = job.loaded_config().spark["spark.driver.memory"].get_secret_value()
    job.use(spark={"spark.driver.memory": "1k"})
    assert "0 differences" in job.command("verify"), "it needs no Spark here"
    assert "Spark could not be started" in job.command("verify", "--master", "nowhere", code=2)
    job.to_live()
    job.command("resnapshot", "--all")
    told = job.run(code=1)
    assert "Spark could not be started" in told
    assert "Traceback" not in told
    job.use(spark={"spark.driver.memory": good})
    job.to_live()
    assert job.differences() == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hostile_value_that_is_accepted_does_no_harm_on_a_real_server(
    mysql_server: MySqlServer, database: str, tmp_path: Path
) -> None:
    """`plan` with each of them ends with a plan, a refusal or an error in words."""
    seed = int(os.environ.get("HOSTILE_SEED") or random.SystemRandom().randrange(2**32))
    print(f"HOSTILE_SEED={seed}")
    chosen = random.Random(seed)
    account = "hostile@'127.0.0.1'"
    execute(
        mysql_server, None, f"DROP USER IF EXISTS {account}", f"CREATE USER {account} IDENTIFIED BY '{SECRET}'",
        f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {account}",
    )  # fmt: skip
    bench = Bench(tmp_path, mysql_server.port, user="hostile", database=database)
    assert bench.plan(case((("vnodes",), "4")))[0] == 0, bench.plan(case((("vnodes",), "4")))
    cases = [(key, value) for key in keys() for value in chosen.sample(VALUES, SAMPLED)]
    faults = [(key, value, fault) for key, value in cases if (fault := bench.judge(case((key, value))))]
    bench.close()
    execute(mysql_server, None, f"DROP USER {account}")
    assert not faults, f"{len(faults)}: {faults[:10]}"
