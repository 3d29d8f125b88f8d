"""Moves a job to another log: of a replica that has taken over, or of a server whose own log is gone.

What must be true: what the sink and the buffer hold from the old log stays right, and everything since comes by the new
one. The epoch in progress cannot be repeated, because its samples are of the old log. Its effects may have landed, all
or some. Giving it up is safe:

- Its number is used up. Nothing of the next epoch can be mistaken for something of it.
- Its changes, if they were buffered, are read again from the new log. They are in a later era there and so above: per
  key the last one wins, and it is the same one. Its merge, if it landed, is done again from the same buffer.
- Its ranges may be in the sink already, and what their reads saw beyond the last sample is not known. They are read
  again and replace.
- Every vnode that was complete, live or not, counts as read in the epoch given up. So it waits for the next sample,
  which is of the new log and holds at least what any read or merge has shown: a server without those transactions was
  refused. Its first merge there takes in all of it at once, so that a live vnode is always a cut of one log.

    epoch 7 read r1; w[8] was sampled; epoch 8 (r2) was under way
    given up       epoch 8, written = start of the new log
    r1 read in 7   read in 8; its vnode merges first in 10, up to w[9], which is of the new log
    r2 in 8        unread; replaces whatever a read of it has left

A statement is different: it must not be met again. The columns after it are those that rows from before it would be
read by, and following it twice is wrong. MySQL reports a transaction once it is visible, so an offset after a statement
may not hold the statement's transaction yet, or that of a change before it. The other server's log would be taken up at
the first transaction that the offset lacks. A job that moves in that moment makes a new copy (`meets_statement_again`).

`begun_again` is for a log of which a part is lost. Nothing of the old log counts, every vnode is at the start of the
new one, and every range is read again and replaces. A key between two ranges is read by nobody. While the log is whole
that does no harm; here it would. So the plan must tile (`tiles`). After an extension only the plan of a single integer
key does: nobody can say what follows the highest text or the highest pair of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from consume_upstream.log.gtid import GtidSet, MariaDbGtidPosition, parse_gtids
from consume_upstream.log.offset import CdcOffset, LoggedTransaction
from progress.state.backfill_state import BackfillState, Phase, VnodeState, latest_visible_of
from vnode_backfill.decide.honour_requests import set_ranges_back
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.key import KeyKind, KeyPart
from vnode_backfill.words.key_range import KeyRange, SplitPlan


def seen_beyond(state: BackfillState, buffered: Iterable[LoggedTransaction] = ()) -> tuple[str, ...]:
    """GTIDs of all transactions whose effects the sink or the buffer may hold beyond the written offset.

    `buffered` are those of the epoch in progress that were in the log, and in the buffer, before they were visible.
    """
    sampled = tuple(offset.gtids for offset in (state.intent and state.intent.written, state.changed) if offset)
    return (*sampled, *(transaction.gtid for transaction in (*state.missing, *buffered)))


def moved_to(
    state: BackfillState, start: CdcOffset, plan: SplitPlan, buffered: Iterable[LoggedTransaction] = ()
) -> BackfillState:
    """The next commit of a job that continues from `start`, a point of a later era. It has no intent: the next is
    sampled.

    What was seen of the old log stays known (with `changed`): the next server to take over must have it too.
    """
    if start.era <= state.written.era:
        raise LawBrokenError(f"{start} of era {start.era} cannot follow {state.written} of era {state.written.era}")
    given_up = state.intent
    epoch = given_up.epoch if given_up else state.epoch
    changed = (given_up.written if given_up else state.changed) or state.written
    moved = replace(
        state,
        revision=state.revision + 1,
        epoch=epoch,
        written=start,
        visible=(*state.visible, (epoch, state.newest_visible)) if epoch != state.epoch else state.visible,
        vnodes=tuple(_waiting(vnode, state.epoch, epoch) for vnode in state.vnodes),
        intent=None,
        missing=(),
        changed=replace(changed, gtids=_together(seen_beyond(state, buffered))),
        failure=None,
        stopped=False,
    )
    if given_up and given_up.ordinals:
        moved, _ = set_ranges_back(moved, plan, given_up.ordinals)
    return replace(moved, visible=latest_visible_of(moved.visible, moved))


def meets_statement_again(state: BackfillState, there: str) -> bool:
    """Whether another server's log, taken up after the written offset, holds the last statement that was followed.

    `there` are the transactions of that server. Only the last statement is looked for: a table is not changed again
    before the statement is visible. Transactions of one source are in the log by their numbers.
    """
    last = state.schema.versions[-1] if state.schema.versions else None
    if last is None or not last.gtid:
        return False
    known = parse_gtids(state.written.gtids)
    if not known.holds(last.gtid):
        return True
    return isinstance(known, GtidSet) and known.lacks_before(last.gtid, GtidSet.parse(there))


def begun_again(state: BackfillState, start: CdcOffset, plan: SplitPlan) -> BackfillState:
    """The next commit of a job that reads everything again; `plan` covers every key that source or sink hold."""
    moved = moved_to(state, start, plan)
    vnodes = tuple(replace(vnode, applied=start) for vnode in moved.vnodes)
    moved = replace(moved, vnodes=vnodes, changed=None, plan_generation=plan.generation)
    moved, _ = set_ranges_back(moved, plan, frozenset(planned.ordinal for planned in plan.ranges))
    return replace(moved, visible=latest_visible_of(moved.visible, moved))


def _together(seen: Sequence[str]) -> str:
    """All of them; of MariaDB's positions the first holds the others."""
    known = [gtids for gtids in seen if gtids]
    if not known or isinstance(parse_gtids(known[0]), MariaDbGtidPosition):
        return known[0] if known else ""
    return str(GtidSet.parse(",".join(known)))


def tiles(plan: SplitPlan) -> bool:
    """Whether no key can lie between two ranges of the plan."""
    return all(_adjoin(plan.parts, before.range, after.range) for before, after in pairwise(plan.ranges))


def _adjoin(parts: Sequence[KeyPart], before: KeyRange, after: KeyRange) -> bool:
    if before.high is None or after.low is None:
        return False
    if not before.closed:
        return before.high == after.low
    last, first = before.high.key[0], after.low.key[0]
    whole = len(parts) == 1 and parts[0].kind in (KeyKind.INT, KeyKind.UINT)
    return whole and isinstance(last, int) and first == last + 1


def _waiting(vnode: VnodeState, last: Epoch, given_up: Epoch) -> VnodeState:
    """Reads of the last epoch count as reads of the one given up, and so does a vnode that was complete."""
    reads = tuple((ordinal, given_up if epoch == last and epoch else epoch) for ordinal, epoch in vnode.reads)
    if vnode.complete is None:
        return replace(vnode, reads=reads)
    return replace(vnode, reads=reads, complete=given_up, phase=Phase.CATCH_UP)
