"""Finds how fast a table of a job of many may be read at most: its limit counts within that of the job.

The job's limit is that of the newest `throttle` of all tables. Before there is one, it is the highest limit that a
table has, with the requests that nobody has acted on yet: each has at most that of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from progress.state.backfill_state import RequestKind
from progress.store.reader import Shown
from vnode_backfill.commands.tables.asked import asked_names, held_names, stored_tables
from vnode_backfill.config.job import Config
from vnode_backfill.decide.honour_requests import controlled

__all__ = ["limit_around"]


def limit_around(config: Config, only: Sequence[str]) -> int | None:
    """The job's limit, in rows per second, where it bounds those that --table means; None where nothing does.

    Before there is a `throttle` of all tables, what is asked for every table is the limit of the job.
    """
    store = stored_tables(config)
    of_every = [each.request for each in store.asked_of_every() if each.request.kind is RequestKind.RATE_LIMIT]
    if of_every:
        return of_every[-1].rows_per_second
    names = held_names(store, aside=False)
    found = store.shown(names.intersection)
    if found is None or {*asked_names(held_names(store), only)} >= names:
        return None
    limits = [_limit_of(each) for each in found.tables.values()]
    known = [limit for limit in limits if limit is not None]
    return max(known) if known and len(known) == len(limits) else None


def _limit_of(table: Shown) -> int | None:
    answered = {each.request for each in table.state.acknowledged}
    waiting = [each.request for each in table.asked if each.request.id not in answered]
    return reduce(controlled, waiting, table.state.controls).rows_per_second
