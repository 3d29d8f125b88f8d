"""The stored state of a job of many tables, made without a source."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from progress.state.backfill_state import BackfillState
from progress.store.store import JobRecord
from progress.store.tables_store import TablesStore
from tests.unit.progress.state.state_examples import DEFINITION, SERVER, beginning, plan_with
from tests.unit.progress.store.state_folder import START

MINUTE = timedelta(minutes=1)
PLAN = plan_with(0, 10, 20, 30)


def stored(path: Path, *tables: str, duration: timedelta = MINUTE) -> TablesStore:
    """A job of these tables, whose driver still holds the lease."""
    store = TablesStore(str(path), "shop")
    lease = store.acquire_lease("anna", duration)
    states: list[tuple[str, BackfillState]] = []
    for table in tables:
        own, name = store.table(f"shop.{table}"), f"shop.{table}"
        own.acquire_lease("anna", MINUTE)
        record = JobRecord.new(
            name, replace(DEFINITION, table=table), vnode_count=4, server=SERVER, sink=f"delta:/lake/{table}", now=START
        )
        state = beginning(PLAN, workers=2)
        own.prepare_create(record, PLAN, state, lease)
        states.append((name, state))
    store.commit_together([(store.table(name), state) for name, state in states])
    return store
