"""A copy handed over to a job that follows the log: no gap, no row twice, whatever happens on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devkit.comparer import compare_delta
from devkit.lake import read_lake
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.orders import create_orders_table, orders_table
from devkit.spark import REPOSITORY
from devkit.waiting import wait_for
from devkit.writer import Workload
from tests.system.job.open.startup_case import Source, config_of, source_on
from tests.system.job_case import JobCase
from vnode_backfill.commands.cli import execute as execute_command
from vnode_backfill.config.job import Config, MergeMode, load_config
from vnode_backfill.job.open.begin import Beginning
from vnode_backfill.job.open.examine import examine_source
from vnode_backfill.job.open.handoff import check_pair, read_handoff, write_handoff
from vnode_backfill.job.open.open import open_job
from vnode_backfill.job.open.source import open_table
from vnode_backfill.words.errors import BackfillError, ConfigError, StateError

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
    table = orders_table(source.database)
    return Workload(lambda: source.server.connect(source.database), table, seed=11, rate=150, large_rows=100)


def lake_version(source: Source) -> int:
    return DeltaTable(str(source.lake)).version()


def refusal(case: JobCase) -> BackfillError:
    with pytest.raises(BackfillError) as caught:
        open_job(config_of(case), asked_vnodes=None)
    return caught.value


@pytest.mark.parametrize("merge", MergeMode)
def test_nothing_is_lost_or_doubled_when_both_halves_are_killed_and_the_writer_never_pauses(
    source: Source, merge: MergeMode
) -> None:
    sink = {"delta": {"path": str(source.lake), "merge": merge}}
    copy, follow = source.job("copy", COPY, sink=sink), source.job("follow", FOLLOW, sink=sink)
    with writing(source) as writer:
        copy.run(kill="after:CommitReceipts")
        assert "has stored no handoff" in refusal(follow).message
        ended = copy.run()
        assert "vnode-backfill: job copy is complete" in ended
        version = lake_version(source)
        assert (source.lake / "_dv").exists() == (merge is MergeMode.VECTORS), "rows have changed during the copy"
        assert "job copy is complete" in copy.run("--until", "stopped")
        assert lake_version(source) == version
        follow.run(kill="before:CommitEpoch:2")
        resumed = follow.run("--until", "live")
        assert "the job continues from its saved progress at" in resumed
        writer.stop()
    follow.run("--until", "live")
    assert source.differences() == []
    second = refusal(source.job("second", FOLLOW))
    assert "was handed over to another job already" in second.message
    assert second.exit_code == 2
    assert not (source.folder / "state" / "second").exists()


def test_a_kill_at_the_turning_points_changes_nothing(mariadb_server: MariaDbServer, tmp_path: Path) -> None:
    with source_on(mariadb_server, tmp_path, rows=2_000) as source:
        copy, follow = source.job("copy", COPY), source.job("follow", FOLLOW)
        with writing(source) as writer:
            copy.run(kill="before:WriteHandoff")
            stored = read_handoff(config_of(copy), "copy")
            assert stored is not None
            assert not (tmp_path / "state" / "copy" / "handoff.json").exists()
            follow.run(kill="before:CreateJob")
            assert examine(follow).first == stored.offset
            follow.run(kill="after:MergeEpoch")
            follow.run("--until", "live")
            writer.stop()
        follow.run("--until", "live")
        assert source.differences() == []
        assert "job copy is complete" in copy.run()
        assert json.loads((tmp_path / "state" / "copy" / "handoff.json").read_text())["id"] == stored.id


@pytest.mark.parametrize("make", [MySqlServer, MariaDbServer])
def test_hours_between_the_halves_and_between_runs_leave_nothing_out(
    spark: SparkSession, make: type[SqlServer], tmp_path: Path
) -> None:
    with make() as server, source_on(server, tmp_path, rows=300) as source:
        source.to_live(spark, source.job("copy", COPY))
        follow = source.job("follow", FOLLOW)
        pass_time(source, 5001)
        source.to_live(spark, follow)
        assert source.differences() == []
        pass_time(source, 6001)
        source.to_live(spark, follow)
        assert source.differences() == []


def pass_time(source: Source, first: int) -> None:
    """The log goes on in other files, changes in each of them, and the server is started anew."""
    for step in range(3):
        source.insert(first + 2 * step, first + 2 * step + 1)
        source.execute("FLUSH BINARY LOGS", f"UPDATE {{table}} SET flag = {step} WHERE id % 7 = {step}")
        source.execute(f"DELETE FROM {{table}} WHERE id = {first + 2 * step}")
    source.server.restart()
    source.insert(first + 10)


def test_a_handoff_is_refused_on_a_server_that_does_not_have_its_transactions(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    source.to_live(spark, source.job("copy", COPY))
    stored = read_handoff(config_of(source.job("copy", COPY, file="again")), "copy")
    assert stored is not None
    with MySqlServer() as other:
        with other.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {source.database}")
            create_orders_table(connection, 10, 7, database=source.database)
        moved = Source(other, source.database, tmp_path).job("follow", FOLLOW)
        refused = refusal(moved)
    told = f"mysql.cdc.specific.from_job is copy, whose handoff is {stored.offset}; it holds transactions that the server does not"
    assert told in refused.message
    assert refused.exit_code == 2
    assert not (tmp_path / "state" / "follow").exists()


def test_the_script_may_be_stopped_and_killed_in_the_middle(source: Source) -> None:
    copy = source.job("copy", COPY, limits={"rows_per_second": 300, "range_rows": 100})
    follow = source.job("follow", FOLLOW)
    with writing(source) as writer:
        stopped = interrupt(copy, follow, signal.SIGTERM)
        assert stopped == 1
        assert read_handoff(config_of(copy), "copy") is None
        assert interrupt(copy, follow, signal.SIGKILL) == -signal.SIGKILL
        assert execute_command(["throttle", "--config", str(copy.config), "--off"]) == 0
        last = hand_over(copy, follow)
        writer.stop()
    assert last.returncode == 0, last.stderr
    assert "the job continues from its saved progress at" in last.stderr
    assert hand_over(copy, follow).returncode == 0
    assert source.differences() == []


def interrupt(copy: JobCase, follow: JobCase, number: signal.Signals) -> int:
    """Send the script a signal while it copies.

    SIGKILL to everything it started as well, as the end of a machine would.
    """
    output = copy.folder / f"script-{number.name}.log"
    before = ranges_read(copy)
    with output.open("w") as file:
        script = subprocess.Popen(
            script_words(copy, follow), env=RUNS, stdout=file, stderr=file, start_new_session=True
        )
    try:
        wait_for(
            lambda: ranges_read(copy) > before or script.poll() is not None, "some ranges to be read", seconds=300,
            state=output.read_text,
        )  # fmt: skip
        assert script.poll() is None, output.read_text()
        if number is signal.SIGKILL:
            os.killpg(script.pid, number)
        else:
            script.send_signal(number)
        return script.wait(300)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)


def ranges_read(case: JobCase) -> int:
    try:
        return case.report().ranges
    except StateError:
        return 0


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
    words = script_words(copy, follow)
    return subprocess.run(words, env=RUNS, capture_output=True, text=True, timeout=400, check=False)


def script_words(copy: JobCase, follow: JobCase) -> list[str]:
    script = str(REPOSITORY / "scripts" / "handoff_backfill_to_cdc.sh")
    return [script, "--backfill", str(copy.config), "--cdc", str(follow.config), "--until", "live", "--quiet"]


def test_a_handoff_is_refused_where_it_does_not_fit(
    spark: SparkSession, source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = source.job("copy", COPY)
    assert execute_command(["handoff", "--config", str(copy.config)]) == 1
    source.to_live(spark, copy)
    config = config_of(copy)
    stored = read_handoff(config, "copy")
    assert stored is not None
    write_handoff(config, stored)
    capsys.readouterr()
    assert execute_command(["handoff", "--config", str(copy.config)]) == 0
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
    source.purge_to(open_table(config).written_offset().file)
    gone = refusal(follow)
    assert f"from_job is copy, whose handoff is {stored.offset}; it is no longer held by the server" in gone.message
    source.execute("ALTER TABLE {table} ADD COLUMN extra INT")
    assert "was changed since that job copied it" in refusal(follow).message
    assert gone.exit_code == 2
    assert not (source.folder / "state" / "follow").exists()


def examine(case: JobCase) -> Beginning:
    beginning = examine_source(config_of(case)).beginning
    assert beginning is not None
    return beginning


def test_job_that_takes_over_a_target_with_a_dropped_column_writes_around_it(source: Source) -> None:
    copy, follow = source.job("copy", COPY), source.job("follow", FOLLOW)
    copy.run(kill="after:CommitReceipts")
    source.execute("ALTER TABLE {table} DROP COLUMN score")
    copy.run()
    source.execute("UPDATE {table} SET flag = 5 WHERE id % 7 = 0", "DELETE FROM {table} WHERE id % 11 = 0")
    follow.run("--until", "live")
    source.execute("ALTER TABLE {table} ADD later INT DEFAULT 3", "UPDATE {table} SET later = 4 WHERE id % 5 = 0")
    follow.run("--until", "live")
    rows = read_lake(source.lake)
    assert "score" in rows.column_names
    with source.server.connect() as connection:
        assert (
            compare_delta(connection, source.database, "orders", ("id",), source.lake, ignore_columns=("score",)) == []
        )


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
