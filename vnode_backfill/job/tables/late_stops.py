"""Acknowledges requests to stop that came to a table when it had stopped already, as `stop --table` and then `stop` do.

A request that nobody has acknowledged is obeyed by the next driver: it may have been made a moment before a crash. A
table that had stopped or failed has no epoch that could acknowledge it. The next run would stop such a table at once,
and say nothing. So the driver answers for it when it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from progress.state.backfill_state import BackfillState, RequestKind
from progress.store.store import StateStore
from progress.store.tables_store import TablesStore
from vnode_backfill.decide.honour_requests import honour
from vnode_backfill.job.tables.running_table import RunningTable

__all__ = ["acknowledge_late_stops"]


def acknowledge_late_stops(store: TablesStore, tables: Sequence[RunningTable]) -> None:
    """Do it for tables that have stopped, in one commit. A table that was dropped, or is copied again, has no say."""
    stopped = {table.name: table for table in tables if table.run.has_stopped and table.run.ending is None}
    asked = store.unacknowledged({name: table.run.coordinator.saved for name, table in stopped.items()})
    answered: list[tuple[StateStore, BackfillState]] = []
    for name, requests in asked.items():
        coordinator, stops = stopped[name].run.coordinator, [each for each in requests if each.kind is RequestKind.STOP]
        state = coordinator.saved
        for request in stops:
            state, _ = honour(state, coordinator.plan, request)
        if stops:
            answered.append((stopped[name].services.store, replace(state, revision=state.revision + 1)))
    if answered:
        store.commit_together(answered)
