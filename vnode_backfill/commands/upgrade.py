"""Turns the target of a stopped job over, so that its rows are changed in the other way, in both directions.

What must be true: at every moment the table holds the same rows, its protocol names what its files need, and a release
that does not know deletion vectors refuses a job whose table may have them. So the job's record changes first on the
way to vectors, and last on the way back. Why a kill -9 does no harm: each step is one commit, and leaves a table that
this release reads and writes; a second call continues with the step that is missing.

    to vectors:  record 3 → protocol with the feature
    to rewrite:  files with vectors written again, some per commit → protocol without it → checkpoint → record 2

Delta's own DROP FEATURE does the same: rewrite the files, drop the feature, put a checkpoint before what older readers
do not understand. It also adds the feature `checkpointProtection`, which forbids writers to make checkpoints of old
versions. It is not added here: the job is the only writer of its table, and makes checkpoints of the newest version
only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from progress.store.lease import Lease
from progress.store.rows.job_rows import JobRecord
from progress.store.store import StateStore
from vnode_backfill.commands.compact import check_walked
from vnode_backfill.commands.requests import writable_job
from vnode_backfill.commands.tables.asked import check_one_table
from vnode_backfill.commands.tables.upkeep import KeptVersion, none_kept, upgrade_tables
from vnode_backfill.config.job import Config, MergeMode
from vnode_backfill.job.open.known_table import shape_in_sink
from vnode_backfill.job.open.opened import acquire, held_lease
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.errors import StateError


def upgrade(config: Config, *, merge: MergeMode, only: Sequence[str] = (), say: Callable[[str], None] = print) -> int:
    """Turn the target over; refused while a driver runs. A second call changes nothing.

    `only` are the tables of a job of many whose targets are meant.
    """
    if config.many:
        return upgrade_tables(config, only, partial(_turn_over, merge), say)
    check_one_table(config, only)
    store, _ = writable_job(config)
    acquire(config, store)
    try:
        _turn_over(merge, config, store, store, none_kept, say)
    finally:
        store.release()
    return 0


def _turn_over(
    merge: MergeMode,
    config: Config,
    store: StateStore,
    leased: HoldsLease,
    kept: KeptVersion,
    say: Callable[[str], None],
) -> None:
    loaded = store.load()
    if loaded is None:
        raise StateError(f"job {config.job} vanished from {config.state.path}")
    sink = configured_sink(config).turned_over(loaded.record, held_lease(store), merge)
    sink.use(shape_in_sink(loaded))
    sink.keep(kept(loaded.record.sink))
    if merge is MergeMode.VECTORS:
        _to_vectors(sink, store, loaded.record, say)
    else:
        check_walked(loaded)
        _to_rewrite(sink, store, loaded.record, Renewing(leased), say)


class HoldsLease(Protocol):
    """A job's store, or that of all tables of one."""

    @property
    def lease(self) -> Lease | None: ...

    def renew(self) -> Lease: ...


@dataclass
class Renewing:
    """Keeps the lease while files are written: asked whether to continue, it renews the lease now and then.

    It raises if another driver took over.
    """

    store: HoldsLease
    renewed: float = 0.0

    def __call__(self) -> bool:
        held = self.store.lease
        # Without one, renewing says why.
        every = held.duration.total_seconds() / 3 if held else 0.0
        if time.monotonic() - self.renewed >= every:
            self.store.renew()
            self.renewed = time.monotonic()
        return True


def _to_vectors(sink: DeltaSink, store: StateStore, record: JobRecord, say: Callable[[str], None]) -> None:
    store.change_record(record.fit_for(vectors=True))
    say("earlier releases refuse the job from now on" if not record.has_vectors else "earlier releases refuse the job")
    if sink.add_vectors():
        say("rows are changed by deletion vectors from now on; docs/readers.md lists who can read the table")
    else:
        say("nothing to do: rows are changed by deletion vectors already")


def _to_rewrite(
    sink: DeltaSink, store: StateStore, record: JobRecord, renewing: Renewing, say: Callable[[str], None]
) -> None:
    if not sink.has_vectors and not record.has_vectors:
        say("nothing to do: files are written again already")
        return
    _fold_all(sink, renewing, say)
    while not sink.drop_vectors():
        _fold_all(sink, renewing, say)
    say("files are written again from now on; every reader of Delta can read the newest version")
    store.change_record(record.fit_for(vectors=False))
    say("earlier releases can continue the job")


def _fold_all(sink: DeltaSink, renewing: Renewing, say: Callable[[str], None]) -> None:
    """Step by step, a commit each, until no file has a vector."""
    while (step := sink.fold_vectors(goes_on=renewing)) is not None:
        say(f"wrote {step.removed:,} files with deleted rows again as {step.added:,}")
