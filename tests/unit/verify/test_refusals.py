"""`verify` refuses a copy that is not complete before it runs a task or reads the source."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import BackfillState, Phase
from progress.store.store import StateStore
from tests.unit.progress.state.state_examples import beginning
from tests.unit.progress.store.state_folder import PLAN, record
from vnode_backfill.config.job import Config
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.job.sink.description import Comparing
from vnode_backfill.verify.pace import SourcePace
from vnode_backfill.verify.table import JobProgress
from vnode_backfill.verify.tasks import TaskRunner
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import StateError


class ComparedError(Exception):
    """The comparison has begun."""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate(
        {
            "job": "orders",
            "mysql": {"host": "nowhere.invalid", "user": "root", "database": "shop", "table": "orders"},
            "sink": {"delta": {"path": str(tmp_path / "lake")}},
            "state": {"path": str(tmp_path / "state")},
            "vnodes": 4,
        }
    )


@pytest.fixture
def driver(config: Config) -> StateStore:
    store = state_store(config)
    store.create(record("orders"), PLAN, beginning(PLAN, workers=2), store.acquire_lease("anna", timedelta(hours=1)))
    return store


def read_but(state: BackfillState, unread: int) -> BackfillState:
    """Every range is read and caught up, except for the last `unread` ones of the plan."""
    left = {planned.ordinal for planned in PLAN.ranges[len(PLAN.ranges) - unread :]}
    vnodes = []
    for each in state.vnodes:
        ordinals = {planned.ordinal for planned in PLAN.of_vnode(each.vnode)}
        read = replace(each, reads=tuple((ordinal, Epoch(0)) for ordinal in sorted(ordinals - left)))
        whole = replace(read, phase=Phase.LIVE, complete=Epoch(1), epoch=Epoch(1))
        vnodes.append(read if ordinals & left else whole)
    return replace(state, revision=state.revision + 1, vnodes=tuple(vnodes))


def compare(config: Config, driver: StateStore) -> None:
    loaded = driver.load()
    assert loaded is not None

    def progress() -> JobProgress:
        return JobProgress(loaded.state.written, running=False)

    configured_sink(config).verify(Comparing(loaded, tasks=_no_tasks, source=_no_source, progress=progress))


def _no_tasks() -> AbstractContextManager[TaskRunner]:
    raise ComparedError


def _no_source() -> AbstractContextManager[tuple[UpstreamTable, SourcePace]]:
    raise ComparedError


@pytest.mark.parametrize("unread", [len(PLAN.ranges), 1])
def test_copy_that_is_not_complete_is_refused_with_what_to_do_next(
    config: Config, driver: StateStore, unread: int
) -> None:
    loaded = driver.load()
    assert loaded is not None
    driver.commit(read_but(loaded.state, unread))
    with pytest.raises(StateError, match="job orders has not copied the whole table yet") as raised:
        compare(config, driver)
    assert "run --until live" in raised.value.hint


def test_complete_copy_is_compared(config: Config, driver: StateStore) -> None:
    loaded = driver.load()
    assert loaded is not None
    driver.commit(read_but(loaded.state, 0))
    with pytest.raises(ComparedError):
        compare(config, driver)
