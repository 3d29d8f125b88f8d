"""Lets a job that began under the single executor (state v1) continue under the parallel one (state v2).

No row is read again. What the sink and the buffer hold stays as it is, under the job's id; only the state is written
again. Why that is exact:

- The walk has read every key at or below its cursor, and *all* changes since the job's first offset are in the buffer
  or still in the log. A range that ends at or below the cursor therefore counts as read, with nothing known of what its
  read has seen (`FORGOTTEN`): each of its changes is applied, in order, which is what the single executor would have
  done (see `single_state`).
- The range that holds the cursor is partly in the sink. It is read again and replaces what the sink holds of it.
- Ranges after the cursor are unread, as in a new job. Their changes that were buffered meanwhile are marked again at
  the merge.
- A key outside the new plan (gone from the source, or new) has no range; none of its changes was dropped or ever will
  be.
- The epoch after the last committed one may have begun: its effects may be in the sink and in the buffer. Its appended
  stretch moves the cursor first (`settled` by the caller). Its number is never used again, so that its buffer commit
  does not count as ours: the log is read again from the committed offset, and a change that is in the buffer twice is
  the same change.
- A vnode whose ranges are all read counts as complete in that skipped epoch: its first merge goes up to an offset that
  is sampled later than every read of the walk.
- A walk that was live stays live only where no epoch had begun. The merge of one that had may have landed, so that the
  sink holds more than `applied` says: until the first merge here it is a cut at no known offset.

With the cursor at 25 and the ranges [10, 20), [20, 30), [30, 40]:

    [10, 20)    read, FORGOTTEN
    [20, 30)    unread, replaces
    [30, 40]    unread

The plan is generation 1 of an empty plan 0, because buffered changes carry the one vnode of the walk: a merge believes
stored vnodes only under generation 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from progress.state.backfill_state import FORGOTTEN, Acknowledgement, BackfillState, Phase, VnodeState
from progress.state.walk_state import Walk
from vnode_backfill.words.bitmap import VnodeBitmap, check_assignment
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError, StateError
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import Bound, Bounds, PlannedRange, SplitPlan, plan_of

__all__ = ["migrated_plan", "migrated_state"]


def migrated_plan(planned: SplitPlan, cursor: Bound | None) -> SplitPlan:
    """A plan of the table as it is now, as generation 1. Of a table that is empty now, the key of the cursor alone."""
    bounds = _bounds(planned) or (((cursor, 1), (cursor, 0)) if cursor is not None else ())
    if not bounds:
        raise StateError(
            "the job cannot go on under the parallel executor: its table is empty and no row of it was ever read",
            hint="Run it with `executor: single` until the table holds a row, or drop the job and create it again.",
        )
    return plan_of(planned.parts, (), planned.vnode_count).extend(bounds)


def migrated_state(
    state: BackfillState,
    walk: Walk,
    cursor: Bound | None,
    plan: SplitPlan,
    assignment: tuple[VnodeBitmap, ...],
    answered: Sequence[int],
) -> BackfillState:
    """The v2 state of a v1 job; `cursor` is the place of `walk.last_key`, `answered` every request acknowledged so
    far."""
    if (cursor is None) != (walk.last_key is None) or plan.generation != 1:
        raise LawBrokenError(f"cursor {cursor} and a plan of generation {plan.generation} do not belong to {walk}")
    check_assignment(assignment, plan.vnode_count)
    skipped = Epoch(state.epoch + 1)
    (old,) = state.vnodes
    if state.intent is not None and old.phase is Phase.LIVE:
        old = replace(old, phase=Phase.CATCH_UP)
    vnodes = tuple(_vnode(old, cursor, plan, VnodeId(number), skipped) for number in range(plan.vnode_count))
    return replace(
        state,
        revision=0,
        epoch=skipped,
        visible=((skipped, state.newest_visible),),
        vnodes=vnodes,
        assignment=assignment,
        assignment_generation=1,
        intent=None,
        plan_generation=plan.generation,
        acknowledged=_acknowledged(state, answered),
        failure=None,
        stopped=False,
    )


def _vnode(old: VnodeState, cursor: Bound | None, plan: SplitPlan, vnode: VnodeId, skipped: Epoch) -> VnodeState:
    ranges = plan.of_vnode(vnode)
    finished = old.complete is not None
    read = [planned for planned in ranges if finished or _is_behind(planned, cursor)]
    replaced = frozenset(each.ordinal for each in ranges if each not in read and _holds(each, cursor))
    complete = len(read) == len(ranges)
    return VnodeState(
        vnode=vnode,
        phase=_phase(old, complete=complete, begun=bool(read or replaced)),
        applied=old.applied,
        epoch=skipped,
        reads=tuple((planned.ordinal, FORGOTTEN) for planned in read),
        rows=sum(planned.estimated_rows for planned in read),
        complete=skipped if complete else None,
        replaces=replaced,
        floor=old.applied if replaced else None,
    )


def _phase(old: VnodeState, *, complete: bool, begun: bool) -> Phase:
    if complete:
        return Phase.LIVE if old.phase is Phase.LIVE else Phase.CATCH_UP
    return Phase.SNAPSHOT if begun else Phase.PENDING


def _is_behind(planned: PlannedRange, cursor: Bound | None) -> bool:
    """Every key of the range is at or below the cursor."""
    high = planned.range.high
    return cursor is not None and high is not None and high <= cursor


def _holds(planned: PlannedRange, cursor: Bound | None) -> bool:
    return cursor is not None and planned.range.holds(cursor.order)


def _bounds(plan: SplitPlan) -> Bounds:
    found = [(planned.range.low, planned.estimated_rows) for planned in plan.ranges if planned.range.low is not None]
    last = plan.ranges[-1].range.high if plan.ranges else None
    return (*found, (last, 0)) if last is not None else ()


def _acknowledged(state: BackfillState, answered: Sequence[int]) -> tuple[Acknowledgement, ...]:
    """Answers travel with the state, so that no request that was carried out under v1 is carried out again."""
    known = {each.request for each in state.acknowledged}
    older = (Acknowledgement(number, state.epoch) for number in sorted(answered) if number not in known)
    return (*older, *state.acknowledged)
