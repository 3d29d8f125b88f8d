"""A table without changes costs no epochs, and is there at once when it is changed, altered, asked or crashed with."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from devkit.waiting import wait_for
from progress.state.report import JobPhase
from progress.store.tables_store import TablesStore
from tests.system.job.tables.many_tables import Here, Tables, fresh
from tests.system.job_case import execute
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.job.tables.parts import part_config
from vnode_backfill.words.table_name import TableName

IDLE = ("texts", "pairs", "days")


@pytest.fixture
def case(source_server: SqlServer, database: str, tmp_path: Path) -> Tables:
    case = fresh(source_server, database, tmp_path, epoch={"backfill": "1s", "live": "100ms"})
    case.create("busy", "numbers")
    for shape in IDLE:
        case.create(shape, shape)
    return case


def rest(case: Tables, here: Here, *names: str) -> None:
    """Write to one table until the others rest."""

    def all_rest() -> bool:
        execute(case.server, case.database, "UPDATE busy SET v = v + 1 WHERE id = 1")
        return all(here.table(name).reached is not None for name in names)

    wait_for(all_rest, "tables rest", seconds=120, state=here.shown)


def highest(case: Tables, name: str) -> int:
    table = DeltaTable(str(case.lake / name))
    rows = pa.table(QueryBuilder().register("t", table).execute("SELECT MAX(v) AS m FROM t").read_all())
    return int(rows["m"][0].as_py())


def test_a_resting_table_has_no_epochs_and_is_followed_when_it_is_changed_or_altered(
    case: Tables, spark: SparkSession
) -> None:
    with Here(case, spark).running() as here:
        here.until_live()
        rest(case, here, *IDLE)
        revisions = {name: here.table(name).run.coordinator.saved.revision for name in IDLE}
        reached = here.table("texts").captured
        execute(case.server, case.database, "UPDATE busy SET v = 5000 WHERE id = 2")
        wait_for(lambda: highest(case, "busy") == 5000, "busy is followed", seconds=120)
        wait_for(lambda: here.table("texts").captured > reached, "the log is read for texts too", seconds=120)
        assert {name: here.table(name).run.coordinator.saved.revision for name in IDLE} == revisions
        execute(
            case.server, case.database, "UPDATE texts SET v = 7000 WHERE v = 1",
            "ALTER TABLE pairs ADD COLUMN added INT DEFAULT 7", "UPDATE pairs SET added = 8 WHERE v < 50",
        )  # fmt: skip
        wait_for(lambda: highest(case, "texts") == 7000, "texts is followed", seconds=120)
        wait_for(lambda: "added" in DeltaTable(str(case.lake / "pairs")).schema().to_json(), "pairs", seconds=120)
        assert here.table("days").run.coordinator.saved.revision == revisions["days"]
    assert here.failures == {}
    assert case.wrong() == {}
    stopped = {table.run.coordinator.saved.lowest_applied for table in here.job.tables}
    assert len(stopped) == 1


def test_where_resting_tables_are_is_stored_and_a_request_wakes_one(case: Tables, spark: SparkSession) -> None:
    with Here(case, spark).running() as here:
        here.until_live()
        rest(case, here, *IDLE)
        before = here.table("days").run.coordinator.saved.written

        def noted() -> bool:
            execute(case.server, case.database, "UPDATE busy SET v = v + 1 WHERE id = 1")
            return written(case) > before.order

        wait_for(noted, "what rests is stored", seconds=120)
        part = part_config(case.loaded_config(), TableName(case.database, "days"))
        assert resnapshot(part, only=None, where_key=None, everything=True) == 0
        copy = here.table("days").run.coordinator.saved.revision
        wait_for(lambda: here.table("days").run.coordinator.saved.revision > copy, "days is asked", seconds=120)
        here.until_live()
    assert here.failures == {}
    assert case.wrong() == {}


@pytest.mark.parametrize("times", [4, pytest.param(40, marks=pytest.mark.long)])
def test_changes_of_resting_tables_right_before_a_stop_are_not_lost(
    case: Tables, spark: SparkSession, times: int
) -> None:
    """A look at the log may be about to begin when the stop wakes its table, and ends where the table's epoch ends."""
    for number in range(times):
        with Here(case, spark).running() as here:
            here.until_live()
            rest(case, here, *IDLE)
            changes = [f"UPDATE {name} SET v = {9000 + number} WHERE v = {number + 1}" for name in IDLE]
            execute(case.server, case.database, *changes, "UPDATE busy SET v = v + 1 WHERE id = 3")
        assert here.failures == {}
        assert case.wrong() == {}


@pytest.mark.long
def test_what_happens_to_resting_tables_around_a_kill_is_not_lost(case: Tables, spark: SparkSession) -> None:
    with case.started("run") as process:

        def stored_beyond(offset: tuple[int, int]) -> bool:
            process.check_running()
            execute(case.server, case.database, "UPDATE busy SET v = v + 1 WHERE id = 1")
            return written(case) > offset

        case.wait_for_phase(JobPhase.LIVE, process)
        # What only resting moves on: the state of days is not written for a change of busy.
        for _ in range(3):
            before = written(case)
            wait_for(lambda before=before: stored_beyond(before), "what rests is stored", seconds=240)  # type: ignore[misc]
        execute(case.server, case.database, "UPDATE texts SET v = 7000 WHERE v = 1")
        process.send(signal.SIGKILL)
        process.process.wait(60)
    execute(
        case.server, case.database, "UPDATE days SET v = 7000 WHERE v = 1", "DELETE FROM pairs WHERE v < 10",
        "UPDATE busy SET v = 9 WHERE id = 9",
    )  # fmt: skip
    assert Here(case, spark).run() == {}
    assert case.wrong() == {}
    assert (highest(case, "texts"), highest(case, "days")) == (7000, 7000)


def written(case: Tables) -> tuple[int, int]:
    config = case.loaded_config()
    loaded = TablesStore(config.state.path, config.job).table(f"{case.database}.days").load()
    assert loaded is not None
    return loaded.state.written.order


def test_with_a_lag_changes_wait_for_others_unless_there_are_many(case: Tables, spark: SparkSession) -> None:
    case.settings = {**case.settings, "epoch": {"backfill": "1s", "live": "100ms", "lag": "1h"}}
    with Here(case, spark).running() as here:
        here.until_live()
        rest(case, here, *IDLE, "busy")
        execute(
            case.server, case.database, "UPDATE texts SET v = 7000 WHERE v = 1",
            "INSERT INTO days SELECT DATE_ADD('2200-01-01', INTERVAL a.v + 400 * b.v DAY), a.v FROM days a JOIN days b "
            "ON b.v <= 30 AND a.v <= 400",
        )  # fmt: skip
        # What is worth a commit lets all that wait have theirs.
        wait_for(lambda: rows(case, "days") > 10_000, "days is followed", seconds=120, state=here.shown)
        wait_for(lambda: highest(case, "texts") == 7000, "texts is followed with it", seconds=120, state=here.shown)
        rest(case, here, *IDLE, "busy")
        revision = here.table("texts").run.coordinator.saved.revision
        execute(case.server, case.database, "UPDATE texts SET v = 8000 WHERE v = 2")
        wait_for(lambda: here.table("texts").waiting > 0, "texts waits", seconds=120)
        assert (here.table("texts").run.coordinator.saved.revision, highest(case, "texts")) == (revision, 7000)
    assert highest(case, "texts") == 8000
    assert here.failures == {}
    assert case.wrong() == {}


def rows(case: Tables, name: str) -> int:
    table = DeltaTable(str(case.lake / name))
    return int(
        pa.table(QueryBuilder().register("t", table).execute("SELECT COUNT(*) AS n FROM t").read_all())["n"][0].as_py()
    )
