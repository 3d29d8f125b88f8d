"""Decides who does what next: the epoch protocol as a pure function of what happened.

`decide(state, event) -> (state, actions)`. Events are what happened, actions are orders; the performer reports back by
events. No clock, no socket, no Spark: the whole protocol can be run in a test, with a crash at every action.

    STARTING ──Started──► WORKING (the committed intent, again)        … or SAMPLING where there is none
    WORKING  ──RangesRead, ChangesBuffered, EpochMerged──►
               receipts are committed after the merge (one committer per table): ReceiptsCommitted
               where the epoch merges its own slice, the merge is ordered after ChangesBuffered only
             ──all collected──► EXTENDING (only for a re-snapshot beyond the plan) ──PlanExtended──► SAMPLING
                            └─► RESOLVING (a statement about the table cut the epoch) ──StatementResolved──► SAMPLING
    SAMPLING ──Sampled──► COMMITTING (this epoch's end and the next one's intent, in one commit)
                      └─► IDLE where nothing changed and nothing is to be done: a Barrier, nothing is written
    COMMITTING ──StateCommitted──► WORKING (next epoch) | IDLE | STOPPED
    IDLE     ──Sampled, RequestArrived, CaughtUp──► as SAMPLING
    any      ──ActorFailed──► RETRYING ──EpochRestarted──► the same stage again, from its beginning
             ──definite, or too often──► FAILING ──StateCommitted──► STOPPED
             ──definite, during a commit──► RETRYING ──► that commit again ──StateCommitted──► FAILING

A change of another table may have changed rows of this one outside the log (`schema.cascaded`). The copy is then
completed, and stops with a new copy as its ending: however many such changes came meanwhile, they need one.

The sink follows the definition beside the epochs: `ChangeSink` is ordered when everything before the statement is
merged, and once more by whoever begins again. The commit after `SinkChanged` says that it has followed. A statement
after which this copy cannot continue stops the job at the point before it, drained like any stop, with the reason.

A request waits for the end of the epoch, with one exception: an epoch that begins, or begins again, reads as the newest
requests want it (`_reads`). So a request can always undo one that makes reads fail: a limit, too many workers, a
re-snapshot.

Why a repeat is harmless: the intent was committed before its first effect, it holds every sample it needs, and each
effect is keyed by its epoch. A repeat may read less, or at another speed; so does a lane whose time is over. Why
nothing is lost: an epoch's offsets become durable in the commit that follows all its effects.
"""

from __future__ import annotations

from dataclasses import replace

from progress.state.backfill_state import (
    BackfillState,
    Failure,
    Request,
    RequestKind,
)
from progress.state.barriers import CdcTableBackfillProgress, CreateMviewProgress
from progress.state.parked import may_rest, moved_on
from progress.state.report import NOTHING_IN_HAND
from vnode_backfill.decide.coordination import Coordinator, Stage
from vnode_backfill.decide.end_of_epoch import NOTHING_COLLECTED
from vnode_backfill.decide.follow_statement import cascade_met, set_aside, unexplained
from vnode_backfill.decide.honour_requests import controlled
from vnode_backfill.decide.next_commit import is_stopping, next_commit
from vnode_backfill.decide.next_epoch import (
    Sample,
    merge_bound,
    merges_own_slice,
    merging_vnodes,
    sink_may_change,
)
from vnode_backfill.decide.protocol import (
    Action,
    ActorFailed,
    BufferChanges,
    CaughtUp,
    ChangesBuffered,
    ChangeSink,
    CommitEpoch,
    CommitReceipts,
    EpochMerged,
    EpochRestarted,
    Event,
    ExtendPlan,
    InjectBarrier,
    MergeEpoch,
    PlanExtended,
    RangesRead,
    ReadRanges,
    ReceiptsCommitted,
    RequestArrived,
    ResolveStatement,
    RestartEpoch,
    Sampled,
    SampleSource,
    SinkChanged,
    SinkNotChanged,
    Started,
    StateCommitted,
    StatementResolved,
    Stop,
    TrimBuffer,
)
from vnode_backfill.words.epoch import Actor, Barrier, BarrierKind, Epoch
from vnode_backfill.words.errors import BackfillError, LawBrokenError
from vnode_backfill.words.schema_change import Ended, NewCopy, SetAside

__all__ = ["Coordinator", "Decision", "Stage", "decide"]

Decision = tuple[Coordinator, tuple[Action, ...]]


def decide(state: Coordinator, event: Event) -> Decision:  # noqa: PLR0912 - one branch per event
    """The one step of the protocol. An event that the stage cannot receive raises, and nothing is ordered.

    Late events do not count: those of an earlier attempt, answers to an earlier question, and all that come after the
    end.
    """
    if getattr(event, "attempt", state.attempt) != state.attempt or state.stage is Stage.STOPPED:
        return state, ()
    match event:
        case Sampled(ticket=ticket) if ticket < state.asked:
            return state, ()
        case Started() | PlanExtended() | Sampled() | StatementResolved() | CaughtUp() if state.stage in (
            Stage.RETRYING,
            Stage.FAILING,
        ):
            # Something failed while it was under way: a lease or a JVM lost before the start, a trim beside a question.
            return state, ()
        case Started() if state.stage is Stage.STARTING:
            return _start(state)
        case RangesRead() | ChangesBuffered() | EpochMerged() | ReceiptsCommitted() if _is_of_epoch(state, event.epoch):
            return _collect(state, event)
        case PlanExtended(plan=plan) if state.stage is Stage.EXTENDING:
            return _sample(replace(state, stage=Stage.SAMPLING, pending_plan=plan))
        case StatementResolved() if state.stage is Stage.RESOLVING:
            return _resolved(state, event)
        case SinkChanged() | SinkNotChanged():
            return _followed(state, event)
        case Sampled(sample=sample, ticket=state.asked) if state.stage in (Stage.SAMPLING, Stage.IDLE):
            return _prepare_commit(state, sample)
        case CaughtUp(reached=reached) if state.stage is Stage.IDLE and may_rest(state.saved):
            return _sample(replace(state, saved=moved_on(state.saved, reached)))
        case StateCommitted(revision=revision) if state.pending and state.pending.revision == revision:
            return _committed(state, state.pending)
        case RequestArrived(request=request):
            return _request(state, request)
        case ActorFailed(error=error):
            return _failed(state, error)
        case EpochRestarted() if state.stage is Stage.RETRYING:
            return _resume(state)
        case CreateMviewProgress() | CdcTableBackfillProgress():
            # Progress is only shown, and may come late: it is sent by datagrams.
            return (_progressed(state, event), ()) if _is_of_epoch(state, event.epoch) else (state, ())
        case _:
            raise LawBrokenError(f"stage {state.stage} cannot receive {type(event).__name__}", detail=repr(event)[:500])


def _followed(state: Coordinator, event: SinkChanged | SinkNotChanged) -> Decision:
    """The sink holds a version of the definition now, or could not follow to it."""
    if isinstance(event, SinkNotChanged):
        return _not_followed(state, event)
    state = replace(state, changed=event.version, changing=0, not_followed=0)
    return _sample(state) if state.stage is Stage.IDLE else (state, ())


def _not_followed(state: Coordinator, event: SinkNotChanged) -> Decision:
    """Its failures are counted apart: the epochs and samples beside it succeed, and each ends the row of attempts."""
    if event.version != state.changing or state.is_failing:
        return state, ()
    state = replace(state, changing=0)
    if state.stage is Stage.RETRYING:
        return _failed(state, event.error)
    times = state.not_followed + 1
    return _failed(replace(state, not_followed=times, attempt=max(state.attempt, times - 1)), event.error)


def _is_of_epoch(state: Coordinator, epoch: Epoch) -> bool:
    return state.stage is Stage.WORKING and epoch == state.intent.epoch


def _start(state: Coordinator) -> Decision:
    initial = InjectBarrier(Barrier(state.saved.epoch, BarrierKind.INITIAL))
    state = _overtaken(state)
    if state.saved.intent is None:
        state, actions = _sample(replace(state, stage=Stage.IDLE))
        state, change = _change_sink(state)
        actions = (*actions, *change)
    else:
        state, actions = _work(state)
    return state, (initial, *actions)


def _change_sink(state: Coordinator) -> Decision:
    """Let the sink follow, once, when it holds all that is before the statement."""
    pending = state.saved.schema.pending
    if pending is None or not sink_may_change(state.saved) or pending.number in (state.changing, state.changed):
        return state, ()
    return replace(state, changing=pending.number), (ChangeSink(pending),)


def _sample(state: Coordinator, *, idle: bool = False) -> Decision:
    """Ask the source; an answer to an earlier question no longer counts."""
    state = replace(state, asked=state.asked + 1)
    return state, (SampleSource(idle, state.asked),)


def _work(state: Coordinator) -> Decision:
    """Begin, or begin again, the epoch of the committed intent."""
    state = replace(state, stage=Stage.WORKING, collected=NOTHING_COLLECTED, in_hand=NOTHING_IN_HAND)
    intent, barrier = state.intent, state.barrier
    actions: list[Action] = [InjectBarrier(barrier), _reads(state), BufferChanges(barrier, state.saved.written, intent)]
    if not merges_own_slice(intent):
        actions.append(_merge(state))
    state, change = _change_sink(state)
    return state, (*actions, *change)


def _reads(state: Coordinator) -> ReadRanges:
    """The intent's ranges, under the newest limit; none where a request waits that a read would only hold up."""
    intent, controls = state.intent, state.saved.controls
    for request in state.requests:
        controls = controlled(controls, request)
    ends_reading = any(request.kind in (RequestKind.STOP, RequestKind.RESCALE) for request in state.requests)
    lanes = intent.ranges if controls.reading and not ends_reading else tuple(() for _ in intent.ranges)
    return ReadRanges(state.barrier, lanes, _replaced(state, intent.ordinals), controls.rows_per_second)


def _merge(state: Coordinator) -> MergeEpoch:
    saved, intent, buffered = state.saved, state.intent, state.collected.buffered
    cut = buffered.cut if buffered else None
    return MergeEpoch(state.barrier, merging_vnodes(saved, intent, cut), merge_bound(saved, intent, cut))


def _replaced(state: Coordinator, ordinals: frozenset[int]) -> frozenset[int]:
    return ordinals & frozenset(o for v in state.saved.vnodes for o in v.replaces)


def _collect(state: Coordinator, event: RangesRead | ChangesBuffered | EpochMerged | ReceiptsCommitted) -> Decision:
    before = state.collected
    actions: list[Action] = []
    match event:
        case RangesRead():
            _check_receipts(state, event)
            collected = replace(before, read=event)
        case ChangesBuffered():
            collected = replace(before, buffered=event)
            if merges_own_slice(state.intent):
                actions.append(_merge(replace(state, collected=collected)))
        case EpochMerged():
            collected = replace(before, merged=event)
        case ReceiptsCommitted():
            _check_receipts(state, event)
            collected = replace(before, receipts=event.receipts)
    state = replace(state, collected=collected)
    if collected.read and collected.merged and not (before.read and before.merged):
        receipts = collected.read.receipts
        actions.append(
            CommitReceipts(state.barrier, receipts, _replaced(state, frozenset(r.ordinal for r in receipts)))
        )
    if collected.receipts is not None and collected.buffered:
        state, more = _all_collected(state)
        actions.extend(more)
    return state, tuple(actions)


def _progressed(state: Coordinator, event: CreateMviewProgress | CdcTableBackfillProgress) -> Coordinator:
    saved, seen = state.saved, state.in_hand
    match event:
        case CdcTableBackfillProgress(rows=rows, ranges_done=ranges):
            seen = replace(seen, rows=max(0, rows - saved.rows), ranges=max(0, ranges - saved.ranges))
        case CreateMviewProgress(actor=Actor.MERGE, rows=rows):
            seen = replace(seen, merged=rows)
        case CreateMviewProgress(rows=rows):
            seen = replace(seen, captured=rows)
    return replace(state, in_hand=seen)


def _check_receipts(state: Coordinator, event: RangesRead | ReceiptsCommitted) -> None:
    """Law 4: each range once, and only ranges of the intent."""
    ordinals = [receipt.ordinal for receipt in event.receipts]
    if len(ordinals) != len(set(ordinals)) or not set(ordinals) <= state.intent.ordinals:
        raise LawBrokenError(
            f"epoch {event.epoch}: ranges {sorted(ordinals)} were read, planned were {sorted(state.intent.ordinals)}"
        )


def _all_collected(state: Coordinator) -> Decision:
    """Every read has ended; only now may the next written offset be sampled."""
    buffered = state.collected.buffered
    cut = buffered.cut if buffered else None
    if cut is None and state.refused:
        return _failed(state, unexplained(state.refused, state.intent.written))
    if cut is not None and state.met is None:
        return replace(state, stage=Stage.RESOLVING), (ResolveStatement(cut, state.attempt),)
    follows = state.saved.schema.pending is not None
    if any(request.extend for request in state.requests) and not is_stopping(state) and not follows:
        # The source and the sink are asked for their keys, and a key that was renamed has another name in each.
        return replace(state, stage=Stage.EXTENDING), (ExtendPlan(state.saved.plan_generation),)
    return _sample(replace(state, stage=Stage.SAMPLING))


def _resolved(state: Coordinator, event: StatementResolved) -> Decision:
    """What the statement did is known. Where this copy cannot continue, the job stops before the statement."""
    state = replace(state, stage=Stage.SAMPLING)
    if isinstance(event.effect, Ended) and state.saved.schema.pending is not None:
        # An ended job never runs again. What the buffer holds is merged first: the next epoch meets the statement anew.
        return _sample(state)
    if isinstance(event.effect, NewCopy | Ended | SetAside):
        return _sample(replace(state, met=event, stopping=True))
    return _sample(replace(state, resolved=event if event.effect is not None else None))


def _overtaken(state: Coordinator) -> Coordinator:
    """A whole copy of which rows were changed outside the log stops, so that a new one follows."""
    saved = state.saved
    if saved.schema.cascaded is None or not saved.is_whole or state.stopping:
        return state
    return replace(state, met=cascade_met(saved.schema.cascaded), stopping=True)


def _prepare_commit(state: Coordinator, sample: Sample) -> Decision:
    state = replace(state, first_sample=state.first_sample or sample.written)
    committing = next_commit(state, sample)
    if committing is None:
        # The source has answered: attempts count in a row, and an idle job has no commit that would end the row.
        idle = InjectBarrier(Barrier(state.saved.epoch, BarrierKind.BARRIER))
        state, actions = _sample(replace(state, attempt=0, last_error=None), idle=True)
        return state, (idle, *actions)
    assert committing.pending is not None
    return committing, (CommitEpoch(committing.pending),)


def _committed(state: Coordinator, saved: BackfillState) -> Decision:
    if state.stage is Stage.RETRYING:
        # Something else failed while it was committed: the commit is repeated, and reported again.
        return state, ()
    if state.stage is Stage.FAILING:
        return replace(state, saved=saved, stage=Stage.STOPPED, pending=None), (Stop(saved.failure),)
    plan = state.pending_plan or state.plan
    if state.ending is not None and not saved.stopped:
        return _fail(replace(state, saved=saved, plan=plan, pending_plan=None), state.ending)
    state = replace(
        state,
        saved=saved,
        plan=plan,
        pending=None,
        pending_plan=None,
        collected=NOTHING_COLLECTED,
        in_hand=NOTHING_IN_HAND,
        attempt=0,
        last_error=None,
        resolved=None,
        refused=_refused(state),
    )
    trim = TrimBuffer(saved.lowest_applied)
    state = _overtaken(state)
    if saved.intent is not None:
        state, actions = _work(state)
        return state, (trim, *actions)
    if saved.stopped:
        return _stopped(state, trim)
    state, actions = _sample(replace(state, stage=Stage.IDLE), idle=True)
    state, change = _change_sink(state)
    return state, (trim, *actions, *change)


def _refused(state: Coordinator) -> str:
    """A read that was refused in the epoch that has just ended; a statement found in it explains it."""
    read, buffered = state.collected.read, state.collected.buffered
    return read.refused if read and buffered and buffered.cut is None else ""


def _stopped(state: Coordinator, trim: TrimBuffer) -> Decision:
    """The job has stopped at a consistent offset. A table that is set aside has failed, and its state says so."""
    met = state.met
    ending = met.effect if met is not None and isinstance(met.effect, NewCopy | Ended | SetAside) else None
    if met is not None and isinstance(ending, SetAside):
        return _fail(
            replace(state, saved=replace(state.saved, stopped=False)), set_aside(state.saved.epoch, met, ending.reason)
        )
    return replace(state, stage=Stage.STOPPED), (trim, Stop(None, ending))


def _request(state: Coordinator, request: Request) -> Decision:
    known = {a.request for a in state.saved.acknowledged} | {r.id for r in state.requests}
    if request.id in known:
        return state, ()
    state = replace(state, requests=(*state.requests, request))
    return _sample(state) if state.stage is Stage.IDLE else (state, ())


def _failed(state: Coordinator, error: BackfillError) -> Decision:
    if state.stage is Stage.RETRYING and error.retryable:
        # It is about to be tried again. What trying again cannot help counts all the same: a lost lease, a lost JVM.
        return state, ()
    if state.stage is Stage.FAILING or state.ending is not None:
        # Not even the reason can be stored (a lost lease, a full disk): stop all the same.
        stored = state.pending.failure if state.pending else None
        return replace(state, stage=Stage.STOPPED), (Stop(state.ending or stored),)
    attempt = state.attempt + 1
    if error.retryable and attempt <= state.attempts_allowed:
        state = replace(state, stage=Stage.RETRYING, retrying=state.stage, attempt=attempt, last_error=error)
        return state, (RestartEpoch(attempt, error),)
    failure = Failure(state.saved.epoch, error.message, error.detail, error.hint)
    state = replace(state, last_error=error, attempt=attempt)
    if Stage.COMMITTING not in (state.stage, state.retrying):
        return _fail(state, failure)
    # The commit in progress may have landed: a failure row of the same revision would pretend it had not.
    if error.retryable:
        return replace(state, stage=Stage.STOPPED), (Stop(failure),)
    state = replace(state, stage=Stage.RETRYING, retrying=Stage.COMMITTING, ending=failure)
    return state, (RestartEpoch(attempt, error),)


def _fail(state: Coordinator, failure: Failure) -> Decision:
    """Store why the job ends, in a revision of its own; the intent stays for the next driver."""
    failed = replace(state.saved, revision=state.saved.revision + 1, failure=failure)
    return replace(state, stage=Stage.FAILING, pending=failed, ending=None), (CommitEpoch(failed),)


def _resume(state: Coordinator) -> Decision:
    """The failed stage again, from its beginning."""
    stage = state.retrying or state.stage
    # What the failed attempt had begun has ended. A change of the sink goes on: it may take longer than many attempts.
    state = replace(state, stage=stage, retrying=None)
    match stage:
        case Stage.STARTING:
            return _start(state)
        case Stage.WORKING:
            return _work(state)
        case Stage.EXTENDING | Stage.RESOLVING:
            return _all_collected(state)
        case Stage.COMMITTING if state.pending is not None:
            return state, (CommitEpoch(state.pending),)
        case Stage.SAMPLING | Stage.IDLE:
            state, actions = _sample(state)
            state, change = _change_sink(state)
            return state, (*actions, *change)
        case _:
            raise LawBrokenError(f"stage {stage} cannot begin again")
