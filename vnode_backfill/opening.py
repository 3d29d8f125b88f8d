"""How a job is created or taken up again: everything is checked before anything is written.

Creating: preflight; then the first offset, *then* minimum, maximum and the plan (a row that is logged but not yet visible must come by
the log, or it would be in neither log nor plan); then the empty sink and buffer; and last the state, whose existence is what makes
the job exist. A crash before that leaves nothing that a second try would trip over.

Taking up: the stored definition and the server's identity must still be what they were; the vnode count is fixed.
"""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from consume_upstream.buffer import ChangeBuffer
from consume_upstream.mysql.connection import SourceAddress, TlsMode, TlsOptions
from consume_upstream.mysql.server import MySqlTable
from consume_upstream.offset import VisibleAt
from progress.lease import Lease
from progress.state import BackfillState, new_state
from progress.store import JobRecord, Loaded, StateStore
from vnode_backfill.bitmap import split_evenly
from vnode_backfill.columns import TableDefinition
from vnode_backfill.config import Config, TlsConfig, TlsVerify
from vnode_backfill.config_values import reveal
from vnode_backfill.errors import PlanRefusedError, SchemaChangedError, SourceError
from vnode_backfill.keys import SplitPlan
from vnode_backfill.plan import TableFacts
from vnode_backfill.planning import plan_table
from vnode_backfill.preflight import Finding, examine, refuse
from vnode_backfill.sinks.delta import DeltaSink

_TLS = {
    TlsVerify.IDENTITY: TlsMode.VERIFY_IDENTITY, TlsVerify.CA: TlsMode.VERIFY_CA, TlsVerify.NONE: TlsMode.REQUIRED,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Examined:
    """A source that was looked at: what was found, and how the table would be cut."""

    table: MySqlTable
    findings: tuple[Finding, ...]
    facts: TableFacts | None
    plan: SplitPlan | None


@dataclass(frozen=True, slots=True)
class Opened:
    """A job that exists and is this driver's to run."""

    record: JobRecord
    state: BackfillState
    plan: SplitPlan
    lease: Lease
    table: MySqlTable
    created: bool


def state_store(config: Config) -> StateStore:
    return StateStore(config.state.path, config.job, reveal(config.storage.options))


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


def delta_sink(config: Config, definition: TableDefinition, job_id: str) -> DeltaSink:
    delta = config.sink.delta
    if delta is None:
        raise PlanRefusedError("only the Delta sink can be written to", hint="Give sink.delta.path.")
    return DeltaSink(
        delta.path, definition, job_id, storage_options=reveal(config.storage.options), replace=delta.replace,
        target_file_size=delta.target_file_size,
    )  # fmt: skip


def change_buffer(config: Config, definition: TableDefinition, job_id: str) -> ChangeBuffer:
    path = f"{config.state.path.rstrip('/')}/{config.job}/buffer"
    return ChangeBuffer(path, definition, job_id, reveal(config.storage.options))


def examine_source(config: Config, *, task_slots: int | None) -> Examined:
    """Look at server and table; writes nothing. The plan is missing where the source was refused."""
    table = open_table(config)
    findings = examine(
        config, table.server_facts(), table.table_profile(), table.definition, task_slots=task_slots, estimated_seconds=None
    )
    if any(finding.refuses for finding in findings):
        return Examined(table, findings, None, None)
    facts, plan = plan_table(table, config)
    return Examined(table, findings, facts, plan)


def open_job(config: Config, *, task_slots: int | None, asked_vnodes: int | None) -> Opened:
    """The job of this configuration, created if it does not exist, with its lease taken."""
    store = state_store(config)
    loaded = store.load()
    if loaded is None:
        return _create(config, store, task_slots)
    return _take_up(config, store, loaded, asked_vnodes)


def _create(config: Config, store: StateStore, task_slots: int | None) -> Opened:
    table = open_table(config)
    findings = examine(
        config, table.server_facts(), table.table_profile(), table.definition, task_slots=task_slots, estimated_seconds=None
    )
    refuse(findings)
    first = table.first_offset()
    _, plan = plan_table(table, config)
    record = _record(config, table)
    delta_sink(config, table.definition, record.id).prepare()
    change_buffer(config, table.definition, record.id).prepare()
    state = new_state(VisibleAt(first), plan, split_evenly(config.vnodes, config.workers))
    lease = store.create(record, plan, state, owner=_owner(), duration=config.state.lease)
    return Opened(record, state, plan, lease, table, created=True)


def _take_up(config: Config, store: StateStore, loaded: Loaded, asked_vnodes: int | None) -> Opened:
    record = loaded.record
    if asked_vnodes is not None and asked_vnodes != record.vnode_count:
        raise PlanRefusedError(
            f"job {record.name} has {record.vnode_count} vnodes; --vnodes {asked_vnodes} cannot change that",
            detail="Every row's vnode, and with it every checkpoint, depends on the count.",
            hint="Leave --vnodes out, or create a job of another name. Use `rescale` to change the number of workers.",
        )
    table = open_table(config)
    if table.identity.server != record.server:
        raise SourceError(
            f"{config.mysql.host}:{config.mysql.port} is not the server this job has read",
            detail=f"The job's offsets are of {record.server}; the server now is {table.identity.server}.",
            hint="Point mysql.host to the old server; positions of one server mean nothing on another.",
        )
    if table.definition != record.definition:
        raise SchemaChangedError(
            f"{record.database}.{record.table} was changed since the job was created",
            detail=_changed(record.definition, table.definition),
            hint="Create the job again under another name, with an empty target.",
        )
    lease = store.acquire_lease(_owner(), config.state.lease)
    state = loaded.state
    return Opened(record, state, loaded.plan, lease, table, created=False)


def _record(config: Config, table: MySqlTable) -> JobRecord:
    delta = config.sink.delta
    return JobRecord(
        name=config.job, id=uuid4().hex, created_at=datetime.now(UTC), executor=config.executor.value,
        vnode_count=config.vnodes, server=table.identity.server, database=table.definition.database,
        table=table.definition.table, definition=table.definition, sink=f"delta:{delta.path}" if delta else "iotdb",
    )  # fmt: skip


def _tls(tls: TlsConfig) -> TlsOptions:
    if not tls.enabled:
        return TlsOptions()
    return TlsOptions(mode=_TLS[tls.verify], ca=tls.ca, cert=tls.cert, key=tls.key)


def _owner() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _changed(stored: TableDefinition, now: TableDefinition) -> str:
    old, new = {c.name: c for c in stored.columns}, {c.name: c for c in now.columns}
    facts = [f"column {name} is gone" for name in old if name not in new]
    facts += [f"column {name} is new" for name in new if name not in old]
    facts += [f"column {name} was {old[name]}, is {new[name]}" for name in old if name in new and old[name] != new[name]]
    if stored.key != now.key:
        facts.append(f"the key was {stored.key}, is {now.key}")
    return "; ".join(facts) or "the order of its columns changed"


def default_config_path() -> Path:
    return Path("job.yaml")
