"""Describes one table of a job of many as a job of its own, whose state is below that of the whole job.

Everything that works on one table takes such a description: opening, running, `status`, `verify`, requests. Its name is
the table's. Its state has a folder below the job's, and its commits go to the job's own
(`progress.store.tables_store`).
"""

from __future__ import annotations

from collections.abc import Iterable

from progress.store.table_choices import TableChoice
from progress.store.tables_store import TablesStore
from vnode_backfill.config.chosen_by_hand import with_chosen
from vnode_backfill.config.job import Config
from vnode_backfill.config.tables import table_config
from vnode_backfill.config.values import reveal
from vnode_backfill.job.open.locations import state_folder, state_retention
from vnode_backfill.words.table_name import TableName, TablePattern


def part_config(config: Config, name: TableName, *, fold_case: bool = False) -> Config:
    """The configuration of one table of the job."""
    one = table_config(config, name, fold_case=fold_case)
    return one.as_part_of(config, str(name), f"{state_folder(config)}/tables")


def tables_store(config: Config) -> TablesStore:
    """The state of a job of many tables."""
    return TablesStore(config.state.path, config.job, reveal(config.storage.options), retention=state_retention(config))


def with_choices(config: Config, choices: Iterable[TableChoice]) -> Config:
    """The job's file as operators have changed it; `config` is the file as it is."""
    choices = tuple(choices)
    added = {stored_name(choice.table): choice.priority for choice in choices if choice.wanted}
    removed = [stored_name(choice.table) for choice in choices if not choice.wanted]
    return with_chosen(config, added, removed, {stored_name(choice.table) for choice in choices if choice.folded})


def stored_name(text: str) -> TableName:
    """A table's name as it is stored."""
    exact = TablePattern.parse(text).exact
    assert exact is not None
    return exact
