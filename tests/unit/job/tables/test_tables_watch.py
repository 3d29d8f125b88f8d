"""What a job of many tables shows of its targets, of its log and of slower epochs, and what it costs to show it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from consume_upstream.log.offset import CdcOffset
from consume_upstream.upstream_table import HeldLog
from progress.faces.metrics import CdcBackfillMetrics
from progress.faces.reporters import NullReporter
from progress.faces.terminal import Face, status_text
from progress.state.report import JobPhase, Report
from progress.state.target_health import TargetHealth, VectorHealth
from progress.store.tables_store import TablesStore
from tests.unit.decide.coordinated_job import Job, live_job
from tests.unit.progress.state.state_examples import at
from tests.unit.progress.store.tables_folder import stored
from vnode_backfill.config.job import Config
from vnode_backfill.job.run.observations import Pace, Seen
from vnode_backfill.job.run.pace_of_epochs import AS_CONFIGURED, LOG_BYTES_A_MINUTE, Lengthening
from vnode_backfill.job.run.table_run import TableRun
from vnode_backfill.job.run.watch import Faces
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.job.tables.tables_job import TablesJob
from vnode_backfill.job.tables.watch import TablesWatch

HEALTH = TargetHealth(3, 100, 40, 7, 70, 60, 20, VectorHealth(10, 50))


class Held:
    """A log of which the first thousand bytes are held, up to `end`, for an hour."""

    kept_seconds = 3600.0

    def __init__(self, end: int = 1000) -> None:
        self.end = end

    def bytes_before(self, offset: CdcOffset) -> int:
        return offset.pos

    def bytes_after(self, offset: CdcOffset) -> int:
        return max(0, self.end - offset.pos)


class Table:
    """A table as far as the watch looks at it."""

    def __init__(self, name: str, job: Job, seen: Seen, pace: Pace | None = None) -> None:
        self.name, self.reached = name, cast("CdcOffset | None", None)
        self.performer = SimpleNamespace(seen=seen, pace=pace or Pace(), task_slots=None)
        self.run = SimpleNamespace(coordinator=job.coordinator, has_stopped=False)
        record = SimpleNamespace(database="shop", table=name, sink=f"delta:/lake/{name}")
        self.table = SimpleNamespace(opened=SimpleNamespace(record=record))

    @property
    def captured(self) -> CdcOffset:
        return self.reached or cast(CdcOffset, self.run.coordinator.saved.written)


class Shown:
    """Keeps what is shown."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def show(self, report: Report) -> None:
        self.reports.append(report)

    def close(self) -> None:
        """Nothing is open."""


class Watched:
    """A watch, its metrics and what it has shown."""

    def __init__(self, store: TablesStore) -> None:
        self.metrics, self.shown = CdcBackfillMetrics(), Shown()
        faces = Faces(self.metrics, NullReporter(), ())
        ui = SimpleNamespace(stalled_after=SimpleNamespace(total_seconds=lambda: 600.0))
        config = SimpleNamespace(job="shop", storage=SimpleNamespace(options={}), ui=ui)
        self.reported: tuple[str, ...] = ()
        self.watch = TablesWatch(
            cast(Config, config), store, Face.QUIET, faces, self.shown, reported=lambda: self.reported
        )

    def look(self, *tables: Table) -> Report:
        self.watch._shown_at = -1e9
        self.watch.look([cast(RunningTable, table) for table in tables], {})
        return self.shown.reports[-1]

    def value(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"vnode_backfill_{name}")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(stored(tmp_path, "orders"))
    yield made
    made.watch.close([], {})


def seen_with(target: TargetHealth | None = None, log: HeldLog | None = None, slower_by: str = "") -> Seen:
    return Seen(target=target, held_log=log, lengthened_by=slower_by, newest=int(time.time()))


def test_targets_and_slower_epochs_of_tables_are_shown_also_when_nothing_happens_to_them(watched: Watched) -> None:
    first, second = Table("a", live_job(), seen_with()), Table("b", live_job(), seen_with(HEALTH))
    assert watched.look(first, second).observed.target == HEALTH
    first.performer.seen.target = HEALTH
    first.performer.pace.lengthened, first.performer.seen.lengthened_by = 4, "its log grew"
    found = watched.look(first, second)
    assert (found.observed.lengthened, found.observed.lengthened_by) == (4, "its log grew (a)")
    assert found.parts["a"].observed.target == HEALTH
    assert (found.observed.target and found.observed.target.files) == 6
    assert (watched.value("target_files"), watched.value("epoch_lengthening")) == (6, 4)
    assert watched.value("vector_share") == 0.25


def test_new_tables_that_are_not_copied_are_shown_as_long_as_there_are_some(watched: Watched) -> None:
    watched.reported = tuple(f"shop.new_{number}" for number in range(22))
    report = watched.look(Table("a", live_job(), seen_with()))
    assert json.loads(report.to_json())["reported"] == list(watched.reported)
    (line,) = [line for line in status_text(report).splitlines() if line.startswith("new ")]
    assert line.startswith("new        shop.new_0, ")
    assert line.endswith("shop.new_19 and 2 more: not copied, because mysql.new_tables is report")
    watched.reported = ()
    after = watched.look(Table("a", live_job(), seen_with()))
    assert json.loads(after.to_json())["reported"] == []
    assert "mysql.new_tables" not in status_text(after)


def test_retention_is_that_of_the_table_for_which_least_is_captured(watched: Watched) -> None:
    log = Held()
    tables = [Table(name, live_job(), seen_with(log=cast(HeldLog, log))) for name in ("a", "b", "gone")]
    for table, place in zip(tables, (900, 300, 100), strict=True):
        table.reached = at(place)
    tables[2].run.has_stopped = True
    found = watched.look(*tables)
    assert found.observed.lag_bytes == 700
    assert (watched.metrics.retention.held_bytes, watched.metrics.retention.seconds) == (300, 3600.0)
    assert watched.value("binlog_held_bytes") == 300
    tables[1].reached = at(950)
    watched.look(*tables)
    assert watched.value("binlog_held_bytes") == 900


def test_table_that_is_woken_is_as_far_as_it_was_before_it_has_heard_so(watched: Watched) -> None:
    """Its own state may be days older than what was read of the log while it was resting."""
    table = Table("a", live_job(), seen_with(log=cast(HeldLog, Held())))
    table.reached = at(990)
    assert watched.look(table).observed.lag_bytes == 10
    table.reached = None
    assert table.captured < at(990)
    assert watched.look(table).observed.lag_bytes == 10
    assert watched.value("binlog_held_bytes") == 990


def test_table_that_has_ended_hides_no_lag(watched: Watched) -> None:
    log = cast(HeldLog, Held())
    running, gone = Table("a", live_job(), seen_with(log=log)), Table("b", live_job(), seen_with(log=log))
    running.reached, gone.reached = at(900), at(100)
    stopped = replace(gone.run.coordinator.saved, stopped=True)
    gone.run = SimpleNamespace(coordinator=replace(gone.run.coordinator, saved=stopped), has_stopped=True)
    found = watched.look(running, gone)
    assert found.parts["b"].phase is JobPhase.STOPPED
    assert found.observed.lag_bytes == 100


class Upkeep:
    """Counts how often the target was looked at."""

    def __init__(self) -> None:
        self.looks, self.now = 0, 0.0
        self.health = TargetHealth(1, 1, 1, 1, logged_bytes=0)
        self.lengthening: Lengthening = AS_CONFIGURED

    def tidy(self, _state: object) -> None:
        self.looks += 1
        self.judge_pace()

    def judge_pace(self) -> None:
        self.lengthening = self.lengthening.after(self.now, self.health)

    def maybe_compact(self, _state: object, _goes_on: object) -> object:
        return None if self.looks != 1 else object()


class Kept:
    """A table and its upkeep, as far as a job looks after it."""

    def __init__(self) -> None:
        self.upkeep, self.seen, self.pace = Upkeep(), Seen(), Pace()
        run = object.__new__(TableRun)
        run.coordinator, run._upkeep = live_job().coordinator, self.upkeep  # type: ignore[assignment]
        run._seen, run._pace = self.seen, self.pace
        self.table = SimpleNamespace(
            name="a", run=run, performer=SimpleNamespace(pace=self.pace), reshaped=0, tidied=(-1, 0),
            services=SimpleNamespace(sink=SimpleNamespace(keep=lambda _: None)),
            table=SimpleNamespace(opened=SimpleNamespace(record=SimpleNamespace(sink="delta:/lake/a"))),
        )  # fmt: skip
        self.job = object.__new__(TablesJob)
        self.job.tables = [cast(RunningTable, self.table)]
        self.job._ended = SimpleNamespace(is_set=lambda: False)  # type: ignore[assignment]
        self.job._stop_asked = False
        vars(self.job)["_kept_versions"] = lambda: SimpleNamespace(version_of=lambda *_: None)

    def tidy(self, now: float) -> None:
        self.upkeep.now = now
        self.job._tidy()


def test_target_of_a_table_that_rests_is_looked_at_once_and_its_epochs_get_shorter_again() -> None:
    kept = Kept()
    kept.tidy(0.0)
    kept.upkeep.health = replace(kept.upkeep.health, logged_bytes=9 * LOG_BYTES_A_MINUTE)
    kept.table.tidied = (-1, 0)
    kept.tidy(60.0)
    assert (kept.pace.lengthened, kept.upkeep.looks) == (2, 2)
    assert "log grew" in kept.seen.lengthened_by
    for now in (62.0, 100.0, 121.0, 200.0):
        kept.tidy(now)
    assert (kept.pace.lengthened, kept.seen.lengthened_by, kept.upkeep.looks) == (1, "", 2)


def test_target_is_looked_at_again_when_its_files_were_joined_or_folded() -> None:
    kept = Kept()
    kept.tidy(0.0)
    kept.job._keep_up()
    kept.tidy(2.0)
    kept.job._keep_up()
    kept.tidy(4.0)
    assert (kept.upkeep.looks, kept.table.reshaped) == (2, 1)
