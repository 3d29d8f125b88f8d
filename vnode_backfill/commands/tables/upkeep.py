"""Compacts or turns over the targets of many tables, one after the other.

What cannot be done for one table is said, and the others are done all the same. The exit code is the worst one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from progress.store.store import StateStore
from progress.store.tables_store import TablesStore
from vnode_backfill.commands.tables.asked import asked_names, held_names, part_of, stored_tables
from vnode_backfill.config.job import Config
from vnode_backfill.job.open.locations import owner
from vnode_backfill.job.open.writable import check_state_writable
from vnode_backfill.words.errors import BackfillError

__all__ = ["compact_tables", "upgrade_tables"]

Say = Callable[[str], None]


def compact_tables(config: Config, only: Sequence[str], compact: Callable[[Config, Say], object], say: Say) -> int:
    """Do it for every table that is meant; the job may run meanwhile."""
    names = asked_names(held_names(stored_tables(config), aside=False), only)
    return _each(names, say, lambda name, tell: compact(part_of(config, name), tell))


def upgrade_tables(
    config: Config,
    only: Sequence[str],
    upgrade: Callable[[Config, StateStore, TablesStore, Say], object],
    say: Say,
) -> int:
    """Do it for every table that is meant, with the job's lease held all the while."""
    store = stored_tables(config)
    check_state_writable(config)
    names = asked_names(held_names(store, aside=False), only)
    store.acquire_lease(owner(), config.state.lease)

    def one(name: str, tell: Say) -> None:
        part = part_of(config, name)
        own = store.table(name)
        own.acquire_lease(owner(), config.state.lease)
        upgrade(part, own, store, tell)

    try:
        return _each(names, say, one)
    finally:
        store.release()


def _told(say: Say, name: str, line: str) -> None:
    say(f"{name}: {line}")


def _each(names: Sequence[str], say: Say, work: Callable[[str, Say], object]) -> int:
    worst = 0
    for name in names:
        try:
            work(name, partial(_told, say, name))
        except BackfillError as error:
            print(f"vnode-backfill: {name}: {error}", file=sys.stderr)
            worst = max(worst, error.exit_code)
    return worst
