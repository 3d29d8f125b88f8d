"""What the next epoch will do: which requests it honours, which ranges each worker reads, what is merged up to where.

Everything here is decided between two epochs, from the committed state and one sample of the source, and becomes part of the
next commit. Bounds that make it right:

- The merge of epoch N goes up to w[N-1], which the buffer holds completely. A vnode whose last range was read in epoch n has its
  high watermark at w[n+1] (sampled after every read of n had ended), so it merges first in epoch n+2.
- A SyncCheckpoint merges after its own buffer commit, up to w[N]; a vnode read in epoch N-1 may take part. It reads nothing itself.
- A range that is read again must not show less than what is applied already, to any vnode (a key may have changed its vnode by a
  plan extension): it waits until the visibility covers the highest applied offset at the time of the reset (`floor`).
- A repeated epoch never samples again; so nothing here may depend on anything but its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from consume_upstream.offset import CdcOffset, Visibility
from progress.state import (
    OWN_REQUEST,
    Acknowledgement,
    BackfillState,
    Controls,
    Intent,
    Phase,
    Request,
    RequestKind,
    VnodeState,
)
from vnode_backfill.bitmap import VnodeBitmap, check_assignment, reassign
from vnode_backfill.epoch import BarrierKind, Epoch
from vnode_backfill.errors import BitmapError
from vnode_backfill.keys import PlannedRange, SplitPlan
from vnode_backfill.vnode import VnodeId

_ACKNOWLEDGEMENTS_KEPT = 50


@dataclass(frozen=True, slots=True)
class Sample:
    """What the source said once, between two epochs; `rows_per_worker` is how much a worker can read in one epoch.

    `hold` is set while the source is too busy for a snapshot; the log goes on being captured.
    """

    written: CdcOffset
    visible: Visibility
    rows_per_worker: int
    hold: bool = False


def merge_bound(state: BackfillState, intent: Intent) -> CdcOffset:
    """Up to where the intent's epoch merges: `state` is the commit that holds the intent."""
    return intent.written if intent.kind is BarrierKind.SYNC_CHECKPOINT else state.written


def mergeable(vnode: VnodeState, intent: Intent) -> bool:
    """Whether the buffer holds the vnode's whole window: its last read's high watermark lies at or below the bound."""
    wait = 1 if intent.kind is BarrierKind.SYNC_CHECKPOINT else 2
    return vnode.complete is not None and vnode.complete + wait <= intent.epoch


def merging_vnodes(state: BackfillState, intent: Intent) -> tuple[VnodeState, ...]:
    """The vnodes whose changes above `applied` the intent's epoch merges."""
    bound = merge_bound(state, intent)
    return tuple(v for v in state.vnodes if mergeable(v, intent) and (v.applied < bound or v.phase is not Phase.LIVE))


def next_intent(state: BackfillState, plan: SplitPlan, sample: Sample, *, drain: bool) -> Intent | None:
    """The intent of the epoch after `state`, or None if there is nothing to do and the epoch may stay open.

    `drain` makes it a SyncCheckpoint, for a stop or a rescale: it reads no range, so that what was asked for comes soon.
    """
    epoch = Epoch(state.epoch + 1)
    kind = BarrierKind.SYNC_CHECKPOINT if drain else BarrierKind.CHECKPOINT
    reading = state.controls.reading and not drain and not sample.hold
    lanes = tuple(
        lane_ranges(state, plan, bitmap, sample.rows_per_worker) if reading else () for bitmap in state.assignment
    )
    intent = Intent(epoch, kind, sample.written, sample.visible, lanes, state.plan_generation)
    return intent if drain or _has_work(state, intent) else None


def lane_ranges(state: BackfillState, plan: SplitPlan, bitmap: VnodeBitmap, rows: int) -> tuple[int, ...]:
    """The next unread ranges of a worker's vnodes, vnode by vnode, until about `rows` rows; at least one if any is left."""
    chosen: list[int] = []
    total = 0
    for vnode in bitmap:
        for planned in _readable(state, plan, state.vnodes[vnode]):
            if chosen and total + planned.estimated_rows > rows:
                return tuple(chosen)
            chosen.append(planned.ordinal)
            total += planned.estimated_rows
    return tuple(chosen)


def _readable(state: BackfillState, plan: SplitPlan, vnode: VnodeState) -> list[PlannedRange]:
    """Unread ranges; those of a vnode that was set back only once every applied change is visible."""
    if vnode.complete is not None:
        return []
    waits = vnode.floor is not None and state.newest_visible.position < vnode.floor
    read = vnode.read_ordinals
    return [
        planned
        for planned in plan.of_vnode(vnode.vnode)
        if planned.ordinal not in read and not (waits and planned.ordinal in vnode.replaces)
    ]


def _has_work(state: BackfillState, intent: Intent) -> bool:
    """Unread ranges that wait (paused, floor) are no work by themselves; a moved log, a read or a due merge is."""
    if intent.ordinals or intent.written > state.written:
        return True
    waiting = any(v.complete is None and v.floor is not None for v in state.vnodes) and state.controls.reading
    if waiting and intent.kind is BarrierKind.CHECKPOINT:
        return True
    due = [v for v in state.vnodes if v.complete is not None and v.phase is not Phase.LIVE]
    uneven = len({v.applied for v in state.vnodes if v.phase is Phase.LIVE}) > 1
    if due or uneven:
        return True
    bound = merge_bound(state, intent)
    changed = state.changed
    return changed is not None and any(
        mergeable(v, intent) and v.applied < bound and v.applied < changed for v in state.vnodes
    )


def start_reading(state: BackfillState, intent: Intent | None, plan: SplitPlan) -> BackfillState:
    """Vnodes with a range in the intent leave `pending`."""
    ordinals = intent.ordinals if intent else frozenset()
    if not ordinals:
        return state
    begun = {planned.vnode for planned in plan.ranges if planned.ordinal in ordinals}
    return replace(
        state,
        vnodes=tuple(
            replace(v, phase=Phase.SNAPSHOT) if v.vnode in begun and v.phase is Phase.PENDING else v
            for v in state.vnodes
        ),
    )


def honour(state: BackfillState, plan: SplitPlan, request: Request) -> tuple[BackfillState, frozenset[VnodeId]]:
    """Carry a request out, or refuse it with the reason in its acknowledgement; also the vnodes it set back."""
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
        case RequestKind.PAUSE | RequestKind.RESUME:
            return replace(controls, paused=request.kind is RequestKind.PAUSE)
        case _:
            return controls


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


def _set_back(vnode: VnodeState, ordinals: frozenset[int], floor: CdcOffset) -> VnodeState:
    return replace(
        vnode,
        phase=Phase.SNAPSHOT,
        reads=tuple((ordinal, epoch) for ordinal, epoch in vnode.reads if ordinal not in ordinals),
        complete=None,
        replaces=vnode.replaces | ordinals,
        floor=floor,
    )
