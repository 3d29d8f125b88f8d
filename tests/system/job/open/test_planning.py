"""A driver that is killed while it plans does not begin again, unless its plan cannot be continued exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from consume_upstream.log.offset import CdcOffset
from devkit.mysql import SqlServer
from devkit.waiting import wait_for
from progress.state.report import JobPhase
from tests.system.job.open.planning_driver import created, created_tables, driven, killed_while_planning
from tests.system.job_case import COPIER, JobCase, create_copier, execute, fetch
from tests.system.tables_case import TablesCase
from vnode_backfill.commands.requests import drop
from vnode_backfill.job.open.locations import planning_notes, state_store
from vnode_backfill.job.open.open import open_job
from vnode_backfill.words.errors import ConfigError, SourceLostError, StateError

ROWS = 1_000
KEY = ("name", "n")
LIMITS: dict[str, object] = {"limits": {"range_rows": 20, "backoff": "200ms"}}


@pytest.fixture
def case(source_server: SqlServer, database: str, tmp_path: Path) -> JobCase:
    """A table of 1,000 rows with a key of text and a number, which is cut into 50 ranges."""
    make_table(source_server, database, "orders")
    return JobCase(source_server, tmp_path, database, key=KEY, settings=LIMITS)


def make_table(server: SqlServer, database: str, table: str) -> None:
    values = ", ".join(f"('k{number:05d}', {number % 7}, {number})" for number in range(1, ROWS + 1))
    execute(
        server, database,
        f"CREATE TABLE {table} (name VARCHAR(40) NOT NULL, n INT NOT NULL, v INT, PRIMARY KEY (name, n))",
        f"INSERT INTO {table} VALUES {values}",
    )  # fmt: skip


def noted(case: JobCase, table: str = "orders") -> tuple[CdcOffset, int]:
    """The first offset of the plan that was begun, and how many ranges were settled."""
    note = planning_notes(case.loaded_config()).of(f"{case.database}.{table}")
    assert note is not None
    return note.plan.first, note.plan.progress.ranges


def answers(lines: list[str]) -> int:
    return sum(line.startswith("planning ") and "begins" not in line and "continues" not in line for line in lines)


def test_only_the_rest_is_asked_for_and_every_row_arrives(case: JobCase, spark: SparkSession) -> None:
    killed_while_planning(case, answers=30)
    first, ranges = noted(case)
    assert ranges == 30
    bound = fetch(case.server, case.database, "SELECT name FROM orders ORDER BY name, n LIMIT 1 OFFSET 200")[0][0]
    execute(
        case.server, case.database,
        "INSERT INTO orders VALUES ('a below all', 1, 1), ('k00031x', 1, 2), ('z above all', 1, 3)",
        f"DELETE FROM orders WHERE name = '{bound}'", "DELETE FROM orders WHERE name IN ('k00001', 'k01000')",
        "UPDATE orders SET v = -v WHERE v % 3 = 0", "UPDATE orders SET name = CONCAT(name, 'm') WHERE v = 400",
    )  # fmt: skip
    said: list[str] = []
    opened = created(case, said.append)
    assert f"continues after 30 ranges, from {first}" in said[0]
    assert answers(said) <= 20, said
    assert opened.state.written == first
    assert len(opened.plan.ranges) == 50
    assert planning_notes(case.loaded_config()).all() == ()
    assert not (case.folder / "state" / "case" / "planning").exists()
    failure = case.here(spark).run()
    assert failure is None
    assert case.differences() == []


def test_status_shows_the_plan_and_drop_removes_it(case: JobCase, capsys: pytest.CaptureFixture[str]) -> None:
    killed_while_planning(case, answers=10)
    report = case.report()
    assert (report.phase, report.observed.driver) == (JobPhase.STOPPED, "")
    assert report.planning is not None
    assert (report.planning.ranges, report.planning.rows) == (10, 200)
    seen = case.status()["planning"]
    assert isinstance(seen, dict)
    assert seen["ranges"] == 10
    assert "200 of about" in case.command("status")
    drop(case.loaded_config())
    assert "removing the unfinished plan" in capsys.readouterr().out
    assert not (case.folder / "state").exists()
    with pytest.raises(StateError, match="there is no job"):
        case.report()


def test_a_job_is_shown_as_planned_while_its_driver_plans(case: JobCase) -> None:
    seen: list[JobPhase] = []

    def look(line: str) -> None:
        if line.startswith("planning ") and len(seen) < 3:
            seen.append(case.report().phase)

    created(case, look)
    assert seen == [JobPhase.PLANNING] * 3


def test_planning_begins_again_where_the_table_was_changed(case: JobCase) -> None:
    killed_while_planning(case, answers=10)
    first, _ = noted(case)
    execute(case.server, case.database, "ALTER TABLE orders ADD COLUMN late INT DEFAULT 7")
    said: list[str] = []
    opened = created(case, said.append)
    assert "begins again: the table was changed" in said[0]
    assert opened.state.written > first
    assert answers(said) >= 49
    assert [column.name for column in opened.record.definition.columns][-1] == "late"


def test_planning_begins_again_where_the_log_no_longer_holds_its_first_offset(case: JobCase) -> None:
    killed_while_planning(case, answers=10)
    first, _ = noted(case)
    execute(case.server, None, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    newest = str(fetch(case.server, None, "SHOW BINARY LOGS")[-1][0])

    def purged() -> bool:
        execute(case.server, None, f"PURGE BINARY LOGS TO '{newest}'")
        return str(fetch(case.server, None, "SHOW BINARY LOGS")[0][0]) == newest

    wait_for(purged, f"the log to begin with {newest}")
    said: list[str] = []
    opened = created(case, said.append)
    assert f"begins again: its first offset {first} is no longer held by the server" in said[0]
    assert opened.state.written > first


def test_planning_begins_again_where_ranges_would_be_others(case: JobCase) -> None:
    killed_while_planning(case, answers=10)
    case.use(limits={"range_rows": 50})
    said: list[str] = []
    assert len(created(case, said.append).plan.ranges) == 20
    assert "begins again: it has 16 vnodes and ranges of 20 rows" in said[0]


def test_planning_begins_again_where_the_server_sorts_otherwise(case: JobCase) -> None:
    """As if a new release of the server gave one of the bounds another sort key, still after the one before it."""
    killed_while_planning(case, answers=10)
    note = planning_notes(case.loaded_config()).of(f"{case.database}.orders")
    assert note is not None
    (file,) = (case.folder / "state" / "case" / "planning").iterdir()
    known = note.plan.bounds[5][0].order.hex()
    file.write_text(file.read_text().replace(known, f"{known}ff"))
    said: list[str] = []
    assert len(created(case, said.append).plan.ranges) == 50
    assert "begins again: the server puts its bounds in another order now" in said[0]


def test_a_plan_that_was_begun_does_not_count_for_a_job_that_copies_nothing(case: JobCase) -> None:
    killed_while_planning(case, answers=10)
    first, _ = noted(case)
    execute(case.server, case.database, "INSERT INTO orders VALUES ('later', 1, 1)")
    case.mysql = {"cdc": {"startup_mode": "latest"}}
    case.use()
    said: list[str] = []
    opened = created(case, said.append)
    assert "startup_mode is latest, which copies nothing" in said[0]
    assert opened.state.written > first
    assert opened.plan.ranges == ()
    assert not (case.folder / "state" / "case" / "planning").exists()


def test_a_job_that_is_refused_leaves_no_note_and_no_folder(case: JobCase) -> None:
    def refuses() -> None:
        raise ConfigError("there is no Spark")

    with pytest.raises(ConfigError, match="no Spark"):
        created(case, before_writing=refuses)
    assert not (case.folder / "state").exists()
    killed_while_planning(case, answers=10)
    assert (case.folder / "state" / "case" / "planning").exists()
    with pytest.raises(ConfigError, match="no Spark"):
        created(case, before_writing=refuses)
    assert not (case.folder / "state").exists()


def test_a_source_that_is_lost_leaves_the_plan_to_the_next_run(case: JobCase) -> None:
    create_copier(case.server)
    case.mysql = {"user": COPIER}
    ids = f"SELECT id FROM information_schema.processlist WHERE user = '{COPIER}'"

    def lost(line: str) -> None:
        if line.startswith("planning ") and " 15 ranges" in line:
            execute(case.server, None, *(f"KILL {number}" for (number,) in fetch(case.server, None, ids)))

    with pytest.raises(SourceLostError):
        created(case, lost)
    assert noted(case)[1] == 15
    assert len(created(case).plan.ranges) == 50


def test_tables_of_many_are_continued_each_from_its_own_offset(
    source_server: SqlServer, database: str, tmp_path: Path
) -> None:
    for table in ("orders", "items"):
        make_table(source_server, database, table)
    case = TablesCase(source_server, tmp_path, database, settings={**LIMITS, "workers": 1})
    killed_while_planning(case, answers=70)
    notes = {note.plan.name.partition(".")[2]: note.plan for note in planning_notes(case.loaded_config()).all()}
    settled = sum(plan.progress.ranges for plan in notes.values())
    assert settled >= 69
    report = case.report()
    assert (report.phase, {line.phase for line in report.tables}) == (JobPhase.STOPPED, {JobPhase.STOPPED})
    said: list[str] = []
    opened = created_tables(case, said.append)
    assert {table.name for table in opened.tables} == {f"{database}.orders", f"{database}.items"}
    assert answers(said) <= 101 - settled
    for found in opened.tables:
        plan = notes.get(found.name.partition(".")[2])
        assert plan is None or found.opened.state.written == plan.first
    assert planning_notes(case.loaded_config()).all() == ()


def test_a_note_that_a_created_job_has_left_is_removed_by_its_next_run(case: JobCase) -> None:
    """As if the driver that created the job was killed before it could remove the note."""
    killed_while_planning(case, answers=10)
    config = case.loaded_config()
    note = planning_notes(config).of(f"{case.database}.orders")
    assert note is not None
    created(case)
    planning_notes(config).write(note.plan)
    open_job(config, asked_vnodes=None).store.release()
    assert planning_notes(config).all() == ()


def test_a_second_driver_waits_for_the_first_ones_plan(case: JobCase) -> None:
    # The first one stands still while the second one starts, which may take longer than a short lease.
    case.use(state={"path": str(case.folder / "state"), "lease": "10m"})
    refused: list[str] = []

    def second(line: str) -> None:
        if line.startswith("planning ") and not refused:
            refused.append(driven(case, answers=1_000, code=1))

    created(case, second)
    assert f"{case.database}.orders is being planned by" in refused[0]
    assert state_store(case.loaded_config()).exists()
