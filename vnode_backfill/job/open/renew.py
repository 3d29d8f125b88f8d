"""Begins a new copy of a job's table: the table was changed in a way that cannot be carried over, or somebody asked.

What must be true: readers see the old copy, whole, until the new one is live; a crash at any point leaves either the
old job or the new one. Why it is: the new copy is a job of its own, with an id, a plan and a beginning of its own,
under the same name. Its rows go to a table beside the target (`sinks.delta.place`). Everything it needs is written
first, and then one commit replaces the old job's state by its own. Until that commit the old job is there, and meets
the same statement again.

The log of before does not matter: the new copy begins at what is visible now, which holds the statement. Offsets stay
in the job's era, so that what the buffer holds of the old job is below all of them and is trimmed.

A target that has no commits cannot hold two copies. It is written in place, if its options say that it may be replaced.
"""

from __future__ import annotations

from dataclasses import replace

from consume_upstream.log.offset import CdcOffset, VisibleAt
from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import BackfillState, Controls, new_state
from progress.state.walk_state import walk_plan
from progress.store.job_rows import COPIED_VERSION, JobRecord
from progress.store.store import Loaded, StateStore
from vnode_backfill.config.job import Config, StartupMode
from vnode_backfill.decide.start_point import Latest, StartPlan
from vnode_backfill.job.open.begin import check_unchanged
from vnode_backfill.job.open.create import new_record
from vnode_backfill.job.open.handoff import mode_of, record_start_of
from vnode_backfill.job.open.opened import Opened, held_lease
from vnode_backfill.job.open.sink import change_buffer
from vnode_backfill.job.open.source import look_at_source, open_table
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.job.sink.description import WritingJob
from vnode_backfill.snapshot.plan_questions import first_plan
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.errors import StateError
from vnode_backfill.words.finding import refuse
from vnode_backfill.words.key_range import SplitPlan


def renew(config: Config, store: StateStore, why: str) -> Opened:
    """The job with a new copy begun, and its lease as it was; refused where the table cannot be copied any more."""
    loaded = _existing(config, store)
    refuse(look_at_source(config))
    table = open_table(config)
    sink = configured_sink(config)
    refuse(sink.findings(table.definition), "the target cannot take the table")
    era = loaded.state.written.era
    table = table.in_era(era if table.server == loaded.record.server else era + 1)
    first = table.identified(table.beginning())
    check_unchanged(table)
    single = loaded.record.executor == "single"
    plan = _walk(table) if single else first_plan(table, _with_own_vnodes(config, loaded))[1]
    record = _record(config, loaded, table)
    job = WritingJob(record, table, held_lease(store), store.folder)
    vectors = sink.prepare_beside(job) if sink.copies_beside else sink.prepare_new(job, taken_over=False)
    record = record.fit_for(vectors=vectors)
    change_buffer(config, record, store).prepare()
    mode = StartupMode.SNAPSHOT if _only_copies(config, loaded) else StartupMode.INITIAL
    record_start_of(config, record.id, mode, first)
    state = _first_state(loaded.state, plan, first)
    store.begin_again(record, plan, state)
    # Not before: until that commit the copy that the job has made so far may be one of them.
    sink.discard_copies(record.id)
    warning = f"the table is copied again from {first} on: {why}"
    start = StartPlan(snapshot=True, from_=Latest(), bounded=mode is StartupMode.SNAPSHOT, warnings=(warning,))
    return Opened(record, state, plan, store, table, created=True, start=start)


def _existing(config: Config, store: StateStore) -> Loaded:
    loaded = store.load()
    if loaded is None:
        raise StateError(f"job {config.job} vanished from {config.state.path} while its table was to be copied again")
    return loaded


def _with_own_vnodes(config: Config, loaded: Loaded) -> Config:
    """The count of vnodes is the job's own, whatever the file says now."""
    return config.model_copy(update={"vnodes": loaded.record.vnode_count})


def _record(config: Config, loaded: Loaded, table: UpstreamTable) -> JobRecord:
    fresh = new_record(_with_own_vnodes(config, loaded), table)
    return replace(
        fresh,
        executor=loaded.record.executor,
        vnode_count=loaded.record.vnode_count,
        format_version=COPIED_VERSION,
    )


def _walk(table: UpstreamTable) -> SplitPlan:
    table.check_walkable()
    return walk_plan(table.definition.key, table.estimated_size().rows)


def _first_state(before: BackfillState, plan: SplitPlan, first: CdcOffset) -> BackfillState:
    """Limits and workers stay as they were; a pause too, because somebody wanted the source left alone."""
    count = len(before.vnodes)
    assignment = before.assignment if len(plan.ranges) or count > 1 else split_evenly(1, 1)
    controls = Controls(before.controls.paused, before.controls.rows_per_second)
    return replace(new_state(VisibleAt(first), plan, assignment), controls=controls)


def _only_copies(config: Config, loaded: Loaded) -> bool:
    return mode_of(config, loaded.record.name, loaded.record.id) is StartupMode.SNAPSHOT
