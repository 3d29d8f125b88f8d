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
from vnode_backfill.job.tables.kept_versions import KeptVersions
from vnode_backfill.words.errors import BackfillError

__all__ = ["KeptVersion", "compact_tables", "none_kept", "upgrade_tables"]

Say = Callable[[str], None]
KeptVersion = Callable[[str], int | None]
"""The version to keep of a target, by its name in job records."""


def none_kept(sink: str) -> int | None:  # noqa: ARG001
    """For a job of one table, which has no cut."""
    return None


def compact_tables(
    config: Config, only: Sequence[str], compact: Callable[[Config, KeptVersion, Say], object], say: Say
) -> int:
    """Do it for every table that is meant, but keep what the newest cut names; the job may run meanwhile."""
    store = stored_tables(config)
    names = asked_names(held_names(store, aside=False), only)
    kept = KeptVersions.of(config, store)
    return _each(names, say, lambda name, tell: compact(part_of(config, name), partial(kept.version_of, name), tell))


def upgrade_tables(
    config: Config,
    only: Sequence[str],
    upgrade: Callable[[Config, StateStore, TablesStore, KeptVersion, Say], object],
    say: Say,
) -> int:
    """Do it for every table that is meant, with the job's lease held all the while, but keep what the cut names."""
    store = stored_tables(config)
    check_state_writable(config)
    names = asked_names(held_names(store, aside=False), only)
    store.acquire_lease(owner(), config.state.lease)

    def one(name: str, tell: Say) -> None:
        part = part_of(config, name)
        own = store.table(name)
        own.acquire_lease(owner(), config.state.lease)
        upgrade(part, own, store, partial(KeptVersions.of(config, store).version_of, name), tell)

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
