"""Honours what an operator asks for: rescale, rate limit, pause, resume, re-snapshot.

A request takes effect in the commit between two epochs, and its acknowledgement is part of that commit. One that cannot
be honoured is acknowledged with the reason. Three things must be true:

- A rescale moves vnodes between workers and changes nothing else: a vnode's state does not know its worker.
- A range that is read again replaces what the sink holds for its keys. Until then it counts as unread, and its vnode is
  not live.
- `applied` is never reset. The range is read only once the source shows at least what is applied (`floor`, see
  `next_epoch`).

A statement that is accepted is one that the job may pass. The acceptance leaves a paused snapshot paused.
"""

from __future__ import annotations

from dataclasses import replace

from consume_upstream.log.offset import CdcOffset
from progress.state.backfill_state import (
    OWN_REQUEST,
    Acknowledgement,
    BackfillState,
    Controls,
    Phase,
    Request,
    RequestKind,
    VnodeState,
)
from vnode_backfill.words.bitmap import check_assignment, reassign
from vnode_backfill.words.errors import BitmapError
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import SplitPlan

_ACKNOWLEDGEMENTS_KEPT = 50


def honour(state: BackfillState, plan: SplitPlan, request: Request) -> tuple[BackfillState, frozenset[VnodeId]]:
    """The state with the request honoured, or refused with the reason in its acknowledgement; and the vnodes set
    back."""
    set_back: frozenset[VnodeId] = frozenset()
    refused = ""
    try:
        match request.kind:
            case RequestKind.RESCALE:
                state = _rescaled(state, plan, request)
            case RequestKind.RATE_LIMIT | RequestKind.PAUSE | RequestKind.RESUME:
                state = replace(state, controls=controlled(state.controls, request))
            case RequestKind.RESNAPSHOT:
                state, set_back = set_ranges_back(state, plan, _chosen_ranges(plan, request))
            case RequestKind.STOP:
                pass
    except BitmapError as error:
        refused = error.message
    if request.id == OWN_REQUEST:
        return state, set_back
    acknowledgement = Acknowledgement(request.id, state.epoch, refused)
    kept = (*state.acknowledged, acknowledgement)[-_ACKNOWLEDGEMENTS_KEPT:]
    return replace(state, acknowledged=kept), set_back


def controlled(controls: Controls, request: Request) -> Controls:
    """The controls as the request wants them."""
    match request.kind:
        case RequestKind.RATE_LIMIT:
            return replace(controls, rows_per_second=request.rows_per_second)
        case RequestKind.RESUME if request.accept:
            return replace(controls, accepted=request.accept)
        case RequestKind.PAUSE | RequestKind.RESUME:
            return replace(controls, paused=request.kind is RequestKind.PAUSE)
        case _:
            return controls


def set_ranges_back(
    state: BackfillState, plan: SplitPlan, ordinals: frozenset[int]
) -> tuple[BackfillState, frozenset[VnodeId]]:
    """Count ranges as unread again: they will replace what the sink holds. `applied` is not reset."""
    floor = state.highest_applied
    back = {planned.vnode for planned in plan.ranges if planned.ordinal in ordinals}
    vnodes = tuple(
        _set_back(v, ordinals & {r.ordinal for r in plan.of_vnode(v.vnode)}, floor) if v.vnode in back else v
        for v in state.vnodes
    )
    return replace(state, vnodes=vnodes), frozenset(back)


def _rescaled(state: BackfillState, plan: SplitPlan, request: Request) -> BackfillState:
    """Move as few vnodes as possible; no vnode's state is touched."""
    if request.assignment:
        check_assignment(request.assignment, plan.vnode_count)
        assignment = request.assignment
    else:
        assignment = reassign(state.assignment, request.workers)
    return replace(state, assignment=assignment, assignment_generation=state.assignment_generation + 1)


def _chosen_ranges(plan: SplitPlan, request: Request) -> frozenset[int]:
    return frozenset(
        planned.ordinal
        for planned in plan.ranges
        if planned.vnode in request.vnodes or planned.ordinal in request.ordinals
    )


def _set_back(vnode: VnodeState, ordinals: frozenset[int], floor: CdcOffset) -> VnodeState:
    return replace(
        vnode,
        phase=Phase.SNAPSHOT,
        reads=tuple((ordinal, epoch) for ordinal, epoch in vnode.reads if ordinal not in ordinals),
        complete=None,
        replaces=vnode.replaces | ordinals,
        floor=floor,
    )
