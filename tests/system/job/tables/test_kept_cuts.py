"""The versions of a cut can be read long after the job went on: no upkeep of a driver or a command deletes them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from devkit.waiting import wait_for
from progress.state.cut import Cut
from tests.system.job.tables.many_tables import ROWS, Here, Tables, fresh
from tests.system.job_case import execute
from tests.system.sinks.delta.aged_table import age
from vnode_backfill.commands.compact import compact
from vnode_backfill.commands.tables.cut import cut as print_cut
from vnode_backfill.job.run import upkeep
from vnode_backfill.job.tables import shared_work
from vnode_backfill.sinks.delta import sink as delta_sink

TOTAL = ROWS * (ROWS + 1)
SIDES = ("left_side", "right_side")


def sum_of(case: Tables, cut: Cut | None) -> int:
    """The sum over both targets, at the versions of the cut or now."""
    found = 0
    for side in SIDES:
        version = None if cut is None else cut.targets[f"{case.database}.{side}"].version
        table = DeltaTable(str(case.lake / side), version=version)
        rows = pa.table(QueryBuilder().register("t", table).execute("SELECT SUM(v) AS s FROM t").read_all())
        found += int(rows["s"][0].as_py())
    return found


def raise_all(case: Tables) -> None:
    """Every row of both tables gets another value, which supersedes every file."""
    execute(case.server, case.database, *(f"UPDATE {side} SET v = v + 1" for side in SIDES))


def files_of(case: Tables) -> list[Path]:
    """The data files of both targets as they are now."""
    return [Path(uri) for side in SIDES for uri in DeltaTable(str(case.lake / side)).file_uris()]


def first_in_log(case: Tables) -> list[int]:
    """Per target the first version that has a commit or a checkpoint."""
    return [min(int(path.name[:20]) for path in (case.lake / side).glob("_delta_log/0*")) for side in SIDES]


@pytest.mark.parametrize("source_server", ["mysql"], indirect=True)
def test_the_versions_of_the_last_cut_outlive_every_upkeep(
    source_server: SqlServer,
    database: str,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = fresh(source_server, database, tmp_path, epoch={"backfill": "1s", "live": "100ms"})
    case.by_vectors()
    for side in SIDES:
        case.create(side, "numbers")
    first = Here(case, spark)
    assert first.run() == {}
    text = first.store.cut()
    assert text is not None
    cut = Cut.from_json(text)
    for side in SIDES:
        DeltaTable(str(case.lake / side)).create_checkpoint()
    # As in a job that runs for days: there is no stop, and so no other cut.
    monkeypatch.setattr(shared_work, "cut_of", lambda *_: None)
    old = list[Path]()
    for _ in range(2):
        old = files_of(case)
        raise_all(case)
        assert Here(case, spark).run() == {}
        for side in SIDES:
            age(case.lake / side)
            DeltaTable(str(case.lake / side)).create_checkpoint()
            age(case.lake / side)
    monkeypatch.setattr(upkeep, "SWEEP_VECTORS_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(delta_sink, "CHECKPOINT_AT_LATEST", timedelta(0))
    raise_all(case)
    with Here(case, spark).running() as here:
        here.until_live()
        wait_for(lambda: not any(path.exists() for path in old), "the driver has swept", seconds=60)
        wait_for(lambda: min(first_in_log(case)) > 0, "the driver has cleaned the logs", seconds=60)
    assert compact(here.config) == 0
    assert here.store.cut() == text
    assert (sum_of(case, cut), sum_of(case, None)) == (TOTAL, TOTAL + 3 * 2 * ROWS)
    capsys.readouterr()
    assert print_cut(here.config, as_json=False) == 0
    assert capsys.readouterr().out.count(" until ") == 2
    assert case.wrong() == {}
