"""Builds the commit between two epochs: the end of one, what is asked for, and the intent of the next.

All of it becomes durable at once, so that a driver that begins again finds either the epoch with its intent, or the one
after it. What the commit holds depends on the coordinator and one sample of the source only. These come together, in
this order:

- the state at the end of the epoch that was collected, after the statement that cut it if the job continues there;
- the version of the definition that the sink has followed to meanwhile;
- a plan that was extended, and the requests that this commit may carry out;
- the intent of the next epoch, or none where the job stops or has nothing to do.
"""

from __future__ import annotations

from dataclasses import replace

from progress.state.backfill_state import BackfillState, Intent, Request, RequestKind, check_laws
from vnode_backfill.decide.coordination import Coordinator, Stage
from vnode_backfill.decide.end_of_epoch import after_epoch
from vnode_backfill.decide.follow_statement import after_statement, before_statement, schema_at_end
from vnode_backfill.decide.honour_requests import honour, set_ranges_back
from vnode_backfill.decide.next_epoch import Sample, next_intent, start_reading
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import SplitPlan

__all__ = ["is_stopping", "next_commit"]


def next_commit(state: Coordinator, sample: Sample) -> Coordinator | None:
    """The coordinator with its next commit pending, or None if nothing has changed and nothing is to be done."""
    finished = state.stage is Stage.SAMPLING
    after, set_back = _ended_epoch(state) if finished else (state.saved, frozenset[VnodeId]())
    plan, stopping = state.current_plan, state.stopping
    followed = state.changed > after.schema.in_sink
    if followed:
        after = replace(after, schema=replace(after.schema, in_sink=state.changed))
    # One that met a statement has not reached its sample: it is followed by another.
    drained = finished and state.intent.kind is BarrierKind.SYNC_CHECKPOINT and state.resolved is None
    last = drained and state.stopping
    honoured = _honoured(state, last=last, drained=drained)
    if state.pending_plan is not None:
        plan = state.pending_plan
        after, back = _extended(after, plan)
        set_back |= back
    for request in honoured:
        after, back = honour(after, plan, request)
        set_back |= back
        stopping = stopping or request.kind is RequestKind.STOP
    waiting = tuple(request for request in state.requests if request not in honoured)
    drain = stopping or any(request.kind is RequestKind.RESCALE for request in waiting)
    if drain and state.bounded:
        sample = replace(sample, slice_end=None)
    extends = bool(waiting) and after.schema.pending is None
    intent = None if last else _intent(after, plan, sample, drain=drain, waiting=extends)
    if not finished and intent is None and not honoured and not followed:
        return None
    after = replace(
        start_reading(after, intent, plan), intent=intent, revision=state.saved.revision + 1, failure=None, stopped=last,
        schema=schema_at_end(after, state.met if last else None),
    )  # fmt: skip
    check_laws(state.saved, after, plan, set_back)
    return replace(state, stage=Stage.COMMITTING, pending=after, pending_plan=plan, requests=waiting, stopping=stopping)


def is_stopping(state: Coordinator) -> bool:
    return state.stopping or any(request.kind is RequestKind.STOP for request in state.requests)


def _ended_epoch(state: Coordinator) -> tuple[BackfillState, frozenset[VnodeId]]:
    """The state at the end of the epoch in progress, after the statement that cut it if the job continues there."""
    buffered, plan = state.collected.buffered, state.current_plan
    after = after_epoch(state.saved, state.intent, plan, state.collected)
    if buffered is None:
        return after, frozenset()
    for passed in buffered.passed:
        after = replace(after, schema=after.schema.noted(passed, "none"))
    if state.resolved is not None:
        return after_statement(after, plan, state.intent, state.resolved)
    return (after, frozenset()) if buffered.cut is None else before_statement(after, plan, buffered.cut)


def _honoured(state: Coordinator, *, last: bool, drained: bool) -> tuple[Request, ...]:
    """The requests this commit carries out; the others wait, and a next driver finds them again.

    Bitmaps change only with the commit that ends a SyncCheckpoint: commit, barrier, bitmaps. A stop leaves what would
    set vnodes back to the next driver: a job that is asked to stop when live is live when it has stopped.
    """
    stopping = is_stopping(state)

    def now(request: Request) -> bool:
        match request.kind:
            case RequestKind.STOP:
                return True
            case RequestKind.RESCALE:
                return drained
            case RequestKind.RESNAPSHOT:
                return not last and not stopping and (not request.extend or state.pending_plan is not None)
            case _:
                return not last

    return tuple(filter(now, state.requests))


def _intent(after: BackfillState, plan: SplitPlan, sample: Sample, *, drain: bool, waiting: bool) -> Intent | None:
    """A plan extension can only follow an epoch; one that waits while the job is idle makes an empty epoch."""
    intent = next_intent(after, plan, sample, drain=drain)
    if intent is None and waiting:
        lanes = tuple(() for _ in after.assignment)
        intent = Intent(
            Epoch(after.epoch + 1), BarrierKind.CHECKPOINT, sample.written, sample.visible, lanes, after.plan_generation
        )
    return intent


def _extended(after: BackfillState, plan: SplitPlan) -> tuple[BackfillState, frozenset[VnodeId]]:
    added = frozenset(planned.ordinal for planned in plan.ranges if planned.generation > after.plan_generation)
    after = replace(after, plan_generation=plan.generation)
    return set_ranges_back(after, plan, added)
