"""How the configured sink is made, and what is asked of its target before anything is written to it.

What must be true: whoever opens a job gets the sink that its configuration names, bound to the lease this driver holds; and no driver
writes to a target while tasks of another may still do so. A Delta table refuses the commits of a driver that was replaced. IoTDB
has nothing that could: there each task looks at the lease before each call (`progress.lease_guard`), and a new driver
waits until the old lease has run out, also if the process that held it is known to be dead, because its tasks may not be.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from consume_upstream.mysql.server import MySqlTable
from progress.job_rows import JobRecord
from progress.lease import Lease
from progress.lease_guard import LeaseGuard
from progress.store import StateStore
from vnode_backfill.columns import TableDefinition
from vnode_backfill.config import Config
from vnode_backfill.config_iotdb import IotdbSinkConfig
from vnode_backfill.config_values import reveal
from vnode_backfill.errors import ConfigError, StateError
from vnode_backfill.handoff import StoredHandoff
from vnode_backfill.places import owner, receipts_path
from vnode_backfill.preflight_checks import Finding, Level
from vnode_backfill.sinks import Sink
from vnode_backfill.sinks.delta import DeltaSink
from vnode_backfill.sinks.iotdb import Existing, IotdbOptions, IotdbSink, mapping_of, settings_of
from vnode_backfill.sinks.iotdb_preflight import inspect_iotdb
from vnode_backfill.sinks.iotdb_store import WriterSettings
from vnode_backfill.takeover import take_target_over
from vnode_backfill.vnode import Key

_LOOKS_PER_SECOND = 4


def open_sink(config: Config, record: JobRecord, store: StateStore, table: MySqlTable) -> Sink:
    """The sink as the driver that holds the lease writes it."""
    if config.sink.iotdb is not None:
        return _iotdb_sink(config, config.sink.iotdb, record, store, table)
    return delta_sink(config, record, store)


def prepare_new(
    config: Config, record: JobRecord, store: StateStore, table: MySqlTable, handoff: StoredHandoff | None
) -> None:
    """Make the target ready for a job that does not exist yet; with a handoff it is the other job's, rows included."""
    taken = handoff is not None and take_target_over(
        config, record.id, handoff, store.folder, held_lease(store).generation
    )
    iotdb = config.sink.iotdb
    if iotdb is None:
        delta_sink(config, record, store).prepare()
        return
    existing = Existing.KEEP if taken else Existing.REPLACE if iotdb.replace else Existing.REFUSE
    sink = _iotdb_sink(config, iotdb, record, store, table, existing)
    try:
        sink.prepare()
    finally:
        sink.close()


def delta_sink(config: Config, record: JobRecord, store: StateStore) -> DeltaSink:
    """A driver that lost its lease is refused by the table itself."""
    delta = config.sink.delta
    if delta is None:
        raise ConfigError("sink.delta.path is missing: only a Delta table will do here")
    return DeltaSink(
        delta.path, record.definition, record.id, storage_options=reveal(config.storage.options),
        replace=delta.replace, target_file_size=delta.target_file_size, retention=delta.retention,
        generation=held_lease(store).generation,
    )  # fmt: skip


def look_at_target(config: Config, definition: TableDefinition) -> tuple[Finding, ...]:
    """What the target says about taking the table; reads only. A Delta table is looked at when it is made ready."""
    iotdb = config.sink.iotdb
    if iotdb is None:
        return ()
    found = inspect_iotdb(iotdb, definition, _password(iotdb))
    return tuple(Finding(Level(each.level.value), each.check, each.fact, each.fix) for each in found)


def point_settings(iotdb: IotdbSinkConfig, definition: TableDefinition) -> WriterSettings:
    """What is needed to look at the points of a target, without a lease and without writing."""
    password = _password(iotdb)
    return settings_of(iotdb, mapping_of(iotdb, definition, password), password)


def acquire(config: Config, store: StateStore) -> Lease:
    """Take the job's lease. For IoTDB, that of a process which has ended is waited out; a living one refuses this driver."""
    if config.sink.iotdb is None:
        return store.acquire_lease(owner(), config.state.lease)
    told = False
    while True:
        try:
            return store.acquire_lease(owner(), config.state.lease, wait_out=True)
        except StateError:
            # None if it has just run out, or if its process has certainly ended.
            if store.current_lease() is not None:
                raise
        if not told:
            told = True
            print("vnode-backfill: waiting for the lease of the driver that ended to run out", file=sys.stderr)
        time.sleep(1 / _LOOKS_PER_SECOND)


def last_words(sink: Sink) -> tuple[str, ...]:
    """Close a sink at the end of a run; what the user should hear of it."""
    sink.close()
    if not isinstance(sink, IotdbSink) or not sink.duplicates.count:
        return ()
    report = sink.duplicates
    return (
        f"warning: {report.count:,} times two or more keys fell on one device and time, and the last one won: "
        + "; ".join(report.samples),
    )


def held_lease(store: StateStore) -> Lease:
    if store.lease is None:
        raise StateError("a job can only be created by the driver that holds its lease")
    return store.lease


@dataclass(frozen=True, slots=True)
class CurrentRows:
    """Asks the source for the rows that some keys have now, all of them in one read view."""

    table: MySqlTable

    def __call__(self, keys: Sequence[Key]) -> pa.Table:
        with self.table.session() as session:
            return session.read_rows(keys)


def _password(iotdb: IotdbSinkConfig) -> str:
    return iotdb.resolve_password(os.environ).get_secret_value()


def _iotdb_sink(
    config: Config,
    iotdb: IotdbSinkConfig,
    record: JobRecord,
    store: StateStore,
    table: MySqlTable,
    existing: Existing = Existing.REFUSE,
) -> IotdbSink:
    lease, options = held_lease(store), reveal(config.storage.options)
    sink = IotdbSink(
        iotdb, record.definition, record.id,
        IotdbOptions(
            receipts_path(config, record.name, record.id), _password(iotdb), options, lease.generation, existing,
            CurrentRows(table), LeaseGuard.of(store.folder, options, lease),
        ),
    )  # fmt: skip
    # The actors work at the same time; what the sink asks the server once is asked before they begin.
    sink.writer()
    return sink
