"""Tables are added to a job and removed from it by command, while it runs and while it does not; rows are compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devkit.mysql import MySqlServer
from devkit.waiting import wait_for
from progress.faces.terminal import status_text
from tests.system.job.tables.many_tables import ROWS, Here, Tables
from tests.system.job.tables.test_tables_watched import Watched
from tests.system.job_case import execute
from vnode_backfill.commands.cli import execute as command
from vnode_backfill.commands.tables.status import find_tables_report
from vnode_backfill.job.tables import open as opening

Tell = Callable[..., str]


DATABASE = "tables_chosen"


@pytest.fixture
def case(mysql_server: MySqlServer, tmp_path: Path) -> Iterator[Tables]:
    """Four tables, of which the file means those whose names begin with t or n."""
    execute(mysql_server, None, f"CREATE DATABASE {DATABASE}")
    patterns = [f"{DATABASE}.t*", f"{DATABASE}.n*"]
    found = Tables(mysql_server, tmp_path, DATABASE, mysql={"tables": patterns})
    for name, shape in {"numbers": "numbers", "texts": "texts", "pairs": "pairs", "days": "days"}.items():
        found.create(name, shape)
    execute(mysql_server, DATABASE, "CREATE TABLE keyless (a INT)", "CREATE VIEW seen AS SELECT * FROM pairs")
    yield found
    execute(mysql_server, None, f"DROP DATABASE {DATABASE}")


@pytest.fixture
def tell(case: Tables, capsys: pytest.CaptureFixture[str]) -> Tell:
    """`tables`, `tables add` or `tables remove`; names of tables are those of the case's database."""

    def told(*words: str, code: int = 0) -> str:
        plain = ("add", "remove", "--json", "--priority", "5")
        named = [word if word in plain else f"{DATABASE}.{word}" for word in words]
        found = command(["tables", "--config", str(case.config), *named])
        printed = capsys.readouterr()
        assert found == code, printed
        return printed.out + printed.err

    return told


def test_tables_come_and_go_while_the_others_stay_live(case: Tables, spark: SparkSession, tell: Tell) -> None:
    with case.written_to():
        with Here(case, spark).running() as here:
            here.until_live("numbers", "texts")
            _refuses_what_cannot_be_added(tell)
            copied = here.table("numbers").table.opened.record.id
            assert "pairs is added: the driver acts on it within seconds" in tell("add", "pairs", "--priority", "5")
            here.until_live("pairs")
            assert here.table("pairs").table.priority == 5
            assert "texts is removed" in tell("remove", "texts")
            wait_for(lambda: "texts" not in _running(here), "texts to leave the job", seconds=120)
            stays = DeltaTable(str(case.lake / "texts")).version()
            tell("add", "days")
            here.until_live("days", "pairs", "numbers")
            assert "texts" not in _running(here), "no pattern brings it back"
            assert here.table("numbers").table.opened.record.id == copied
            assert _listed(tell) == {"days": "live", "numbers": "live", "pairs": "live", "texts": "removed"}
        again = Here(case, spark)
        assert [name.rpartition(".")[2] for name in again.opened.taken_out] == ["texts"]
        assert (again.opened.created, again.opened.removed) == (0, [])
        with again.running():
            again.until_live("days", "pairs", "numbers")
            assert DeltaTable(str(case.lake / "texts")).version() == stays, "a removed table's target stays"
            assert "texts is added, from where it was" in tell("add", "texts")
            again.until_live("texts")
            assert "has" in tell("add", "texts", code=2)
    assert Here(case, spark).run() == {}
    assert case.wrong() == {}


def test_what_is_chosen_while_no_driver_runs_counts_from_the_next_run_on(
    case: Tables, spark: SparkSession, tell: Tell
) -> None:
    del case.shapes["pairs"]
    assert Here(case, spark).run() == {}
    assert "days is added: it counts when the job is run again" in tell("add", "days", "--priority", "5")
    assert "texts is removed: it counts when the job is run again" in tell("remove", "texts")
    assert _listed(tell) == {"days": "added", "numbers": "stopped", "texts": "removed"}
    execute(case.server, DATABASE, "DELETE FROM texts", "UPDATE numbers SET v = 0")
    again = Here(case, spark)
    assert again.opened.taken_out == [f"{DATABASE}.texts"]
    assert (again.opened.created, again.table("days").table.priority) == (1, 5)
    assert again.run() == {}
    assert _listed(tell) == {"days": "stopped", "numbers": "stopped", "texts": "removed"}
    assert case.wrong() == {"texts": ROWS}


def test_a_table_that_is_only_to_be_reported_is_named_until_it_is_added(
    case: Tables, spark: SparkSession, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_LOOK_SECONDS", 0.5)
    case.mysql = {**case.mysql, "new_tables": "report"}
    del case.shapes["pairs"], case.shapes["days"]
    execute(case.server, DATABASE, "CREATE TABLE nokey (a INT)")
    with Watched(case, spark).running() as here:
        here.until_live("numbers", "texts")
        assert _reported(case) == []
        case.create("nights", "numbers")
        wait_for(lambda: _reported(case) == [f"{DATABASE}.nights"], "nights is reported", seconds=120)
        report = find_tables_report(case.loaded_config())
        assert report is not None
        assert f"new        {DATABASE}.nights: not copied, because mysql.new_tables is report" in status_text(report)
        assert _listed(tell) == {"nights": "new", "nokey": "set aside", "numbers": "live", "texts": "live"}
        tell("add", "nights")
        here.until_live("nights")
        wait_for(lambda: _reported(case) == [], "nights is not new any more", seconds=120)
        case.create("towns", "texts")
        wait_for(lambda: _reported(case) == [f"{DATABASE}.towns"], "towns is reported", seconds=120)
    again = Here(case, spark)
    assert (again.opened.reported, again.opened.created) == ((f"{DATABASE}.towns",), 0)
    assert list(again.opened.aside) == [f"{DATABASE}.nokey"], "it is not new, so it is tried again"
    assert again.run() == {}
    del case.shapes["towns"]
    assert case.wrong() == {}


def _reported(case: Tables) -> list[str] | None:
    """What `status` names as new and not copied."""
    report = find_tables_report(case.loaded_config())
    return None if report is None else json.loads(report.to_json())["reported"]


def _refuses_what_cannot_be_added(tell: Tell) -> None:
    assert "the server has no such table" in tell("add", "nothing", code=2)
    assert "the server has no such table" in tell("add", "seen", code=2)
    assert "cannot be copied" in tell("add", "keyless", code=2)
    assert "already" in tell("add", "numbers", code=2)
    assert "is the last table" in tell("remove", "numbers", "texts", code=2)
    assert _listed(tell) == {"numbers": "live", "texts": "live"}


def _running(here: Here) -> set[str]:
    return {table.name.rpartition(".")[2] for table in tuple(here.job.tables)}


def _listed(tell: Tell) -> dict[str, str]:
    found = json.loads(tell("--json"))["tables"]
    return {each["name"].rpartition(".")[2]: each["phase"] for each in found}
