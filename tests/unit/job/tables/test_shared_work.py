"""What tables order together: nothing of an attempt that has failed begins beside the next one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from progress.state.backfill_state import BackfillState, Failure
from progress.store.tables_store import TablesStore
from tests.unit.decide.coordinated_job import LOST, PLAN, held_in_epoch_one, live_job
from vnode_backfill.config.job import Config
from vnode_backfill.decide.protocol import BufferChanges, CommitEpoch, ReadRanges, RestartEpoch, SampleSource
from vnode_backfill.job.run.driver_tools import DriverTools
from vnode_backfill.job.run.services import Committed
from vnode_backfill.job.tables.order import Order
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.job.tables.shared_work import SharedWork, cut_of
from vnode_backfill.words.epoch import Epoch


class Begun:
    """A store, a target and a Spark that only say what was begun."""

    def __init__(self) -> None:
        self.works: list[str] = []
        self.context = None

    def parked(self) -> None:
        return None

    def commit_together(self, *_: object) -> dict[str, object]:
        self.works.append("commit")
        return {}

    def run(self, actor: object, *_: object) -> list[object]:
        self.works.append(str(actor))
        return []

    def perform(self, action: object, _: object) -> None:
        self.works.append(type(action).__name__)


@pytest.fixture
def begun() -> Begun:
    return Begun()


@pytest.fixture
def shared(begun: Begun) -> Iterator[SharedWork]:
    second = timedelta(seconds=1)
    epoch = SimpleNamespace(live=second, backfill=second, cut=None, lag=None)
    config = SimpleNamespace(epoch=epoch, limits=SimpleNamespace(log_readers=2))
    tools = SimpleNamespace(spark=begun, source=None)
    made = SharedWork(cast(Config, config), cast(TablesStore, begun), cast(DriverTools, tools), lambda: None)
    yield made
    made.close()


def table_of(state: BackfillState, begun: Begun) -> RunningTable:
    run = SimpleNamespace(has_stopped=False, failure=None, coordinator=SimpleNamespace(saved=state))
    sink = SimpleNamespace(version=lambda: 7)
    table = SimpleNamespace(
        name="a", run=run, performer=begun, captured=state.written, is_soon_done=False, is_at_rest=False,
        services=SimpleNamespace(sink=sink), left_out_because="?",
        table=SimpleNamespace(opened=SimpleNamespace(record=SimpleNamespace(sink="delta"))),
    )  # fmt: skip
    return cast(RunningTable, _Hashable(table))


class _Hashable:
    def __init__(self, of: SimpleNamespace) -> None:
        self.__dict__.update(vars(of))


def test_what_nobody_has_begun_of_a_failed_attempt_is_left_out(shared: SharedWork, begun: Begun) -> None:
    job = held_in_epoch_one(ReadRanges, BufferChanges)
    table, committed = table_of(job.state, begun), Committed(job.state, PLAN)
    for order in (*job.held, CommitEpoch(job.state)):
        shared.carry_out(table, order, committed)
    shared.carry_out(table, RestartEpoch(1, LOST), committed)
    shared.begin([table])
    shared.close()
    assert begun.works == ["RestartEpoch"]


def test_table_that_fails_with_a_commit_is_not_part_of_its_cut(begun: Begun) -> None:
    """It keeps its intent: the merge may have landed, so that the target is beyond the offset of its state."""
    state = live_job().state
    failed = replace(state, failure=Failure(Epoch(1), "x"))
    table = table_of(state, begun)
    made = cut_of([table], {"a": state}, datetime.now(UTC))
    assert made is not None
    assert set(made.targets) == {"a"}
    assert cut_of([table], {"a": failed}, datetime.now(UTC)) is None


def test_table_that_cannot_rest_is_told_why_and_the_others_are_given_their_sample(
    shared: SharedWork, begun: Begun
) -> None:
    """Otherwise it would wait for a sample for ever."""
    state = live_job().state
    table = table_of(state, begun)
    told: list[BaseException] = []
    vars(table)["barriers"] = SimpleNamespace(notify_failure=lambda _actor, _attempt, error: told.append(error))
    asks = Order(table, SampleSource(idle=True, ticket=1), Committed(state, PLAN))
    assert shared._rests(asks)
    assert [type(error) for error in told] == [AttributeError]
