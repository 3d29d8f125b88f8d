"""One table of many stops, and its hint is followed as it is printed, while the driver runs and the others go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.lake import read_lake
from devkit.mysql import SqlServer
from devkit.waiting import wait_for
from tests.system.job.followed_hints import carry_out
from tests.system.job.tables.many_tables import Here, Tables
from tests.system.job_case import execute, fetch
from vnode_backfill.commands.cli import execute as command
from vnode_backfill.commands.tables.run import ending_lines

pytestmark = pytest.mark.parametrize("source_server", ["mariadb"], indirect=True)


@pytest.fixture
def case(source_server: SqlServer, database: str, tmp_path: Path) -> Tables:
    """Two tables. One of them stops before statements."""
    entries = [{"table": f"{database}.careful", "schema_changes": "stop"}, f"{database}.easy"]
    found = Tables(source_server, tmp_path, database, settings={"vnodes": 4}, mysql={"tables": entries})
    found.create("careful", "numbers", 40)
    found.create("easy", "numbers", 40)
    return found


def hint_of(case: Tables, here: Here, name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The hint that `status` prints of a table; the end of `run` would print the same."""
    capsys.readouterr()
    full = f"{case.database}.{name}"
    assert command(["status", "--config", str(case.config), "--table", full, "--json"]) == 0
    failure = json.loads(capsys.readouterr().out)["failure"]
    assert f"hint: {failure['hint']}" in "\n".join(ending_lines(here.job.tables, here.job.aside))
    assert f"--table {full}`" in failure["hint"]
    assert "A running driver takes it up" in failure["hint"]
    return str(failure["hint"])


def until_stopped(here: Here, name: str, word: str) -> None:
    def stopped() -> bool:
        failure = here.table(name).run.failure
        return failure is not None and word in failure.message

    wait_for(stopped, f"{name} stops at {word}", seconds=120, state=here.shown)


def until_in_lake(case: Tables, name: str, number: int) -> None:
    wait_for(lambda: number in read_lake(case.target_of(name)).column("id").to_pylist(), f"{name} goes on", seconds=120)


def test_hints_are_followed_while_the_driver_runs(
    case: Tables, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """A statement is accepted, and the next one stops the table again. Then a change is logged as a statement."""
    with Here(case, spark).running() as here:
        here.until_live("careful", "easy")
        execute(
            case.server, case.database, "ALTER TABLE careful ADD first INT DEFAULT 7",
            "ALTER TABLE easy ADD first INT DEFAULT 7", "ALTER TABLE careful ADD second INT DEFAULT 8",
            "INSERT INTO careful VALUES (9001, 1, 'later', 1, 1)", "INSERT INTO easy VALUES (9001, 1, 'later', 1)",
        )  # fmt: skip
        until_in_lake(case, "easy", 9001)
        for word in ("first", "second"):
            until_stopped(here, "careful", word)
            words = carry_out(hint_of(case, here, "careful", capsys), case.config)
            assert words[:2] == ["resume", "--accept"]
        here.until_live("careful", "easy")

        execute(
            case.server, case.database, "SET SESSION binlog_format = STATEMENT", "UPDATE easy SET v = 5 WHERE id < 9",
            "SET SESSION binlog_format = ROW", "INSERT INTO easy VALUES (9002, 1, 'after', 1)",
        )  # fmt: skip
        # A statement may change any table, by a trigger or a function. So both stop, and with the last one the driver.
        for name in ("careful", "easy"):
            until_stopped(here, name, "holds changes as a statement")
            hint = hint_of(case, here, name, capsys)
            assert "SET GLOBAL binlog_format = ROW" in hint
            assert carry_out(hint, case.config)[:2] == ["resnapshot", "--all"]
    assert Here(case, spark).run() == {}
    assert case.wrong() == {}


def purge_older_files(case: Tables) -> None:
    """The server keeps a file that somebody reads, and everything after it: a reader of the job may not be done yet."""
    newest = fetch(case.server, None, "SHOW BINARY LOGS")[-1][0]

    def purged() -> bool:
        execute(case.server, None, f"PURGE BINARY LOGS TO '{newest}'")
        return fetch(case.server, None, "SHOW BINARY LOGS")[0][0] == newest

    wait_for(purged, "older files are gone", seconds=120)


def test_a_table_that_could_not_be_opened_is_taken_up_as_its_hint_says(
    case: Tables, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was removed, and the log does not reach back to where it was when it is added again."""
    full = f"{case.database}.easy"
    with Here(case, spark).running() as here:
        here.until_live("careful", "easy")
        assert command(["tables", "remove", full, "--config", str(case.config)]) == 0
        wait_for(lambda: len(here.job.tables) == 1, "easy has left", seconds=120, state=here.shown)
        execute(case.server, case.database, "DELETE FROM easy WHERE id < 9", "FLUSH BINARY LOGS")
        execute(case.server, case.database, "INSERT INTO careful VALUES (9001, 1, 'later')")
        until_in_lake(case, "careful", 9001)
        purge_older_files(case)
        assert command(["tables", "add", full, "--config", str(case.config)]) == 0
        wait_for(lambda: full in here.job.aside, "easy is set aside", seconds=120, state=here.shown)
        wait_for(lambda: full in here.store.aside(), "the reason is stored", seconds=60)
        hint, stored = hint_of(case, here, "easy", capsys), here.store.table(full).load()
        assert stored is not None
        assert stored.state.failure is not None
        assert stored.state.failure.hint == hint
        assert carry_out(hint, case.config) == ["resnapshot", "--all", "--table", full]
        here.until_live("careful", "easy")
        assert here.job.aside == {}
    assert here.failures == {}
    assert case.wrong() == {}
