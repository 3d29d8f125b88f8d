"""What was asked of all tables of a job, and its number of vnodes, hold for tables that join it; rows are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devkit.mysql import MySqlServer
from devkit.waiting import wait_for
from progress.state.backfill_state import BackfillState, Controls
from tests.system.job.tables.many_tables import Here, Tables
from tests.system.job_case import execute
from vnode_backfill.commands.cli import execute as command

Ask = Callable[..., str]

DATABASE = "later_tables"
VNODES, LIMIT = 16, 150
HELD = Controls(paused=True, rows_per_second=LIMIT)


@pytest.fixture
def case(mysql_server: MySqlServer, tmp_path: Path) -> Iterator[Tables]:
    """Two tables that the file means, of whose names more may come, and one that it does not mean."""
    execute(mysql_server, None, f"CREATE DATABASE {DATABASE}")
    patterns = [f"{DATABASE}.n*", f"{DATABASE}.t*"]
    found = Tables(mysql_server, tmp_path, DATABASE, mysql={"tables": patterns}, settings={"workers": 3})
    for name in ("numbers", "texts", "pairs"):
        found.create(name, name)
    yield found
    execute(mysql_server, None, f"DROP DATABASE {DATABASE}")


@pytest.fixture
def ask(case: Tables, capsys: pytest.CaptureFixture[str]) -> Ask:
    """A command of an operator, in this process."""

    def asked(*words: str) -> str:
        found = command([words[0], "--config", str(case.config), *words[1:]])
        printed = capsys.readouterr()
        assert found == 0, printed
        return printed.out

    return asked


def test_a_table_that_joins_is_read_as_all_tables_were_asked_to_be(case: Tables, spark: SparkSession, ask: Ask) -> None:
    with Here(case, spark).running() as here:
        here.until_live("numbers", "texts")
        ask("tables", "remove", f"{DATABASE}.texts")
        ask("rescale", "--workers", "1")
        ask("throttle", "--rows-per-second", str(LIMIT))
        ask("pause")
        ask("throttle", "--rows-per-second", "7", "--table", f"{DATABASE}.numbers")
        ask("tables", "add", f"{DATABASE}.pairs")
        assert _waiting(case, here, "pairs") == (HELD, 1, VNODES)
    _another_number_of_vnodes_is_refused(case)
    case.create("notes", "numbers")
    case.use(vnodes=8, workers=4)
    again = Here(case, spark)
    assert again.opened.created == 1
    with again.running():
        assert _waiting(case, again, "notes") == (HELD, 1, VNODES), "what an edited file says is of a new job"
        assert _waiting(case, again, "pairs") == (HELD, 1, VNODES)
        ask("tables", "add", f"{DATABASE}.texts")
        wait_for(lambda: _as_asked(_state(again, "texts")) == (HELD, 1, VNODES), "texts is asked too", seconds=120)
        ask("resume")
        again.until_live("notes", "pairs", "texts", "numbers")
        ask("throttle", "--off")
        case.create("toes", "numbers")
        ask("tables", "add", f"{DATABASE}.toes")
        again.until_live("toes")
        assert _as_asked(_state(again, "toes")) == (Controls(), 1, VNODES)
    assert list((case.lake / "pairs").glob("*.parquet")), "where rows would have been"
    case.run("--until", "live", "--workers", "2")
    assert [each.request.workers for each in again.store.asked_of_every()] == [0, 0, 2]
    assert {name: len(_state(again, name).assignment) for name in case.shapes} == dict.fromkeys(case.shapes, 2)
    assert case.wrong() == {}


def _waiting(case: Tables, here: Here, name: str) -> tuple[Controls, int, int]:
    """How a table is read that is not to be read: its log is captured, and none of its rows is taken."""
    wait_for(lambda: f"{DATABASE}.{name}" in here.store.names(), f"{name} joins", seconds=120, state=here.shown)
    before = _state(here, name).epoch
    execute(case.server, DATABASE, f"UPDATE {name} SET v = v + 1 ORDER BY v LIMIT 1")
    wait_for(lambda: _state(here, name).epoch >= before + 1, f"an epoch of {name}", seconds=120, state=here.shown)
    state = _state(here, name)
    assert (state.rows, list((case.lake / name).glob("*.parquet"))) == (0, [])
    return _as_asked(state)


def _state(here: Here, name: str) -> BackfillState:
    loaded = here.store.table(f"{DATABASE}.{name}").load()
    assert loaded is not None
    return loaded.state


def _as_asked(state: BackfillState) -> tuple[Controls, int, int]:
    return state.controls, len(state.assignment), len(state.vnodes)


def _another_number_of_vnodes_is_refused(case: Tables) -> None:
    def commits() -> int:
        return DeltaTable(case.folder / "state" / "case" / "checkpoints").version()

    before = commits()
    assert f"job case has {VNODES} vnodes; --vnodes 8 cannot change that" in case.run("--vnodes", "8", code=2)
    assert commits() == before
