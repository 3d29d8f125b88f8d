"""Opens a job that exists: it continues from its own progress, whatever its configuration says about the beginning.

The server's identity must still be what it was, and the vnode count is fixed. The table may have been changed
meanwhile: the log holds the statements, and the job meets them one by one. Requests come first, so that there is always
something that an operator can do. Where the log is not simply the one the job knows, each way to continue is one commit
of its state:

- Its log has no stored identity, because an earlier release created the job. It takes the identity of the log it finds.
- Another server has everything that was seen. The job follows it by GTID.
- Its place in the log is gone, or it failed at what the log holds there, and somebody asked to read everything again.
- The same, but the table is another by now, or its plan leaves gaps: then a new copy begins (`renew`). So does one on
  another server whose log would show the last statement again.
"""

from __future__ import annotations

from dataclasses import replace

from consume_upstream.buffer import BufferNote
from consume_upstream.upstream_table import UpstreamTable
from progress.state.backfill_state import Failure, Request, RequestKind
from progress.store.rows.job_rows import JobRecord
from progress.store.store import Loaded, StateStore
from progress.store.walk_store import SingleStore
from vnode_backfill.config.job import Config, Executor, StartupMode
from vnode_backfill.decide.honour_requests import honour
from vnode_backfill.decide.log_switch import begun_again, meets_statement_again, moved_to, seen_beyond, tiles
from vnode_backfill.decide.start_point import Saved, SavedProgress, StartPlan, plan_start
from vnode_backfill.job.open.begin import Beginning
from vnode_backfill.job.open.handoff import mode_of
from vnode_backfill.job.open.known_table import OpenKnown, is_as_known, known_table
from vnode_backfill.job.open.opened import Opened
from vnode_backfill.job.open.renew import renew
from vnode_backfill.job.open.sink import change_buffer, fitted_record, open_sink
from vnode_backfill.job.open.source import open_known_table
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.snapshot.plan_questions import extended_plan
from vnode_backfill.words.columns import relabelled, what_changed
from vnode_backfill.words.errors import ConfigError, PlanRefusedError, SchemaChangedError, SourceError, StateError
from vnode_backfill.words.hints import for_table
from vnode_backfill.words.partitioning import NOT_KNOWN


def check_executor(config: Config, store: StateStore) -> None:
    """The single executor writes to Delta only.

    It cannot continue a job of the parallel one, whose state holds no cursor.
    """
    if config.executor is not Executor.SINGLE:
        return
    if not configured_sink(config).keeps_cursor:
        raise ConfigError(
            "executor is single, which writes to a Delta table only",
            detail="Its cursor is found again in the files of the table.",
            hint="Give sink.delta.path, or set `executor: parallel`.",
        )
    if not isinstance(store, SingleStore):
        raise PlanRefusedError(
            f"job {config.job} is a job of the parallel executor, whose state the single executor cannot continue",
            hint="Set `executor: parallel`, or drop the job and create it again.",
        )


def take_up(
    config: Config, store: StateStore, asked_vnodes: int | None, open_known: OpenKnown = open_known_table
) -> Opened:
    """The job as its last commit left it, with its target and its buffer made this driver's.

    `open_known` opens the source table by its stored definition.
    """
    loaded = store.load()
    if loaded is None:
        raise StateError(f"job {config.job} vanished from {config.state.path} while it was opened")
    record = loaded.record
    check_vnodes(record.name, record.vnode_count, asked_vnodes)
    table = known_table(config, loaded, open_known)
    asked = _asked_for_everything(store, loaded)
    if loaded.state.schema.ended:
        return renew(config, store, f"it had {loaded.state.schema.ended}, and is there again")
    if asked is not None and not is_as_known(table, loaded.state):
        return renew(config, store, f"request {asked.id} asks for it, and its definition has changed")
    if asked is not None and loaded.state.failure is not None and loaded.state.schema.pending is not None:
        # Read again in place, the target would have to follow first, which may be what it has failed at.
        return renew(config, store, f"request {asked.id} asks for it, and the target has not followed its definition")
    record = _prepared(config, store, table, loaded)
    loaded = replace(loaded, record=record)
    try:
        start, loaded = _continue_or_fail(config, store, table, loaded, asked)
    except _MustCopyError as reason:
        return renew(config, store, reason.message)
    table = table.in_era(loaded.state.written.era)
    return Opened(record, loaded.state, loaded.plan, store, table, created=False, start=start)


def check_vnodes(job: str, count: int, asked: int | None) -> None:
    """Refuse another number of vnodes than the job was created with."""
    if asked not in (None, count):
        raise PlanRefusedError(
            f"job {job} has {count} vnodes; --vnodes {asked} cannot change that",
            detail="Every row's vnode, and with it every checkpoint, depends on the count.",
            hint="Leave --vnodes out, or create a job of another name. Use `rescale` to change the number of workers.",
        )


def _prepared(config: Config, store: StateStore, table: UpstreamTable, loaded: Loaded) -> JobRecord:
    """Make target and buffer this driver's. The record fits the target afterwards."""
    sink = open_sink(config, loaded.record, store, table)
    try:
        # A change of the sink that landed before a crash is in the target, and not in the state yet.
        held = max(loaded.state.schema.in_sink, min(sink.schema_version(), loaded.state.schema.newest))
        sink.use(loaded.state.schema.shape_at(held, table.definition))
        sink.prepare()
        record = fitted_record(loaded.record, store, sink)
        if loaded.state.is_whole:
            sink.put_in_place()
    finally:
        sink.close()
    change_buffer(config, record, store).prepare()
    return record


def check_same_server(config: Config, table: UpstreamTable, record: JobRecord) -> None:
    """Refuse another server than the one the job was created on."""
    if table.server != record.server:
        raise SourceError(
            f"{config.mysql.host}:{config.mysql.port} is not the server this job has read",
            detail=f"The job's offsets are of {record.server}; the server now is {table.server}.",
            hint="Point mysql.host to the old server; positions of one server mean nothing on another.",
        )


def check_definition(table: UpstreamTable, record: JobRecord) -> None:
    """Refuse a table that is not what it was when the job was created."""
    if relabelled(record.definition, table.definition) is None:
        raise SchemaChangedError(
            f"{record.database}.{record.table} was changed since the job was created",
            detail=what_changed(record.definition, table.definition),
            hint="Let it follow the statement under the executor that it was begun with, and change the executor then.",
        )


def continue_at(config: Config, table: UpstreamTable, loaded: Loaded, buffered: BufferNote | None = None) -> Beginning:
    """`buffered` is the note of the epoch in progress, if its changes are in the buffer already."""
    state = loaded.state
    log = table.source_log(stored=state.written)
    mode = mode_of(config, loaded.record.name, loaded.record.id)
    seen = seen_beyond(state, buffered.missing if buffered else ())
    start = plan_start(config.mysql.cdc, log, saved=SavedProgress(state.written, mode, seen))
    return Beginning(start, state.written, log.oldest)


def _continue_or_fail(
    config: Config, store: StateStore, table: UpstreamTable, loaded: Loaded, asked: Request | None
) -> tuple[StartPlan, Loaded]:
    """A job whose place in the log is gone has failed, and its state says so, unless all is to be read again."""
    intent = loaded.state.intent
    buffered = change_buffer(config, loaded.record, store).landed(intent.epoch) if intent else None
    try:
        start = continue_at(config, table, loaded, buffered).start
        if isinstance(start.from_, Saved) and not start.from_.by_gtids:
            loaded = _with_identity(store, table, loaded)
    except SourceError as error:
        if error.retryable:
            raise
        if asked is None:
            state, hint = loaded.state, for_table(error.hint, config.table_of_many)
            failure = Failure(state.epoch, error.message, error.detail, hint)
            store.commit(replace(state, revision=state.revision + 1, failure=failure))
            raise
        return _copy_again(config, store, table, loaded, asked)
    if loaded.state.failure is not None and asked is not None:
        # What the log holds next may be what the job has failed at; after a copy nobody needs it.
        return _copy_again(config, store, table, loaded, asked)
    if isinstance(start.from_, Saved) and start.from_.by_gtids:
        if meets_statement_again(loaded.state, table.source_log().newest.gtids):
            last = loaded.state.schema.versions[-1]
            raise _MustCopyError(
                f"the server is another one, and the statement at {last.before} was followed before the first server "
                f"had reported it: {last.statement[:200]}"
            )
        loaded = _follow_by_gtids(store, table, loaded, buffered)
    return start, loaded


class _MustCopyError(PlanRefusedError):
    """The job cannot continue with what it has: keys between its ranges only the log knows, or a statement comes
    again."""


def _asked_for_everything(store: StateStore, loaded: Loaded) -> Request | None:
    """The request to read the whole table again that nobody has acted on yet."""
    asked = (request for request in store.unacknowledged(loaded.state) if request.kind is RequestKind.RESNAPSHOT)
    return next((each for each in asked if each.extend and len(each.vnodes) == loaded.record.vnode_count), None)


def _copy_again(
    config: Config, store: StateStore, table: UpstreamTable, loaded: Loaded, asked: Request
) -> tuple[StartPlan, Loaded]:
    """Begin again at what is visible now and read every range, those of keys outside the plan included."""
    state = loaded.state
    _check_parents(table, loaded.record)
    table = table.in_era(state.written.era + 1)
    shape = state.schema.shape_at(state.schema.newest, table.definition)
    table = table.with_definition(shape.definition)
    first = table.identified(table.beginning())
    _check_parents(table, loaded.record)
    sink = open_sink(config, loaded.record, store, table)
    sink.use(shape)
    try:
        plan = extended_plan(table, sink, loaded.plan.at(state.plan_generation), config)
    finally:
        sink.close()
    if not tiles(plan):
        raise _MustCopyError(
            f"what the log held after {state.written} is left out, and keys between the ranges of the plan are read by "
            "nobody",
        )
    if plan.generation > state.plan_generation:
        store.write_plan(plan, plan.generation)
    moved = begun_again(state, first, plan)
    if table.definition.partitioning is not None or state.schema.partitioning is not None:
        # What the log held that is left out may have changed them.
        moved = replace(moved, schema=replace(moved.schema, partitioning=NOT_KNOWN))
    moved, _ = honour(moved, plan, asked)
    store.commit(moved)
    warning = (
        f"everything up to {first} is read again, as request {asked.id} says; the log since {state.written} is left out"
    )
    bounded = mode_of(config, loaded.record.name, loaded.record.id) is StartupMode.SNAPSHOT
    start = StartPlan(snapshot=True, from_=Saved(first), bounded=bounded, warnings=(warning,))
    return start, replace(loaded, state=moved, plan=plan)


def _check_parents(table: UpstreamTable, record: JobRecord) -> None:
    """The log that is left out may hold statements that have given the table other parents: a new copy knows them."""
    if table.with_parents().parents != record.parents:
        raise _MustCopyError("its foreign keys cascade from other tables than before")


def _follow_by_gtids(store: StateStore, table: UpstreamTable, loaded: Loaded, buffered: BufferNote | None) -> Loaded:
    """Another server has everything this job has seen: continue there, after the last transaction that was captured."""
    state, log = loaded.state, table.source_log()
    found = table.identified(table.position_after_gtids(state.written.gtids, log))
    start = replace(found.in_era(state.written.era + 1), gtids=state.written.gtids)
    moved = moved_to(state, start, loaded.plan, buffered.missing if buffered else ())
    store.commit(moved)
    return replace(loaded, state=moved)


def _with_identity(store: StateStore, table: UpstreamTable, loaded: Loaded) -> Loaded:
    """A job of a release that stored no identity of its log takes that of the log it finds."""
    state, intent = loaded.state, loaded.state.intent
    if state.written.log and (intent is None or intent.written.log):
        return loaded
    written = table.identified(state.written)
    if intent is not None:
        same_file = intent.written.number == written.number
        sampled = replace(intent.written, log=written.log) if same_file else table.identified(intent.written)
        intent = replace(intent, written=sampled)
    state = replace(state, revision=state.revision + 1, written=written, intent=intent)
    store.commit(state)
    return replace(loaded, state=state)
