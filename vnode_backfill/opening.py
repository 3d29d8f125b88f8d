"""How a job is created or taken up again: everything is checked before anything is written.

Creating: preflight; then the first offset, *then* minimum, maximum and the plan (a row that is logged but not yet visible must come by
the log, or it would be in neither log nor plan); then the empty sink and buffer; and last the state, whose existence is what makes
the job exist. A crash before that leaves nothing that a second try would trip over.

Taking up: the stored definition and the server's identity must still be what they were; the vnode count is fixed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from consume_upstream.buffer import ChangeBuffer
from consume_upstream.mysql.connection import SourceAddress, TlsMode, TlsOptions, connect
from consume_upstream.mysql.server import MySqlTable
from consume_upstream.offset import CdcOffset, VisibleAt
from progress.job_rows import JobRecord
from progress.lease import Lease
from progress.state import BackfillState, Controls, new_state
from progress.store import StateStore
from vnode_backfill.bitmap import split_evenly
from vnode_backfill.columns import TableDefinition
from vnode_backfill.config import Config, TlsConfig, TlsVerify
from vnode_backfill.config_values import reveal
from vnode_backfill.errors import BackfillError, PlanRefusedError, SchemaChangedError, SourceError, StateError
from vnode_backfill.keys import SplitPlan
from vnode_backfill.places import buffer_path, owner, state_store
from vnode_backfill.plan import TableFacts
from vnode_backfill.planning import plan_table
from vnode_backfill.preflight import Finding, Level, inspect, refuse
from vnode_backfill.sinks.delta import DeltaSink

_TLS = {
    TlsVerify.IDENTITY: TlsMode.VERIFY_IDENTITY, TlsVerify.CA: TlsMode.VERIFY_CA, TlsVerify.NONE: TlsMode.REQUIRED,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Examined:
    """A source that was looked at: what was found, and how the table would be cut."""

    findings: tuple[Finding, ...]
    facts: TableFacts | None
    plan: SplitPlan | None


@dataclass(frozen=True, slots=True)
class Opened:
    """A job that exists and is this driver's to run."""

    record: JobRecord
    state: BackfillState
    plan: SplitPlan
    store: StateStore
    table: MySqlTable
    created: bool


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


def delta_sink(config: Config, record: JobRecord, store: StateStore) -> DeltaSink:
    """The sink as the driver that holds the lease writes it: one that lost it is refused by the table itself."""
    delta = config.sink.delta
    if delta is None:
        raise PlanRefusedError("only the Delta sink can be written to", hint="Give sink.delta.path.")
    return DeltaSink(
        delta.path, record.definition, record.id, storage_options=reveal(config.storage.options),
        replace=delta.replace, target_file_size=delta.target_file_size, retention=delta.retention,
        generation=held_lease(store).generation,
    )  # fmt: skip


def change_buffer(config: Config, record: JobRecord, store: StateStore) -> ChangeBuffer:
    return ChangeBuffer(
        buffer_path(config), record.definition, record.id, reveal(config.storage.options),
        retention=config.buffer.retention, generation=held_lease(store).generation,
    )  # fmt: skip


def look_at_source(config: Config, *, task_slots: int | None) -> tuple[Finding, ...]:
    """Check server and table; reads only."""
    with connect(source_address(config)) as connection:
        return inspect(connection, config, task_slots=task_slots)


def examine_source(config: Config, *, task_slots: int | None) -> Examined:
    """What was found and how the table would be cut; writes nothing. There is no plan where the source was refused."""
    findings = look_at_source(config, task_slots=task_slots)
    if any(finding.level is Level.REFUSED for finding in findings):
        return Examined(findings, None, None)
    facts, plan = plan_table(open_table(config), config)
    return Examined(findings, facts, plan)


def open_job(config: Config, *, task_slots: int | None, asked_vnodes: int | None) -> Opened:
    """The job of this configuration, created if it does not exist, with its lease taken."""
    store = state_store(config)
    if store.exists():
        store.acquire_lease(owner(), config.state.lease)
        return _released_if_refused(store, lambda: _take_up(config, store, asked_vnodes))
    table, plan, first = _planned(config, task_slots)
    store.acquire_lease(owner(), config.state.lease)
    return _released_if_refused(store, lambda: _create(config, store, table, plan, first))


def _released_if_refused(store: StateStore, work: Callable[[], Opened]) -> Opened:
    try:
        return work()
    except BackfillError:
        store.release()
        raise


def _planned(config: Config, task_slots: int | None) -> tuple[MySqlTable, SplitPlan, CdcOffset]:
    refuse(look_at_source(config, task_slots=task_slots))
    table = open_table(config)
    first = table.first_offset()
    _, plan = plan_table(table, config)
    return table, plan, first


def _create(config: Config, store: StateStore, table: MySqlTable, plan: SplitPlan, first: CdcOffset) -> Opened:
    record = _record(config, table)
    delta_sink(config, record, store).prepare()
    change_buffer(config, record, store).prepare()
    state = new_state(VisibleAt(first), plan, split_evenly(config.vnodes, config.workers))
    if config.limits.rows_per_second is not None:
        state = replace(state, controls=Controls(rows_per_second=config.limits.rows_per_second))
    store.create(record, plan, state, held_lease(store))
    return Opened(record, state, plan, store, table, created=True)


def _take_up(config: Config, store: StateStore, asked_vnodes: int | None) -> Opened:
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
    _check_same_server(config, table, record)
    if table.definition != record.definition:
        raise SchemaChangedError(
            f"{record.database}.{record.table} was changed since the job was created",
            detail=_changed(record.definition, table.definition),
            hint="Create the job again under another name, with an empty target.",
        )
    delta_sink(config, record, store).prepare()
    change_buffer(config, record, store).prepare()
    return Opened(record, loaded.state, loaded.plan, store, table, created=False)


def _check_same_server(config: Config, table: MySqlTable, record: JobRecord) -> None:
    if table.identity.server != record.server:
        raise SourceError(
            f"{config.mysql.host}:{config.mysql.port} is not the server this job has read",
            detail=f"The job's offsets are of {record.server}; the server now is {table.identity.server}.",
            hint="Point mysql.host to the old server; positions of one server mean nothing on another.",
        )


def held_lease(store: StateStore) -> Lease:
    if store.lease is None:
        raise StateError("a job can only be created by the driver that holds its lease")
    return store.lease


def _record(config: Config, table: MySqlTable) -> JobRecord:
    delta = config.sink.delta
    return JobRecord.new(
        config.job, table.definition, vnode_count=config.vnodes, server=table.identity.server,
        sink=f"delta:{delta.path}" if delta else "iotdb", now=datetime.now(UTC),
    )  # fmt: skip


def _tls(tls: TlsConfig) -> TlsOptions:
    if not tls.enabled:
        return TlsOptions()
    return TlsOptions(mode=_TLS[tls.verify], ca=tls.ca, cert=tls.cert, key=tls.key)


def _changed(stored: TableDefinition, now: TableDefinition) -> str:
    old, new = {c.name: c for c in stored.columns}, {c.name: c for c in now.columns}
    facts = [f"column {name} is gone" for name in old if name not in new]
    facts += [f"column {name} is new" for name in new if name not in old]
    facts += [
        f"column {name} was {old[name]}, is {new[name]}" for name in old if name in new and old[name] != new[name]
    ]
    if stored.key != now.key:
        facts.append(f"the key was {stored.key}, is {now.key}")
    return "; ".join(facts) or "the order of its columns changed"
