"""A state folder for the tests of the store, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from deltalake import DeltaTable

from progress.state.backfill_state import BackfillState
from progress.store.store import JobRecord, StateReader, StateStore
from tests.unit.progress.state.state_examples import DEFINITION, SERVER, beginning, plan_with
from vnode_backfill.words.epoch import Epoch

PLAN = plan_with(0, 10, 20, 30)
MINUTE = timedelta(minutes=1)
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Clock:
    time: datetime = START

    def __call__(self) -> datetime:
        return self.time

    def wait(self, duration: timedelta) -> None:
        self.time += duration


OpenStore = Callable[..., StateStore]


def record(job: str = "orders") -> JobRecord:
    return JobRecord.new(job, DEFINITION, vnode_count=4, server=SERVER, sink="delta:/lake/orders", now=START)


def create(store: StateStore, owner: str = "anna") -> BackfillState:
    lease = store.acquire_lease(owner, MINUTE)
    state = beginning(PLAN, workers=2)
    store.create(record(store.job), PLAN, state, lease)
    return state


def following(state: BackfillState) -> BackfillState:
    return replace(state, revision=state.revision + 1, epoch=Epoch(state.epoch + 1))


def stored_state(store: StateReader) -> BackfillState:
    loaded = store.load()
    assert loaded is not None
    return loaded.state


def checkpoints(store: StateReader) -> DeltaTable:
    return DeltaTable(f"{store.folder}/checkpoints")
