"""Kills a real driver with -9 around statements on its tables: nothing is lost, and nothing is followed twice.

The job is live when its tables are changed, each in another way. It is killed while it follows, and run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from tests.system.job.tables.changed_tables import changed_tables
from tests.system.job.tables.many_tables import Here
from tests.system.job.tables.statement_cases import CHANGES

KINDS = ("add first with a default", "widen", "truncate", "drop partition delete", "another type", "created again")
SEAMS = (
    "before:ResolveStatement", "after:ResolveStatement:3", "before:ChangeSink", "after:ChangeSink:2", "before:RenewJob",
    "after:CommitEpoch", "after:CommitEpoch:7", "after:CommitEpoch:13", "before:MergeEpoch:8", "after:CommitReceipts",
)  # fmt: skip
"""Each is met on one server, in turns."""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, SqlServer]]:
    with MySqlServer({}) as mysql, MariaDbServer({}) as mariadb:
        yield {"mysql": mysql, "mariadb": mariadb}


@pytest.mark.long
@pytest.mark.parametrize(("seam", "server"), list(zip(SEAMS, ("mysql", "mariadb") * 5, strict=True)))
def test_job_killed_around_statements_goes_on(
    servers: dict[str, SqlServer], tmp_path: Path, spark: SparkSession, seam: str, server: str
) -> None:
    cases = {f"t_{number}": CHANGES[kind] for number, kind in enumerate(KINDS)}
    with changed_tables(servers[server], tmp_path, cases) as tables:
        assert Here(tables, spark).run() == {}
        tables.change(list(cases))
        tables.run("--until", "live", kill=seam)
        for name in cases:
            tables.run_on(name, ("UPDATE t SET a = 6 WHERE id % 19 = 0",))
        assert Here(tables, spark).run() == {}
        wrong = {kind: tables.wrong_rows(f"t_{number}", whole=True)[:5] for number, kind in enumerate(KINDS)}
    assert not any(wrong.values()), wrong
