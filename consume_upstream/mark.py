"""Decides what becomes of a change: dropped, buffered until its vnode's first merge, or forwarded to the next merge.

Law 1: a change is dropped only if a read proven to include it has happened or will happen. Per range there is one
offset up to which that is proven, its *low mark*:

- a range read in epoch n: the visibility s[n] sampled before that read began;
- a range not read yet, or in this epoch's intent: the newest visibility s[N], because its read starts later;
- a key outside the plan has no range: nothing reads it, so none of its changes is ever dropped.

A change at or below its range's low mark is dropped. It is marked twice: when the log is read (`UpstreamMarks.view`),
and again when it is merged (`merge_view`), because a change may have been buffered before its range was read. Example,
key 7 in a range read in epoch 3: set to `a` in epoch 1 (buffered: not visible yet), set to `b` in epoch 2 (dropped:
s[2] covers it). The read of epoch 3 sees `b`. Merging the buffered `a` would overwrite it; marked again, s[3] covers it
and it goes.

A forwarded change goes through the buffer too: written straight to the sink, it would overtake buffered ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from consume_upstream.log.offset import VisibleAt
from progress.state.backfill_state import FORGOTTEN, BackfillState, Phase
from vnode_backfill.words.change import Mark
from vnode_backfill.words.key_range import SplitPlan

Ints = npt.NDArray[np.int64]
OUTSIDE = -1
_NOTHING_SEEN = (-1, -1)


@dataclass(frozen=True, slots=True)
class MarkView:
    """The low mark of each range (by its position in the plan) and whether each vnode is live.

    The last entry of `file` and `pos` belongs to keys outside the plan, so that position `OUTSIDE` finds it.
    """

    file: Ints
    pos: Ints
    live: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, low_marks: list[tuple[int, int]], state: BackfillState) -> MarkView:
        marks = np.array([*low_marks, _NOTHING_SEEN], dtype=np.int64)
        live = np.array([vnode.phase is Phase.LIVE for vnode in state.vnodes], dtype=np.bool_)
        return cls(marks[:, 0], marks[:, 1], live)


@dataclass(frozen=True, slots=True)
class UpstreamMarks:
    """Holds what a worker needs to mark a stretch of the log whose visible prefix it finds out while reading."""

    read: MarkView
    unread: npt.NDArray[np.bool_]

    def view(self, visible: VisibleAt) -> MarkView:
        """The low marks when `visible` is the visible prefix, which is that of unread ranges: their reads start
        later."""
        file, pos = visible.position.order
        return MarkView(
            np.where(self.unread, file, self.read.file), np.where(self.unread, pos, self.read.pos), self.read.live
        )


def upstream_marks(state: BackfillState, plan: SplitPlan) -> UpstreamMarks:
    """How to mark the stretch of the log of the epoch that follows `state`."""
    read = {ordinal for vnode in state.vnodes for ordinal, _ in vnode.reads}
    unread = np.array([planned.ordinal not in read for planned in plan.ranges] + [False], dtype=np.bool_)
    return UpstreamMarks(merge_view(state, plan), unread)


class LazyMarks:
    """The marks of one table, worked out when its first change comes, or when they are sent to a worker.

    Of many tables most have no change in a short stretch of the log.
    """

    def __init__(self, state: BackfillState, plan: SplitPlan) -> None:
        self._of: tuple[BackfillState, SplitPlan] | UpstreamMarks = (state, plan)

    @property
    def found(self) -> UpstreamMarks:
        if isinstance(self._of, tuple):
            self._of = upstream_marks(*self._of)
        return self._of

    def __getstate__(self) -> UpstreamMarks:
        return self.found

    def __setstate__(self, found: UpstreamMarks) -> None:
        self._of = found


def merge_view(state: BackfillState, plan: SplitPlan) -> MarkView:
    """How to mark buffered changes again when they are merged: against the reads that happened since."""
    return MarkView.of(_low_marks(state, plan), state)


def mark_chunk(
    view: MarkView, positions: npt.NDArray[np.int32], vnodes: npt.NDArray[np.int32], file: Ints, pos: Ints
) -> npt.NDArray[np.int8]:
    """Mark a batch of changes: each of a key at its position in the plan (`OUTSIDE` without a range), in an event that
    ends at `pos` of `file`."""
    low_file, low_pos = view.file[positions], view.pos[positions]
    seen = (file < low_file) | ((file == low_file) & (pos <= low_pos))
    kept = np.where(view.live[vnodes], np.int8(Mark.FORWARD), np.int8(Mark.BUFFER))
    return np.where(seen, np.int8(Mark.DROP), kept).astype(np.int8)


def _low_marks(state: BackfillState, plan: SplitPlan) -> list[tuple[int, int]]:
    visibility = state.visibility
    read_in = {ordinal: epoch for vnode in state.vnodes for ordinal, epoch in vnode.reads}
    marks = []
    for planned in plan.ranges:
        epoch = read_in.get(planned.ordinal)
        if epoch is None or epoch == FORGOTTEN:
            marks.append(_NOTHING_SEEN)
        else:
            marks.append(visibility[epoch].position.order)
    return marks
