"""Finds the job that a command is about, in its stored state."""

from __future__ import annotations

from progress.state.backfill_state import BackfillState
from progress.store.store import Identity, Loaded, StateStore
from vnode_backfill.config.job import Config
from vnode_backfill.job.open.locations import ask_state, state_store
from vnode_backfill.job.open.writable import check_state_readable
from vnode_backfill.words.errors import StateError


def stored_job(config: Config) -> tuple[StateStore, Loaded]:
    """The job's store and what it holds; raises if there is no such job, or if this account may not look."""
    store, loaded = ask_state(config, StateStore.load)
    if loaded is None:
        raise _no_job(config)
    return store, loaded


def stored_identity(config: Config) -> tuple[StateStore, Identity]:
    """The same, without the state and the plan, which may be large."""
    store, identity = ask_state(config, StateStore.identity)
    if identity is None:
        raise _no_job(config)
    return store, identity


def _no_job(config: Config) -> StateError:
    check_state_readable(config)
    return StateError(f"there is no job {config.job} in {config.state.path}", hint="Check job and state.path.")


def with_room_for_workers(config: Config) -> Config:
    """The configuration by which a session is sized: a job that was rescaled has more workers than its file says."""
    return sized_session(config)[0]


def sized_session(config: Config) -> tuple[Config, bool]:
    """The same, and whether the job is live, so that it may never need Spark."""
    states = _stored_states(config)
    workers = max((len(state.assignment) for state in states), default=0)
    is_live = bool(states) and all(state.is_live for state in states)
    return config.model_copy(update={"workers": max(config.workers, workers)}), is_live


def _stored_states(config: Config) -> list[BackfillState]:
    if config.many:
        from vnode_backfill.job.tables.parts import tables_store

        shown = tables_store(config).shown(lambda names: names)
        return [each.state for each in shown.tables.values()] if shown else []
    found = state_store(config).status_snapshot()
    return [found.state] if found else []
