"""Breaks what the protocol does at a statement, one rule of the design's section on schema changes at a time.

The numbers are those of the rules. Some that were tried are left out, because histories do not go wrong without one of
them alone, or so seldom that a thousand show nothing. Tests of single steps and mutants guard those:

- A range read again does not wait for its floor, or ranges are planned under another definition, or the statement's own
  transaction counts as visible: a statement is nearly always visible before the sink has followed it.
- Ranges read an epoch before the cut stay read: none was planned after the source had another definition, so every
  change after the statement comes by the log.
- A refused read counts as read: its statement cuts this epoch or the next, which sets back all that was read in both.
- Low marks of reads are kept when the table is emptied: one must be above the statement to do harm.
- Reads of the last two epochs are forgotten: a read must be of an idle source, and the statement right after it.
- Versions are forgotten while older rows wait: two must be followed while a change from before both is not merged.
"""

from __future__ import annotations

from dataclasses import replace

from consume_upstream.log import offset as offsets
from consume_upstream.log.offset import CdcOffset, LoggedTransaction, VisibleAt
from consume_upstream.log.statement import FoundStatement
from consume_upstream.mark import MarkView
from progress.state import backfill_state as states
from progress.state.backfill_state import BackfillState, Intent, VnodeState
from progress.state.schema_state import SchemaState
from tests.simulation import actors, statements
from tests.simulation.actors import Driver
from tests.simulation.cascading import Cascading
from tests.simulation.recreated import Recreating
from tests.simulation.sabotage import Sabotage, WithoutSlices
from tests.simulation.source import Statement, Transaction
from tests.simulation.world import BufferedChange, ModelSink
from vnode_backfill.decide import coordinator, end_of_epoch, follow_statement, log_switch, next_commit, next_epoch
from vnode_backfill.decide.honour_requests import set_ranges_back
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.decide.protocol import BufferChanges, SinkChanged, SinkNotChanged, StatementResolved
from vnode_backfill.words.change import Mark
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.lift import Lifts
from vnode_backfill.words.schema_change import ColumnStep, CreatedTable, NewCopy, NoEffect, StatementEffect

SetBack = tuple[BackfillState, frozenset[VnodeId]]
_after_statement = follow_statement.after_statement
_emptied = follow_statement._emptied
_waiting = follow_statement._waiting
_change_sink = coordinator._change_sink
_next_intent = next_epoch.next_intent
_may_go_live = next_epoch.may_go_live
_merge_bound = next_epoch.merge_bound
_forgotten = states._forgotten
_effect_of = statements.effect_of


def _captured_to_the_sample(
    state: BackfillState, plan: SplitPlan, intent: Intent, resolved: StatementResolved
) -> SetBack:
    after, back = _after_statement(state, plan, intent, resolved)
    return replace(after, written=max(after.written, intent.written)), back


def _met_for_ever(state: BackfillState, plan: SplitPlan, intent: Intent, resolved: StatementResolved) -> SetBack:
    after, back = _after_statement(state, plan, intent, resolved)
    return replace(after, written=resolved.found.before), back


class _KeepsBeyondTheCut(Driver):
    """Buffers the whole stretch, whatever its rows are after the statement."""

    def kept(
        self, after: CdcOffset, intent: Intent, plan: SplitPlan, view: MarkView
    ) -> list[tuple[BufferedChange, Mark]]:
        assert self.saved.intent is not None
        return super().kept(after, replace(intent, written=self.saved.intent.written), plan, view)


class _CascadesOfAWholeCopy(Driver):
    """Finds changes of parents once the table is live, as if reads showed those before."""

    def cascaded(self, stretch: list[Transaction], captured: CdcOffset) -> CdcOffset | None:
        return super().cascaded(stretch, captured) if self.saved.is_whole else None


def _never_again(state: BackfillState, there: str) -> bool:
    return False


def _goes_on(state: coordinator.Coordinator) -> coordinator.Coordinator:
    saved = replace(state.saved, schema=replace(state.saved.schema, cascaded=None))
    return replace(state, saved=saved)


class _BeginsLate(Recreating):
    """Begins a table that was created where the log ends by now, as a copy that reads it may."""

    def _begins(self, created: CreatedTable) -> CdcOffset:  # noqa: ARG002 - it is left alone
        return self.source.written_offset()


class _SeesBeyondTheCut(Driver):
    """Says of the epoch's visibility what holds for the whole stretch, though only a part of it was read."""

    def seen(self, action: BufferChanges, captured: CdcOffset) -> tuple[VisibleAt, tuple[LoggedTransaction, ...]]:
        logged = self.source.logged_transactions(action.after, captured)
        return offsets.resolve(action.intent.visible, self.saved.missing, logged, action.intent.written)


def _not_missing(state: BackfillState, intent: Intent, found: FoundStatement) -> tuple[LoggedTransaction, ...]:
    return state.missing


def _past_a_pending_statement(state: BackfillState, chosen: Intent, cut: FoundStatement | None = None) -> CdcOffset:
    return _merge_bound(replace(state, schema=SchemaState()), chosen, cut)


def _past_the_cut(state: BackfillState, chosen: Intent, cut: FoundStatement | None = None) -> CdcOffset:
    return _merge_bound(state, chosen)


def _live_in_spite_of_a_cut(vnode: VnodeState, chosen: Intent, cut: FoundStatement | None = None) -> bool:
    return _may_go_live(vnode, chosen)


def _unchanged(state: BackfillState) -> BackfillState:
    return state


def _stays_read(state: BackfillState, plan: SplitPlan, floor: CdcOffset) -> SetBack:
    return _waiting(state), frozenset()


def _stays_read_without_effect(
    state: BackfillState, plan: SplitPlan, intent: Intent, resolved: StatementResolved
) -> SetBack:
    """Vnodes wait, but their ranges keep the epoch of the read."""
    after, back = _after_statement(state, plan, intent, resolved)
    if not isinstance(resolved.effect, NoEffect):
        return after, back
    return replace(_waiting(state), written=after.written, missing=after.missing, schema=after.schema), frozenset()


def _set_back(state: BackfillState, plan: SplitPlan, floor: CdcOffset, since: Epoch) -> SetBack:
    near = frozenset(ordinal for v in state.vnodes for ordinal, epoch in v.reads if epoch and epoch >= since)
    if not near:
        return _waiting(state), frozenset()
    state, back = set_ranges_back(state, plan, near)
    vnodes = tuple(replace(v, floor=max(v.floor or floor, floor)) if v.vnode in back else v for v in state.vnodes)
    return _waiting(replace(state, vnodes=vnodes)), back


def _nothing_set_back(state: BackfillState, plan: SplitPlan, found: FoundStatement) -> SetBack:
    return _waiting(state), frozenset()


def _planned_while_pending(state: BackfillState, plan: SplitPlan, sample: Sample, *, drain: bool) -> Intent | None:
    followed = replace(state, schema=replace(state.schema, in_sink=state.schema.newest))
    chosen = _next_intent(state, plan, sample, drain=drain)
    reading = _next_intent(followed, plan, sample, drain=drain)
    return replace(chosen, ranges=reading.ranges) if chosen and reading else chosen


class _LiftsNothing(Driver):
    def lifted(self, change: BufferedChange) -> BufferedChange:
        return change


class _BringsRowsBack(Driver):
    """Merges changes from before a partition was dropped as they are."""

    def lifted(self, change: BufferedChange) -> BufferedChange:
        return replace(super().lifted(change), op=change.op)


def _deletes_nothing(sink: ModelSink, version: int, statement: Statement) -> None:
    _change(sink, version, Statement("comment") if statement.kind == "purge" else statement)


def _since_the_epoch_before(lifts: Lifts, epoch: Epoch) -> tuple[ColumnStep, ...]:
    return tuple(step for since, steps in lifts.versions if since > epoch + 1 for step in steps)


def _since_the_epoch_after(lifts: Lifts, epoch: Epoch) -> tuple[ColumnStep, ...]:
    return tuple(step for since, steps in lifts.versions if since >= epoch for step in steps)


def _lifts_ahead(schema: SchemaState) -> Lifts:
    """Lifts to the newest version, whatever the sink holds."""
    return Lifts(tuple((version.since, version.steps) for version in schema.versions))


def _applied_stays(vnode: VnodeState, plan: SplitPlan, at: CdcOffset, epoch: Epoch) -> VnodeState:
    return replace(_emptied(vnode, plan, at, epoch), applied=vnode.applied)


def _converts_nothing(statement: Statement) -> StatementEffect:
    effect = _effect_of(statement)
    return NoEffect() if isinstance(effect, NewCopy) else effect


def _at_any_time(state: BackfillState) -> bool:
    return state.schema.pending is not None


def _followed_when_ordered(state: coordinator.Coordinator) -> coordinator.Decision:
    after, actions = _change_sink(state)
    return (replace(after, changed=after.changing), actions) if actions else (after, actions)


def _never_followed(state: coordinator.Coordinator, event: SinkChanged | SinkNotChanged) -> coordinator.Decision:
    """The report is lost."""
    if isinstance(event, SinkNotChanged):
        return _followed(state, event)
    return replace(state, changing=0), ()


_followed = coordinator._followed


def _failure_passed_over(state: coordinator.Coordinator, event: SinkChanged | SinkNotChanged) -> coordinator.Decision:
    """A sink that could not follow is not ordered again."""
    return (state, ()) if isinstance(event, SinkNotChanged) else _followed(state, event)


def _change_again(sink: ModelSink, version: int, statement: Statement) -> None:
    """Carries out the steps whenever it is ordered."""
    sink.followed = [each for each in sink.followed if each != version]
    _change(sink, version, statement)


_change = ModelSink.change

_BOUNDS = (next_epoch, coordinator, end_of_epoch)

STATEMENT_SABOTAGES: dict[str, Sabotage] = {
    "statements 1: captured up to the sample in spite of a cut": Sabotage(
        patches=((next_commit, "after_statement", _captured_to_the_sample),)
    ),
    "statements 1: captured up to the statement, not beyond it": Sabotage(
        patches=((next_commit, "after_statement", _met_for_ever),)
    ),
    "statements 1: changes after the cut count": Sabotage(driver=_KeepsBeyondTheCut),
    "statements 1: merge goes past a pending statement": Sabotage(
        patches=tuple((module, "merge_bound", _past_a_pending_statement) for module in _BOUNDS)
    ),
    "statements 1: an own slice is merged past the cut": Sabotage(
        patches=tuple((module, "merge_bound", _past_the_cut) for module in _BOUNDS)
    ),
    "statements 2: a vnode near a cut does not wait": Sabotage(
        driver=WithoutSlices, patches=((follow_statement, "_waiting", _unchanged),)
    ),
    "statements 2: a drain that was cut merges what was read an epoch before": Sabotage(
        patches=((next_epoch, "may_go_live", _live_in_spite_of_a_cut),)
    ),
    "statements 2: visibility is resolved past the cut": Sabotage(driver=_SeesBeyondTheCut),
    "statements 3: ranges read near a statement stay read": Sabotage(
        patches=((follow_statement, "_read_again", _stays_read),), first_seed=1760
    ),
    "statements 3: ranges read near a statement without effect stay read": Sabotage(
        patches=((next_commit, "after_statement", _stays_read_without_effect),), first_seed=3200
    ),
    "statements 3: ranges are planned while the sink follows": Sabotage(
        patches=((next_commit, "next_intent", _planned_while_pending),)
    ),
    "statements 3: a stop at a statement sets nothing back": Sabotage(
        patches=((next_commit, "before_statement", _nothing_set_back),), first_seed=2900
    ),
    "statements 4: rows are not lifted": Sabotage(driver=_LiftsNothing),
    "statements 4: rows of the cut epoch count as of the new version": Sabotage(
        patches=((Lifts, "of_epoch", _since_the_epoch_before),)
    ),
    "statements 4: rows of the epoch after the cut count as of the old version": Sabotage(
        patches=((Lifts, "of_epoch", _since_the_epoch_after),)
    ),
    "statements 4: rows are lifted beyond what the sink holds": Sabotage(
        patches=((SchemaState, "lifts", _lifts_ahead),)
    ),
    "statements 4: changes from before bring rows of a dropped partition back": Sabotage(driver=_BringsRowsBack),
    "statements 5: the sink keeps the rows of a dropped partition": Sabotage(
        patches=((ModelSink, "change", _deletes_nothing),)
    ),
    "statements 5: applied is not moved when the table is emptied": Sabotage(
        patches=((follow_statement, "_emptied", _applied_stays),)
    ),
    "statements 6: a converted table is followed as if nothing had happened": Sabotage(
        patches=((actors, "effect_of", _converts_nothing),)
    ),
    "statements 5: a table that was created begins where the log ends": Sabotage(simulation=_BeginsLate),
    "failover: a statement that was followed is met again": Sabotage(
        driver=WithoutSlices, patches=((log_switch, "meets_statement_again", _never_again),), first_seed=4160
    ),
    "cascades: what was found while the table was copied is forgotten": Sabotage(
        driver=_CascadesOfAWholeCopy, simulation=Cascading
    ),
    "cascades: a copy whose rows have changed outside the log counts as live": Sabotage(
        simulation=Cascading, patches=((coordinator, "_overtaken", _goes_on),)
    ),
    "the sink follows before everything is merged": Sabotage(patches=((coordinator, "sink_may_change", _at_any_time),)),
    "the sink counts as changed when it is ordered": Sabotage(
        patches=((coordinator, "_change_sink", _followed_when_ordered),)
    ),
    "the sink is changed twice": Sabotage(patches=((ModelSink, "change", _change_again),)),
    "what the sink has followed to is lost": Sabotage(patches=((coordinator, "_followed", _never_followed),)),
    "a sink that could not follow is not asked again": Sabotage(
        patches=((coordinator, "_followed", _failure_passed_over),)
    ),
}
