"""Builds the state after a statement that cut an epoch: what it means for ranges, vnodes and the definition.

The epoch N has captured the log up to the statement at d. These things must be true of the commit that ends it:

- The job continues after the statement. Every change captured from epoch N+1 on has the definition after d.
- Every range read in N-1 or N counts as unread, whatever the statement did. The sample after its read is w[N] or
  w[N+1], which is at or after d. The source may have been read on either side of the statement, by a list of columns
  that is right on one side only. So the range is read again, replaces, and waits until a read shows at least d. Ranges
  read before were followed by a sample before d. They are completed like every row in the sink.
- That holds where nothing changed, too. The next epoch may be cut at a statement that is still before w[N], and by then
  nobody knows which ranges were read before that sample.
- A vnode that was complete in N-1 or N without such a range counts as complete in N: one that has no range, whose plan
  was made after d, or one that came from another log. It waits for an epoch that captures its high watermark.
- Where rows of a partition went (a step like those of columns), nothing else is needed. Rows that are in the sink lose
  them by `ChangeSink`, when all complete vnodes have applied everything before d. A vnode that is complete later merges
  changes from before d then: one that would bring such a row back is lifted to a delete of its key. The last change of
  a key before d decides, or the row that was read before d and is in the sink.
- Where the table was emptied, every range counts as read and every vnode has applied d. What is buffered from before d
  no longer counts, and what comes later comes by the log. Nothing is read.

Example, a column is added at d, in epoch 7; ranges r1 and r2 of one vnode, r1 read in 4, r2 in 6:

    r1    sample after it is w[5], before d      stays read; the sink gives its rows the new column
    r2    sample after it is w[7], after d       unread again: its rows may lack a value that was set after d
"""

from __future__ import annotations

from dataclasses import replace

from consume_upstream.log.offset import CdcOffset, LoggedTransaction, VisibleGtids
from consume_upstream.log.statement import FoundStatement
from progress.state.backfill_state import FORGOTTEN, BackfillState, Failure, Intent, Phase, VnodeState
from progress.state.schema_state import DefinitionVersion, SchemaState
from vnode_backfill.decide.honour_requests import set_ranges_back
from vnode_backfill.decide.protocol import StatementResolved
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError, SchemaChangedError
from vnode_backfill.words.hints import NEW_COPY
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.schema_change import Carried, Emptied, Ended, NewCopy, NoEffect, deletes_rows


def after_statement(
    state: BackfillState, plan: SplitPlan, intent: Intent, resolved: StatementResolved
) -> tuple[BackfillState, frozenset[VnodeId]]:
    """The state of a job that continues after the statement, and the vnodes set back; `state` ends the cut epoch."""
    found, effect = resolved.found, resolved.effect
    state = replace(state, written=found.after, missing=_missing(state, intent, found))
    if resolved.partitioning is not None:
        state = replace(state, schema=replace(state.schema, partitioning=resolved.partitioning))
    match effect:
        case NoEffect():
            return _read_again(replace(state, schema=state.schema.noted(found, "none")), plan, found.after)
        case Carried():
            return _read_again(_with_version(state, resolved), plan, found.after)
        case Emptied():
            state = _with_version(state, resolved)
            vnodes = tuple(_emptied(v, plan, found.after, state.epoch) for v in state.vnodes)
            return replace(state, vnodes=vnodes), frozenset(v.vnode for v in vnodes)
        case _:
            raise LawBrokenError(f"a job cannot continue after {found.text[:80]!r} with {effect}")


def before_statement(
    state: BackfillState, plan: SplitPlan, found: FoundStatement
) -> tuple[BackfillState, frozenset[VnodeId]]:
    """The state of a job that stops at the statement, and the vnodes set back: the next driver meets it again.

    By then nobody knows which reads were close to it.
    """
    return _read_again(state, plan, found.after)


def unexplained(refused: str, upto: CdcOffset) -> SchemaChangedError:
    """The source did not read a range by the columns that the job knows, and no statement says why."""
    return SchemaChangedError(
        "the source does not read the table by the columns that the job knows",
        detail=f"{refused} The log up to {upto} holds no statement that explains it.",
        hint=f"A session may have changed the table with sql_log_bin = 0. {NEW_COPY}",
    )


def set_aside(epoch: Epoch, met: StatementResolved, reason: str) -> Failure:
    """Why the job ends before a statement that nobody can follow."""
    return Failure(
        epoch,
        f"the table is set aside at {met.found.before}: {reason}",
        detail=f"The log holds: {met.found.text[:500]}",
        hint=NEW_COPY,
    )


def cascade_met(at: CdcOffset) -> StatementResolved:
    """The end of a copy whose rows may have been changed outside the log, up to an offset."""
    found = FoundStatement(at, at, "a parent table has lost rows, or has other keys, columns or another name")
    return StatementResolved(found, NewCopy("foreign keys may have changed rows of the table outside the log"))


def schema_at_end(after: BackfillState, met: StatementResolved | None) -> SchemaState:
    """The versions that the next commit keeps; `met` is the statement at which the job ends with it."""
    schema = after.schema.without_old(after.lowest_applied)
    if met is not None and isinstance(met.effect, NewCopy):
        return schema.noted(met.found, f"a new copy: {met.effect.reason}")
    if met is None or not isinstance(met.effect, Ended):
        return schema
    return replace(schema, ended=f"{met.effect.how} at {met.found.before}").noted(met.found, met.effect.how)


def _waiting(state: BackfillState) -> BackfillState:
    """Vnodes whose high watermark was not captured wait for later epochs."""
    last = state.epoch
    vnodes = tuple(
        replace(v, complete=last) if v.complete is not None and v.complete + 1 >= last else v for v in state.vnodes
    )
    return replace(state, vnodes=vnodes)


def _missing(state: BackfillState, intent: Intent, found: FoundStatement) -> tuple[LoggedTransaction, ...]:
    """The statement's own transaction is not read by any epoch, and may not be visible yet."""
    visible = intent.visible
    if not found.gtid or not isinstance(visible, VisibleGtids) or visible.covers_transaction(found.gtid):
        return state.missing
    return (*state.missing, LoggedTransaction(found.gtid, found.before))


def _with_version(state: BackfillState, resolved: StatementResolved) -> BackfillState:
    found, effect = resolved.found, resolved.effect
    if resolved.shape is None:
        raise LawBrokenError(f"no shape of the target is known after {found.text[:80]!r}")
    version = DefinitionVersion(
        number=state.schema.newest + 1, before=found.before, after=found.after, since=Epoch(state.epoch + 1),
        statement=found.text, shape=resolved.shape, steps=effect.steps if isinstance(effect, Carried) else (),
        emptied=isinstance(effect, Emptied), gtid=found.gtid,
    )  # fmt: skip
    return replace(state, schema=state.schema.with_version(version).noted(found, _said(version)))


def _said(version: DefinitionVersion) -> str:
    if version.emptied:
        return "the table is empty"
    return "rows of the partition are deleted" if deletes_rows(version.steps) else "the columns follow"


def _read_again(state: BackfillState, plan: SplitPlan, floor: CdcOffset) -> tuple[BackfillState, frozenset[VnodeId]]:
    """Set back what was read in the epoch that was cut and in the one before; what else was complete then waits."""
    recent = frozenset(
        ordinal for v in state.vnodes for ordinal, epoch in v.reads if epoch != FORGOTTEN and epoch + 1 >= state.epoch
    )
    if not recent:
        return _waiting(state), frozenset()
    state, back = set_ranges_back(state, plan, recent)
    vnodes = tuple(replace(v, floor=max(v.floor or floor, floor)) if v.vnode in back else v for v in state.vnodes)
    return _waiting(replace(state, vnodes=vnodes)), back


def _emptied(vnode: VnodeState, plan: SplitPlan, at: CdcOffset, epoch: Epoch) -> VnodeState:
    return replace(
        vnode,
        phase=Phase.CATCH_UP,
        applied=at,
        reads=tuple((planned.ordinal, FORGOTTEN) for planned in plan.of_vnode(vnode.vnode)),
        complete=epoch,
        replaces=frozenset(),
        floor=None,
    )
