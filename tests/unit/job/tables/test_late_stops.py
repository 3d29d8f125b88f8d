"""A request to stop that came to a table which had stopped already is not obeyed by the next driver."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from progress.state.backfill_state import BackfillState, Controls, Request, RequestKind
from progress.store.tables_store import TablesStore
from tests.unit.progress.store.tables_folder import PLAN, stored
from vnode_backfill.job.tables.late_stops import acknowledge_earlier_stops, acknowledge_late_stops
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.job.tables.tables_job import TablesJob
from vnode_backfill.words.schema_change import Ended

STOP, PAUSE = Request(0, RequestKind.STOP), Request(0, RequestKind.PAUSE)
RESUME = Request(0, RequestKind.RESUME)


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
    [(True, None, ["pause"]), (False, None, ["stop", "pause"]), (True, Ended("dropped"), ["pause"])],
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


def left_of(store: TablesStore, name: str) -> list[str]:
    asked = store.unacknowledged({name: saved_of(store, name)})
    return [str(each.kind) for each in asked.get(name, ())]


def test_a_stop_of_a_table_that_is_set_aside_is_acknowledged(tmp_path: Path) -> None:
    """It was asked with all others, and nothing was at work for it."""
    stored(tmp_path, "orders", "items").release()
    store = TablesStore(str(tmp_path), "shop")
    store.acquire_lease("boris", timedelta(minutes=1))
    store.table("shop.orders").acquire_lease("boris", timedelta(minutes=1))
    store.append_requests(dict.fromkeys(("shop.orders", "shop.items"), STOP), "anna", "host")
    acknowledge_late_stops(store, [table_of(store, "shop.orders", has_stopped=True)])
    assert left_of(store, "shop.orders") == left_of(store, "shop.items") == []


def test_a_table_that_rested_stays_where_the_log_was_read_up_to(tmp_path: Path) -> None:
    """What the driver has in memory of it is from before it rested."""
    store, name = stored(tmp_path, "orders"), "shop.orders"
    table = table_of(store, name, has_stopped=True)
    before = saved_of(store, name)
    ahead = replace(before, revision=before.revision + 1, controls=Controls(rows_per_second=7))
    store.commit_together([(store.table(name), ahead)])
    store.append_requests({name: STOP}, "anna", "host")
    acknowledge_late_stops(store, [table])
    after = saved_of(store, name)
    assert (after.controls, after.revision, left_of(store, name)) == (ahead.controls, ahead.revision + 1, [])


def test_only_stops_before_the_request_that_takes_a_table_up_are_acknowledged(tmp_path: Path) -> None:
    store, name = stored(tmp_path, "orders"), "shop.orders"
    for request in (STOP, RESUME, STOP):
        store.append_requests({name: request}, "anna", "host")
    acknowledge_earlier_stops(store, name)
    assert left_of(store, name) == ["resume", "stop"]
    acknowledge_earlier_stops(store, name)
    assert left_of(store, name) == ["resume", "stop"]


@pytest.mark.parametrize(("is_lost", "left"), [(False, []), (True, ["stop"])])
def test_a_stop_is_left_to_the_next_driver_by_one_that_is_lost(tmp_path: Path, is_lost: bool, left: list[str]) -> None:
    """Whoever starts it again must not undo what an operator has asked for meanwhile."""
    store, name = stored(tmp_path, "orders"), "shop.orders"
    store.append_requests({name: STOP}, "anna", "host")
    table = table_of(store, name, has_stopped=True)
    nothing = SimpleNamespace(close=lambda *_: None)
    cast(SimpleNamespace, table).performer = nothing
    job = SimpleNamespace(
        tables=[table], aside={}, _is_lost=is_lost, _store=store, _note_aside=lambda: None, _shared=nothing,
        _tools=nothing, _parts=SimpleNamespace(watch=nothing),
    )  # fmt: skip
    TablesJob._close(cast(TablesJob, job))
    assert left_of(store, name) == left
