"""Runs the product's own loop and faces over the model world of `tests.simulation`: no server, no Spark.

The orders of a real `BackfillJob` are carried out by the simulated driver. Its state is committed to real tables, its
progress is shown by a real `Watch`.
"""

from __future__ import annotations

import logging
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import cast

import pytest
from pyspark.sql import SparkSession

from consume_upstream.buffer import ChangeBuffer
from consume_upstream.throttle import SourceThrottle
from consume_upstream.upstream_table import UpstreamQuestions, UpstreamTable
from progress.faces.metrics import CdcBackfillMetrics
from progress.state.backfill_state import new_state
from progress.state.barriers import CdcTableBackfillProgress, CreateMviewProgress, LocalBarrierManager
from progress.store.store import StateStore
from tests.simulation.actors import Driver, planned
from tests.simulation.simulator import ACTORS
from tests.simulation.source import ModelSource
from tests.simulation.world import ModelSink, ModelStore
from tests.unit.progress.state.state_examples import DEFINITION
from tests.unit.progress.store.state_folder import MINUTE, record
from vnode_backfill.config.job import Config, load_config
from vnode_backfill.decide.protocol import (
    Action,
    ChangesBuffered,
    CommitEpoch,
    EpochMerged,
    Event,
    InjectBarrier,
    RangesRead,
)
from vnode_backfill.decide.start_point import Latest, StartPlan
from vnode_backfill.job.open.opened import Opened
from vnode_backfill.job.run import watch as watching
from vnode_backfill.job.run.loop import BackfillJob, Until
from vnode_backfill.job.run.observations import Pace, Seen
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.job.run.watch import Watch
from vnode_backfill.sinks import Sink
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.epoch import Actor, Barrier

VNODES = 4


@dataclass
class World:
    """A model source with traffic, and a job's real state below `folder`; `run` is one driver's run until the job is
    live."""

    folder: Path
    limits: dict[str, object] = field(default_factory=dict)
    told: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(7)
        self.source = ModelSource(self.random, "mariadb", keys=30)
        for _ in range(40):
            self.source.step()

    @property
    def config(self) -> Config:
        path = self.folder / "job.yaml"
        path.write_text(f"""
job: orders
mysql: {{host: db, user: u, database: shop, table: orders}}
sink: {{delta: {{path: {self.folder / "lake"}}}}}
state: {{path: {self.folder / "state"}}}
ui: {{port: 0}}
limits: {self.limits}
""")
        return load_config(path, {})

    def run(self) -> CdcBackfillMetrics:
        config, store = self.config, StateStore(str(self.folder / "state"), "orders")
        plan = planned(self.source, VNODES, 3)
        state = new_state(self.source.visible_prefix(), plan, split_evenly(VNODES, 2))
        store.create(record(), plan, state, store.acquire_lease("anna", MINUTE))
        self.driver = Driver(self.random, self.source, ModelSink(), ModelStore(plans={0: plan}), "job", state, plan)
        self.driver.store.commit(state)
        table = cast(UpstreamTable, None)
        watch = Watch(config, Opened(record(), state, plan, store, table, True, StartPlan(True, Latest())), "quiet")
        services = Services(
            config, cast(SparkSession, None), table, cast(Sink, None),
            ChangeBuffer(str(self.folder / "buffer"), DEFINITION, "job", {}), store,
            SourceThrottle(config.limits.throttle), watch.metrics,
        )  # fmt: skip
        job = BackfillJob(services, state, plan, watch, performer=self.performer)
        after, failure = job.run(Until.LIVE)
        store.release()
        assert failure is None
        assert after.is_live
        return watch.metrics

    def performer(self, services: Services, barriers: LocalBarrierManager[Event]) -> ModelPerformer:
        return ModelPerformer(self, services, barriers)


class ModelPerformer:
    """Carries each order out at once, by the simulated driver; the source changes a little before each."""

    task_slots = 4
    leaves_tasks = False

    def __init__(self, world: World, services: Services, barriers: LocalBarrierManager[Event]) -> None:
        self.seen, self.pace, self.source = Seen(), Pace(), cast(UpstreamQuestions, None)
        self.stopping = threading.Event()
        self._world, self._services, self._barriers = world, services, barriers

    def perform(self, action: Action, committed: Committed) -> None:
        driver = self._world.driver
        driver.saved, driver.plan = committed.state, committed.plan
        if isinstance(action, InjectBarrier):
            self._barriers.inject(action.barrier)
        if isinstance(action, CommitEpoch):
            self._services.store.commit(action.state)
        self._world.source.step()
        for event in driver.perform(action):
            if event is not None:
                self._world.told.append(event)
                self._report(event, committed)

    def _report(self, event: Event, committed: Committed) -> None:
        match event:
            case CdcTableBackfillProgress():
                self._barriers.report_cdc_table_backfill_progress(event)
            case CreateMviewProgress():
                self._barriers.report_create_mview_progress(event)
            case RangesRead(attempt=attempt) | ChangesBuffered(attempt=attempt) | EpochMerged(attempt=attempt):
                barrier = Barrier(event.epoch, committed.intent.kind, attempt)
                self._barriers.collect(ACTORS[type(event)], barrier, event)
            case _:
                self._barriers.tell(event)

    def wake(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is held open."""


def value(metrics: CdcBackfillMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"vnode_backfill_{name}", labels)


def test_run_counts_what_its_actors_report(tmp_path: Path) -> None:
    world = World(tmp_path)
    metrics = world.run()
    kept = sum(event.kept for event in world.told if isinstance(event, ChangesBuffered))
    merged = sum(event.changes for event in world.told if isinstance(event, EpochMerged))
    epochs = sum(isinstance(event, RangesRead) for event in world.told)
    assert min(kept, merged, epochs) > 0
    assert value(metrics, "buffered_changes_total") == kept
    assert value(metrics, "merged_changes_total") == merged
    assert value(metrics, "epoch_seconds_count", actor=str(Actor.DRIVER)) == epochs


def test_run_counts_how_long_a_check_of_the_source_holds_it(tmp_path: Path) -> None:
    flag = tmp_path / "busy"
    flag.touch()
    metrics = World(tmp_path, limits={"throttle": {"flag_file": str(flag), "every": "7s"}}).run()
    assert value(metrics, "throttle_seconds_total", reason=f"the flag file {flag} exists") == 7.0


PACKAGE = """
from progress.faces.reporters import CdcTableBackfillProgressReporter, CreateMviewProgressReporter, Reporters

actors, tables = [], []


def reporter():
    return Reporters([CreateMviewProgressReporter(actors.append), CdcTableBackfillProgressReporter(tables.append)])
"""


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, package: str, entry: str) -> None:
    """A distribution as an installer leaves it."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{package}.py").write_text(PACKAGE)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[vnode_backfill.reporters]\n{package} = {entry}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(watching, "_SHOW_EVERY", 0.0)


def test_run_reports_in_risingwaves_words_to_an_installed_reporter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path / "site", "our_pager", "our_pager:reporter")
    world = World(tmp_path)
    world.run()
    module = sys.modules.pop("our_pager")
    actors, tables = module.actors, module.tables
    assert {event.actor for event in actors} == {Actor.SNAPSHOT, Actor.UPSTREAM, Actor.MERGE}
    assert set(actors) >= {
        CreateMviewProgress(event.actor, event.epoch, event.rows)
        for event in world.told
        if isinstance(event, CreateMviewProgress) and event.rows
    }
    assert tables[-1].ranges_done == tables[-1].ranges_total > 0


@pytest.mark.parametrize(
    ("reporter", "line"),
    [
        ("CreateMviewProgressReporter", "create mview progress actor=merge epoch="),
        ("CdcTableBackfillProgressReporter", "cdc table backfill progress epoch="),
    ],
)
def test_risingwaves_reporters_are_loadable_by_name_and_write_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reporter: str, line: str
) -> None:
    install(monkeypatch, tmp_path / "site", "progress_log", f"progress.faces.reporters:{reporter}")
    with caplog.at_level(logging.INFO):
        World(tmp_path).run()
    assert line in caplog.text
