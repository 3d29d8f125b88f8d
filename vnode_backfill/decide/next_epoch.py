"""Decides what the next epoch does: which ranges each worker reads, what is merged up to where, which vnodes go live.

All of it is decided between two epochs, from the committed state and one sample of the source, and becomes part of the
next commit. These bounds make it right:

- The merge of epoch N ends at w[N-1], which the buffer holds completely. A vnode whose last range was read in epoch n
  has its high watermark at w[n+1], which is sampled after every read of n has ended. So it merges first in epoch n+2.
- A SyncCheckpoint merges after its own buffer commit, up to w[N], so a vnode read in epoch N-1 may take part. It reads
  nothing.
- A Checkpoint of a live job merges its own slice in the same way where the slice is short. A change is then in the sink
  an epoch sooner. Log and merge no longer overlap, which costs no more time than a short stretch takes to read. A long
  slice is merged an epoch later, beside the next one, so that a job that fell behind catches up as fast as it can. The
  intent says which of the two it is (`own_slice`): a repeat that chose anew would count a merge up to the other bound.
- A job that is far behind takes the log in slices: the next epoch captures up to an earlier boundary than the end of
  the log (`Sample.slice_end`). So one slice is merged while the next one is captured. That is an offset like any other
  for what is live, and the intent holds it. It is not a high watermark: a vnode that is not live yet waits for an
  offset that was sampled after its last read, so that the log is not cut before every vnode is live. A statement that
  the sink has yet to follow does not change that.
- A SyncCheckpoint may end at such a boundary too: it merges its own slice, so that all is applied up to one offset
  between two transactions. Otherwise a stop in the middle of a backlog would have to take in all the rest of it, and a
  driver that is killed before that would repeat it for ever. Two kinds of stop want the end of the log, and are given a
  sample without a slice end: that of a job that only copies (`next_commit`), and that of tables which are not at one
  offset (`job.tables.shared_work`).
- A range that is read again must not show less than what is applied already, to any vnode: a plan extension may have
  moved a key to another vnode. So the range waits until the visibility covers its vnode's `floor`, the highest applied
  offset when the range was set back.
- A statement that may concern the table cuts an epoch: the buffer then holds the log up to the statement (`cut`), and
  the merge of its own slice ends there. A vnode read in the epoch before has its high watermark after the cut, so it
  does not merge. Until the sink has followed to the next version of the definition, every merge ends before that
  statement, and no range is read: its rows would have columns that the sink does not hold. So a vnode whose high
  watermark is after the statement waits for the sink, and the sink does not wait for it: without a range it may have
  been planned when rows of a dropped partition were gone, and merged up to the statement it would lack them.
- A repeated epoch never samples again. So nothing here depends on anything but its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from consume_upstream.log.offset import CdcOffset, Visibility
from consume_upstream.log.statement import FoundStatement
from progress.state.backfill_state import (
    BackfillState,
    Intent,
    Phase,
    VnodeState,
)
from progress.state.schema_state import DefinitionVersion
from vnode_backfill.words.bitmap import VnodeBitmap
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.key_range import PlannedRange, SplitPlan


@dataclass(frozen=True, slots=True)
class Sample:
    """The source's answer between two epochs; `rows_per_worker` is how much a worker can read in one epoch.

    `hold` is set while the source is too busy for a snapshot; the log is captured all the same. `short` is set where
    the log since the sample before is so short that an epoch may merge it itself. `slice_end` is a boundary before
    `written`, where the log since the sample before is longer than one epoch is to capture.
    """

    written: CdcOffset
    visible: Visibility
    rows_per_worker: int
    hold: bool = False
    short: bool = False
    slice_end: CdcOffset | None = None


def merges_own_slice(intent: Intent) -> bool:
    """Whether the intent's epoch merges what it captures itself: its merge then begins after its buffer commit."""
    return intent.own_slice or intent.kind is BarrierKind.SYNC_CHECKPOINT


def merge_bound(state: BackfillState, intent: Intent, cut: FoundStatement | None = None) -> CdcOffset:
    """The offset up to which the intent's epoch merges; `state` is the commit that holds the intent."""
    own = cut.before if cut else intent.written
    bound = own if merges_own_slice(intent) else state.written
    pending = state.schema.pending
    return min(bound, pending.before) if pending else bound


def may_go_live(vnode: VnodeState, intent: Intent, cut: FoundStatement | None = None) -> bool:
    """Whether a merge in the intent's epoch leaves the vnode live.

    It does where the high watermark of the vnode's last read is at or below the merge bound: the buffer then holds the
    vnode's whole window. A vnode that is live already may merge again for the same reason.
    """
    if vnode.complete is None:
        return False
    wait = 1 if merges_own_slice(intent) and cut is None else 2
    return vnode.complete + wait <= intent.epoch


def merging_vnodes(state: BackfillState, intent: Intent, cut: FoundStatement | None = None) -> tuple[VnodeState, ...]:
    """The vnodes whose changes above `applied` the intent's epoch merges.

    A vnode may be beyond the bound while the sink follows a statement that emptied the table: it waits.
    """
    bound, pending = merge_bound(state, intent, cut), state.schema.pending
    found = tuple(v for v in state.vnodes if may_go_live(v, intent, cut) and not _waits_for_sink(v, pending))
    # Vnodes that were merged together share one offset, and there may be very many of them.
    applied = {id(v.applied): v.applied for v in found}
    reached = {place for place, offset in applied.items() if offset <= bound}
    behind = {place for place in reached if applied[place] < bound}
    return tuple(v for v in found if id(v.applied) in (reached if v.phase is not Phase.LIVE else behind))


def _waits_for_sink(vnode: VnodeState, pending: DefinitionVersion | None) -> bool:
    """Whether the high watermark of a vnode that is not live yet is after the statement that the sink has to follow.

    What was complete before the epoch that was cut, or the one before that, has a sample from before the statement.
    """
    return (
        pending is not None
        and vnode.phase is not Phase.LIVE
        and vnode.complete is not None
        and vnode.complete + 1 >= pending.since
    )


def sink_may_change(state: BackfillState) -> bool:
    """Whether the sink may follow to the next version: it holds all that is before the statement.

    Vnodes that are complete later are lifted when they merge.
    """
    pending = state.schema.pending
    return pending is not None and all(
        v.complete is None or v.applied >= pending.before or _waits_for_sink(v, pending) for v in state.vnodes
    )


def next_intent(state: BackfillState, plan: SplitPlan, sample: Sample, *, drain: bool) -> Intent | None:
    """The intent of the epoch after `state`, or None if there is nothing to do and the epoch may stay open.

    `drain` makes it a SyncCheckpoint, for a stop or a rescale. It reads no range, so that the request is honoured soon.
    """
    epoch = Epoch(state.epoch + 1)
    kind = BarrierKind.SYNC_CHECKPOINT if drain else BarrierKind.CHECKPOINT
    reading = state.controls.reading and not drain and not sample.hold and state.schema.pending is None
    reading = reading and not state.backfill_finished
    lanes = tuple(
        lane_ranges(state, plan, bitmap, sample.rows_per_worker) if reading else () for bitmap in state.assignment
    )
    own_slice = not drain and _may_merge_own_slice(state, sample)
    written = sample.slice_end if sample.slice_end is not None and _may_cut(state) else sample.written
    intent = Intent(epoch, kind, written, sample.visible, lanes, state.plan_generation, own_slice)
    return intent if drain or _has_work(state, intent) else None


def _may_merge_own_slice(state: BackfillState, sample: Sample) -> bool:
    """A live job has no range to read. It is asked anew for each epoch, so a re-snapshot ends it by itself."""
    return sample.short and state.is_live


def _may_cut(state: BackfillState) -> bool:
    """Whether the epoch may capture less than the source has written: no vnode waits for its high watermark."""
    return state.is_read_and_merged


def lane_ranges(state: BackfillState, plan: SplitPlan, bitmap: VnodeBitmap, rows: int) -> tuple[int, ...]:
    """The next unread ranges of a worker's vnodes, vnode by vnode, up to about `rows` rows; at least one if any is
    left."""
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
    """Unread ranges that wait (paused, floor) are not work by themselves; a moved log, a read or a due merge is."""
    if intent.ordinals or intent.written > state.written:
        return True
    waiting = any(v.complete is None and v.floor is not None for v in state.vnodes) and state.controls.reading
    if waiting and intent.kind is BarrierKind.CHECKPOINT and state.schema.pending is None:
        return True
    if state.schema.pending is not None:
        return not sink_may_change(state)
    due = [v for v in state.vnodes if v.complete is not None and v.phase is not Phase.LIVE]
    uneven = len({v.applied for v in state.vnodes if v.phase is Phase.LIVE}) > 1
    if due or uneven:
        return True
    bound = merge_bound(state, intent)
    changed = state.changed
    return changed is not None and any(
        may_go_live(v, intent) and v.applied < bound and v.applied < changed for v in state.vnodes
    )


def start_reading(state: BackfillState, intent: Intent | None, plan: SplitPlan) -> BackfillState:
    """Vnodes with a range in the intent leave `pending`."""
    ordinals = intent.ordinals if intent else frozenset()
    if not ordinals:
        return state
    begun = set(plan.vnodes_of_ordinals(ordinals).values())
    return replace(
        state,
        vnodes=tuple(
            replace(v, phase=Phase.SNAPSHOT) if v.vnode in begun and v.phase is Phase.PENDING else v
            for v in state.vnodes
        ),
    )
