"""Opens the source table as a job knows it: by the definition that is stored with the job, whatever the table is now.

A table may have been changed while nobody ran the job. The log holds the statements, and the job follows them one by
one, so it must begin with the definition that it had. The table may even be gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import BackfillState
from progress.store.store import Loaded
from vnode_backfill.config.job import Config
from vnode_backfill.job.open.source import open_known_table
from vnode_backfill.words.columns import TableDefinition, relabelled
from vnode_backfill.words.errors import PlanRefusedError, SchemaChangedError
from vnode_backfill.words.schema_change import TableShape

OpenKnown: TypeAlias = Callable[[Config, TableDefinition], UpstreamTable]


def known_table(config: Config, loaded: Loaded, open_known: OpenKnown = open_known_table) -> UpstreamTable:
    """The table by the definition that the job was created with, version 0, and with the parents that its copy has.

    Earlier releases stored labels as the server lists them. Where nothing else differs, those of the server count. They
    stored no parents: a table with foreign keys that change its rows was refused. `open_known` opens a table by a
    definition.
    """
    table = open_known(config, loaded.record.definition).with_known_parents(loaded.record.parents)
    now = definition_now(table)
    if now is not None and relabelled(loaded.record.definition, now) is not None:
        # The partitions of now may come from statements that the job has not met yet.
        return table.with_definition(replace(now, partitioning=loaded.record.definition.partitioning))
    return table


def definition_now(table: UpstreamTable) -> TableDefinition | None:
    """The table's definition now; None if it is gone, or can no longer be copied."""
    try:
        return table.current_definition()
    except (PlanRefusedError, SchemaChangedError):
        return None


def is_as_known(table: UpstreamTable, state: BackfillState) -> bool:
    """Whether the source still has the newest definition that the log has shown. `table` is by version 0."""
    now, newest = definition_now(table), state.schema.shape_at(state.schema.newest, table.definition).definition
    return now is not None and relabelled(newest, now) is not None


def shape_in_sink(loaded: Loaded) -> TableShape:
    """What the target holds now."""
    return loaded.state.schema.shape_in_sink(loaded.record.definition)
