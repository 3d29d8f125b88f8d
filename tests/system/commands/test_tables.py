"""A job of several tables on a real server, steered as a whole and table by table; every row is compared at the end."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from deltalake import DeltaTable

from devkit.mysql import MariaDbServer
from devkit.process import free_ports
from devkit.waiting import wait_for
from tests.system.commands.test_rate_limit import WINDOW, ServerReadings
from tests.system.job_case import Started, execute
from tests.system.tables_case import TablesCase

_numbers = count(1)
LIMIT, LIMIT_OF_ORDERS = 500, 250
ROWS = {"orders": 4000, "items": 3500, "notes": 20_000, "tags": 40, "empties": 0}


@pytest.fixture
def case(mariadb_server: MariaDbServer, tmp_path: Path) -> Iterator[TablesCase]:
    """Five tables and one that cannot be copied. The largest comes first, with a limit above that of the job."""
    name = f"tables_{next(_numbers)}"
    execute(mariadb_server, None, f"CREATE DATABASE {name}")
    execute(mariadb_server, name, "CREATE TABLE keyless (v INT)")
    for table, rows in ROWS.items():
        execute(
            mariadb_server, name, f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20))",
            f"INSERT INTO {table} SELECT seq, CONCAT('v', seq) FROM seq_1_to_{rows}" if rows else "DO 0",
            f"ANALYZE TABLE {table}",
        )  # fmt: skip
    settings: dict[str, object] = {
        "limits": {"rows_per_second": LIMIT, "range_rows": 100, "backoff": "200ms", "max_backoff": "1s", "retries": 2},
        "workers": 2, "ui": {"port": free_ports(1)[0]},
    }  # fmt: skip
    entries = [
        {"table": f"{name}.notes", "rows_per_second": 100 * LIMIT, "priority": 1},
        {"table": f"{name}.orders", "rows_per_second": LIMIT_OF_ORDERS}, f"{name}.*",
    ]  # fmt: skip
    yield TablesCase(
        mariadb_server, tmp_path, name, settings=settings, delta={"merge": "rewrite"}, mysql={"tables": entries}
    )
    execute(mariadb_server, None, f"DROP DATABASE {name}")


def test_job_of_several_tables_is_steered_as_a_whole_and_table_by_table(case: TablesCase) -> None:
    with case.started("run") as run:
        case.until(run, "snapshot", "orders")
        _limit_holds_for_all_tables_together(case)
        _tables_have_metrics(case)
        case.command("pause")
        case.until(run, "paused", "orders", "items")
        case.command("resume", "--table", case.name("orders"))
        case.until(run, "snapshot", "orders")
        assert case.tables()["items"].phase == "paused"
        _limit_of_one_table_holds(case)
        case.command("resume")
        case.command("rescale", "--workers", "3")
        assert "all 5 tables" in case.command("throttle", "--off")
        case.command("wait", "--table", case.name("orders"), "--timeout", "4m")
        refused = case.command("wait", "--timeout", "4m", code=1)
        assert "1 of 6 tables" in refused
        assert "keyless is set aside" in refused
        _one_table_is_shown_as_a_job_of_one_table_is(case)
        _verify_compares_chosen_tables(case)
        _table_that_fails_is_taken_up_again_beside_the_others(case, run)
        case.command("stop", "--table", case.name("tags"))
        case.until(run, "stopped", "tags")
        assert case.tables()["orders"].phase == "live"
        case.command("stop")
        assert "keyless is set aside" in run.wait(code=1)
    _run_until_live_ends_with_what_is_set_aside(case)
    _status_without_a_driver_knows_what_is_set_aside(case)
    assert {table: case.differences_of(table) for table in ROWS} == {table: [] for table in ROWS}
    _targets_are_compacted_and_turned_over_one_by_one(case)
    _drop_leaves_the_targets(case)


def _limit_holds_for_all_tables_together(case: TablesCase) -> None:
    assert isinstance(case.server, MariaDbServer)
    readings = ServerReadings(case.server)
    before = case.report().rows
    with readings.sampling():
        wait_for(lambda: case.report().rows >= before + 6 * LIMIT, "six seconds' worth of rows", seconds=240)
    assert 0 < readings.busiest(WINDOW) <= 1.2 * WINDOW * LIMIT
    # A table that is in the middle of an epoch when ranges are chosen misses its turn.
    found = case.tables()
    assert found["notes"].rows > 2 * (found["items"].rows + found["orders"].rows), "priority counts before the size"


def _limit_of_one_table_holds(case: TablesCase) -> None:
    """The others are paused, so that what the server reads is this table's."""
    assert isinstance(case.server, MariaDbServer)
    readings = ServerReadings(case.server)
    before = case.tables()["orders"].rows
    with readings.sampling():
        wait_for(lambda: case.tables()["orders"].rows >= before + 6 * LIMIT_OF_ORDERS, "rows of one table", seconds=240)
    assert 0 < readings.busiest(WINDOW) <= 1.2 * WINDOW * LIMIT_OF_ORDERS


def _metrics(case: TablesCase) -> str:
    """What a running driver exposes; empty while it does not answer yet."""
    url = f"http://127.0.0.1:{case.loaded_config().ui.port}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def _tables_have_metrics(case: TablesCase) -> None:
    found = _metrics(case)
    assert f'vnode_backfill_table_phase{{phase="set aside",table="{case.name("keyless")}"}} 1.0' in found
    for name in ("rows", "progress_ratio", "lag_seconds", "lake_age_seconds"):
        assert f'vnode_backfill_table_{name}{{table="{case.name("notes")}"}} ' in found


def _run_until_live_ends_with_what_is_set_aside(case: TablesCase) -> None:
    """A paused table keeps the job from being live until the metrics are looked at. Those of tables are off.

    It is the one that had been stopped before all were: it does not stop again.
    """
    case.use(ui={"port": free_ports(1)[0], "table_metrics": False})
    case.command("pause")
    case.command("resnapshot", "--all", "--table", case.name("tags"))
    with case.started("run", "--until", "live") as run:
        case.until(run, "paused", "tags")
        wait_for(lambda: "vnode_backfill_progress_ratio" in _metrics(case), "the page answers", seconds=240)
        assert 'table="' not in _metrics(case)
        case.command("resume")
        printed = run.wait(code=1)
    keyless = printed[printed.index(f"{case.name('keyless')} is set aside") :]
    assert "hint: Apply each fix and run `vnode-backfill plan` again." in keyless
    tables = case.tables()
    assert {table: (tables[table].phase, tables[table].live) for table in ROWS} == dict.fromkeys(
        ROWS, ("stopped", True)
    )


def _one_table_is_shown_as_a_job_of_one_table_is(case: TablesCase) -> None:
    alone = case.report_on("--table", case.name("orders"))
    assert (alone["source"], alone["rows"], "tables" in alone) == (case.name("orders"), ROWS["orders"], False)
    several = case.report_on("--table", case.name("orders"), "--table", case.name("tag*"))
    assert [table["name"] for table in several["tables"]] == [case.name("orders"), case.name("tags")]  # type: ignore[attr-defined]
    asked = [(each["kind"], each["refused"]) for each in alone["requests"]]  # type: ignore[attr-defined]
    assert asked == [("pause", ""), ("resume", ""), ("resume", ""), ("rescale", ""), ("rate_limit", "")]
    assert len(alone["workers"]) == 3  # type: ignore[arg-type]


def _table_that_fails_is_taken_up_again_beside_the_others(case: TablesCase, run: Started) -> None:
    target, hidden = case.target("notes"), case.folder / "hidden"
    target.rename(hidden)
    execute(
        case.server, case.database, "INSERT INTO notes VALUES (90001, 'late')", "INSERT INTO tags VALUES (901, 'x')"
    )
    case.until(run, "failed", "notes")
    assert case.tables()["tags"].phase == "live"
    shutil.rmtree(target, ignore_errors=True)
    hidden.rename(target)
    case.command("resume", "--table", case.name("notes"))
    case.until(run, "live", "notes", "tags")
    assert run.output.read_text().count("notes is taken up again") == 1


def _verify_compares_chosen_tables(case: TablesCase) -> None:
    chosen = ("--table", case.name("tags"), "--table", case.name("items"))
    assert "verified: 3,540 rows in 2 tables, 0 differences" in case.command("verify", *chosen)


def _status_without_a_driver_knows_what_is_set_aside(case: TablesCase) -> None:
    tables = case.tables()
    assert [tables[table].phase for table in ROWS] == ["stopped"] * 5
    assert (tables["keyless"].phase, "neither a primary key" in tables["keyless"].error) == ("set aside", True)
    assert case.name("orders") in case.command("plan"), "a job that exists can be planned again"
    DeltaTable(case.target("tags")).delete("id = 7")
    found = json.loads(case.command("verify", "--json", "--table", case.name("tags"), code=1))
    assert (found["equal"], found["missing"], found["tables"][0]["total"]) == (False, 1, 1)
    execute(case.server, case.database, "DELETE FROM tags WHERE id = 7")


def _targets_are_compacted_and_turned_over_one_by_one(case: TablesCase) -> None:
    assert f"{case.name('orders')}: swept" in case.command("compact", "--table", case.name("orders"))
    assert case.differences_of("orders") == []
    assert case.command("upgrade", "--merge", "rewrite").count("nothing to do") == len(ROWS)
    case.command("upgrade", "--merge", "rewrite", "--table", case.name("tags"))


def _drop_leaves_the_targets(case: TablesCase) -> None:
    assert "mysql.tables" in case.command("drop", "--table", case.name("tags"), code=2)
    assert f"{case.name('tags')}: the target" in case.command("drop")
    assert "there is no job" in case.command("status", code=1)
    assert not (case.folder / "state" / "case" / "tables").exists()
    assert DeltaTable(case.target("orders")).to_pyarrow_table().num_rows == ROWS["orders"]
