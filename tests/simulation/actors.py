"""Performs the coordinator's orders in a simulated driver, one small step at a time.

Each order is a generator: every `yield` is a place where the source may move on, another order may run, or the driver
may die. What is durable lives in `world`; everything else here is lost in a crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from consume_upstream import mark as marking
from consume_upstream.log import offset as offsets
from consume_upstream.log.offset import CdcOffset, LoggedTransaction, VisibleAt
from consume_upstream.log.statement import FoundStatement
from consume_upstream.mark import MarkView
from progress.state.backfill_state import BackfillState, Intent
from progress.state.barriers import CdcTableBackfillProgress, CreateMviewProgress
from tests.simulation.source import ModelSource, NoSuchColumnError, RowChange, Transaction
from tests.simulation.statements import created_again, effect_of, found_statement, shape_of, statement_of
from tests.simulation.world import BufferedChange, BufferReceipt, ModelSink, ModelStore, ReadReceipt, WrongError
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.decide.protocol import (
    Action,
    BufferChanges,
    ChangesBuffered,
    ChangeSink,
    CommitEpoch,
    CommitReceipts,
    EpochMerged,
    EpochRestarted,
    Event,
    ExtendPlan,
    InjectBarrier,
    MergeEpoch,
    PlanExtended,
    RangeReceipt,
    RangesRead,
    ReadRanges,
    ReceiptsCommitted,
    ResolveStatement,
    RestartEpoch,
    Sampled,
    SampleSource,
    SinkChanged,
    SinkNotChanged,
    StateCommitted,
    StatementResolved,
    Stop,
    TrimBuffer,
)
from vnode_backfill.words.change import ChangeOp, Mark
from vnode_backfill.words.epoch import Actor, Epoch
from vnode_backfill.words.errors import SinkUnavailableError
from vnode_backfill.words.key import KeyKind, KeyPart
from vnode_backfill.words.key_range import Bound, PlannedRange, SplitPlan, bound_of
from vnode_backfill.words.plan import (
    Answer,
    EstimateRows,
    NextBound,
    Question,
    TableFacts,
    extend_plan,
    make_plan,
    plan_bounds,
)
from vnode_backfill.words.schema_change import (
    AddColumn,
    DeleteRows,
    DropColumn,
)

PARTS = (KeyPart("id", KeyKind.INT),)
BOUNDS: dict[int, Bound] = {key: bound_of(PARTS, (key,)) for key in range(200)}
Steps = Iterator[Event | None]
Int32s = npt.NDArray[np.int32]


@dataclass
class Driver:
    """One life of a driver: `saved` is the state it has loaded or committed last."""

    random: Random
    source: ModelSource
    sink: ModelSink
    store: ModelStore
    job: str
    saved: BackfillState
    plan: SplitPlan
    columns: int = 1
    """Of the definition that the job was created with."""

    def app(self, name: str) -> str:
        return f"{self.job}/{name}"

    def perform(self, action: Action) -> Steps:
        match action:
            case ReadRanges():
                return self.read_ranges(action)
            case BufferChanges():
                return self.buffer_changes(action)
            case MergeEpoch():
                return self.merge(action)
            case CommitReceipts():
                return self.commit_receipts(action)
            case SampleSource():
                return self.sample(action)
            case CommitEpoch():
                return self.commit(action)
            case ExtendPlan():
                return self.extend(action)
            case TrimBuffer(upto=upto):
                return self.trim(upto)
            case RestartEpoch(attempt=attempt):
                return iter((None, EpochRestarted(attempt)))
            case ResolveStatement():
                return self.resolve(action)
            case ChangeSink():
                return self.change_sink(action)
            case InjectBarrier() | Stop():
                return iter(())

    def read_ranges(self, action: ReadRanges) -> Steps:
        """Read what is planned, some of it perhaps not; what landed before a crash is not read again."""
        epoch = action.barrier.epoch
        landed = {name: self.sink.landed.get((self.app(name), epoch)) for name in ("append", "replace")}
        receipts = [r for held in landed.values() if held for r in held]
        left = [
            o for lane in action.lanes for o in lane if landed["replace" if o in action.replaces else "append"] is None
        ]
        self.random.shuffle(left)
        refused = ""
        for ordinal in left:
            yield None
            if self.random.random() < 0.2:
                continue
            receipts.append(ReadReceipt(ordinal, ()))
            keys = sorted(self.held(self.ranges[ordinal]))
            cut = self.random.randrange(len(keys) + 1)
            width = self.width(self.saved.schema.in_sink)
            try:
                rows = dict(self.source.read(frozenset(keys[:cut]), width))
                yield None
                rows |= self.source.read(frozenset(keys[cut:]), width)
            except NoSuchColumnError as error:
                receipts.pop()
                refused = str(error)
                continue
            receipts[-1] = ReadReceipt(ordinal, tuple(sorted(rows.items())))
            yield self.progress(action, receipts)
        self.read = tuple(receipts)
        yield None
        yield RangesRead(epoch, range_receipts(receipts), action.barrier.attempt, refused)

    def progress(self, action: ReadRanges, receipts: list[ReadReceipt]) -> Event | None:
        """Told now and then: datagrams are lost, and one may be of an attempt that is over."""
        if self.random.random() < 0.5:
            return None
        rows = self.saved.rows + sum(len(receipt.rows) for receipt in receipts)
        ranges, total = self.saved.ranges + len(receipts), len(self.plan.ranges)
        return CdcTableBackfillProgress(action.barrier.epoch, ranges, total, rows, action.barrier.attempt)

    def commit_receipts(self, action: CommitReceipts) -> Steps:
        epoch = action.barrier.epoch
        appended = tuple(r for r in self.read if r.ordinal not in action.replaces)
        replaced = tuple(r for r in self.read if r.ordinal in action.replaces)
        yield None
        landed = [*self.sink.append(self.app("append"), epoch, appended)]
        yield None
        held = {r.ordinal: self.held(self.ranges[r.ordinal]) for r in replaced}
        landed += self.sink.replace(self.app("replace"), epoch, replaced, held)
        yield None
        yield ReceiptsCommitted(epoch, range_receipts(landed), action.barrier.attempt)

    def buffer_changes(self, action: BufferChanges) -> Steps:
        intent, epoch = action.intent, action.intent.epoch
        yield None
        receipt = self.store.buffered.get((self.app("buffer"), epoch))
        if receipt is None:
            stretch = self.source.slice(action.after, intent.written)
            found = [found_statement(t, self.source) for t in stretch if t.statement]
            cut = self.first_cut(found)
            captured = cut.before if cut else intent.written
            visible, missing = self.seen(action, captured)
            plan = self.plan.at(intent.plan_generation)
            view = marking.upstream_marks(self.saved, plan).view(visible)
            kept = self.kept(action.after, replace(intent, written=captured), plan, view)
            passed = tuple(each for each in found if each.after <= captured)
            receipt = BufferReceipt(visible, missing, len(kept), cut, passed, self.cascaded(stretch, captured))
            yield CreateMviewProgress(Actor.UPSTREAM, epoch, len(kept), action.barrier.attempt)
            self.store_changes(epoch, kept, receipt)
        yield None
        yield ChangesBuffered(
            epoch,
            receipt.visible,
            receipt.missing,
            receipt.kept,
            action.barrier.attempt,
            0,
            receipt.cut,
            receipt.passed,
            receipt.cascaded,
        )

    def cascaded(self, stretch: list[Transaction], captured: CdcOffset) -> CdcOffset | None:
        """The last change of a parent that was captured. Nobody looks once a new copy has to follow."""
        if self.saved.schema.cascaded is not None:
            return None
        ends = [t.end for t in stretch if t.hidden and t.end <= captured]
        return max(ends, key=lambda end: end.order, default=None)

    def seen(self, action: BufferChanges, captured: CdcOffset) -> tuple[VisibleAt, tuple[LoggedTransaction, ...]]:
        """The visibility of the epoch, as far as the log was captured."""
        logged = self.source.logged_transactions(action.after, captured)
        return offsets.resolve(action.intent.visible, self.saved.missing, logged, captured)

    def first_cut(self, found: list[FoundStatement]) -> FoundStatement | None:
        """An index is passed over by what its statement says; of the others the source must be asked."""
        return next((each for each in found if not each.text.startswith("index")), None)

    def resolve(self, action: ResolveStatement) -> Steps:
        """Sometimes nobody can say yet what the statement did: the job ends the epoch before it, and meets it again."""
        yield None
        statement = self.source.statement_at(action.found.before)
        effect = effect_of(statement)
        shape = shape_of(statement.columns_after(self.width(self.saved.schema.newest)))
        if statement.kind == "recreate":
            effect = created_again(shape, action.found)
        known = self.random.random() < 0.85
        yield StatementResolved(action.found, effect if known else None, shape, action.attempt)

    def change_sink(self, action: ChangeSink) -> Steps:
        """Follow, or fail before or after the sink has changed: the order is then given again."""
        number = action.version.number
        failing = self.random.random()
        yield None
        if failing < 0.1:
            yield SinkNotChanged(number, SinkUnavailableError("full"))
        yield None
        self.sink.change(number, statement_of(action.version.statement))
        yield None
        if failing > 0.9:
            yield SinkNotChanged(number, SinkUnavailableError("the answer was lost"))
        yield SinkChanged(number)

    def width(self, version: int) -> int:
        """The columns of a version of the definition."""
        found = self.saved.schema.numbered(version)
        return len(found.shape.columns) if found else self.columns

    def lifted(self, change: BufferedChange) -> BufferedChange:
        """The change as the sink's version of the definition has it, by the steps that production takes."""
        value, op = change.value, change.op
        for step in self.saved.schema.lifts().of_epoch(change.epoch):
            match step:
                case AddColumn(value=given):
                    value = (*value, int(given or 0))
                case DropColumn():
                    value = value[:1]
                case DeleteRows() if step.matching(pa.array(value[:1], pa.int64()))[0].as_py():
                    op = ChangeOp.DELETE
        return replace(change, value=value, op=op)

    def store_changes(self, epoch: Epoch, kept: list[tuple[BufferedChange, Mark]], receipt: BufferReceipt) -> None:
        self.store.append(self.app("buffer"), epoch, [change for change, _ in kept], receipt)

    def kept(
        self, after: CdcOffset, intent: Intent, plan: SplitPlan, view: MarkView
    ) -> list[tuple[BufferedChange, Mark]]:
        rows = [row for transaction in self.source.slice(after, intent.written) for row in transaction.changes]
        found = [(row, *part) for row in rows for part in halves(row)]
        positions, vnodes = places(plan, [key for _, key, _, _ in found])
        marks = marked(view, positions, vnodes, [row.offset for row, _, _, _ in found])
        return [
            (BufferedChange(key, op, row.value, row.offset, row.row, half, vnode, intent.epoch), mark)
            for (row, key, op, half), vnode, mark in zip(found, vnodes.tolist(), marks, strict=True)
            if mark is not Mark.DROP
        ]

    def merge(self, action: MergeEpoch) -> Steps:
        yield None
        assert self.saved.intent is not None
        plan = self.plan.at(self.saved.intent.plan_generation)
        changes = self.changes_to_merge(action, plan)
        yield CreateMviewProgress(Actor.MERGE, action.barrier.epoch, len(changes), action.barrier.attempt)
        self.sink.merge(self.app("merge"), action.barrier.epoch, changes)
        yield None
        yield EpochMerged(action.barrier.epoch, len(changes), action.barrier.attempt)

    def changes_to_merge(self, action: MergeEpoch, plan: SplitPlan) -> list[BufferedChange]:
        applied = {v.vnode: v.applied for v in action.vnodes}
        view = marking.merge_view(self.saved, plan)
        last: dict[int, BufferedChange] = {}
        changes = self.store.buffer
        positions, vnodes = self.places_buffered(plan, changes)
        marks = marked(view, positions, vnodes, [change.offset for change in changes])
        for change, vnode, mark in zip(changes, vnodes.tolist(), marks, strict=True):
            if mark is Mark.DROP or vnode not in applied or not self.is_due(change, applied[vnode], action.upto):
                continue
            if change.key not in last or last[change.key].order < change.order:
                last[change.key] = change
        return [self.lifted(change) for change in last.values()]

    def is_due(self, change: BufferedChange, applied: CdcOffset, upto: CdcOffset) -> bool:
        return applied < change.offset <= upto

    def places_buffered(self, plan: SplitPlan, changes: Sequence[BufferedChange]) -> tuple[Int32s, Int32s]:
        return places(plan, [change.key for change in changes])

    def sample(self, action: SampleSource) -> Steps:
        yield None
        if self.random.random() < 0.5:
            written = self.source.written_offset()
            yield None
            visible = self.source.visible_offset()
        else:
            visible = self.source.visible_offset()
            yield None
            written = self.source.written_offset()
        rows, short, end = self.random.randrange(12), self.says_short(), self.slice_end(written)
        sample = Sample(written, visible, rows, hold=self.is_held(), short=short, slice_end=end)
        yield Sampled(self.answered(sample, idle=action.idle), action.ticket)

    def answered(self, sample: Sample, *, idle: bool) -> Sample:  # noqa: ARG002 - see `sabotage`
        """What the source's answer is told as."""
        return sample

    def is_held(self) -> bool:
        """The source has another definition than the job knows: no range is read until the log explains it."""
        return self.source.columns != self.width(self.saved.schema.newest)

    def slice_end(self, written: CdcOffset) -> CdcOffset | None:
        """Any boundary since the sample before, or none: how long a slice is may not matter."""
        last = self.saved.intent.written if self.saved.intent else self.saved.written
        ends = [t.end for t in self.source.log if last < t.end < written]
        if not ends or self.random.random() < 0.4:
            return None
        end = self.random.choice(ends)
        return replace(end, gtids=self.source.gtids_before(end))

    def says_short(self) -> bool:
        """Whether the log since the sample before is short, which is at random: nothing but speed may depend on it."""
        return self.random.random() < 0.7

    def commit(self, action: CommitEpoch) -> Steps:
        yield None
        self.store.commit(action.state)
        yield None
        yield StateCommitted(action.state.revision)

    def extend(self, action: ExtendPlan) -> Steps:
        yield None
        plan = extended(self.plan.at(action.generation), self.source, self.sink)
        self.store.plans[plan.generation] = plan
        yield None
        yield PlanExtended(plan)

    def trim(self, upto: CdcOffset) -> Steps:
        self.store.trim(upto)
        yield None

    @property
    def ranges(self) -> dict[int, PlannedRange]:
        return {planned.ordinal: planned for planned in self.plan.ranges}

    def held(self, planned: PlannedRange) -> frozenset[int]:
        return frozenset(k for k in range(self.source.keys) if planned.range.holds(BOUNDS[k].order))


def range_receipts(receipts: list[ReadReceipt]) -> tuple[RangeReceipt, ...]:
    return tuple(RangeReceipt(receipt.ordinal, len(receipt.rows)) for receipt in receipts)


def halves(row: RowChange) -> list[tuple[int, ChangeOp, int]]:
    """A change of the key is a delete of the old one and an insert of the new one."""
    if row.old_key is None and row.new_key is not None:
        return [(row.new_key, ChangeOp.INSERT, 1)]
    if row.new_key is None and row.old_key is not None:
        return [(row.old_key, ChangeOp.DELETE, 0)]
    if row.old_key is None or row.new_key is None:
        raise WrongError(f"a change without a key: {row}")
    if row.old_key == row.new_key:
        return [(row.new_key, ChangeOp.UPDATE, 1)]
    return [(row.old_key, ChangeOp.DELETE, 0), (row.new_key, ChangeOp.INSERT, 1)]


def places(plan: SplitPlan, keys: Sequence[int]) -> tuple[Int32s, Int32s]:
    """The position in the plan and the vnode of each key, found as production finds them."""
    positions, vnodes = _all_places(plan)
    wanted = np.fromiter(keys, np.int64)
    return positions[wanted], vnodes[wanted]


@lru_cache(maxsize=16)
def _all_places(plan: SplitPlan) -> tuple[Int32s, Int32s]:
    return plan.vnodes_of([pa.array(list(BOUNDS), pa.int64())])


def marked(view: MarkView, positions: Int32s, vnodes: Int32s, ends: Sequence[CdcOffset]) -> list[Mark]:
    """The marks of a batch of changes whose events end at `ends`, made as production makes them."""
    file, pos = np.array([end.order for end in ends], np.int64).reshape(-1, 2).T
    return [Mark(mark) for mark in marking.mark_chunk(view, positions, vnodes, file, pos).tolist()]


def planned(source: ModelSource, vnode_count: int, target: int) -> SplitPlan:
    """The real planner, its questions answered by what a query sees."""
    keys = sorted(source.visible)
    if not keys:
        return make_plan(PARTS, (), vnode_count)
    facts = TableFacts(PARTS, BOUNDS[keys[0]], BOUNDS[keys[-1]], len(keys), 10)
    asking = plan_bounds(facts, target)
    try:
        question = next(asking)
        while True:
            question = asking.send(answer(question, keys))
    except StopIteration as stop:
        return make_plan(PARTS, stop.value, vnode_count)


def answer(question: Question, keys: list[int]) -> Answer:
    if isinstance(question, EstimateRows):
        return tuple(sum(low <= BOUNDS[k] < high for k in keys) for low, high in pairwise(question.bounds))
    assert isinstance(question, NextBound)
    beyond = [k for k in keys if BOUNDS[k] > question.after]
    return BOUNDS[beyond[question.rows - 1]] if len(beyond) >= question.rows else None


def extended(plan: SplitPlan, source: ModelSource, sink: ModelSink, *, tiling: bool = False) -> SplitPlan:
    """One more generation over the keys outside the plan that source or sink hold, one range on each side.

    With `tiling` the upper one begins right after the plan, as for an integer key, else at the first key there is.
    """
    outside = sorted(k for k in {*source.visible, *sink.rows} if plan.find(BOUNDS[k].order) is None)
    if not outside:
        return plan
    if not plan.ranges:
        return extend_plan(plan, above=((BOUNDS[outside[0]], len(outside)), (BOUNDS[outside[-1]], 0)))
    low, high = plan.ranges[0].range.low, plan.ranges[-1].range.high
    assert low is not None
    assert high is not None
    below = [k for k in outside if BOUNDS[k] < low]
    above = [k for k in outside if BOUNDS[k] > high]
    if above and tiling:
        above.insert(0, next(k for k in BOUNDS if BOUNDS[k] > high))
    return extend_plan(
        plan,
        below=((BOUNDS[below[0]], len(below)), (low, 0)) if below else (),
        above=((BOUNDS[above[0]], len(above)), (BOUNDS[above[-1]], 0)) if above else (),
    )
