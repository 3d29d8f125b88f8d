"""A job that is killed with -9 before and after every kind of order, again and again, ends with an exact copy.

One job per server goes through a chain of deaths while a writer deletes, changes and swaps keys; between two lives the
test does the same to rows that are in the copy already. The chain meets every seam once, spread over the phases of the
job: each server takes every other seam, and the whole chain among the long tests. Two seams are steps inside a merge;
tests/system/sinks/delta/test_step_crashes.py has every step in which the target changes. With CRASH_MATRIX=full in the
environment those meet every seam in every phase, which takes about ten minutes per server.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pymysql
import pytest
from deltalake import DeltaTable

from devkit.lake import read_lake
from devkit.mysql import SqlServer
from devkit.operations import OpKind
from devkit.orders import create_orders_table
from devkit.writer import CONFLICT, Workload
from tests.system.job_case import JobCase
from vnode_backfill.delta.steps import Step

ROWS, KEY_STEP = 12_000, 3
ORDERS = ("ReadRanges", "BufferChanges", "MergeEpoch", "CommitReceipts", "SampleSource", "CommitEpoch", "TrimBuffer")
SEAMS = frozenset(f"{moment}:{order}" for order in ORDERS for moment in ("before", "after"))
IN_A_MERGE = {f"after:{Step.WRITE_FILE}", f"before:{Step.COMMIT_MERGE}"}

CHAIN = (
    "after:ReadRanges@snapshot",
    "before:CommitReceipts:2@snapshot",
    "after:CommitReceipts@snapshot",
    "before:BufferChanges:2@snapshot",
    "after:BufferChanges@snapshot",
    "before:MergeEpoch:2@snapshot",
    "after:CommitEpoch:2@snapshot",
    "before:TrimBuffer:2@snapshot",
    "after:SampleSource:2@snapshot",
    "before:CommitEpoch@snapshot",
    "after:MergeEpoch@catch-up",
    "before:SampleSource@catch-up",
    "after:TrimBuffer@catch-up",
    "before:ReadRanges@live",
    "after:MergeEpoch:2@live",
    "after:BufferChanges:2@live",
    "after:WriteFile@live",
    "before:CommitMerge@live",
)
# In catch-up only two commits leave the job in this phase, so those that die after a commit come first, last and after
# the last.
MATRIX = tuple(
    f"{seam}@{phase}"
    for phase in ("snapshot", "catch-up", "live")
    for seam in (
        "before:TrimBuffer",
        *(f"{moment}:{order}" for order in ORDERS[:5] for moment in ("before", "after")),
        "before:CommitEpoch",
        "after:TrimBuffer",
        "after:CommitEpoch",
    )
)


HALVES = {"mysql": CHAIN[0::2], "mariadb": CHAIN[1::2]}


def test_chain_meets_every_seam() -> None:
    assert {seam.partition("@")[0].removesuffix(":2") for seam in CHAIN} == SEAMS | IN_A_MERGE
    assert sorted(sum(HALVES.values(), ())) == sorted(CHAIN)
    assert len(set(MATRIX)) == 3 * len(SEAMS)


@pytest.mark.timeout(3600)
def test_kills_lose_and_repeat_nothing(source_server: SqlServer, database: str, tmp_path: Path) -> None:
    die_and_go_on(HALVES[source_server.flavour], source_server, database, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_chain_of_kills_loses_and_repeats_nothing(source_server: SqlServer, database: str, tmp_path: Path) -> None:
    chain = MATRIX if os.environ.get("CRASH_MATRIX") == "full" else CHAIN
    die_and_go_on(chain, source_server, database, tmp_path)


def die_and_go_on(chain: Sequence[str], server: SqlServer, database: str, folder: Path) -> None:
    """One job that dies at each seam of the chain, and must end as an exact copy."""
    with server.connect() as connection:
        table = create_orders_table(connection, ROWS, 5, database=database, key_step=KEY_STEP)
    limits = {"range_rows": 100, "rows_per_second": 600, "backoff": "200ms", "max_backoff": "2s"}
    case = JobCase(
        server, folder, database, settings={"limits": limits, "epoch": {"backfill": "500ms", "live": "200ms"}}
    )
    copied = CopiedRows(case, Random(11))
    with Workload(lambda: server.connect(database), table, seed=3, rate=150, large_rows=300) as writer:
        for seam in chain:
            # A live job without a bomb would stop at once if it were asked to run until live.
            case.run(*(() if seam.endswith("@live") else ("--until", "live")), kill=seam)
            copied.change_some()
        case.to_live()
    report = writer.report()
    assert all(report.counts.get(kind, 0) > 0 for kind in OpKind), report.counts
    case.to_live()
    assert case.differences() == []


@dataclass
class CopiedRows:
    """Deletes, updates, moves and swaps rows that the copy holds at the moment."""

    case: JobCase
    random: Random

    def change_some(self) -> None:
        keys = self._keys()
        if len(keys) < 10:
            return
        gone, changed, moved, first, second = self.random.sample(keys, 5)
        # Gaps between two planned keys are never used by a row of the first copy.
        gap = KEY_STEP * self.random.randrange(ROWS) + 3
        # A key admits no two rows, not even for a moment: the first row of a swap steps aside.
        moves = ((moved, gap), (first, -1), (second, first), (-1, second))
        with self.case.server.connect(self.case.database) as connection, connection.cursor() as cursor:
            cursor.execute("DELETE FROM orders WHERE id IN (%s, %s)", (gone, gap))
            cursor.execute("UPDATE orders SET name = 'changed between two lives' WHERE id = %s", (changed,))
            connection.begin()
            try:
                for old, new in moves:
                    cursor.execute("UPDATE orders SET id = %s WHERE id = %s", (new, old))
                connection.commit()
            except pymysql.err.MySQLError as error:
                # The writer may have taken one of the keys in between: its change of it does as well.
                if error.args[0] not in CONFLICT:
                    raise
                connection.rollback()

    def _keys(self) -> list[int]:
        if not DeltaTable.is_deltatable(str(self.case.lake)):
            return []
        found = read_lake(self.case.lake, ["id"]).column("id").to_pylist()
        return sorted(int(key) for key in found)
