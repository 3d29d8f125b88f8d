"""Gives tables that join a job what is the job's: the number of vnodes, and what was last asked of all tables.

What must be true: after `pause`, `throttle` or `rescale` of all tables no table is read otherwise, whenever it came.
The request and the table's first commit are two writes, of two processes. So each side looks again after its own: the
driver asks the new table for what came since it had looked, and the command asks tables that came since it had.

    command: which tables are there?                 request to all, and for later ones     which tables are there?
    driver:                           what holds?                                       first commit     what holds?
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from progress.state.backfill_state import OWN_REQUEST, BackfillState
from progress.state.report import AskedRequest
from progress.store.tables_store import TablesStore
from vnode_backfill.config.job import Config
from vnode_backfill.decide.honour_requests import honour
from vnode_backfill.words.key_range import SplitPlan

__all__ = ["as_asked", "ask_what_came_since", "with_vnodes_of_job"]


def with_vnodes_of_job(config: Config, store: TablesStore) -> Config:
    """The file with the job's own number of vnodes, whatever it says by now."""
    count = store.vnode_count()
    if count in (None, config.vnodes):
        return config
    return config.model_copy(update={"vnodes": count, "workers": min(config.workers, count)})


def as_asked(state: BackfillState, plan: SplitPlan, asked: Iterable[AskedRequest]) -> BackfillState:
    """The first state of a table as if it had been there when all tables were asked."""
    for each in asked:
        state, _ = honour(state, plan, replace(each.request, id=OWN_REQUEST))
    return state


def ask_what_came_since(store: TablesStore, names: Collection[str], known: Collection[AskedRequest]) -> None:
    """Ask these tables for what all tables were asked after `known` was read.

    It looks until nothing is new: whoever asks meanwhile may have asked these tables before this does, and what was
    asked last must be what is written last.
    """
    seen = list(known)
    while new := [each for each in store.asked_of_every() if each not in seen]:
        for each in new:
            store.append_requests(dict.fromkeys(names, each.request), each.who, each.host)
        seen += new
