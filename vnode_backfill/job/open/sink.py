"""Opens what a job writes to: its sink and its change buffer, both bound to the lease that this driver holds."""

from __future__ import annotations

from consume_upstream.buffer import ChangeBuffer
from consume_upstream.upstream_table import UpstreamTable
from progress.store.rows.job_rows import JobRecord
from progress.store.store import StateStore
from vnode_backfill.config.job import Config
from vnode_backfill.config.values import reveal
from vnode_backfill.delta.storage import Storage
from vnode_backfill.job.open.handoff import StoredHandoff
from vnode_backfill.job.open.locations import buffer_path
from vnode_backfill.job.open.opened import held_lease
from vnode_backfill.job.open.target_ownership import take_target_over
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.job.sink.description import WritingJob
from vnode_backfill.sinks import Sink


def open_sink(config: Config, record: JobRecord, store: StateStore, table: UpstreamTable) -> Sink:
    """The sink as the driver that holds the lease writes it."""
    return configured_sink(config).open(WritingJob(record, table, held_lease(store), store.lease_folder))


def prepare_new(
    config: Config, record: JobRecord, store: StateStore, table: UpstreamTable, handoff: StoredHandoff | None
) -> JobRecord:
    """Make the target ready for a job that does not exist yet; with a handoff it is the other job's, rows included.

    Returns the record that fits the target: a table that was there already has its own mode.
    """
    lease = held_lease(store)
    taken = handoff is not None and take_target_over(config, record.id, handoff, store.folder, lease.generation)
    job = WritingJob(record, table, lease, store.lease_folder)
    return record.fit_for(vectors=configured_sink(config).prepare_new(job, taken_over=taken))


def fitted_record(record: JobRecord, store: StateStore, sink: Sink) -> JobRecord:
    """The record of a job whose table another program may have given vectors: earlier releases must refuse it then.

    The other way round it stays: only `upgrade` knows when a table has done with vectors.
    """
    if record.has_vectors or not sink.has_vectors:
        return record
    fitted = record.fit_for(vectors=True)
    store.change_record(fitted)
    return fitted


def prepare_buffer(config: Config, record: JobRecord, store: StateStore) -> None:
    """Make an empty buffer for a job that does not exist yet.

    What a job of this name has left there, one whose removal was cut short, is not this one's.
    """
    Storage.of(buffer_path(config), reveal(config.storage.options)).remove()
    change_buffer(config, record, store).prepare()


def change_buffer(config: Config, record: JobRecord, store: StateStore) -> ChangeBuffer:
    return ChangeBuffer(
        buffer_path(config), record.definition, record.id, reveal(config.storage.options),
        retention=config.buffer.retention, generation=held_lease(store).generation,
    )  # fmt: skip
