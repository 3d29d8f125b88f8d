"""Forty tables of every key kind in one job stay exact through kills, a rescale, and tables that come, go and fail.

Transactions over several tables are written all the time. One table has half a million rows, one has none, one has a
single row, and one is refused. Every row of every table is compared at the end.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from devkit.waiting import wait_for
from tests.system.job.tables.many_tables import ALL_SHAPES, Here, Tables, fresh
from tests.system.job_case import execute
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.job.tables.parts import part_config
from vnode_backfill.words.table_name import TableName

KILLS = (
    "after:ReadRanges:3", "before:CommitReceipts:9", "after:CommitReceipts:5", "before:BufferChanges:20",
    "after:BufferChanges:40", "before:CommitEpoch:30", "after:CommitEpoch:60", "before:MergeEpoch:9", "after:MergeEpoch:9",
)  # fmt: skip
"""Each is met by a driver that continues what the one before it has left."""
LARGE_ROWS = 500_000


@pytest.fixture
def forty(source_server: SqlServer, database: str, tmp_path: Path) -> Tables:
    case = fresh(source_server, database, tmp_path, vnodes=32, workers=4)
    for number in range(3):
        for shape in ALL_SHAPES:
            case.create(f"{shape}_{number}", shape)
    case.create("empty", "numbers", 0)
    case.create("one", "texts", 1)
    case.create("huge", "numbers", 0)
    # Not in one transaction over all: each is as long as a writer's might be.
    for block in range(4):
        execute(
            source_server, database,
            "INSERT INTO huge SELECT k, k, CONCAT('row ', k) FROM (SELECT a.id + 400 * (b.id - 1) + "
            f"{160_000 * block} AS k FROM numbers_0 a, numbers_0 b) n WHERE k <= {LARGE_ROWS}",
        )  # fmt: skip
    execute(source_server, database, "CREATE TABLE keyless (a INT)", "ANALYZE TABLE huge")
    assert len(case.shapes) + 1 == 40
    return case


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_forty_tables_are_exact_whatever_happens_to_the_driver_and_to_some_of_them(
    forty: Tables, spark: SparkSession
) -> None:
    with forty.written_to():
        for seam in KILLS[:4]:
            forty.run("--until", "live", kill=seam)
        forty.command("rescale", "--workers", "3")
        for seam in KILLS[4:]:
            forty.run(kill=seam)
        with Here(forty, spark).running() as here:
            here.until_live()
            assert {len(table.run.coordinator.saved.assignment) for table in here.job.tables} == {3}
            assert list(here.job.aside) == [f"{forty.database}.keyless"]
            _come_go_and_fail(forty, here)
        assert list(here.failures) == ["signs_1"]
    _take_up(forty, "signs_1")
    assert Here(forty, spark).run() == {}
    assert forty.wrong() == {}


def _come_go_and_fail(forty: Tables, here: Here) -> None:
    """A table comes, one is taken out by command, one fails, and the others are followed."""
    forty.create("younger", "threes")
    removed = f"{forty.database}.days_2"
    forty.command("tables", "remove", removed)
    del forty.shapes["days_2"]
    execute(forty.server, forty.database, "ALTER TABLE signs_1 ENGINE=MyISAM")
    wait_for(lambda: here.table("signs_1").run.has_stopped, "signs_1 is set aside", seconds=120, state=here.shown)
    wait_for(
        lambda: all(table.name != removed for table in here.job.tables), "days_2 is let go", seconds=120,
        state=here.shown,
    )  # fmt: skip
    version = DeltaTable(str(forty.target_of("days_2"))).version()
    here.until_live("younger", "numbers_0", "huge")
    assert DeltaTable(str(forty.target_of("days_2"))).version() == version


def _take_up(forty: Tables, name: str) -> None:
    execute(forty.server, forty.database, f"ALTER TABLE {name} ENGINE=InnoDB")
    part = part_config(forty.loaded_config(), TableName(forty.database, name))
    assert resnapshot(part, only=None, where_key=None, everything=True) == 0
