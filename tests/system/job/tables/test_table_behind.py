"""A table that cannot be opened for a while is copied without a new run, and being behind it holds up no other."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from consume_upstream.log.offset import is_short_stretch
from devkit.mysql import MySqlServer
from devkit.waiting import wait_for
from tests.system.job.tables.many_tables import Here, Tables, fresh
from tests.system.job_case import execute
from vnode_backfill.decide.protocol import Action, BufferChanges
from vnode_backfill.job.run import order_threads

DATABASE = "in_turns"
LARGE = 50_000
"""Bytes of each row: one statement on all rows is more of the log than is read in a moment."""
QUICK = {"retries": 8, "backoff": "50ms", "max_backoff": "2s"}


@pytest.fixture
def case(mysql_server: MySqlServer, tmp_path: Path) -> Tables:
    execute(mysql_server, None, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    case = fresh(mysql_server, DATABASE, tmp_path, limits=QUICK)
    case.create("ahead", "large")
    case.create("behind", "numbers")
    return case


class HeldLog:
    """Holds the long stretch of the log that one table reads, until it is let go."""

    def __init__(self) -> None:
        self.reached, self.released = threading.Event(), threading.Event()

    def __call__(self, moment: str, action: Action) -> None:
        if moment != "before" or not isinstance(action, BufferChanges):
            return
        if not is_short_stretch(action.after, action.intent.written):
            self.reached.set()
            self.released.wait(300)


def test_a_table_that_could_not_be_opened_comes_later_and_holds_up_no_other(
    case: Tables, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Here(case, spark).run() == {}
    execute(case.server, DATABASE, "UPDATE behind SET v = v + 1")
    # What the store says of this table's record cannot be read for now.
    (records,) = case.folder.glob("**/tables/*behind*/jobs/_delta_log")
    unreadable = records / f"{len(list(records.glob('*.json'))):020d}.json"
    unreadable.write_text("not now")
    here, held = Here(case, spark), HeldLog()
    assert list(here.opened.aside) == [f"{DATABASE}.behind"]
    with here.running():
        execute(case.server, DATABASE, f"UPDATE ahead SET t = REPEAT('x', {LARGE})")
        wait_for(lambda: _longest(case) == LARGE, "ahead has the large rows", seconds=240, state=here.shown)
        monkeypatch.setattr(order_threads, "seam", held)
        unreadable.unlink()
        wait_for(held.reached.is_set, "behind reads its long stretch", seconds=240, state=here.shown)
        execute(case.server, DATABASE, f"REPLACE INTO ahead VALUES (1, 1, REPEAT('y', {LARGE + 1}))")
        wait_for(lambda: _longest(case) == LARGE + 1, "ahead goes on", seconds=240, state=here.shown)
        held.released.set()
        here.until_live("behind")
        assert here.job.aside == {}
    assert here.failures == {}
    assert case.wrong() == {}


def _longest(case: Tables) -> int:
    table = DeltaTable(str(case.lake / "ahead"))
    rows = pa.table(QueryBuilder().register("t", table).execute("SELECT MAX(LENGTH(t)) AS m FROM t").read_all())
    return int(rows["m"][0].as_py())
