"""Holds how far a job of the single executor is: a cursor over the whole key, and a plan that compares no keys.

RisingWave calls this executor `CdcBackfillExecutor`. It runs the epoch protocol of the parallel one, with one vnode and
one range that is the whole table; so intents, barriers, retries, requests and recovery are the same. Two things differ:

- The range is read in stretches, one per epoch, each appended to the sink and followed by a cursor (`Walk`). The range
  counts as read when a stretch has found nothing after its cursor; until then the protocol sees a range that is still
  unread.
- Every key is *outside* the plan (`WalkPlan`), so none of its changes is ever dropped. RisingWave's `mark_cdc_chunk`
  drops changes ahead of the cursor; that needs keys to be compared in the client, and there are keys whose order only
  the server knows.

Why it is exact. Let `first` be the job's first offset, `w` the written offset sampled after the last stretch had ended.
All changes in `(first, w]` are in the buffer, and the first merge applies, per key, the last of them. A key that has
one ends as that change left it, whatever the walk has read of it: nothing, an older row, or a newer one, since a change
that a read has seen is at or below `w` and so is every earlier one. A key that has none was not touched since `first`;
everything at or below `first` was visible to every read, and the walk met the key exactly once, because a cursor only
moves on. With the cursor at 20:

    in the log                      the walk        the buffer            the merge
    12 is deleted (read before)     holds 12        delete 12             12 goes
    30 is deleted (not read yet)    never sees 30   delete 30             nothing to delete
    15 becomes 40 (moved ahead)     15, then 40     delete 15, insert 40  15 goes, 40 is replaced by itself
    50 becomes 10 (moved behind)    neither         delete 50, insert 10  10 comes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from progress.state.backfill_state import BackfillState
from progress.state.estimates import Estimates
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.key import Int32s, Key, KeyKind, KeyPart, VnodeId
from vnode_backfill.words.key_range import Bounds, KeyRange, PlannedRange, SplitPlan

WHOLE_KEY = 0
"""The ordinal of the one range."""
_ONLY_VNODE = VnodeId(0)
_OUTSIDE = -1


@dataclass(frozen=True, slots=True)
class Walk:
    """How far the walk is after epoch `epoch`: the last key the sink holds, as the server compares it, and how many
    rows."""

    epoch: Epoch
    last_key: Key | None = None
    rows: int = 0
    estimated_rows: int = 0

    def advanced(self, epoch: Epoch, last_key: Key | None, rows: int) -> Walk:
        """After a stretch of `rows` rows that ended with `last_key`; a stretch without rows leaves the cursor where it
        is."""
        if epoch <= self.epoch or (rows > 0) != (last_key is not None):
            raise LawBrokenError(f"a stretch of {rows} rows up to {last_key!r} in epoch {epoch} cannot follow {self}")
        return replace(self, epoch=epoch, last_key=last_key if rows else self.last_key, rows=self.rows + rows)


@dataclass(frozen=True, slots=True)
class WalkPlan(SplitPlan):
    """One vnode and one range without bounds. No key is looked at: all are outside the plan, and in the one vnode."""

    def __post_init__(self) -> None:
        if self.vnode_count != 1 or [planned.ordinal for planned in self.ranges] != [WHOLE_KEY]:
            raise LawBrokenError(f"a walk has one vnode and one range, not {self.vnode_count} and {self.ranges}")
        object.__setattr__(self, "_index", SplitPlan(self.parts, 1, ())._index)

    def find(self, order: bytes) -> PlannedRange | None:  # noqa: ARG002 - no key is looked at
        return None

    def find_many(
        self,
        columns: Sequence[pa.Array],
        weights: Sequence[pa.Array | None] | None = None,  # noqa: ARG002
    ) -> Int32s:
        return np.full(len(columns[0]), _OUTSIDE, dtype=np.int32)

    def vnode_of(self, key: Key, order: bytes) -> VnodeId:  # noqa: ARG002
        return _ONLY_VNODE

    def vnodes_of(
        self, columns: Sequence[pa.Array], weights: Sequence[pa.Array | None] | None = None
    ) -> tuple[Int32s, Int32s]:
        return self.find_many(columns, weights), np.zeros(len(columns[0]), dtype=np.int32)

    def vnodes_of_ordinals(self, ordinals: Iterable[int]) -> dict[int, VnodeId]:
        return {ordinal: self.ranges[0].vnode for ordinal in ordinals if ordinal == WHOLE_KEY}

    def of_vnode(self, vnode: int) -> tuple[PlannedRange, ...]:
        return self.ranges if vnode == _ONLY_VNODE else ()

    def at(self, generation: int) -> SplitPlan:  # noqa: ARG002 - there is only one
        return self

    def extend(self, *stretches: Bounds) -> SplitPlan:
        raise LawBrokenError(f"a walk covers the whole key already and cannot be extended by {stretches}")


def walk_plan(key: Sequence[str], estimated_rows: int) -> WalkPlan:
    """The plan of a walk over the key's columns. Their kinds say nothing here; bytes are what nobody is asked about."""
    parts = tuple(KeyPart(name, KeyKind.BINARY) for name in key)
    whole = PlannedRange(WHOLE_KEY, KeyRange(None, None), _ONLY_VNODE, estimated_rows)
    return WalkPlan(parts, 1, (whole,))


def walk_plan_of(definition: TableDefinition, walk: Walk) -> WalkPlan:
    return walk_plan(definition.key, walk.estimated_rows)


def shown(state: BackfillState, walk: Walk) -> BackfillState:
    """The state for those who watch: rows of a range that is still being walked count as read."""
    (vnode,) = state.vnodes
    return state if vnode.complete is not None else replace(state, vnodes=(replace(vnode, rows=walk.rows),))


def rows_left(state: BackfillState, walk: Walk) -> Estimates:
    """How many rows the walk is thought to have before it."""
    finished = state.vnodes[0].complete is not None
    left = walk.estimated_rows if finished else max(walk.estimated_rows - walk.rows, 0)
    return Estimates({WHOLE_KEY: left})
