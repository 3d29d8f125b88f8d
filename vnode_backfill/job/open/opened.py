"""Holds a job that is this driver's to run, and takes and gives up the lease that makes it so.

What must be true: no driver writes to a target while tasks of another may still do so. A Delta table refuses the
commits of a driver that was replaced. IoTDB has nothing that could. There each task looks at the lease before each call
(`progress.store.task_lease`), and a new driver waits until the old lease has run out. It waits even if the process that
held the lease is known to be dead, because its tasks may not be.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import BackfillState
from progress.store.lease import Lease
from progress.store.rows.job_rows import JobRecord
from progress.store.store import StateStore
from vnode_backfill.config.job import Config
from vnode_backfill.decide.start_point import StartPlan
from vnode_backfill.job.open.locations import owner
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.words.errors import BackfillError, StateError
from vnode_backfill.words.key_range import SplitPlan

_LOOKS_PER_SECOND = 4


@dataclass(frozen=True, slots=True)
class Opened:
    """A job that exists and is this driver's to run."""

    record: JobRecord
    state: BackfillState
    plan: SplitPlan
    store: StateStore
    table: UpstreamTable
    created: bool
    start: StartPlan


class Leased(Protocol):
    """A job's state, whose lease can be taken: of one table, or of many."""

    def acquire_lease(self, owner: str, duration: timedelta, *, wait_out: bool = False) -> Lease: ...

    def current_lease(self) -> Lease | None: ...


def acquire(config: Config, store: Leased) -> Lease:
    """Take the job's lease. Where the target fences no drivers, the lease of a process that has ended is waited out.

    A living process refuses this driver.
    """
    if configured_sink(config).fences_drivers:
        return store.acquire_lease(owner(), config.state.lease)
    told = False
    while True:
        try:
            return store.acquire_lease(owner(), config.state.lease, wait_out=True)
        except StateError:
            # None if it has just run out, or if its process has certainly ended.
            if store.current_lease() is not None:
                raise
        if not told:
            told = True
            print("vnode-backfill: waiting for the lease of the driver that ended to run out", file=sys.stderr)
        time.sleep(1 / _LOOKS_PER_SECOND)


def released_if_refused(store: StateStore, work: Callable[[], Opened]) -> Opened:
    try:
        return work()
    except BackfillError:
        store.release()
        raise


def held_lease(store: StateStore) -> Lease:
    if store.lease is None:
        raise StateError("a job can only be created by the driver that holds its lease")
    return store.lease
