"""Shows what `run` would do: what was found at the source and the target, how the table is cut, where the log begins.

Nothing is written and no JVM is started.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vnode_backfill.commands.stored_job import with_room_for_workers
from vnode_backfill.config.job import Config, DroppedColumns, DroppedPartitions, Executor, SchemaChanges
from vnode_backfill.config.table_entries import DEFAULT_PRIORITY
from vnode_backfill.job.open.writable import check_writable
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.spark.slots import check_planned_slots
from vnode_backfill.words.errors import ConfigError
from vnode_backfill.words.finding import render, to_json
from vnode_backfill.words.table_name import TableName

if TYPE_CHECKING:
    from vnode_backfill.job.open.begin import Beginning
    from vnode_backfill.job.open.examine import Examined
    from vnode_backfill.job.tables.examine import ExaminedTables


def plan(config: Config, *, master: str | None, as_json: bool, only: Sequence[str] = (), strict: bool = False) -> int:
    """Check, cut and estimate; writes nothing. Exit code 2 if the job would be refused.

    `only` names the tables to look at, all without it; `strict` refuses a job of many tables because of one.
    """
    if config.many:
        from vnode_backfill.commands.tables.plan import plan_tables

        return plan_tables(config, master=master, as_json=as_json, only=only, strict=strict)
    found = _examined(config, master, only)
    if as_json:
        told = {"findings": to_json(found.findings), "plan": plan_facts(found), "start": start_facts(found.beginning)}
        print(json.dumps({"version": 1, **told, "statements": policies(config)}))
    else:
        print(render(found.findings))
        print(_plan_text(config, found))
    return 2 if found.plan is None else 0


def planned_tables(config: Config, *, master: str | None, only: Sequence[str] = ()) -> ExaminedTables:
    """What was found, as values: one table or many, in the order in which they are copied."""
    from vnode_backfill.job.tables.examine import ExaminedTable, ExaminedTables

    if config.many:
        from vnode_backfill.commands.tables.plan import examined_tables

        return examined_tables(config, master=master, only=only)
    found = _examined(config, master, only)
    name = TableName(config.mysql.database, config.mysql.table)
    key = () if found.facts is None else tuple(part.name for part in found.facts.parts)
    table = ExaminedTable(name, DEFAULT_PRIORITY, found, configured_sink(config).target, key, config)
    return ExaminedTables(found.findings, (table,), found.beginning)


def _examined(config: Config, master: str | None, only: Sequence[str]) -> Examined:
    from progress.faces.web import check_web
    from vnode_backfill.job.open.examine import examine_source

    if only:
        _check_named(config, only)
    check_writable(config)
    check_web(config.ui.host, config.ui.port)
    found = examine_source(config)
    return replace(found, findings=(*found.findings, check_planned_slots(with_room_for_workers(config), master)))


def _check_named(config: Config, only: Sequence[str]) -> None:
    from vnode_backfill.job.tables.examine import asked_pattern

    name = TableName(config.mysql.database, config.mysql.table)
    for text in only:
        if not asked_pattern(text).matches(name, fold_case=True):
            raise ConfigError(f"--table {text}: the job has no such table", detail=f"It copies {name} alone.")


def plan_facts(found: Examined) -> dict[str, object] | None:
    """How a table is cut; None if it is refused."""
    if found.plan is None or found.facts is None:
        return None
    return {
        "ranges": len(found.plan.ranges),
        "vnodes": found.plan.vnode_count,
        "vnodes_with_ranges": len({planned.vnode for planned in found.plan.ranges}),
        "estimated_rows": found.facts.estimated_rows,
        "average_row_bytes": found.facts.average_row_bytes,
    }


def start_facts(beginning: Beginning | None) -> dict[str, object] | None:
    """Where the job begins; None if that is not known."""
    if beginning is None:
        return None
    start = beginning.start
    return {
        "copies": start.snapshot, "ends": start.bounded, "after": str(beginning.first),
        "notes": list(start.notes), "warnings": list(start.warnings),
    }  # fmt: skip


def policies(config: Config) -> dict[str, str]:
    """What the file says about statements that change a table."""
    return {
        "schema_changes": config.schema_changes,
        "dropped_columns": config.dropped_columns,
        "dropped_partitions": config.dropped_partitions,
    }


_PARTITIONS = {
    DroppedPartitions.DELETE: "lose their rows",
    DroppedPartitions.KEEP: "keep their rows",
    DroppedPartitions.REREAD: "make a new copy necessary",
}


def _effective(config: Config) -> DroppedPartitions:
    """What becomes of rows. Points cannot be found by a bound, and a walk follows no statement: both are copied again
    where rows of a partition would be deleted."""
    deletes = config.dropped_partitions is DroppedPartitions.DELETE
    cannot = config.sink.iotdb is not None or config.executor is Executor.SINGLE
    return DroppedPartitions.REREAD if deletes and cannot else config.dropped_partitions


def policy_text(config: Config) -> str:
    """What becomes of statements that change the table."""
    if config.schema_changes is SchemaChanges.STOP:
        does = "the job stops before a statement that changes the table, until it is accepted"
    elif config.executor is Executor.SINGLE:
        does = "a statement that changes the table begins a new copy"
    else:
        does = "statements that change the table are followed"
    columns = "kept" if config.dropped_columns is DroppedColumns.KEEP else "dropped from the target"
    rows = _PARTITIONS[_effective(config)]
    return f"{does}; dropped columns are {columns}, dropped partitions {rows}"


def _plan_text(config: Config, found: Examined) -> str:
    facts = plan_facts(found)
    if facts is None or found.plan is None or found.beginning is None:
        return "refused: nothing was planned"
    from vnode_backfill.job.open.handoff import starting_lines

    name, start = f"{config.mysql.database}.{config.mysql.table}", found.beginning.start
    read = (
        "walked by one reader in the server's own order"
        if config.executor is Executor.SINGLE
        else f"in {facts['ranges']:,} ranges, hashed into {facts['vnodes_with_ranges']} of {facts['vnodes']} vnodes, "
        f"read by {config.workers} workers"
    )
    cut = f"{name}: about {facts['estimated_rows']:,} rows {read}"
    copies = cut if start.snapshot else f"{name}: nothing is copied"
    follows = f"the log is followed from {found.beginning.first}" + (
        ", until the copy is complete" if start.bounded else ""
    )
    return "\n".join((copies, follows, policy_text(config), *starting_lines(start)))
