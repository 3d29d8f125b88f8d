"""Runs a job in a thread of the test, on the Spark session that tests share. The real commands steer it from outside.

A case costs seconds instead of the start of a JVM. The test controls what happens at the seams: `Seams` notes every
order of the coordinator, can hold one until the test releases it, and can make one fail, as a database or a disk would.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Self

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from consume_upstream.throttle import SourceThrottle
from devkit.comparer import Difference
from devkit.errors import DevkitError
from devkit.mysql import SqlServer
from devkit.orders import WorkloadTable, create_orders_table, quote
from devkit.waiting import wait_for
from devkit.writer import Workload
from progress.state.backfill_state import BackfillState, Failure
from progress.state.report import Report
from tests.system.job_case import JobCase
from vnode_backfill.commands import requests
from vnode_backfill.commands.status import read_report
from vnode_backfill.config.job import Config, load_config
from vnode_backfill.decide.coordinator import Coordinator
from vnode_backfill.decide.protocol import Action
from vnode_backfill.job.open.locations import buffer_path, state_store
from vnode_backfill.job.open.open import open_job
from vnode_backfill.job.open.sink import change_buffer, open_sink
from vnode_backfill.job.run import order_threads
from vnode_backfill.job.run.loop import BackfillJob, PerformsOrders, Until
from vnode_backfill.job.run.order_threads import Moment
from vnode_backfill.job.run.performer import Performer
from vnode_backfill.job.run.services import Services
from vnode_backfill.job.run.watch import Watch
from vnode_backfill.words.errors import BackfillError

Fault = Callable[[Moment, Action], BaseException | None]


def no_fault(moment: Moment, action: Action) -> BaseException | None:
    """Everything goes well."""
    return None


def fails_once(order: type[Action], error: BaseException, moment: Moment = "before") -> Fault:
    """The next order of this kind fails before (or after) it is carried out; those after it do not."""
    left, struck = [error], moment

    def fault(moment: Moment, action: Action) -> BaseException | None:
        return left.pop() if moment == struck and isinstance(action, order) and left else None

    return fault


@dataclass
class Seams:
    """Called before and after every order that is carried out; `orders` are those that were begun."""

    orders: list[Action] = field(default_factory=list)
    fault: Fault = no_fault
    _held: type[Action] | None = None
    _when: Callable[[], bool] = lambda: True
    _reached: threading.Event = field(default_factory=threading.Event)
    _go: threading.Event = field(default_factory=threading.Event)

    def __call__(self, moment: Moment, action: Action) -> None:
        if moment == "before":
            self.orders.append(action)
            if self._held is not None and isinstance(action, self._held) and self._when():
                self._reached.set()
                self._go.wait(180)
        error = self.fault(moment, action)
        if error is not None:
            raise error

    @contextmanager
    def holding(self, order: type[Action], when: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Hold orders of this kind until the block ends. The block begins with the first one for which `when` holds."""
        self._go.clear()
        self._reached.clear()
        self._held, self._when = order, when
        try:
            assert self._reached.wait(180), f"no {order.__name__} was ordered"
            yield
        finally:
            self._held = None
            self._go.set()


@dataclass
class Run:
    """One driver's run: shows progress as a run does, and keeps every state that was committed.

    The job's loop waits while `going` is cleared, so that what the actors report piles up.
    """

    watch: Watch
    coordinators: list[Coordinator] = field(default_factory=list)
    saved: list[BackfillState] = field(default_factory=list)
    performer: Performer | None = None
    going: threading.Event = field(default_factory=threading.Event)

    def look(self, coordinator: Coordinator, performer: PerformsOrders) -> None:
        self._keep(coordinator, performer)
        self.watch.look(coordinator, performer)
        self.going.wait(180)

    def close(self, coordinator: Coordinator, performer: PerformsOrders) -> None:
        self._keep(coordinator, performer)
        self.watch.close(coordinator, performer)

    @property
    def at_rest(self) -> bool:
        """Every order that was begun has ended and been reported."""
        return self.performer is not None and not self.performer.orders.running

    def _keep(self, coordinator: Coordinator, performer: PerformsOrders) -> None:
        assert isinstance(performer, Performer)
        self.performer = performer
        if not self.coordinators or self.coordinators[-1] is not coordinator:
            self.coordinators.append(coordinator)
        if not self.saved or self.saved[-1].revision != coordinator.saved.revision:
            self.saved.append(coordinator.saved)


@dataclass
class Shown:
    """A reporter that keeps every report."""

    reports: list[Report]

    def show(self, report: Report) -> None:
        self.reports.append(report)

    def close(self) -> None:
        """Nothing is held open."""


@dataclass
class LiveJob:
    """One job; `start` runs a driver in a thread, `stop` asks it to stop as an operator would. May be started again."""

    spark: SparkSession
    case: JobCase
    table: WorkloadTable
    seams: Seams = field(default_factory=Seams)
    reports: list[Report] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    failure: Failure | None = None
    error: BaseException | None = None
    _thread: threading.Thread | None = None

    @property
    def config(self) -> Config:
        return load_config(self.case.config, {})

    def start(self, until: Until = Until.STOPPED) -> Self:
        """Open the job as `run` does, and continue in a thread."""
        self.failure = self.error = None
        config = self.config
        opened = open_job(config, asked_vnodes=None)
        run = Run(Watch(config, opened, "quiet", Shown(self.reports)))
        services = Services(
            config, self.spark, opened.table, open_sink(config, opened.record, opened.store, opened.table),
            change_buffer(config, opened.record, opened.store), opened.store,
            SourceThrottle(config.limits.throttle), run.watch.metrics,
        )  # fmt: skip
        run.going.set()
        self.runs.append(run)
        order_threads.seam = self.seams
        job = BackfillJob(services, opened.state, opened.plan, run)

        def drive() -> None:
            try:
                _, self.failure = job.run(until)
            except BaseException as error:  # noqa: BLE001 - raised again by `raise_errors`
                self.error = error
            finally:
                opened.store.release()

        self._thread = threading.Thread(target=drive, name="driver")
        self._thread.start()
        return self

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def coordinator(self) -> Coordinator:
        return self.runs[-1].coordinators[-1]

    @property
    def committed(self) -> list[BackfillState]:
        """Every state the last driver has loaded or committed, oldest first."""
        return self.runs[-1].saved

    def rescaled(self) -> tuple[BackfillState, BackfillState]:
        """The commits before and with the last change of the bitmaps."""
        pairs = list(pairwise(self.committed))
        return next(p for p in reversed(pairs) if p[0].assignment_generation != p[1].assignment_generation)

    @property
    def state(self) -> BackfillState:
        """What is committed, read from the tables."""
        loaded = state_store(self.config).load()
        assert loaded is not None
        return loaded.state

    def report(self) -> Report:
        """What `status` shows."""
        return read_report(self.config)

    def shown(self) -> Report:
        """What the run shows now."""
        return self.reports[-1]

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 180) -> None:
        """Wait for a condition of a job that runs; a job that ended is an error."""

        def holds() -> bool:
            if condition():
                return True
            if not self.running:
                raise DevkitError(f"the job ended before: {what}", detail=str(self.failure or self.error))
            return False

        wait_for(holds, what, seconds=seconds, state=lambda: self.reports[-1:] or "no report")

    @property
    def is_live(self) -> bool:
        """By the last commit of the driver that runs. Reading the tables would cost as much as a job of many ranges."""
        return bool(self.committed) and self.committed[-1].is_live

    def until_live(self, seconds: float = 180) -> None:
        self.until(lambda: self.is_live, "live", seconds)

    def until_answered(self) -> None:
        """Every request has been acted on."""
        self.until(lambda: all(r.epoch is not None for r in self.report().requests), "requests answered")

    def until_ended(self) -> None:
        """The driver has ended by itself."""
        wait_for(lambda: not self.running, "the driver ended", seconds=180, state=lambda: self.reports[-1:])

    def ask(self, command: Callable[[Config], int]) -> None:
        """Make a request and wait until it was acted on."""
        assert command(self.config) == 0
        self.until_answered()

    def stop(self) -> None:
        """Ask for a stop and wait for the end; whatever went wrong is raised."""
        if self.running:
            requests.stop(self.config)
        self.until_ended()
        self.raise_errors()

    def raise_errors(self) -> None:
        if self.error is not None:
            raise self.error
        if self.failure is not None:
            raise BackfillError(self.failure.message, detail=self.failure.detail, hint=self.failure.hint)

    def abandon(self) -> None:
        """End the thread of a failed test, so that the next one has the Spark session for itself."""
        if self.running:
            self.seams.fault = no_fault
            self.runs[-1].going.set()
            requests.stop(self.config)
            self.until_ended()

    def versions(self) -> dict[str, int]:
        """The newest version of every table of the job."""
        folder = Path(state_store(self.config).folder)
        paths = [folder / name for name in ("jobs", "plan", "checkpoints", "requests")]
        paths += [Path(buffer_path(self.config)), self.case.lake]
        return {path.name: DeltaTable(str(path)).version() for path in paths if (path / "_delta_log").exists()}

    def move_to(self, server: SqlServer) -> None:
        """Point the job, and the writers of `writing`, at another server."""
        self.case.server = server
        settings = json.loads(self.case.config.read_text())
        settings["mysql"]["port"] = server.port
        self.case.config.write_text(json.dumps(settings))

    def differences(self) -> list[Difference]:
        return self.case.differences()

    def assert_equal(self) -> None:
        differences = self.differences()
        assert differences == [], f"{len(differences)} differences, the first: {differences[:3]}"


def database_of(folder: Path) -> str:
    """The database of the job whose files are in this folder."""
    return f"live_{folder.name.replace('-', '_')}"[:60]


@contextmanager
def live_job(
    spark: SparkSession,
    server: SqlServer,
    folder: Path,
    *,
    rows: int = 6000,
    settings: dict[str, object] | None = None,
) -> Iterator[LiveJob]:
    """A table of `rows` rows with gaps between its keys, and the job that copies it; not started yet.

    It joins no files by itself, so that every commit of its tables is one of the protocol.
    """
    database = database_of(folder)
    with server.connect() as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {quote(database)}")
        table = create_orders_table(connection, rows, 7, database=database, key_step=3)
    limits = {"backoff": "100ms", "max_backoff": "400ms", "range_rows": 200}
    given = {"sink": {"delta": {"path": str(folder / "lake"), "compact_small_files": 0}}, **(settings or {})}
    limits_given = given.pop("limits", {})
    assert isinstance(limits_given, dict)
    case = JobCase(server, folder, database, settings={**given, "limits": {**limits, **limits_given}})
    job = LiveJob(spark, case, table)
    try:
        yield job
    finally:
        job.abandon()
        order_threads.seam = order_threads.no_seam
        if server.running:
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"DROP DATABASE IF EXISTS {quote(database)}")


@contextmanager
def writing(job: LiveJob, *, rate: float = 150, seed: int = 5) -> Iterator[Workload]:
    """Live traffic of every kind on the job's table while the block lasts: deletes, key changes, swaps, rollbacks."""
    case = job.case
    workload = Workload(
        lambda: case.server.connect(case.database), job.table, seed=seed, rate=rate, large_rows=100
    )  # fmt: skip
    with workload:
        yield workload


def never_falls(values: Sequence[float]) -> bool:
    return all(before <= after for before, after in pairwise(values))
