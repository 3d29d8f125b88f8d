"""A request to stop that came to a table which had stopped already is not obeyed by the next driver."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from progress.state.backfill_state import BackfillState, Request, RequestKind
from progress.store.tables_store import TablesStore
from tests.unit.progress.store.tables_folder import PLAN, stored
from vnode_backfill.job.tables.late_stops import acknowledge_late_stops
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.words.schema_change import Ended

STOP, PAUSE = Request(0, RequestKind.STOP), Request(0, RequestKind.PAUSE)


def saved_of(store: TablesStore, name: str) -> BackfillState:
    loaded = store.table(name).load()
    assert loaded is not None
    return loaded.state


def table_of(store: TablesStore, name: str, *, has_stopped: bool, ending: Ended | None = None) -> RunningTable:
    coordinator = SimpleNamespace(saved=saved_of(store, name), plan=PLAN)
    run = SimpleNamespace(has_stopped=has_stopped, ending=ending, coordinator=coordinator)
    found = SimpleNamespace(name=name, run=run, services=SimpleNamespace(store=store.table(name)))
    return cast(RunningTable, found)


@pytest.mark.parametrize(
    ("has_stopped", "ending", "left"),
    [(True, None, ["pause"]), (False, None, ["stop", "pause"]), (True, Ended("dropped"), ["stop", "pause"])],
)
def test_the_driver_acknowledges_stops_of_tables_that_have_stopped(
    tmp_path: Path, has_stopped: bool, ending: Ended | None, left: list[str]
) -> None:
    store, name = stored(tmp_path, "orders"), "shop.orders"
    for request in (STOP, PAUSE):
        store.append_requests({name: request}, "anna", "host")
    acknowledge_late_stops(store, [table_of(store, name, has_stopped=has_stopped, ending=ending)])
    asked = store.unacknowledged({name: saved_of(store, name)})
    assert [str(each.kind) for each in asked[name]] == left
