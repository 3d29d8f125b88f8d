"""Names the places of a job's state and the person who asks.

Every command needs this. Nothing more is here, so that `status` answers at once.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from progress.store.planning_notes import PlanningNotes
from progress.store.reader import folder_name
from progress.store.state_table import Retention
from progress.store.store import StateStore
from vnode_backfill.config.job import Config, Executor
from vnode_backfill.config.values import reveal

if TYPE_CHECKING:
    from progress.store.walk_store import SingleStore

T = TypeVar("T")


def state_store(config: Config) -> StateStore:
    """The state of the job, in the schema in which it exists.

    A job that does not exist has the schema of the configured executor. One table of a job of many has its part of that
    job's state.
    """
    if config.whole is not None:
        from progress.store.tables_store import TablesStore

        path, job = config.whole
        whole = TablesStore(path, job, reveal(config.storage.options), retention=state_retention(config))
        return whole.table(config.job)
    from progress.store.walk_store import store_of

    single = config.executor is Executor.SINGLE
    options = reveal(config.storage.options)
    return store_of(config.state.path, config.job, options, single=single, retention=state_retention(config))


def ask_state(config: Config, ask: Callable[[StateStore], T | None]) -> tuple[StateStore, T | None]:
    """The store of `state_store` and its answer; None if there is no such job.

    Most jobs are found at the first look, and need not be looked for before they are asked.
    """
    if config.whole is None:
        store = parallel_store(config)
        if (found := ask(store)) is not None:
            return store, found
    store = state_store(config)
    return store, ask(store)


def single_store(config: Config) -> SingleStore:
    from progress.store.walk_store import SingleStore

    return SingleStore(config.state.path, config.job, reveal(config.storage.options), retention=state_retention(config))


def parallel_store(config: Config) -> StateStore:
    return StateStore(config.state.path, config.job, reveal(config.storage.options), retention=state_retention(config))


def state_retention(config: Config) -> Retention:
    return Retention(hours=max(1, int(config.state.retention.total_seconds() // 3600)))


def state_folder(config: Config) -> str:
    return f"{config.state.path.rstrip('/')}/{folder_name(config.job)}"


def buffer_path(config: Config) -> str:
    return f"{state_folder(config)}/buffer"


def planning_notes(config: Config) -> PlanningNotes:
    """What is noted of the first plans of a job, of one table or of many."""
    return PlanningNotes(state_folder(config), reveal(config.storage.options), owner=owner(), lease=config.state.lease)


def receipts_path(config: Config, job: str, job_id: str) -> str:
    """The folder where a sink without commits keeps what it has written. A job created again begins with none."""
    return f"{config.state.path.rstrip('/')}/{folder_name(job)}/receipts/{job_id}"


def owner() -> str:
    """Who runs this process, for leases and requests."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
