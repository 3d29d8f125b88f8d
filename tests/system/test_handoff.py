"""A copy handed over to a job that follows the log: no gap, no row twice, whatever happens on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, MySqlServer
from devkit.orders import orders_table
from devkit.spark import REPOSITORY
from devkit.writer import Workload
from tests.system.job_case import JobCase
from tests.system.startup_case import Source, config_of, source_on
from vnode_backfill.config import Config, load_config
from vnode_backfill.errors import BackfillError, ConfigError
from vnode_backfill.handoff import check_pair, main, read_handoff, write_handoff
from vnode_backfill.opening import Beginning, examine_source, open_job, open_table

pytestmark = pytest.mark.long

COPY: dict[str, object] = {"startup_mode": "snapshot"}
FOLLOW: dict[str, object] = {"startup_mode": "specific", "specific": {"from_job": "copy"}}
RUNS = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}


@pytest.fixture
def source(mysql_server: MySqlServer, tmp_path: Path) -> Iterator[Source]:
    with source_on(mysql_server, tmp_path, rows=2_000) as source:
        yield source


def writing(source: Source) -> Workload:
    """Changes of every kind, until it is stopped."""
    return Workload(lambda: source.server.connect(source.database), orders_table(source.database), seed=11, rate=150)


def lake_version(source: Source) -> int:
    return DeltaTable(str(source.lake)).version()


def refusal(case: JobCase) -> BackfillError:
    with pytest.raises(BackfillError) as caught:
        open_job(config_of(case), task_slots=None, asked_vnodes=None)
    return caught.value


def test_nothing_is_lost_or_doubled_when_both_halves_are_killed_and_the_writer_never_pauses(source: Source) -> None:
    copy, follow = source.job("copy", COPY), source.job("follow", FOLLOW)
    with writing(source) as writer:
        copy.run(kill="after:CommitReceipts")
        assert "has stored no handoff" in refusal(follow).message
        ended = copy.run()
        assert "vnode-backfill: job copy is complete" in ended
        version = lake_version(source)
        assert "job copy is complete" in copy.run("--until", "stopped")
        assert lake_version(source) == version
        follow.run(kill="before:CommitEpoch:2")
        resumed = follow.run("--until", "live")
        assert "the job goes on from its saved progress at" in resumed
        writer.stop()
    follow.run("--until", "live")
    assert source.differences() == []
    second = source.job("second", FOLLOW)
    assert "was handed over to another job already" in refusal(second).message


def test_the_script_hands_over_and_does_nothing_twice(mariadb_server: MariaDbServer, tmp_path: Path) -> None:
    with source_on(mariadb_server, tmp_path, rows=2_000) as source:
        copy, follow = source.job("copy", COPY), source.job("follow", FOLLOW)
        with writing(source) as writer:
            first = hand_over(copy, follow)
            writer.stop()
        assert first.returncode == 0, first.stderr
        told = json.loads(first.stdout[first.stdout.index("{") :].split("\n}\n")[0] + "\n}")
        assert told == json.loads((tmp_path / "state" / "copy" / "handoff.json").read_text())
        assert (told["job"], told["target"]) == ("copy", f"delta:{source.lake}")
        again = hand_over(copy, follow)
        assert again.returncode == 0, again.stderr
        assert "job copy is complete" in again.stderr
        assert source.differences() == []


def hand_over(copy: JobCase, follow: JobCase) -> subprocess.CompletedProcess[str]:
    script = [str(REPOSITORY / "scripts" / "handoff_backfill_to_cdc.sh")]
    files = ["--backfill", str(copy.config), "--cdc", str(follow.config), "--until", "live", "--quiet"]
    return subprocess.run([*script, *files], env=RUNS, capture_output=True, text=True, timeout=400, check=False)


def test_a_handoff_is_refused_where_it_does_not_fit(
    spark: SparkSession, source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = source.job("copy", COPY)
    assert main(["--config", str(copy.config)]) == 1
    source.to_live(spark, copy)
    config = config_of(copy)
    stored = read_handoff(config, "copy")
    assert stored is not None
    write_handoff(config, stored)
    assert main(["--config", str(copy.config)]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == stored.id

    elsewhere = source.job("elsewhere", FOLLOW, sink={"delta": {"path": str(source.folder / "other")}})
    assert "from_job is copy; the target of that job is" in refusal(elsewhere).message

    latest = source.job("latest", {"startup_mode": "latest"})
    assert examine(latest).start.warnings == ()
    source.insert(5001)
    (warning,) = examine(latest).start.warnings
    left_out = open_table(config).written_offset().pos - stored.offset.pos
    assert f"changes after the handoff of copy at {stored.offset} are left out: {left_out} bytes of log" in warning

    follow = source.job("follow", FOLLOW)
    source.execute("FLUSH BINARY LOGS")
    source.execute(f"PURGE BINARY LOGS TO '{open_table(config).written_offset().file}'")
    gone = refusal(follow)
    assert f"from_job is copy, whose handoff is {stored.offset}; it is no longer held by the server" in gone.message
    source.execute("ALTER TABLE {table} ADD COLUMN extra INT")
    assert "was changed since that job copied it" in refusal(follow).message
    assert not (source.folder / "state" / "follow").exists()


def examine(case: JobCase) -> Beginning:
    beginning = examine_source(config_of(case), task_slots=None).beginning
    assert beginning is not None
    return beginning


def test_latest_after_a_copy_takes_the_target_over(spark: SparkSession, source: Source) -> None:
    copy = source.job("copy", COPY)
    source.to_live(spark, copy)
    stored = read_handoff(config_of(copy), "copy")
    assert stored is not None
    write_handoff(config_of(copy), stored)
    source.insert(5001)
    latest = source.job("latest", {"startup_mode": "latest"})
    source.to_live(spark, latest)
    source.insert(5002)
    source.to_live(spark, latest)
    assert [(str(each.kind), each.key) for each in source.differences()] == [("missing", (5001,))]


def test_two_files_that_are_not_halves_of_one_handoff_are_refused(source: Source) -> None:
    copy, follow = config_of(source.job("copy", COPY)), config_of(source.job("follow", FOLLOW))
    check_pair(copy, follow)
    wrong: list[tuple[Config, Config, str]] = [
        (follow, follow, "mysql.cdc.startup_mode is specific; the job that copies must have snapshot"),
        (copy, copy, "mysql.cdc.specific.from_job is None; the job that follows must have copy"),
        (copy, follow.model_copy(update={"job": "copy"}), "job is copy in both"),
        (copy, other(source, "mysql", {"port": 1}), "mysql.port is"),
        (copy, other(source, "state", {"path": str(source.folder / "elsewhere")}), "state.path is"),
    ]
    for one, two, message in wrong:
        with pytest.raises(ConfigError) as caught:
            check_pair(one, two)
        assert caught.value.message.startswith(message)


def other(source: Source, section: str, values: dict[str, object]) -> Config:
    """The configuration of the job that follows, with something else in one section."""
    follow = load_config(source.folder / "follow" / "job.yaml", {})
    return follow.model_copy(update={section: getattr(follow, section).model_copy(update=values)})
