"""A job of many tables copies and follows each of them exactly, whatever happens to one of them or to the driver."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from devkit.waiting import wait_for
from progress.state.cut import Cut
from tests.system.job.tables.many_tables import ROWS, SHAPES, Here, Tables, fresh
from tests.system.job_case import execute
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.decide.protocol import Action, MergeEpoch
from vnode_backfill.job.run import order_threads
from vnode_backfill.job.tables.parts import part_config
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.words.errors import BackfillError
from vnode_backfill.words.schema_change import Ended
from vnode_backfill.words.table_name import TableName


@pytest.fixture
def tables(source_server: SqlServer, database: str, tmp_path: Path) -> Tables:
    """Every shape twice, one empty, one of a single row, and one that cannot be copied."""
    case = fresh(source_server, database, tmp_path)
    for number in range(2):
        for shape in SHAPES:
            case.create(f"{shape}_{number}", shape)
    case.create("empty", "numbers", 0)
    case.create("one", "texts", 1)
    return case


def test_every_table_is_copied_and_followed_under_transactions_over_several(
    tables: Tables, spark: SparkSession
) -> None:
    execute(tables.server, tables.database, "CREATE TABLE keyless (a INT)")
    with tables.written_to():
        here = Here(tables, spark)
        assert here.run() == {}
        assert list(here.opened.aside) == [f"{tables.database}.keyless"]
    again = Here(tables, spark)
    assert (again.opened.created, len(again.opened.tables)) == (0, len(tables.shapes))
    assert again.run() == {}
    assert tables.wrong() == {}


class InOrder(Here):
    """Remembers in which order tables became live."""

    live: tuple[str, ...] = ()

    def look(self, tables: Sequence[RunningTable], aside: Mapping[str, BackfillError]) -> None:  # noqa: ARG002
        found = [table.name.rpartition(".")[2] for table in tables if table.run.coordinator.saved.is_live]
        self.live += tuple(name for name in found if name not in self.live)


@pytest.mark.parametrize("source_server", ["mariadb"], indirect=True)
def test_the_table_with_a_priority_is_live_first_and_then_the_smallest(
    source_server: SqlServer, database: str, tmp_path: Path, spark: SparkSession
) -> None:
    """An epoch has time for about 400 rows, so each table needs several, also if one of them goes to another table."""
    case = fresh(source_server, database, tmp_path, limits={"rows_per_second": 400, "range_rows": 50})
    case.mysql = {"tables": [f"{database}.*", {"table": f"{database}.numbers", "priority": 1}]}
    for name, rows in (("numbers", 2000), ("pairs", 2400), ("texts", 1200)):
        case.create(name, name, rows)
        execute(case.server, database, f"ANALYZE TABLE {name}")
    here = InOrder(case, spark)
    assert here.run() == {}
    assert here.live == ("numbers", "texts", "pairs")
    assert case.wrong() == {}


@pytest.mark.parametrize("source_server", ["mariadb"], indirect=True)
def test_a_table_whose_entry_has_a_path_has_its_rows_there_and_not_where_the_template_says(
    source_server: SqlServer, database: str, tmp_path: Path, spark: SparkSession
) -> None:
    apart = {"pairs": tmp_path / "other lake" / "of pairs"}
    sink = {"delta": {"path": f"{tmp_path}/lake/{{table}}", "merge": "vectors"}}
    case = Tables(source_server, tmp_path, database, settings={"sink": sink}, apart=apart)
    entry = {"table": f"{database}.pairs", "delta": {"path": str(apart["pairs"]), "merge": "rewrite"}}
    case.mysql = {"tables": [f"{database}.*", entry]}
    for name in ("numbers", "pairs"):
        case.create(name, name)
    assert Here(case, spark).run() == {}
    execute(source_server, database, "UPDATE pairs SET v = -v WHERE a < 9", "UPDATE numbers SET v = -v WHERE id < 9")
    assert Here(case, spark).run() == {}
    assert case.wrong() == {}
    assert [path.name for path in case.lake.iterdir()] == ["numbers"]
    assert "deletionVectors" in str(DeltaTable(str(case.target_of("numbers"))).protocol())
    assert "deletionVectors" not in str(DeltaTable(str(apart["pairs"])).protocol())


@pytest.mark.parametrize("source_server", ["mariadb"], indirect=True)
def test_targets_of_tables_that_changed_together_are_committed_side_by_side(
    source_server: SqlServer, database: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No merge goes on before two of them are in progress."""
    case = fresh(source_server, database, tmp_path)
    for name in ("numbers", "pairs"):
        case.create(name, name)
    assert Here(case, spark).run() == {}
    both, met = threading.Barrier(2), threading.Event()

    def seam(moment: str, action: Action) -> None:
        if moment == "before" and isinstance(action, MergeEpoch) and not met.is_set():
            both.wait(60)
            met.set()

    monkeypatch.setattr(order_threads, "seam", seam)
    execute(source_server, database, "BEGIN", "UPDATE numbers SET v = -v", "UPDATE pairs SET v = -v", "COMMIT")
    assert Here(case, spark).run() == {}
    assert met.is_set()
    assert case.wrong() == {}


SEAMS = (
    "after:ReadRanges:3", "before:CommitReceipts:5", "after:BufferChanges:9", "before:CommitEpoch:20",
    "after:CommitEpoch:20", "after:MergeEpoch:3", "before:WriteFile:2", "before:CommitMerge:3", "after:CommitMerge:3",
)  # fmt: skip


@pytest.mark.parametrize("seam", [SEAMS[0], *(pytest.param(each, marks=pytest.mark.long) for each in SEAMS[1:])])
def test_a_killed_driver_of_many_tables_is_continued_exactly(tables: Tables, spark: SparkSession, seam: str) -> None:
    with tables.written_to():
        tables.run("--until", "live", kill=seam)
        assert Here(tables, spark).run() == {}
    assert Here(tables, spark).run() == {}
    assert tables.wrong() == {}


def test_a_statement_on_one_table_is_followed_while_the_others_go_on(tables: Tables, spark: SparkSession) -> None:
    with tables.written_to(), Here(tables, spark).running() as here:
        here.until_live()
        copy = here.table("texts_1").table.opened.record.id
        tables.create("younger", "pairs")
        execute(
            tables.server, tables.database, "ALTER TABLE numbers_0 ADD COLUMN added INT DEFAULT 7",
            "ALTER TABLE texts_1 MODIFY v VARCHAR(20)", "DROP TABLE days_1",
        )  # fmt: skip
        wait_for(lambda: here.table("texts_1").table.opened.record.id != copy, "texts_1 is copied again", seconds=300)
        here.until_live("texts_1", "numbers_0", "numbers_1", "younger")
        assert here.table("younger").table.opened.plan.ranges == (), "its CREATE is in the log, so it is not read"
        assert here.failures == {}
    del tables.shapes["days_1"]
    assert Here(tables, spark).run() == {}
    assert "added" in DeltaTable(str(tables.lake / "numbers_0")).schema().to_json()
    assert tables.wrong() == {}


def test_statements_about_several_tables_of_the_job_have_their_effect_on_each(
    tables: Tables, spark: SparkSession
) -> None:
    """One puts two tables in each other's place, and one drops two. Rows are written before, in between and later."""
    server, database = tables.server, tables.database
    with tables.written_to(), Here(tables, spark).running() as here:
        here.until_live()
        before = {name: here.table(name).table.opened.record.id for name in tables.shapes}
        gone = [here.table("pairs_0"), here.table("pairs_1")]
        execute(
            server, database, "UPDATE numbers_0 SET t = 'was 0'", "UPDATE texts_0 SET v = v + 1",
            "RENAME TABLE numbers_0 TO x, numbers_1 TO numbers_0, x TO numbers_1",
            "SET timestamp = UNIX_TIMESTAMP() - 120", "DROP TABLE pairs_0, pairs_1",
        )  # fmt: skip
        wait_for(lambda: all(t.run.ending == Ended("dropped") for t in gone), "two end", seconds=120, state=here.shown)
        swapped = {"numbers_0", "numbers_1"}
        wait_for(
            lambda: all(here.table(name).table.opened.record.id != before[name] for name in swapped),
            "two are copied again", seconds=120, state=here.shown,
        )  # fmt: skip
        execute(server, database, "UPDATE numbers_0 SET v = -1 WHERE id = 7")
        here.until_live(*tables.shapes.keys() - {"pairs_0", "pairs_1"})
        copied = {name for name in tables.shapes if here.table(name).table.opened.record.id != before[name]}
        assert (copied, here.failures, here.job.aside) == (swapped, {}, {})
    del tables.shapes["pairs_0"], tables.shapes["pairs_1"]
    again = Here(tables, spark)
    assert again.run() == {}
    assert set(again.opened.ended) == {f"{database}.pairs_0", f"{database}.pairs_1"}
    assert tables.wrong() == {}


def test_a_table_that_cannot_go_on_is_set_aside_and_taken_up_again(tables: Tables, spark: SparkSession) -> None:
    with Here(tables, spark).running() as here:
        here.until_live()
        execute(tables.server, tables.database, "ALTER TABLE pairs_0 ENGINE=MyISAM")
        wait_for(lambda: here.table("pairs_0").run.has_stopped, "pairs_0 is set aside", seconds=120)
        execute(tables.server, tables.database, "INSERT INTO numbers_0 VALUES (9001, 1, 'later')")
        wait_for(lambda: 9001 in _ids(tables, "numbers_0"), "the others go on", seconds=120)
    assert list(here.failures) == ["pairs_0"]
    assert "the table is set aside" in here.failures["pairs_0"]
    execute(tables.server, tables.database, "ALTER TABLE pairs_0 ENGINE=InnoDB")
    part = part_config(tables.loaded_config(), TableName(tables.database, "pairs_0"))
    assert resnapshot(part, only=None, where_key=None, everything=True) == 0
    assert Here(tables, spark).run() == {}
    assert tables.wrong() == {}


@pytest.mark.parametrize("source_server", ["mariadb"], indirect=True)
def test_a_table_that_has_ended_is_left_alone_until_it_is_there_again(
    source_server: SqlServer, database: str, tmp_path: Path, spark: SparkSession
) -> None:
    case = fresh(source_server, database, tmp_path)
    case.create("stays", "numbers")
    case.create("goes", "numbers")
    assert Here(case, spark).run() == {}
    # The log says that it was dropped two minutes ago: nobody has to wait for it to come back.
    execute(case.server, database, "SET timestamp = UNIX_TIMESTAMP() - 120", "DROP TABLE goes")
    assert Here(case, spark).run() == {}
    with Here(case, spark).running() as here:
        assert list(here.opened.ended) == [f"{database}.goes"]
        assert here.opened.ended[f"{database}.goes"].startswith("dropped at ")
        execute(case.server, database, "INSERT INTO stays VALUES (9001, 1, 'later')")
        wait_for(lambda: 9001 in _ids(case, "stays"), "the other one goes on", seconds=120)
        # Tables are looked for every second: this one is not among those that are.
        assert [table.name for table in here.job.tables] == [f"{database}.stays"]
    assert (here.job.aside, here.failures) == ({}, {})
    case.create("goes", "texts")
    assert Here(case, spark).run() == {}
    assert case.wrong() == {}


def _ids(tables: Tables, name: str) -> set[object]:
    table = DeltaTable(str(tables.lake / name))
    rows = pa.table(QueryBuilder().register("t", table).execute("SELECT id FROM t").read_all())
    return set(rows["id"].to_pylist())


def test_tables_are_added_and_let_go_by_the_file(tables: Tables, spark: SparkSession) -> None:
    assert Here(tables, spark).run() == {}
    tables.create("younger", "pairs")
    left = tables.shapes.pop("large_0")
    case = replace(tables, mysql={"exclude": [f"{tables.database}.large_0"]})
    case.config.unlink()
    before = DeltaTable(str(tables.lake / "large_0")).version()
    here = Here(case, spark)
    assert here.opened.removed == [f"{tables.database}.large_0"]
    assert here.opened.created == 1
    assert here.run() == {}
    assert case.wrong() == {}
    assert (DeltaTable(str(tables.lake / "large_0")).version(), left.key) == (before, ("id",))


def test_a_sum_over_two_tables_is_the_same_in_every_cut(
    source_server: SqlServer, database: str, tmp_path: Path, spark: SparkSession
) -> None:
    case = fresh(source_server, database, tmp_path, epoch={"backfill": "1s", "live": "100ms", "cut": "300ms"})
    case.create("left_side", "numbers")
    case.create("right_side", "numbers")
    total = ROWS * (ROWS + 1)
    cuts: dict[str, Cut] = {}
    with Here(case, spark).running() as here:
        here.until_live()
        with source_server.connect(database) as connection, connection.cursor() as cursor:
            connection.autocommit(False)

            def transferred() -> bool:
                for n in range(1, 20):
                    cursor.execute(f"UPDATE left_side SET v = v - {n} WHERE id = {n}")
                    cursor.execute(f"UPDATE right_side SET v = v + {n} WHERE id = {n * 3}")
                    connection.commit()
                text = here.store.cut()
                found = None if text is None else Cut.from_json(text)
                # The first ones may have been made while one of the two was copied.
                if text is not None and found is not None and not found.left_out:
                    cuts.setdefault(text, found)
                return len(cuts) >= 6

            wait_for(transferred, "cuts were made", seconds=120)
    last = here.store.cut()
    assert last is not None
    printed = case.command("cut")
    assert all(f"{name}" in printed for name in (f"{database}.left_side", f"{database}.right_side", "version"))
    assert json.loads(case.command("cut", "--json"))["offset"] == str(Cut.from_json(last).offset)
    cuts[last] = Cut.from_json(last)
    assert {_sum(case, cut) for cut in cuts.values()} == {total}
    assert all(set(cut.targets) == {f"{database}.left_side", f"{database}.right_side"} for cut in cuts.values())


def _sum(case: Tables, cut: Cut) -> int:
    found = 0
    for name, target in cut.targets.items():
        table = DeltaTable(str(case.lake / name.rpartition(".")[2]), version=target.version)
        rows = pa.table(QueryBuilder().register("t", table).execute("SELECT SUM(v) AS s FROM t").read_all())
        found += int(rows["s"][0].as_py())
    return found


def test_a_job_of_one_table_does_not_run_as_a_job_of_many(tables: Tables, spark: SparkSession) -> None:
    assert Here(tables, spark).run() == {}
    tables.settings = {"sink": {"delta": {"path": str(tables.lake / "numbers_0")}}}
    tables.config.write_text(json.dumps({**super(Tables, tables)._settings()}))
    with pytest.raises(BackfillError, match="is a job of many tables"):
        tables.here(spark)
