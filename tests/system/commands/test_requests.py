"""A live job is repaired, stopped and taken up again without losing a row, and shows it all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from devkit.comparer import DifferenceKind
from devkit.lake import read_lake
from devkit.mysql import MariaDbServer
from devkit.waiting import wait_for
from progress.state.backfill_state import Phase, Request, RequestKind
from progress.state.report import JobPhase
from tests.system.live_job import LiveJob, live_job, never_falls, writing
from vnode_backfill.commands import requests
from vnode_backfill.commands.resnapshot import resnapshot
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import SplitPlan, bound_of


@pytest.fixture
def job(spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path) -> Iterator[LiveJob]:
    with live_job(spark, mariadb_server, tmp_path, rows=3000) as made:
        yield made


@dataclass(frozen=True, slots=True)
class Damage:
    """Rows of the target that somebody else has spoilt."""

    deleted: int
    changed: int
    foreign: int

    def inflict(self, lake: Path) -> None:
        table = DeltaTable(str(lake))
        row = read_lake(lake).filter(pc.field("id") == self.changed)
        assert row.num_rows == 1
        table.delete(f"id = {self.deleted}")
        table.update(updates={"name": "'spoilt'"}, predicate=f"id = {self.changed}")
        stranger = row.set_column(0, "id", pa.array([self.foreign], pa.int32()))
        write_deltalake(str(lake), stranger, mode="append")

    @property
    def keys(self) -> tuple[int, int, int]:
        return self.deleted, self.changed, self.foreign


def plan_of(job: LiveJob) -> SplitPlan:
    loaded = state_store(job.config).load()
    assert loaded is not None
    return loaded.plan


def vnodes_of(job: LiveJob, keys: tuple[int, ...]) -> frozenset[VnodeId]:
    plan = plan_of(job)
    found = [plan.find(bound_of(plan.parts, (key,)).order) for key in keys]
    return frozenset(planned.vnode for planned in found if planned is not None)


def insert_beyond(job: LiveJob, keys: tuple[int, ...]) -> None:
    """Rows with keys that are not in the plan, and in the target by the log."""
    database = job.case.database
    with job.case.server.connect(database) as connection, connection.cursor() as cursor:
        for key in keys:
            columns = "big, name, amount, created, doc, state, score, flag, day"
            cursor.execute(f"INSERT INTO orders (id, {columns}) SELECT {key}, {columns} FROM orders WHERE id = 1")
    job.until(lambda: set(keys) <= set(ids(job)), "the rows came by the log")


def ids(job: LiveJob) -> list[int]:
    found: list[int] = read_lake(job.case.lake, ["id"])["id"].to_pylist()
    return found


def assert_damaged(job: LiveJob, damage: Damage) -> None:
    kinds = {difference.key[0]: difference.kind for difference in job.differences()}
    assert kinds == {
        damage.deleted: DifferenceKind.MISSING,
        damage.changed: DifferenceKind.DIFFERENT,
        damage.foreign: DifferenceKind.EXTRA,
    }


def stayed_live(job: LiveJob, except_for: frozenset[VnodeId], since: int) -> bool:
    states = [state for state in job.committed if state.revision > since]
    return all(v.phase is Phase.LIVE for state in states for v in state.vnodes if v.vnode not in except_for)


@pytest.mark.parametrize("by", ["only", "where_key"])
def test_damage_in_chosen_vnodes_is_repaired_while_the_others_stay_live(job: LiveJob, by: str) -> None:
    damage = Damage(deleted=304, changed=310, foreign=305)
    job.start()
    job.until_live()
    damage.inflict(job.case.lake)
    assert_damaged(job, damage)
    vnodes, revision = vnodes_of(job, damage.keys), job.state.revision
    only = ",".join(map(str, sorted(vnodes))) if by == "only" else None
    where = "304..310" if by == "where_key" else None
    with writing(job):
        job.ask(lambda config: resnapshot(config, only=only, where_key=where, everything=False))
        job.until_live()
        back = {
            v.vnode
            for state in job.committed
            if state.revision > revision
            for v in state.vnodes
            if v.phase is not Phase.LIVE
        }
        assert back == vnodes
        assert stayed_live(job, vnodes, revision)
    job.stop()
    job.assert_equal()
    assert never_falls([report.percent for report in job.reports])


def test_resnapshot_of_everything_repairs_keys_that_were_never_planned(job: LiveJob) -> None:
    inside = Damage(deleted=1501, changed=1504, foreign=1502)
    outside = (-40, 900_001, 900_002)
    job.start()
    job.until_live()
    insert_beyond(job, outside)
    inside.inflict(job.case.lake)
    Damage(deleted=900_001, changed=-40, foreign=950_000).inflict(job.case.lake)
    assert len(job.differences()) == 6
    with writing(job):
        job.ask(lambda config: resnapshot(config, only=None, where_key=None, everything=True))
        job.until_live()
        assert plan_of(job).generation == 1
    job.stop()
    job.assert_equal()


def test_stretch_of_keys_beyond_the_plan_is_repaired_by_extending_it(job: LiveJob) -> None:
    job.start()
    job.until_live()
    insert_beyond(job, (800_000, 800_003))
    Damage(deleted=800_000, changed=800_003, foreign=800_001).inflict(job.case.lake)
    with writing(job):
        job.ask(lambda config: resnapshot(config, only=None, where_key="800000..800003", everything=False))
        job.until_live()
    job.stop()
    job.assert_equal()


def test_pause_and_resume_are_shown_with_who_asked(job: LiveJob) -> None:
    with writing(job):
        steering_slowly(job)
        job.ask(requests.pause)
        assert job.report().phase is JobPhase.PAUSED
        written, rows = job.state.written, job.state.rows
        job.until(lambda: job.state.written > written, "the log goes on")
        assert job.state.rows == rows
        job.ask(requests.resume)
        job.ask(lambda config: requests.throttle(config, rows_per_second=None))
        job.until_live()
        assert requests.wait(job.config, timeout=None) == 0
        asked = [(request.kind, bool(request.who), request.refused) for request in job.report().requests]
        assert asked[:2] == [("pause", True, ""), ("resume", True, "")]
    job.stop()
    job.assert_equal()


def steering_slowly(job: LiveJob) -> None:
    """Start a job that reads slowly enough to be caught in the middle."""
    settings = job.case.settings["limits"]
    assert isinstance(settings, dict)
    settings["rows_per_second"] = 400
    job.start()
    job.until(lambda: job.state.rows > 0, "the first rows")


def test_progress_never_goes_back_over_restarts_and_rescales(job: LiveJob) -> None:
    with writing(job):
        steering_slowly(job)
        job.ask(lambda config: requests.rescale(config, workers=4, bitmaps=()))
        job.stop()
        assert job.report().phase is JobPhase.STOPPED
        job.start()
        job.ask(lambda config: requests.throttle(config, rows_per_second=None))
        job.until_live()
        job.ask(lambda config: resnapshot(config, only="0-7", where_key=None, everything=False))
        job.stop()
        job.start()
        job.until_live()
    job.stop()
    job.assert_equal()
    assert never_falls([report.percent for report in job.reports])
    assert never_falls([report.rows for report in job.reports])
    assert len(job.runs) == 3


def test_refused_request_is_shown_with_the_reason(job: LiveJob) -> None:
    """The job may change between the check of a request and its turn.

    What no longer fits is refused, and the job goes on.
    """
    job.start()
    job.until_live()
    state_store(job.config).append_request(Request(0, RequestKind.RESCALE, workers=99), "anna", "desk")
    job.until_answered()
    assert [request.refused for request in job.report().requests] == ["99 workers cannot share 16 vnodes"]
    assert job.running
    job.stop()


def test_job_that_was_dropped_starts_clean_under_the_same_name(
    spark: SparkSession, mariadb_server: MariaDbServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with live_job(spark, mariadb_server, tmp_path, rows=500) as job:
        job.start()
        job.until_live()
        job.stop()
        assert requests.drop(job.config) == 0
        assert f"the target delta:{job.case.lake} stays as it is" in capsys.readouterr().out
        assert sorted(ids(job)) == list(range(1, 1501, 3))
        replace_target(job)
        job.start()
        job.until_live()
        job.stop()
        job.assert_equal()
        wait_for(lambda: state_store(job.config).current_lease() is None, "the lease is given back")


def replace_target(job: LiveJob) -> None:
    """The new job may take over what the old one has written."""
    job.case.settings["sink"] = {"delta": {"path": str(job.case.lake), "replace": True}}
    (job.case.folder / "job.yaml").unlink()
