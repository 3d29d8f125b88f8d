"""Acknowledges requests to stop that came to a table at which nothing was at work any more.

A request that nobody has acknowledged is obeyed by the next driver: it may have been made a moment before a crash. A
table that has stopped or failed, that is set aside, or that waits for a new copy has no epoch that could acknowledge
it. The next run would stop such a table at once, and say nothing. So the driver answers for it: for all tables when it
ends, because then every stop has been obeyed; and for one table before it is taken up, for the stops that came before
the request that takes it up. A driver that is lost as a whole (its JVM, its lease) answers for nobody: whoever starts
it again may do so against a stop of that moment, which the next driver has to obey.

What is committed is the stored state with one more acknowledgement, never what the driver has in memory: what was
stored last of a table that rested may be ahead of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from progress.state.backfill_state import BackfillState, Request, RequestKind
from progress.store.reader import Loaded
from progress.store.store import StateStore
from progress.store.tables_store import TablesStore
from vnode_backfill.decide.honour_requests import honour
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.job.tables.take_ups import TAKES_UP
from vnode_backfill.words.errors import BackfillError

__all__ = ["acknowledge_earlier_stops", "acknowledge_late_stops"]

log = logging.getLogger(__name__)


def acknowledge_late_stops(store: TablesStore, tables: Sequence[RunningTable]) -> None:
    """Do it for every table of the job, in one commit. `tables` are those that the driver had opened."""
    seen = {table.name: table.run.coordinator.saved for table in tables}
    unopened = {name: held.state for name in store.names() if name not in seen and (held := _stored(store, name))}
    asked = store.unacknowledged(seen | unopened)
    at_work = {table.name for table in tables if not table.run.has_stopped}
    stopped = [name for name, requests in asked.items() if name not in at_work and _stops(requests)]
    _answer(store, dict.fromkeys(stopped))


def acknowledge_earlier_stops(store: TablesStore, name: str) -> None:
    """Do it for one table that is about to be taken up again."""
    held = _stored(store, name)
    asked = store.unacknowledged({name: held.state}).get(name, ()) if held is not None else ()
    newest = max((each.id for each in asked if each.kind in TAKES_UP), default=0)
    if any(stop.id < newest for stop in _stops(asked)):
        _answer(store, {name: newest})


def _answer(store: TablesStore, before: dict[str, int | None]) -> None:
    """Acknowledge the stops of these tables, those with lower numbers only where one is given."""
    answered: list[tuple[StateStore, BackfillState]] = []
    for name, number in before.items():
        loaded = _stored(store, name)
        if loaded is None:
            continue
        asked = store.unacknowledged({name: loaded.state}).get(name, ())
        state = loaded.state
        for request in _stops(asked):
            if number is None or request.id < number:
                state, _ = honour(state, loaded.plan, request)
        if state is not loaded.state:
            answered.append((store.table(name), replace(state, revision=state.revision + 1)))
    if answered:
        store.commit_together(answered)


def _stops(requests: Sequence[Request]) -> list[Request]:
    return [each for each in requests if each.kind is RequestKind.STOP]


def _stored(store: TablesStore, name: str) -> Loaded | None:
    """None where the state cannot be read, which may be why the table could not be opened: others are answered."""
    try:
        return _joined(store, name).load()
    except BackfillError as error:
        log.warning("state cannot be read table=%s error=%s", name, error.message)
        return None


def _joined(store: TablesStore, name: str) -> StateStore:
    """The table's store under the lease of the job, which a table that was never opened has not joined yet."""
    own, lease = store.table(name), store.lease
    if lease is not None:
        own.acquire_lease(lease.owner, lease.duration)
    return own
