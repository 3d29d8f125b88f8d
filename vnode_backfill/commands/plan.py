"""Shows what `run` would do: what was found at the source and the target, how the table is cut, where the log begins.

Nothing is written and no JVM is started.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from vnode_backfill.commands.stored_job import with_room_for_workers
from vnode_backfill.config.job import Config, DroppedColumns, DroppedPartitions, Executor, SchemaChanges
from vnode_backfill.job.open.writable import check_writable
from vnode_backfill.spark.slots import check_planned_slots

if TYPE_CHECKING:
    from vnode_backfill.job.open.examine import Examined


def plan(config: Config, *, master: str | None, as_json: bool) -> int:
    """Check, cut and estimate; writes nothing. Exit code 2 if the job would be refused."""
    from progress.faces.web import check_web
    from vnode_backfill.job.open.examine import examine_source
    from vnode_backfill.words.finding import render, to_json

    check_writable(config)
    check_web(config.ui.host, config.ui.port)
    found = examine_source(config)
    found = replace(found, findings=(*found.findings, check_planned_slots(with_room_for_workers(config), master)))
    if as_json:
        told = {"findings": to_json(found.findings), "plan": _plan_facts(found), "start": _start_facts(found)}
        print(json.dumps({"version": 1, **told, "statements": _policies(config)}))
    else:
        print(render(found.findings))
        print(_plan_text(config, found))
    return 2 if found.plan is None else 0


def _plan_facts(found: Examined) -> dict[str, object] | None:
    if found.plan is None or found.facts is None:
        return None
    return {
        "ranges": len(found.plan.ranges),
        "vnodes": found.plan.vnode_count,
        "vnodes_with_ranges": len({planned.vnode for planned in found.plan.ranges}),
        "estimated_rows": found.facts.estimated_rows,
        "average_row_bytes": found.facts.average_row_bytes,
    }


def _start_facts(found: Examined) -> dict[str, object] | None:
    if found.beginning is None:
        return None
    start = found.beginning.start
    return {
        "copies": start.snapshot, "ends": start.bounded, "after": str(found.beginning.first),
        "notes": list(start.notes), "warnings": list(start.warnings),
    }  # fmt: skip


def _policies(config: Config) -> dict[str, str]:
    return {
        "schema_changes": config.schema_changes,
        "dropped_columns": config.dropped_columns,
        "dropped_partitions": config.dropped_partitions,
    }


def _policy_text(config: Config) -> str:
    """What becomes of statements that change the table."""
    if config.schema_changes is SchemaChanges.STOP:
        does = "the job stops before a statement that changes the table, until it is accepted"
    elif config.executor is Executor.SINGLE:
        does = "a statement that changes the table begins a new copy"
    else:
        does = "statements that change the table are followed"
    columns = "kept" if config.dropped_columns is DroppedColumns.KEEP else "dropped from the target"
    rows = "keep their rows" if config.dropped_partitions is DroppedPartitions.KEEP else "make a new copy necessary"
    return f"{does}; dropped columns are {columns}, dropped partitions {rows}"


def _plan_text(config: Config, found: Examined) -> str:
    facts = _plan_facts(found)
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
    return "\n".join((copies, follows, _policy_text(config), *starting_lines(start)))
