"""Begins a new copy of a job's table: the table was changed in a way that cannot be carried over, or somebody asked.

What must be true: readers see the old copy, whole, until the new one is live; a crash at any point leaves either the
old job or the new one. Why it is: the new copy is a job of its own, with an id, a plan and a beginning of its own,
under the same name. Its rows go to a table beside the target (`sinks.delta.place`). Everything it needs is written
first, and then one commit replaces the old job's state by its own. Until that commit the old job is there, and meets
the same statement again.

The log of before does not matter: the new copy begins at what is visible now, which holds the statement. Offsets stay
in the job's era, so that what the buffer holds of the old job is below all of them and is trimmed.

A table that was created again is not read. Its copy begins right after its CREATE, with a plan without ranges and with
the definition that it had there: every row comes by the log, and so does every later statement. The old copy has
captured nothing after the statement at which it ended, which is before the CREATE or is the CREATE. What is visible
does not matter to a copy that reads nothing.

What operators asked for belongs to the job's name, not to a copy. Requests that nobody has acted on count for the new
copy: a stop ends it at once. Requests to read again are the exception. The new copy reads every row after it has begun,
so they are carried out by its first commit.

A target that has no commits cannot hold two copies. It is written in place, if its options say that it may be replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from consume_upstream.log.offset import CdcOffset, VisibleAt
from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import (
    Acknowledgement,
    BackfillState,
    Controls,
    Request,
    RequestKind,
    new_state,
)
from progress.state.definition_report import WHOLE
from progress.state.schema_state import CopyNote, SchemaState
from progress.state.walk_state import walk_plan
from progress.store.rows.job_rows import COPIED_VERSION, JobRecord
from progress.store.store import Loaded, StateStore
from vnode_backfill.config.job import Config, StartupMode
from vnode_backfill.decide.start_point import Latest, StartPlan
from vnode_backfill.job.open.begin import ChangedMeanwhileError, check_unchanged
from vnode_backfill.job.open.create import new_record, no_ranges
from vnode_backfill.job.open.handoff import mode_of, record_start_of
from vnode_backfill.job.open.opened import Opened, held_lease
from vnode_backfill.job.open.sink import change_buffer
from vnode_backfill.job.open.source import look_at_source, open_known_table, open_table
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.job.sink.description import SinkDescription, WritingJob
from vnode_backfill.snapshot.plan_questions import first_plan
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError, ParentsChangeError, PlanRefusedError, StateError
from vnode_backfill.words.finding import refuse
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.schema_change import CreatedTable

_ATTEMPTS = 20
IN_PLACE = "the points of the new copy alone: all points of the old one were removed first"
"""What readers see where both copies have one place: `prepare_new` clears it, or refuses a target that has points."""


@dataclass(frozen=True, slots=True)
class _NewBeginning:
    """Where the new copy begins: a table with the definition that it has there, the offset, and what is read.

    `oldest` is a point before all that will ever be visible; None where what is visible at `first` counts.
    """

    table: UpstreamTable
    first: CdcOffset
    plan: SplitPlan
    oldest: CdcOffset | None = None


def renew(config: Config, store: StateStore, why: str, created: CreatedTable | None = None) -> Opened:
    """The job with a new copy begun, and its lease as it was; refused where the table cannot be copied any more.

    With `created` the log holds all rows of the table since it was created.
    """
    loaded = _existing(config, store)
    sink = configured_sink(config)
    begins = _from_creation(config, loaded, sink, created) or _planned(config, loaded, sink)
    table, first, plan = begins.table, begins.first, begins.plan
    record = _record(config, loaded, table)
    job = WritingJob(record, table, held_lease(store), store.lease_folder)
    vectors = sink.prepare_beside(job) if sink.copies_beside else sink.prepare_new(job, taken_over=False)
    record = record.fit_for(vectors=vectors)
    change_buffer(config, record, store).prepare()
    mode = StartupMode.SNAPSHOT if _only_copies(config, loaded) else StartupMode.INITIAL
    record_start_of(config, record.id, mode, first)
    note = copy_note(loaded, record, why, beside=sink.copies_beside)
    state = _first_state(loaded.state, begins, note)
    state = replace(state, acknowledged=_acknowledged(loaded.state, store.unacknowledged(loaded.state)))
    store.begin_again(record, plan, state)
    # Not before: until that commit the copy that the job has made so far may be one of them.
    sink.discard_copies(record.id)
    read = begins.oldest is None
    warning = f"the table is copied again {'' if read else 'by the log alone '}from {first} on: {why}"
    start = StartPlan(snapshot=read, from_=Latest(), bounded=mode is StartupMode.SNAPSHOT, warnings=(warning,))
    return Opened(record, state, plan, store, table, created=True, start=start)


def _from_creation(
    config: Config, loaded: Loaded, sink: SinkDescription, created: CreatedTable | None
) -> _NewBeginning | None:
    """After the table's CREATE; None where the table has to be read.

    That is so of a walk and of a table in one range, which have no plan without a range, on another server, and where
    both copies would be in one place. A table that foreign keys change outside the log has the parents of now, and may
    have had others right after the CREATE.
    """
    if created is None or loaded.record.executor == "single" or not sink.copies_beside:
        return None
    era = loaded.state.written.era
    table = open_known_table(config, created.definition).in_era(era)
    if table.server != loaded.record.server or table.unordered_key() or table.with_parents().parents:
        return None
    refuse(look_at_source(config))
    refuse(sink.findings(table.definition), "the target cannot take the table")
    plan = no_ranges(_with_own_vnodes(config, loaded), table)
    return _NewBeginning(table, CdcOffset.from_json(created.offset), plan, table.source_log().oldest.in_era(era))


def _planned(config: Config, loaded: Loaded, sink: SinkDescription) -> _NewBeginning:
    """At what is visible now, with all ranges to read."""
    try:
        table, first = _beginning(config, loaded, sink)
    except PlanRefusedError as error:
        if loaded.state.schema.cascaded is None:
            raise
        # Tools that replace a parent by a table with another name give its children their keys back a little later.
        raise ParentsChangeError(error.message, detail=error.detail, hint=error.hint) from error
    single = loaded.record.executor == "single"
    return _NewBeginning(
        table, first, _walk(table) if single else first_plan(table, _with_own_vnodes(config, loaded))[1]
    )


def _beginning(config: Config, loaded: Loaded, sink: SinkDescription) -> tuple[UpstreamTable, CdcOffset]:
    """The table, and a first offset at which it was still that table.

    A statement between the two is in no log that the copy reads. Statements often come in a row, so both are then asked
    for again.
    """
    refuse(look_at_source(config))
    era = loaded.state.written.era
    for attempt in range(1, _ATTEMPTS + 1):
        table = open_table(config).with_parents()
        refuse(sink.findings(table.definition), "the target cannot take the table")
        table = table.in_era(era if table.server == loaded.record.server else era + 1)
        first = table.identified(table.beginning())
        try:
            check_unchanged(table)
        except ChangedMeanwhileError:
            if attempt == _ATTEMPTS:
                raise
            continue
        return table, first
    raise LawBrokenError("a loop that returns or raises has ended")


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
    copied = replace(
        fresh,
        executor=loaded.record.executor,
        vnode_count=loaded.record.vnode_count,
        format_version=COPIED_VERSION,
    )
    return copied.with_parents(table.parents)


def _walk(table: UpstreamTable) -> SplitPlan:
    table.check_walkable()
    return walk_plan(table.definition.key, table.estimated_size().rows)


def _first_state(before: BackfillState, begins: _NewBeginning, note: CopyNote) -> BackfillState:
    """Limits and workers stay as they were; a pause too, because somebody wanted the source left alone.

    So do the last statements, for those who look.
    """
    count, plan = len(before.vnodes), begins.plan
    assignment = before.assignment if len(plan.ranges) or count > 1 else split_evenly(1, 1)
    state = new_state(VisibleAt(begins.first), plan, assignment)
    if begins.oldest is not None:
        # The first offset may not be visible yet, and what is visible must not fall.
        state = replace(state, visible=((Epoch(0), VisibleAt(begins.oldest)),))
    controls = Controls(before.controls.paused, before.controls.rows_per_second)
    schema = SchemaState(notes=before.schema.notes, copy=note)
    return replace(state, controls=controls, schema=schema)


def _acknowledged(before: BackfillState, asked: Sequence[Request]) -> tuple[Acknowledgement, ...]:
    """The answers so far, and one for each request to read again: its ranges are of the plan before, and all are
    read."""
    reads = (request for request in asked if request.kind is RequestKind.RESNAPSHOT)
    return (*before.acknowledged, *(Acknowledgement(request.id, Epoch(0)) for request in reads))


def copy_note(loaded: Loaded, record: JobRecord, why: str, *, beside: bool) -> CopyNote:
    """What `status` and the page say of a new copy. The statement is the one that the old copy has stopped before."""
    schema = loaded.state.schema
    met = schema.notes[-1] if schema.notes and schema.notes[-1].at == loaded.state.written else None
    readers = _readers(loaded) if beside else IN_PLACE
    return CopyNote(
        since=record.created_at.isoformat(timespec="seconds"), reason=why, readers=readers,
        offset=str(met.at) if met else "", statement=met.statement if met else "",
    )  # fmt: skip


def _readers(loaded: Loaded) -> str:
    """What the target shows until the new copy is live."""
    state, pending = loaded.state, loaded.state.schema.pending
    if loaded.percent < WHOLE:
        # The copy before was put in place by nobody.
        return state.schema.copy.readers if state.schema.copy else "the rows of a copy that was never complete"
    if pending is None:
        return f"the old copy at {state.lowest_applied}"
    return f"the old copy at {state.lowest_applied}, without the statement at {pending.before} and what came after it"


def _only_copies(config: Config, loaded: Loaded) -> bool:
    return mode_of(config, loaded.record.name, loaded.record.id) is StartupMode.SNAPSHOT
