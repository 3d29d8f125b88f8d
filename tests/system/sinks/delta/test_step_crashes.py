"""A process that is killed with -9 around any step in which the target changes on disk leaves every row as it was.

The steps are those of `vnode_backfill.delta.steps`. `vnode-backfill compact` dies in steps of a join and a fold beside
a live job under a writer, and in steps of a sweep, a checkpoint and a cleanup of the log; among the long tests in each
of them. There the job itself dies in each of them too, and in each step of a merge. The table is aged between two
deaths, so that its upkeep is due. Rows are compared one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devkit.lake import count_lake
from devkit.mysql import MySqlServer, SqlServer
from devkit.orders import create_orders_table
from devkit.waiting import wait_for
from tests.system.job_case import KILLED, JobCase, execute
from tests.system.live_job import LiveJob, live_job, writing
from tests.system.sinks.delta.aged_table import age
from vnode_backfill.delta.steps import Step


def around(*steps: Step) -> tuple[str, ...]:
    return tuple(f"{moment}:{step}" for step in steps for moment in ("before", "after"))


MERGE = around(Step.WRITE_FILE, Step.WRITE_VECTORS, Step.COMMIT_MERGE)
JOIN = around(Step.WRITE_JOIN, Step.COMMIT_JOIN)
FOLD = around(Step.WRITE_FOLD, Step.COMMIT_FOLD)
SWEEP = (*around(Step.SWEEP_FILE), f"before:{Step.SWEEP_FILE}:5")
CHECKPOINT = around(Step.MAKE_CHECKPOINT)
CLEANUP = (*around(Step.CLEAN_FILE), f"before:{Step.CLEAN_FILE}:3")


def test_every_step_has_a_death_before_and_after_it() -> None:
    assert {*MERGE, *JOIN, *FOLD, *SWEEP, *CHECKPOINT, *CLEANUP} >= set(around(*Step))


@pytest.mark.timeout(900)
def test_killed_compactions_change_no_row_beside_a_job_and_after_it(
    spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path
) -> None:
    few = (JOIN[1], JOIN[3], FOLD[1], FOLD[2]), (SWEEP[2], CHECKPOINT[1]), CLEANUP[1:2]
    die_in_compactions(spark, mysql_server, tmp_path, *few)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_compactions_killed_in_every_step_change_no_row(
    spark: SparkSession, source_server: SqlServer, tmp_path: Path
) -> None:
    die_in_compactions(spark, source_server, tmp_path, (*JOIN, *FOLD), (*SWEEP, *CHECKPOINT), CLEANUP)


def die_in_compactions(
    spark: SparkSession,
    server: SqlServer,
    folder: Path,
    beside: Sequence[str],
    upkeep: Sequence[str],
    cleanups: Sequence[str],
) -> None:
    # Ranges of 100 rows leave so many small files that joins come before folds.
    settings: dict[str, object] = {
        "sink": {"delta": {"path": str(folder / "lake"), "merge": "vectors", "compact_small_files": 0}},
        "limits": {"range_rows": 100},
    }
    with live_job(spark, server, folder, rows=7000, settings=settings) as job:
        job.start()
        job.until_live()
        with writing(job):
            for seam in beside:
                if seam in FOLD:
                    # Where many small files wait, joins come first, and may leave nothing to fold.
                    job.case.command("compact")
                wait_for_vectors(job.case)
                job.case.command("compact", kill=seam, code=KILLED)
            job.case.command("compact")
        job.stop()
        job.assert_equal()
        for seam in upkeep:
            die_in_upkeep(job, seam)
        for turn, seam in enumerate(cleanups):
            follow_some_changes(job, turn)
            die_in_upkeep(job, seam)
        follow_some_changes(job, len(cleanups))
        age(job.case.lake)
        job.case.command("compact")
        assert_read_alike(spark, job.case)


def wait_for_vectors(case: JobCase) -> None:
    """Until the job has merged changes again, so that there is something to fold."""
    before = DeltaTable(case.lake).version()
    wait_for(lambda: DeltaTable(case.lake).version() > before + 2, "changes were merged", seconds=240)


def die_in_upkeep(job: LiveJob, seam: str) -> None:
    age(job.case.lake)
    job.case.command("compact", kill=seam, code=KILLED)
    job.assert_equal()


def follow_some_changes(job: LiveJob, turn: int) -> None:
    change_some(job.case, turn, one_in=60)
    job.start()
    job.until_live()
    job.stop()
    job.assert_equal()


def change_some(case: JobCase, turn: int, *, one_in: int) -> None:
    """Update one in so many rows, others each turn; delete one and insert one, if no writer has inserted it."""
    execute(
        case.server, case.database,
        f"UPDATE orders SET amount = amount + 1, name = 'turn {turn}' WHERE id DIV 3 % {one_in} = {turn % one_in}",
        f"DELETE FROM orders WHERE id DIV 3 = {100 + turn}",
        f"INSERT IGNORE INTO orders SELECT id + 1, big, name, amount, created, doc, state, score, flag, day FROM orders "
        f"WHERE id DIV 3 = {900 + turn} AND id % 3 = 1",
    )  # fmt: skip


def assert_read_alike(spark: SparkSession, case: JobCase) -> None:
    """Every row equals the source, and Spark and polars see the same keys and amounts as deltalake."""
    assert case.differences() == []
    by_spark = spark.read.format("delta").load(str(case.lake)).selectExpr("count(*)", "sum(id)", "sum(amount)").first()
    by_polars = polars.scan_delta(str(case.lake)).select(
        polars.len(), polars.col("id").cast(polars.Int64).sum().alias("ids"), polars.col("amount").sum()
    )
    assert by_spark is not None
    assert tuple(by_spark) == by_polars.collect().row(0)
    assert by_spark[0] == count_lake(case.lake)


IN_A_JOB = {"merge": MERGE, "join": JOIN, "fold": FOLD, "upkeep": (*SWEEP[:2], *CHECKPOINT, *CLEANUP)}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", IN_A_JOB)
def test_jobs_killed_in_every_step_of_their_target_lose_and_repeat_nothing(
    spark: SparkSession, source_server: SqlServer, database: str, tmp_path: Path, part: str
) -> None:
    with source_server.connect() as connection:
        create_orders_table(connection, 60_000, 4, database=database, key_step=3)
    lives = Lives(JobCase(source_server, tmp_path, database))
    lives.follow(one_in=200)
    # The files of the ranges become two large ones.
    lives.case.command("compact")
    # Two merges that each take less than a tenth of the rows: a fold is due then, and neither writes the file again.
    for _ in range(2):
        lives.follow(one_in=14, compacts=False)
    for seam in IN_A_JOB[part]:
        if part == "upkeep":
            # Leaves commits that get older than the job waits with a checkpoint. Else each death waits for five minutes.
            lives.follow(one_in=200, compacts=False)
        lives.die(seam, compacts=part in ("join", "fold"))
    lives.follow(one_in=200)
    assert_read_alike(spark, lives.case)


@dataclass
class Lives:
    """The lives of one job, before each of which rows change and the table gets older. Only some join and fold files.

    Files of a megabyte count as large, so that they are folded and not joined.
    """

    case: JobCase
    turn: int = 0

    def die(self, seam: str, *, compacts: bool) -> None:
        self._begin(200, compacts)
        self.case.run(kill=f"{seam}@live")

    def follow(self, *, one_in: int, compacts: bool = True) -> None:
        self._begin(one_in, compacts)
        self.case.to_live()
        assert self.case.differences() == []

    def _begin(self, one_in: int, compacts: bool) -> None:
        self.turn += 1
        change_some(self.case, self.turn, one_in=one_in)
        if self.case.lake.exists():
            age(self.case.lake)
        delta = {"path": str(self.case.lake), "merge": "vectors", "target_file_size": "2MB"}
        self.case.use(sink={"delta": {**delta, "compact_small_files": 50 if compacts else 0}})
