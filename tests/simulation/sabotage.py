"""Breaks the protocol, one rule at a time: a simulator that cannot fail proves nothing.

Each sabotage takes one rule away, either from the simulated driver (by a subclass) or from the protocol's own functions
(for the length of a run).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import numpy.typing as npt

from consume_upstream import mark as marking
from consume_upstream.log import offset as offsets
from consume_upstream.log.offset import CdcOffset, LoggedTransaction, Visibility, VisibleAt
from consume_upstream.log.statement import FoundStatement
from consume_upstream.mark import Ints, MarkView, UpstreamMarks
from progress.state import backfill_state as states
from progress.state.backfill_state import BackfillState, Intent, Phase, VnodeState
from tests.simulation import actors
from tests.simulation.actors import Driver, Int32s, Steps
from tests.simulation.simulator import Simulation
from tests.simulation.source import ModelSource
from tests.simulation.world import BufferedChange, BufferReceipt, ReadReceipt
from vnode_backfill.decide import (
    coordinator,
    end_of_epoch,
    honour_requests,
    log_switch,
    next_commit,
    next_epoch,
    protocol,
)
from vnode_backfill.decide.protocol import BufferChanges, CommitReceipts, ReadRanges
from vnode_backfill.words.change import ChangeOp, Mark
from vnode_backfill.words.epoch import Barrier, BarrierKind, Epoch
from vnode_backfill.words.errors import BackfillError
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import PlannedRange, SplitPlan
from vnode_backfill.words.plan import make_plan

Patch = tuple[ModuleType | type, str, object]


@dataclass(frozen=True)
class Sabotage:
    """A rule taken away: patched functions, another driver, or another course of the run."""

    driver: type[Driver] = Driver
    simulation: type[Simulation] = Simulation
    patches: tuple[Patch, ...] = ()
    first_seed: int = 0
    """Where to begin to look, for a rule that few histories need."""

    def catches(self, seeds: range) -> int | None:
        """The first seed at which the run fails, or None if the sabotage went unnoticed."""
        with self.in_force():
            for seed in seeds:
                try:
                    self.simulation(seed, make_driver=self.driver).run()
                except AssertionError:
                    return seed
        return None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with ExitStack() as undo:
            for module, name, value in self.patches:
                undo.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, value)
            yield


def _nothing_dropped(state: BackfillState, plan: SplitPlan) -> MarkView:
    return MarkView.of([(-1, -1)] * len(plan.ranges), state)


def _one_mark_per_vnode(state: BackfillState, plan: SplitPlan) -> MarkView:
    view = _merge_view(state, plan)
    lows: dict[VnodeId, tuple[int, int]] = {}
    for planned, file, pos in zip(plan.ranges, view.file, view.pos, strict=False):
        lows[planned.vnode] = max(lows.get(planned.vnode, (-1, -1)), (int(file), int(pos)))
    return MarkView.of([lows[planned.vnode] for planned in plan.ranges], state)


_merge_view = marking.merge_view
_view = UpstreamMarks.view
_readable = next_epoch._readable
_rescaled = honour_requests._rescaled
_set_back = honour_requests._set_back
_honoured = next_commit._honoured
_work = coordinator._work
_failed = coordinator._failed
_merge_bound = next_epoch.merge_bound
_may_go_live = next_epoch.may_go_live


def _outside_too(marks: UpstreamMarks, visible: VisibleAt) -> MarkView:
    return _view(replace(marks, unread=np.append(marks.unread[:-1], True)), visible)


def _unread_for_ever(marks: UpstreamMarks, visible: VisibleAt) -> MarkView:
    """A range that was read drops what only a later read would have seen."""
    return _view(replace(marks, unread=np.append(np.full(len(marks.unread) - 1, True), False)), visible)


def _position_alone(view: MarkView, positions: Int32s, vnodes: Int32s, _file: Ints, pos: Ints) -> npt.NDArray[np.int8]:
    """Compares within a file only, whichever it is."""
    return _mark_chunk(view, positions, vnodes, view.file[positions], pos)


_mark_chunk = marking.mark_chunk


def _written_prefix(
    visibility: Visibility, missing: object, logged: object, written: CdcOffset
) -> tuple[VisibleAt, tuple[LoggedTransaction, ...]]:
    return VisibleAt(written), ()


def _with_holes(
    visibility: Visibility, missing: tuple[LoggedTransaction, ...], logged: list[LoggedTransaction], written: CdcOffset
) -> tuple[VisibleAt, tuple[LoggedTransaction, ...]]:
    """The end of the last visible transaction, whatever is missing before it."""
    if isinstance(visibility, VisibleAt):
        return visibility, ()
    last = next((t for t in reversed(logged) if visibility.covers_transaction(t.gtid)), None)
    if last is None:
        return offsets_resolve(visibility, missing, logged, written)
    later = [t.start for t in logged if t.start > last.start]
    return VisibleAt(min(later, key=lambda s: s.order, default=written)), ()


offsets_resolve = offsets.resolve


def _merge_too_early(vnode: VnodeState, chosen: Intent, cut: FoundStatement | None = None) -> bool:
    return vnode.complete is not None and vnode.complete + 1 <= chosen.epoch


def _merge_past_the_buffer(state: BackfillState, chosen: Intent, cut: FoundStatement | None = None) -> CdcOffset:
    return chosen.written


def _before_the_buffer(chosen: Intent) -> bool:
    return chosen.kind is BarrierKind.SYNC_CHECKPOINT


def _merge_without_the_slice(state: BackfillState, chosen: Intent, cut: FoundStatement | None = None) -> CdcOffset:
    return state.written if chosen.own_slice else _merge_bound(state, chosen, cut)


def _always_own_slice(state: BackfillState, sample: next_epoch.Sample) -> bool:
    return sample.short


class WithoutSlices(Driver):
    """Captures up to each sample, for rules that few histories need: they are rarer still among short slices."""

    def slice_end(self, written: CdcOffset) -> None:  # noqa: ARG002 - there is none
        return None


def _cut_before_live(state: BackfillState) -> bool:
    return True


class _CutsAnewOnReplay(Simulation):
    """Keeps no word of it in the intent: a repeat ends at the sample, whatever the attempt before has buffered."""

    def _recover(self) -> None:
        state = self.store.state
        if state.intent is not None and state.is_live:
            last = max((t.end for t in self.source.log), default=state.intent.written)
            later = replace(state.intent, written=max(last, state.intent.written))
            self.store.states[-1] = replace(state, intent=later)
        super()._recover()


def _unchecked(state: BackfillState) -> None:
    """The law that would name it before any row is wrong."""


def _live_by_an_own_slice(vnode: VnodeState, chosen: Intent, cut: FoundStatement | None = None) -> bool:
    return chosen.own_slice or _may_go_live(vnode, chosen, cut)


def _readable_without_floor(state: BackfillState, plan: SplitPlan, vnode: VnodeState) -> list[PlannedRange]:
    return _readable(state, plan, replace(vnode, floor=None))


def _applied_reset(vnode: VnodeState, ordinals: frozenset[int], floor: CdcOffset) -> VnodeState:
    return replace(_set_back(vnode, ordinals, floor), applied=CdcOffset(floor.server, floor.prefix, 1, 4))


def _state_reset(state: BackfillState, plan: SplitPlan, request: states.Request) -> BackfillState:
    """A vnode that moves starts its snapshot again, as if it had no state."""
    after = _rescaled(state, plan, request)
    vnodes = tuple(
        v if v.complete is None or not v.reads or state.worker_of(v.vnode) == after.worker_of(v.vnode)
        else replace(v, phase=Phase.PENDING, reads=(), complete=None)
        for v in after.vnodes
    )  # fmt: skip
    return replace(after, vnodes=vnodes)


def _without_a_drain(state: coordinator.Coordinator, *, last: bool, drained: bool) -> tuple[states.Request, ...]:
    return _honoured(state, last=last, drained=True)


def _passed_over_while_retrying(state: coordinator.Coordinator, error: BackfillError) -> coordinator.Decision:
    return (state, ()) if state.stage is coordinator.Stage.RETRYING else _failed(state, error)


def _over_a_commit_in_progress(state: coordinator.Coordinator, error: BackfillError) -> coordinator.Decision:
    """Forgets which stage is tried again: its commit may have landed, and the reason gets the same revision."""
    if state.stage is coordinator.Stage.RETRYING and not error.retryable:
        state = replace(state, retrying=coordinator.Stage.WORKING)
    return _failed(state, error)


def _open_last_range(vnode_plan: Callable[..., SplitPlan]) -> Callable[..., SplitPlan]:
    def make(*arguments: object) -> SplitPlan:
        plan = vnode_plan(*arguments)
        if len(plan.ranges) < 2:
            return plan
        last = plan.ranges[-1]
        return replace(plan, ranges=(*plan.ranges[:-1], replace(last, range=replace(last.range, closed=False))))

    return make


class _ForwardsStraight(Driver):
    def store_changes(self, epoch: Epoch, kept: list[tuple[BufferedChange, Mark]], receipt: BufferReceipt) -> None:
        for change, verdict in kept:
            if verdict is Mark.FORWARD:
                if change.op is ChangeOp.DELETE:
                    self.sink.rows.pop(change.key, None)
                else:
                    self.sink.rows[change.key] = change.value
        super().store_changes(epoch, [pair for pair in kept if pair[1] is not Mark.FORWARD], receipt)


class _TrustsStoredVnode(Driver):
    def places_buffered(self, plan: SplitPlan, changes: Sequence[BufferedChange]) -> tuple[Int32s, Int32s]:
        return super().places_buffered(plan, changes)[0], np.array([change.vnode for change in changes], np.int32)


class _GivesBoundariesARow(Driver):
    """Cuts through a transaction whose changes all have its end as their position: only the first is at or below the
    end."""

    def is_due(self, change: BufferedChange, applied: CdcOffset, upto: CdcOffset) -> bool:
        return (*applied.order, 0) < (*change.offset.order, change.row) <= (*upto.order, 0)


class _DropsDeletes(Driver):
    def store_changes(self, epoch: Epoch, kept: list[tuple[BufferedChange, Mark]], receipt: BufferReceipt) -> None:
        done = {v.vnode for v in self.saved.vnodes if v.phase is Phase.LIVE}
        held = [p for p in kept if p[0].op is not ChangeOp.DELETE or p[0].vnode in done]
        super().store_changes(epoch, held, receipt)


class _SamplesEarly(Driver):
    """Answers with the written offset as it was before the epoch's reads began."""

    def read_ranges(self, action: ReadRanges) -> Steps:
        self.early = self.source.written_offset()
        yield from super().read_ranges(action)

    def answered(self, sample: next_epoch.Sample, *, idle: bool) -> next_epoch.Sample:
        if idle or not hasattr(self, "early"):
            return sample
        return replace(sample, written=max(self.early, self.saved.written))


class _OneTransactionId(Driver):
    def app(self, name: str) -> str:
        return f"{self.job}/snapshot" if name in ("append", "replace") else super().app(name)


class _NamedNotNumbered(Driver):
    def app(self, name: str) -> str:
        return f"the-job/{name}"


class _AppendsReread(Driver):
    def commit_receipts(self, action: CommitReceipts) -> Steps:
        return super().commit_receipts(replace(action, replaces=frozenset()))


class _ReadsTwice(Driver):
    """Reads again what had landed, and appends it again under a new id."""

    def app(self, name: str) -> str:
        if name == "append":
            return f"{self.job}/append/{id(self)}"
        return super().app(name)


class _CountsUnread(Driver):
    def read_ranges(self, action: ReadRanges) -> Steps:
        for event in super().read_ranges(action):
            if isinstance(event, protocol.RangesRead):
                known = {r.ordinal for r in event.receipts}
                unread = tuple(protocol.RangeReceipt(o, 0) for lane in action.lanes for o in lane if o not in known)
                event = replace(event, receipts=(*event.receipts, *unread))
                self.read = (*self.read, *(ReadReceipt(r.ordinal, ()) for r in unread))
            yield event


class _ReportsBeforeWriting(Driver):
    """Reports the buffer as written and writes it only when the next epoch begins."""

    late: list[Callable[[], None]]

    def buffer_changes(self, action: BufferChanges) -> Steps:
        for write in getattr(self, "late", []):
            write()
        self.late = []
        yield from super().buffer_changes(action)

    def store_changes(self, epoch: Epoch, kept: list[tuple[BufferedChange, Mark]], receipt: BufferReceipt) -> None:
        self.late.append(lambda: Driver.store_changes(self, epoch, kept, receipt))


class _ResamplesOnReplay(Simulation):
    def _recover(self) -> None:
        state = self.store.state
        if state.intent is not None:
            fresh = replace(state.intent, written=self.source.written_offset(), visible=self.source.visible_offset())
            self.store.states[-1] = replace(state, intent=fresh)
        super()._recover()


class _ForgetsTheOwnSlice(Simulation):
    """Keeps no word of it in the intent: a repeat decides again, by what the source says then."""

    def _recover(self) -> None:
        state = self.store.state
        if state.intent is not None and state.intent.kind is BarrierKind.CHECKPOINT and state.is_live:
            again = replace(state.intent, own_slice=self.random.random() < 0.5)
            self.store.states[-1] = replace(state, intent=again)
        super()._recover()


class _FirstOffsetWritten(Simulation):
    def _first_offset(self) -> VisibleAt:
        return VisibleAt(self.source.written_offset())


class _FirstOffsetAfterPlan(Simulation):
    """Plans first, and asks for the first offset afterwards."""

    def _create(self, job: str) -> None:
        self._early_plan = actors.planned(self.source, self.vnode_count, 3)
        self._traffic(6)
        with Sabotage(patches=((_simulator(), "planned", lambda *_: self._early_plan),)).in_force():
            super()._create(job)


def _simulator() -> ModuleType:
    from tests.simulation import simulator

    return simulator


def _initial_takes_a_number(state: coordinator.Coordinator) -> coordinator.Decision:
    """A recovery numbers its epoch again, so that effects which had landed are not recognised."""
    if state.saved.intent is not None:
        later = replace(state.saved.intent, epoch=Epoch(state.saved.intent.epoch + 1))
        state = replace(state, saved=replace(state.saved, intent=later, epoch=Epoch(state.saved.epoch + 1)))
        state, actions = _work(state)
        return state, (protocol.InjectBarrier(Barrier(state.saved.epoch, BarrierKind.INITIAL)), *actions)
    return _start(state)


_start = coordinator._start


def _nothing_set_back(
    state: BackfillState, plan: SplitPlan, ordinals: frozenset[int]
) -> tuple[BackfillState, frozenset[VnodeId]]:
    return state, frozenset()


def _not_waiting(vnode: VnodeState, last: Epoch, given_up: Epoch) -> VnodeState:
    return vnode


class _EndOfLog(ModelSource):
    def position_after(self, gtids: str) -> CdcOffset:
        return replace(self.written_offset(), gtids=gtids)


class _TakesUpTheEnd(Simulation):
    """Continues at the end of the new log instead of after what was captured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        of = type(self.source)
        self.source.__class__ = _EndOfLog if of is ModelSource else type(of.__name__, (_EndOfLog, of), {})


SABOTAGES: dict[str, Sabotage] = {
    "rule 1: merge does not mark again": Sabotage(patches=((marking, "merge_view", _nothing_dropped),)),
    "rule 1: one low mark per vnode": Sabotage(patches=((marking, "merge_view", _one_mark_per_vnode),)),
    "rule 1: a range that was read marks as an unread one": Sabotage(
        patches=((UpstreamMarks, "view", _unread_for_ever),)
    ),
    "rule 1: a batch is marked by position, not by file": Sabotage(patches=((marking, "mark_chunk", _position_alone),)),
    "rule 2: first offset is the written one": Sabotage(simulation=_FirstOffsetWritten),
    "rule 2: first offset sampled after the plan": Sabotage(simulation=_FirstOffsetAfterPlan),
    "rule 3: a replay samples again": Sabotage(simulation=_ResamplesOnReplay),
    "rule 4: written offset sampled before reads end": Sabotage(driver=_SamplesEarly),
    "rule 5: a vnode merges one epoch too early": Sabotage(patches=((next_epoch, "may_go_live", _merge_too_early),)),
    "rule 5: merge goes past the buffer": Sabotage(
        patches=tuple(
            (module, "merge_bound", _merge_past_the_buffer) for module in (next_epoch, coordinator, end_of_epoch)
        )
    ),
    "own slice: the merge does not wait for the buffer": Sabotage(
        patches=((coordinator, "merges_own_slice", _before_the_buffer),)
    ),
    "own slice: merged without it and counted as applied": Sabotage(
        patches=((coordinator, "merge_bound", _merge_without_the_slice),)
    ),
    "own slice: decided again by a repeat": Sabotage(simulation=_ForgetsTheOwnSlice),
    "own slice: merged while ranges are unread": Sabotage(
        patches=((next_epoch, "_may_merge_own_slice", _always_own_slice),)
    ),
    "own slice: a vnode that is not read counts": Sabotage(
        patches=(
            (next_epoch, "_may_merge_own_slice", _always_own_slice),
            (next_epoch, "may_go_live", _live_by_an_own_slice),
            (states, "_check_own_slice", _unchecked),
        )
    ),
    "slices: the log is cut while ranges are unread": Sabotage(patches=((next_epoch, "_may_cut", _cut_before_live),)),
    "slices: cut again by a repeat": Sabotage(simulation=_CutsAnewOnReplay),
    "rule 6: a visibility with holes": Sabotage(patches=((offsets, "resolve", _with_holes),)),
    "rule 7: changes outside the plan are dropped": Sabotage(patches=((UpstreamMarks, "view", _outside_too),)),
    "rule 8: the stored vnode decides": Sabotage(driver=_TrustsStoredVnode),
    "rule 9: a range is read again at once": Sabotage(
        driver=WithoutSlices, patches=((next_epoch, "_readable", _readable_without_floor),)
    ),
    "rule 9: applied is reset": Sabotage(patches=((honour_requests, "_set_back", _applied_reset),)),
    "rule 9: a range read again is appended": Sabotage(driver=_AppendsReread),
    "rule 10: appends and replacements share an id": Sabotage(driver=_OneTransactionId),
    "rule 10: ids carry the name, not the job": Sabotage(driver=_NamedNotNumbered),
    "rule 11: forwarded changes skip the buffer": Sabotage(driver=_ForwardsStraight),
    "rule 12: Initial takes an epoch number": Sabotage(patches=((coordinator, "_start", _initial_takes_a_number),)),
    "rule 12: the last range leaves out the maximum": Sabotage(
        patches=((actors, "make_plan", _open_last_range(make_plan)),)
    ),
    "a boundary has a row": Sabotage(driver=_GivesBoundariesARow),
    "low watermark from the written offset": Sabotage(patches=((offsets, "resolve", _written_prefix),)),
    "a delete dropped for an unfinished vnode": Sabotage(driver=_DropsDeletes),
    "offset committed before the buffer": Sabotage(driver=_ReportsBeforeWriting),
    "bitmaps change before the merge is drained": Sabotage(patches=((next_commit, "_honoured", _without_a_drain),)),
    "a vnode's state reset by a rescale": Sabotage(patches=((honour_requests, "_rescaled", _state_reset),)),
    "a range read twice": Sabotage(driver=_ReadsTwice),
    "an unread range counted as read": Sabotage(driver=_CountsUnread),
    "a definite failure while retrying is passed over": Sabotage(
        patches=((coordinator, "_failed", _passed_over_while_retrying),)
    ),
    "a reason stored over a commit in progress": Sabotage(
        patches=((coordinator, "_failed", _over_a_commit_in_progress),)
    ),
    "another log: the epoch given up is done": Sabotage(patches=((log_switch, "set_ranges_back", _nothing_set_back),)),
    "another log: complete vnodes do not wait": Sabotage(patches=((log_switch, "_waiting", _not_waiting),)),
    "another log: begun too late": Sabotage(simulation=_TakesUpTheEnd),
}
