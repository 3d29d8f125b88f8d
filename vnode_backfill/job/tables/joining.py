"""Gives tables that join a job what is the job's: the number of vnodes."""

from __future__ import annotations

from progress.store.tables_store import TablesStore
from vnode_backfill.config.job import Config

__all__ = ["with_vnodes_of_job"]


def with_vnodes_of_job(config: Config, store: TablesStore) -> Config:
    """The file with the job's own number of vnodes, whatever it says by now."""
    count = store.vnode_count()
    if count in (None, config.vnodes):
        return config
    return config.model_copy(update={"vnodes": count, "workers": min(config.workers, count)})
