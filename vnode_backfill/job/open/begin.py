"""Finds the point of the log where a new job begins.

The first offset is taken *before* minimum, maximum and the plan. A row that is logged but not yet visible must come by
the log, or it would be in neither log nor plan. Nothing is written here: a beginning that cannot be used is refused
first. What the log holds behind a beginning in the past is looked at afterwards (`past`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from consume_upstream.log.offset import CdcOffset
from consume_upstream.log.source_log import SourceLog
from consume_upstream.upstream_table import UpstreamTable
from vnode_backfill.config.job import Config, StartupMode
from vnode_backfill.decide.start_point import (
    At,
    AtGtids,
    AtTime,
    Earliest,
    Latest,
    Saved,
    StartPlan,
    plan_start,
)
from vnode_backfill.job.open.handoff import StoredHandoff, handoff_for
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.job.open.target_ownership import check_target
from vnode_backfill.words.columns import what_changed
from vnode_backfill.words.errors import ConfigError, PlanRefusedError


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a job begins, or continues: `first` is the point of the log after which it reads.

    `handoff` is that of the job whose target it takes over.
    """

    start: StartPlan
    first: CdcOffset
    oldest: CdcOffset
    handoff: StoredHandoff | None = None


def begin(config: Config, table: UpstreamTable, shared: CdcOffset | None = None) -> Beginning:
    """Where a new job begins; a point that cannot be taken up is refused here, before anything is written.

    `shared` is the first offset of tables that begin together, taken after the definitions of all of them were read. A
    table whose job begins at what is visible now takes it.
    """
    cdc = config.mysql.cdc
    handoff = handoff_for(config, table.definition)
    log = table.source_log(
        with_time=cdc.startup_mode is StartupMode.TIMESTAMP, stored=handoff.offset if handoff else None
    )
    start = plan_start(cdc, log, handoff=handoff.point if handoff else None)
    begins_now = isinstance(start.from_, Latest)
    if shared is not None and begins_now:
        first = table.identified(shared)
    else:
        end = table.identified(log.newest)
        first = _first_offset(config, table, start, log)
        # A log that is reset after its identity was taken is noticed when it is read, so it is taken before the sample
        # where it can be.
        same = first.number == end.number and first >= end and not first.log
        first = replace(first, log=end.log) if same else table.identified(first)
    check_unchanged(table)
    check_target(config, table.definition, handoff, state_store(config).folder)
    return Beginning(start, first, log.oldest, handoff)


def _first_offset(config: Config, table: UpstreamTable, start: StartPlan, log: SourceLog) -> CdcOffset:
    match start.from_:
        case Latest():
            return table.beginning()
        case At(offset=offset):
            _check_boundary(config, table, offset, log)
            return offset
        case Earliest(offset=offset):
            return offset
        case Saved(offset=offset):
            return offset
        case AtGtids(gtids=gtids):
            _check_gtids(config, table, gtids, log)
            return table.position_after_gtids(gtids, log)
        case AtTime(moment=moment):
            return table.position_at_time(moment, log)
        case _:
            assert_never(start.from_)


class ChangedMeanwhileError(PlanRefusedError):
    """A statement came between reading the table's definition and the first offset."""


def check_unchanged(table: UpstreamTable) -> None:
    """Refuse a table that was changed before the first offset: that change is not in the log that the job reads."""
    now = table.current_definition()
    known = table.definition.partitioning
    repartitioned = known is not None and now.partitioning != known
    if now != table.definition or repartitioned:
        raise ChangedMeanwhileError(
            f"{now.database}.{now.table} was changed while the job was created",
            detail="it has other partitions" if repartitioned else what_changed(table.definition, now),
            hint="Run it again.",
        )
    if table.with_parents().parents != table.parents:
        raise ChangedMeanwhileError(
            f"the foreign keys of {now.database}.{now.table}, or a table they lead to, were changed while the job was "
            "created",
            hint="Run it again.",
        )


def _check_boundary(config: Config, table: UpstreamTable, offset: CdcOffset, log: SourceLog) -> None:
    fault = table.boundary_fault(offset, log)
    if not fault:
        return
    specific = config.mysql.cdc.specific
    if specific is not None and specific.from_job is not None:
        raise ConfigError(
            f"mysql.cdc.specific.from_job is {specific.from_job}; its handoff {offset} is not between two transactions",
            detail=f"{fault} The log was reset since that job ended.",
        )
    raise ConfigError(f"mysql.cdc.specific.pos is {offset.pos}; must be between two transactions", detail=fault)


def _check_gtids(config: Config, table: UpstreamTable, gtids: str, log: SourceLog) -> None:
    unknown = table.unknown_gtids(gtids, log)
    if unknown:
        specific = config.mysql.cdc.specific
        job = specific.from_job if specific is not None else None
        what = f"gtid is {gtids}" if job is None else f"from_job is {job}, whose handoff is after {gtids}"
        raise ConfigError(
            f"mysql.cdc.specific.{what}; it holds transactions that the server does not have",
            detail=f"The server's log does not hold {unknown}. The server has {log.newest.gtids}.",
        )
