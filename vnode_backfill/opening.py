"""How a job is created or taken up again: everything is checked before anything is written.

Creating: preflight; then the first offset, *then* minimum, maximum and the plan (a row that is logged but not yet visible must come by
the log, or it would be in neither log nor plan); then the empty sink and buffer; and last the state, whose existence is what makes
the job exist. A crash before that leaves nothing that a second try would trip over.

A job that only follows the log has a plan without ranges: every key lies outside it, comes by the log alone, and every vnode is live
at its first merge. Nothing is read from the table, so what is visible never matters to it.

Taking up: the stored definition and the server's identity must still be what they were; the vnode count is fixed. The job goes on
from its own progress, whatever its configuration says about the beginning.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import assert_never

from consume_upstream.buffer import BufferNote, ChangeBuffer
from consume_upstream.mysql.clock import clock_skew
from consume_upstream.mysql.connection import SourceAddress, TlsMode, TlsOptions, connect
from consume_upstream.mysql.server import MySqlTable
from consume_upstream.mysql.start_positions import (
    boundary_fault,
    position_after_gtids,
    position_at_time,
    position_before_rows,
    read_source_log,
    unknown_gtids,
)
from consume_upstream.offset import CdcOffset, VisibleAt
from progress.job_rows import JobRecord
from progress.single_state import walk_plan
from progress.single_store import SingleStore
from progress.state import BackfillState, Controls, Failure, new_state
from progress.store import Loaded, StateStore
from vnode_backfill.another_log import seen_beyond
from vnode_backfill.bitmap import split_evenly
from vnode_backfill.columns import relabelled, what_changed
from vnode_backfill.config import Config, Executor, StartupMode, TlsConfig, TlsVerify
from vnode_backfill.config_values import reveal
from vnode_backfill.epoch import Epoch
from vnode_backfill.errors import (
    BackfillError,
    ConfigError,
    PlanRefusedError,
    SchemaChangedError,
    SourceError,
    StateError,
)
from vnode_backfill.handoff import StoredHandoff, handoff_for, mode_of, record_start, target_of
from vnode_backfill.keys import SplitPlan
from vnode_backfill.places import buffer_path, state_store
from vnode_backfill.plan import TableFacts
from vnode_backfill.planning import first_plan
from vnode_backfill.preflight import Finding, Level, inspect, refuse
from vnode_backfill.preflight_checks import check_clock
from vnode_backfill.resuming import GapsError, asked_for_everything, copy_again, follow_by_gtids, with_identity
from vnode_backfill.startup import (
    At,
    AtGtids,
    AtTime,
    Earliest,
    Latest,
    Saved,
    SavedProgress,
    SourceLog,
    StartPlan,
    plan_start,
)
from vnode_backfill.takeover import check_target
from vnode_backfill.targets import acquire, held_lease, look_at_target, open_sink, prepare_new

_TLS = {
    TlsVerify.IDENTITY: TlsMode.VERIFY_IDENTITY, TlsVerify.CA: TlsMode.VERIFY_CA, TlsVerify.NONE: TlsMode.REQUIRED,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Examined:
    """A source that was looked at: what was found, and how the table would be cut."""

    findings: tuple[Finding, ...]
    facts: TableFacts | None
    plan: SplitPlan | None
    beginning: Beginning | None = None


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a job begins, or goes on: `first` is the point of the log behind which it reads.

    `handoff` is that of the job whose target it takes over.
    """

    start: StartPlan
    first: CdcOffset
    oldest: CdcOffset
    handoff: StoredHandoff | None = None


@dataclass(frozen=True, slots=True)
class _Planned:
    """A job that could be created: nothing has been written yet."""

    table: MySqlTable
    beginning: Beginning
    plan: SplitPlan


@dataclass(frozen=True, slots=True)
class Opened:
    """A job that exists and is this driver's to run."""

    record: JobRecord
    state: BackfillState
    plan: SplitPlan
    store: StateStore
    table: MySqlTable
    created: bool
    start: StartPlan


def source_address(config: Config) -> SourceAddress:
    mysql = config.mysql
    return SourceAddress(
        host=mysql.host, port=mysql.port, user=mysql.user,
        password=mysql.resolve_password(os.environ).get_secret_value(), tls=_tls(mysql.tls),
        connect_timeout=mysql.connect_timeout.total_seconds(), read_timeout=mysql.read_timeout.total_seconds(),
    )  # fmt: skip


def open_table(config: Config) -> MySqlTable:
    """The source table as it is now."""
    mysql = config.mysql
    return MySqlTable.open(
        source_address(config), mysql.database, mysql.table, zero_dates=config.zero_dates.value,
        watermark_table=mysql.watermark_table, visibility_timeout=mysql.visibility_timeout.total_seconds(),
        server_ids=(mysql.server_id_range.low, mysql.server_id_range.high),
    )  # fmt: skip


def change_buffer(config: Config, record: JobRecord, store: StateStore) -> ChangeBuffer:
    return ChangeBuffer(
        buffer_path(config), record.definition, record.id, reveal(config.storage.options),
        retention=config.buffer.retention, generation=held_lease(store).generation,
    )  # fmt: skip


def table_of(config: Config, state: BackfillState) -> MySqlTable:
    """The source table as a job knows it that goes on from `state`: its offsets are counted in the job's era."""
    return replace(open_table(config), era=state.written.era)


def look_at_source(config: Config, *, task_slots: int | None) -> tuple[Finding, ...]:
    """Check server and table; reads only."""
    with connect(source_address(config)) as connection:
        return inspect(connection, config, task_slots=task_slots)


def examine_source(config: Config, *, task_slots: int | None) -> Examined:
    """What was found and how the table would be cut; writes nothing. There is no plan where the source was refused."""
    findings = look_at_source(config, task_slots=task_slots)
    if any(finding.level is Level.REFUSED for finding in findings):
        return Examined(findings, None, None)
    store = state_store(config)
    check_executor(config, store)
    table, loaded = open_table(config), store.load()
    findings = (*findings, *look_at_target(config, table.definition))
    if any(finding.level is Level.REFUSED for finding in findings):
        return Examined(findings, None, None)
    beginning = begin(config, table) if loaded is None else _go_on(config, table, loaded)
    facts, plan = _walked_whole(table) if config.executor is Executor.SINGLE else _cut(config, table, beginning)
    return Examined(findings, facts, plan, beginning)


def _walked_whole(table: MySqlTable) -> tuple[TableFacts, SplitPlan]:
    """The single executor plans nothing and compares no key: only the server's statistics are asked for."""
    profile = table.table_profile()
    plan = walk_plan(table.definition.key, profile.estimated_rows)
    return TableFacts(plan.parts, None, None, profile.estimated_rows, profile.average_row_bytes), plan


def _cut(config: Config, table: MySqlTable, beginning: Beginning) -> tuple[TableFacts, SplitPlan]:
    if beginning.start.snapshot:
        return first_plan(table, config)
    with table.session() as session:
        return session.table_facts(), _no_ranges(config, table)


def open_job(
    config: Config,
    *,
    task_slots: int | None,
    asked_vnodes: int | None,
    before_writing: Callable[[], object] | None = None,
) -> Opened:
    """The job of this configuration, created if it does not exist, with its lease taken.

    `before_writing` is called when a new job could be created and nothing of it is written yet; what it raises refuses the job.
    """
    store, clock = state_store(config), _look_at_clock(config)
    if store.exists():
        acquire(config, store)
        opened = released_if_refused(store, lambda: take_up(config, store, asked_vnodes))
    else:
        planned = _planned(config, task_slots)
        if before_writing is not None:
            before_writing()
        acquire(config, store)
        opened = released_if_refused(store, lambda: _create(config, store, planned))
    return replace(opened, start=replace(opened.start, warnings=(*opened.start.warnings, *clock)))


def _look_at_clock(config: Config) -> tuple[str, ...]:
    """Refuse a clock by which two drivers could write to IoTDB at the same time; what to warn of otherwise."""
    if config.sink.iotdb is None:
        return ()
    with connect(source_address(config)) as connection:
        found = check_clock(config.state.lease, clock_skew(connection))
    refuse((found,), "this machine's clock is wrong")
    return (found.fact,) if found.level is Level.WARNING else ()


def check_executor(config: Config, store: StateStore) -> None:
    """The single executor writes to Delta only, and cannot go on with a job of the parallel one, whose state holds no cursor."""
    if config.executor is not Executor.SINGLE:
        return
    if config.sink.delta is None:
        raise ConfigError(
            "executor is single, which writes to a Delta table only",
            detail="Its cursor is found again in the files of the table.",
            hint="Give sink.delta.path, or set `executor: parallel`.",
        )
    if not isinstance(store, SingleStore):
        raise PlanRefusedError(
            f"job {config.job} is a job of the parallel executor, whose state the single executor cannot go on with",
            hint="Set `executor: parallel`, or drop the job and create it again.",
        )


def released_if_refused(store: StateStore, work: Callable[[], Opened]) -> Opened:
    try:
        return work()
    except BackfillError:
        store.release()
        raise


def _planned(config: Config, task_slots: int | None) -> _Planned:
    refuse(look_at_source(config, task_slots=task_slots))
    table = open_table(config)
    refuse(look_at_target(config, table.definition), "the target cannot take the table")
    beginning = begin(config, table)
    plan = first_plan(table, config)[1] if beginning.start.snapshot else _no_ranges(config, table)
    return _Planned(table, beginning, plan)


def _no_ranges(config: Config, table: MySqlTable) -> SplitPlan:
    return SplitPlan(table.definition.key_parts, config.vnodes, ())


def begin(config: Config, table: MySqlTable) -> Beginning:
    """Where a new job begins; a point that cannot be taken up is refused here, before anything is written."""
    cdc = config.mysql.cdc
    handoff = handoff_for(config, table.definition)
    log = read_source_log(
        table, with_time=cdc.startup_mode is StartupMode.TIMESTAMP, stored=handoff.offset if handoff else None
    )
    start = plan_start(cdc, log, handoff=handoff.point if handoff else None)
    end = table.identified(log.newest)
    first = _first_offset(config, table, start, log)
    # A log that is reset after its identity was taken is noticed when it is read, so it is taken before the sample where it can be.
    same = first.number == end.number and first >= end and not first.log
    first = replace(first, log=end.log) if same else table.identified(first)
    _check_unchanged(table)
    if isinstance(start.from_, Earliest) and first != log.oldest:
        passed = (
            f"statements about the table before its first rows in the log are passed over: the job begins at {first}"
        )
        start = replace(start, notes=(*start.notes, passed))
    check_target(config, table.definition, handoff, state_store(config).folder)
    return Beginning(start, first, log.oldest, handoff)


def _first_offset(config: Config, table: MySqlTable, start: StartPlan, log: SourceLog) -> CdcOffset:
    match start.from_:
        case Latest():
            return table.beginning()
        case At(offset=offset):
            _check_boundary(config, table, offset, log)
            return offset
        case Earliest():
            return position_before_rows(table, log)
        case Saved(offset=offset):
            return offset
        case AtGtids(gtids=gtids):
            _check_gtids(config, table, gtids, log)
            return position_after_gtids(table, gtids, log)
        case AtTime(moment=moment):
            return position_at_time(table, moment, log)
        case _:
            assert_never(start.from_)


def _check_unchanged(table: MySqlTable) -> None:
    """What changed the table before the job's first offset is not in the log that it reads, so it must be in the definition it knows."""
    now = table.current_definition()
    if now != table.definition:
        raise PlanRefusedError(
            f"{now.database}.{now.table} was changed while the job was created",
            detail=what_changed(table.definition, now),
            hint="Run it again.",
        )


def _check_boundary(config: Config, table: MySqlTable, offset: CdcOffset, log: SourceLog) -> None:
    fault = boundary_fault(table, offset, log)
    if not fault:
        return
    specific = config.mysql.cdc.specific
    if specific is not None and specific.from_job is not None:
        raise ConfigError(
            f"mysql.cdc.specific.from_job is {specific.from_job}; its handoff {offset} is not between two transactions",
            detail=f"{fault} The log was reset since that job ended.",
        )
    raise ConfigError(f"mysql.cdc.specific.pos is {offset.pos}; must be between two transactions", detail=fault)


def _check_gtids(config: Config, table: MySqlTable, gtids: str, log: SourceLog) -> None:
    unknown = unknown_gtids(table, gtids, log)
    if unknown:
        specific = config.mysql.cdc.specific
        job = specific.from_job if specific is not None else None
        what = f"gtid is {gtids}" if job is None else f"from_job is {job}, whose handoff is after {gtids}"
        raise ConfigError(
            f"mysql.cdc.specific.{what}; it holds transactions that the server does not have",
            detail=f"The server's log does not hold {unknown}. The server has {log.newest.gtids}.",
        )


def _create(config: Config, store: StateStore, planned: _Planned) -> Opened:
    table, plan, beginning = planned.table, planned.plan, planned.beginning
    record = new_record(config, table)
    prepare_new(config, record, store, table, beginning.handoff)
    change_buffer(config, record, store).prepare()
    record_start(config, record.id, beginning.first, beginning.handoff)
    state = _first_state(config, plan, beginning)
    store.create(record, plan, state, held_lease(store))
    return Opened(record, state, plan, store, table, created=True, start=beginning.start)


def _first_state(config: Config, plan: SplitPlan, beginning: Beginning) -> BackfillState:
    state = new_state(VisibleAt(beginning.first), plan, split_evenly(config.vnodes, config.workers))
    if not beginning.start.snapshot:
        # The first offset may not be visible yet; visibility begins below every later sample, and nothing is read by it.
        state = replace(state, visible=((Epoch(0), VisibleAt(beginning.oldest)),))
    if config.limits.rows_per_second is not None:
        state = replace(state, controls=Controls(rows_per_second=config.limits.rows_per_second))
    return state


def take_up(config: Config, store: StateStore, asked_vnodes: int | None) -> Opened:
    loaded = store.load()
    if loaded is None:
        raise StateError(f"job {config.job} vanished from {config.state.path} while it was opened")
    record = loaded.record
    if asked_vnodes is not None and asked_vnodes != record.vnode_count:
        raise PlanRefusedError(
            f"job {record.name} has {record.vnode_count} vnodes; --vnodes {asked_vnodes} cannot change that",
            detail="Every row's vnode, and with it every checkpoint, depends on the count.",
            hint="Leave --vnodes out, or create a job of another name. Use `rescale` to change the number of workers.",
        )
    table = open_table(config)
    check_definition(table, record)
    sink = open_sink(config, record, store, table)
    try:
        sink.prepare()
    finally:
        sink.close()
    change_buffer(config, record, store).prepare()
    start, loaded = _go_on_or_fail(config, store, table, loaded)
    table = replace(table, era=loaded.state.written.era)
    return Opened(record, loaded.state, loaded.plan, store, table, created=False, start=start)


def _go_on(config: Config, table: MySqlTable, loaded: Loaded, buffered: BufferNote | None = None) -> Beginning:
    """`buffered` is the note of the epoch in hand, if its changes are in the buffer already."""
    state = loaded.state
    log = read_source_log(table, stored=state.written)
    mode = mode_of(config, loaded.record.name, loaded.record.id)
    seen = seen_beyond(state, buffered.missing if buffered else ())
    start = plan_start(config.mysql.cdc, log, saved=SavedProgress(state.written, mode, seen))
    return Beginning(start, state.written, log.oldest)


def _go_on_or_fail(config: Config, store: StateStore, table: MySqlTable, loaded: Loaded) -> tuple[StartPlan, Loaded]:
    """A job whose place in the log is gone has failed, and its state says so too, unless everything is to be read again."""
    intent = loaded.state.intent
    buffered = change_buffer(config, loaded.record, store).landed(intent.epoch) if intent else None
    try:
        start = _go_on(config, table, loaded, buffered).start
        if isinstance(start.from_, Saved) and not start.from_.by_gtids:
            loaded = with_identity(store, table, loaded)
    except SourceError as error:
        if error.retryable:
            raise
        asked = asked_for_everything(store, loaded)
        if asked is None:
            state = loaded.state
            failure = Failure(state.epoch, error.message, error.detail, error.hint)
            store.commit(replace(state, revision=state.revision + 1, failure=failure))
            raise
        return copy_again(config, store, table, loaded, asked)
    if loaded.state.failure is not None and (asked := asked_for_everything(store, loaded)) is not None:
        # What the log holds next may be what the job has failed at; after a copy nobody needs it.
        with suppress(GapsError):
            return copy_again(config, store, table, loaded, asked)
    if isinstance(start.from_, Saved) and start.from_.by_gtids:
        loaded = follow_by_gtids(store, table, loaded, buffered)
    return start, loaded


def check_same_server(config: Config, table: MySqlTable, record: JobRecord) -> None:
    """Refuse another server than the one the job was created on."""
    if table.identity.server != record.server:
        raise SourceError(
            f"{config.mysql.host}:{config.mysql.port} is not the server this job has read",
            detail=f"The job's offsets are of {record.server}; the server now is {table.identity.server}.",
            hint="Point mysql.host to the old server; positions of one server mean nothing on another.",
        )


def check_definition(table: MySqlTable, record: JobRecord) -> None:
    """Refuse a table that is not what it was when the job was created."""
    if relabelled(record.definition, table.definition) is None:
        raise SchemaChangedError(
            f"{record.database}.{record.table} was changed since the job was created",
            detail=what_changed(record.definition, table.definition),
            hint="Create the job again under another name, with an empty target.",
        )


def new_record(config: Config, table: MySqlTable) -> JobRecord:
    return JobRecord.new(
        config.job, table.definition, vnode_count=config.vnodes, server=table.identity.server,
        sink=target_of(config), now=datetime.now(UTC),
    )  # fmt: skip


def _tls(tls: TlsConfig) -> TlsOptions:
    if not tls.enabled:
        return TlsOptions()
    return TlsOptions.from_files(_TLS[tls.verify], ca=tls.ca, cert=tls.cert, key=tls.key)
