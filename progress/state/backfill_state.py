"""Holds what a job knows of itself at a commit, per vnode and as a whole, and checks the laws that no commit may break.

`BackfillState` is the whole content of one checkpoint: it is written in one transaction, so nothing in it can disagree.
It ends epoch `epoch` and holds the intent of the next one. No effect of an epoch happens before its intent is
committed, and a repeated epoch takes everything from the intent, so that recovery is: load, repeat.

Per vnode it keeps, for every range that was read, the epoch of the read (`reads`). The merge needs it: a change of a
range read in epoch n counts only if the visibility of n does not cover it. One low mark per vnode would not do, because
a vnode's ranges are read in different epochs. Once everything a read could have seen is applied, its epoch is forgotten
(`FORGOTTEN`): no change at or below it will come any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import itemgetter

from consume_upstream.log.offset import CdcOffset, LoggedTransaction, Visibility, VisibleAt
from progress.state.schema_state import NO_CHANGES, SchemaState
from vnode_backfill.words.bitmap import VnodeBitmap, check_assignment
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import SplitPlan

FORGOTTEN = Epoch(0)
MOST_ROWS_PER_SECOND = 2**31 - 1
"""A higher limit limits nothing, and a server would soon refuse it as a number of rows."""
_EPOCH_ZERO = Epoch(0)
_FIRST, _SECOND = itemgetter(0), itemgetter(1)


class Phase(StrEnum):
    """How far a vnode is; only a re-snapshot goes back."""

    PENDING = "pending"
    SNAPSHOT = "snapshot"
    CATCH_UP = "catch-up"
    LIVE = "live"


_ORDER = {phase: place for place, phase in enumerate(Phase)}


@dataclass(frozen=True, slots=True)
class VnodeState:
    """One vnode at a commit.

    `reads` maps range ordinals to the epoch they were read in; `replaces` are ranges that are read again and must
    replace what the sink holds; `floor` is the offset that a visibility has to cover before they may be read.
    `complete` is the epoch in which the last range was read.
    """

    vnode: VnodeId
    phase: Phase
    applied: CdcOffset
    epoch: Epoch = _EPOCH_ZERO
    reads: tuple[tuple[int, Epoch], ...] = ()
    rows: int = 0
    complete: Epoch | None = None
    replaces: frozenset[int] = frozenset()
    floor: CdcOffset | None = None

    @property
    def read_ordinals(self) -> frozenset[int]:
        return frozenset(map(_FIRST, self.reads))

    @property
    def read_epochs(self) -> frozenset[Epoch]:
        return frozenset(map(_SECOND, self.reads))


@dataclass(frozen=True, slots=True)
class Intent:
    """What epoch `epoch` will do, fixed before it does anything.

    With `own_slice` its merge follows its buffer commit and takes in the changes of the epoch itself.
    """

    epoch: Epoch
    kind: BarrierKind
    written: CdcOffset
    visible: Visibility
    ranges: tuple[tuple[int, ...], ...]
    plan_generation: int
    own_slice: bool = False

    @property
    def ordinals(self) -> frozenset[int]:
        return frozenset(ordinal for lane in self.ranges for ordinal in lane)


@dataclass(frozen=True, slots=True)
class Controls:
    """What an operator has asked for and what holds until asked otherwise. `rows_per_second` 0 pauses the snapshot.

    `accepted` is the offset, as text, of the statement that the job may pass although it stops at statements.
    """

    paused: bool = False
    rows_per_second: int | None = None
    accepted: str = ""

    @property
    def reading(self) -> bool:
        return not self.paused and self.rows_per_second != 0


def bounded_rate(rows_per_second: int | None) -> int | None:
    """A stored limit as a job can obey it: earlier releases stored whatever was asked for."""
    return None if rows_per_second is None else min(max(rows_per_second, 0), MOST_ROWS_PER_SECOND)


class RequestKind(StrEnum):
    RESCALE = "rescale"
    RATE_LIMIT = "rate_limit"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    RESNAPSHOT = "resnapshot"


OWN_REQUEST = 0
"""The number of a request that the driver makes to itself: nobody waits for its acknowledgement, and none is kept."""


@dataclass(frozen=True, slots=True)
class Request:
    """Something an operator asked for.

    `assignment` holds explicit bitmaps; `extend` also covers keys outside the plan; `accept` is the offset, as text, of
    a statement that the job may pass.
    """

    id: int
    kind: RequestKind
    workers: int = 0
    assignment: tuple[VnodeBitmap, ...] = ()
    rows_per_second: int | None = None
    vnodes: frozenset[VnodeId] = frozenset()
    ordinals: frozenset[int] = frozenset()
    extend: bool = False
    accept: str = ""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What became of a request, and in which epoch; `refused` holds the reason where it was not carried out."""

    request: int
    epoch: Epoch
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the job stopped."""

    epoch: Epoch
    message: str
    detail: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class BackfillState:
    """The whole of a job at one commit; `revision` numbers the commits.

    `written` is w[epoch]: the buffer holds everything up to it. `visible` holds the resolved visibility of every epoch
    that a read still refers to, and of the newest. `missing` are logged transactions not visible yet.
    `changed` is the highest offset at which the buffer may hold a change.
    """

    revision: int
    epoch: Epoch
    written: CdcOffset
    visible: tuple[tuple[Epoch, VisibleAt], ...]
    vnodes: tuple[VnodeState, ...]
    assignment: tuple[VnodeBitmap, ...]
    intent: Intent | None = None
    missing: tuple[LoggedTransaction, ...] = ()
    changed: CdcOffset | None = None
    plan_generation: int = 0
    assignment_generation: int = 1
    controls: Controls = Controls()
    acknowledged: tuple[Acknowledgement, ...] = ()
    failure: Failure | None = None
    stopped: bool = False
    schema: SchemaState = NO_CHANGES

    @property
    def visibility(self) -> Mapping[Epoch, VisibleAt]:
        return dict(self.visible)

    @property
    def newest_visible(self) -> VisibleAt:
        return max(self.visible, key=lambda pair: pair[0])[1]

    @property
    def backfill_finished(self) -> bool:
        """Every planned range of every vnode has a committed receipt; `check_laws` holds `complete` and the plan
        together."""
        return all(v.complete is not None for v in self.vnodes)

    @property
    def is_live(self) -> bool:
        """The sink is a consistent cut of the table: it is whole, and no row was changed outside the log."""
        return self.schema.cascaded is None and self.is_whole

    @property
    def is_whole(self) -> bool:
        """Every vnode is live at one offset, under the newest definition: the sink holds all that was read and
        logged."""
        applied = self.vnodes[0].applied
        return self.schema.pending is None and all(
            v.phase is Phase.LIVE and v.complete is not None and (v.applied is applied or v.applied == applied)
            for v in self.vnodes
        )

    @property
    def is_read_and_merged(self) -> bool:
        """Every vnode is live: no read waits for its high watermark.

        The sink may still have to follow a statement, unlike that of a job that is live, and a cascade may have ended
        the copy: the rest of the log is not captured at once for a copy that is replaced.
        """
        return all(v.phase is Phase.LIVE and v.complete is not None for v in self.vnodes)

    @property
    def rows(self) -> int:
        return sum([v.rows for v in self.vnodes])

    @property
    def ranges(self) -> int:
        """How many ranges count as read."""
        return sum([len(v.reads) for v in self.vnodes])

    def worker_of(self, vnode: VnodeId) -> int:
        return next(i for i, bitmap in enumerate(self.assignment) if vnode in bitmap)

    @property
    def highest_applied(self) -> CdcOffset:
        return max(self._applied, key=lambda offset: offset.order)

    @property
    def lowest_applied(self) -> CdcOffset:
        """The buffer needs nothing at or below this."""
        return min(self._applied, key=lambda offset: offset.order)

    @property
    def _applied(self) -> Iterable[CdcOffset]:
        """Where the vnodes are. Those that were merged together share one offset, and there may be very many of them."""
        return {id(v.applied): v.applied for v in self.vnodes}.values()


def new_state(first: VisibleAt, plan: SplitPlan, assignment: tuple[VnodeBitmap, ...]) -> BackfillState:
    """A job at epoch 0: nothing read, nothing buffered; the log will be read from the first offset on.

    A vnode without a range counts as read in epoch 0 and becomes live at its first merge.
    """
    check_assignment(assignment, plan.vnode_count)
    at, begun = first.position, Epoch(0)
    vnodes = tuple(
        VnodeState(vnode, Phase.PENDING, at)
        if plan.of_vnode(vnode)
        else VnodeState(vnode, Phase.CATCH_UP, at, complete=begun)
        for vnode in map(VnodeId, range(plan.vnode_count))
    )
    return BackfillState(
        revision=0, epoch=Epoch(0), written=first.position, visible=((Epoch(0), first),), vnodes=vnodes,
        assignment=assignment,
    )  # fmt: skip


def latest_visible_of(
    pairs: Iterable[tuple[Epoch, VisibleAt]], state: BackfillState
) -> tuple[tuple[Epoch, VisibleAt], ...]:
    """The visibilities that a read of `state` still refers to, and the newest."""
    pairs = tuple(pairs)
    newest = max(epoch for epoch, _ in pairs)
    unused = {epoch for epoch, _ in pairs} - {newest}
    lowest = min(unused, default=newest)
    for vnode in state.vnodes:
        if not unused:
            return pairs
        # A vnode has no read after the epoch in which it was complete: a live job looks at none of a million reads.
        if vnode.complete is None or vnode.complete >= lowest:
            unused -= vnode.read_epochs
            lowest = lowest if lowest in unused else min(unused, default=newest)
    return tuple(pair for pair in pairs if pair[0] not in unused)


def forget_old_reads(state: BackfillState) -> BackfillState:
    """Forget the epoch of reads all of whose possible changes are applied already.

    The last two epochs are kept: the next one may meet a statement that happened while they read.
    """
    visibility, kept_since = state.visibility, Epoch(state.epoch - 1)
    past = {epoch: at.position for epoch, at in state.visible if FORGOTTEN != epoch < kept_since}
    if past:
        # There may be very many reads. Those of a vnode that was complete before the first of these epochs are forgotten
        # already. And while a vnode is read, nothing is applied to it.
        first, lowest = min(past), min(past.values())
        vnodes = tuple(
            v if _is_complete_before(v, first) or v.applied < lowest else _forgotten(v, visibility, kept_since)
            for v in state.vnodes
        )
        state = replace(state, vnodes=vnodes)
    return replace(state, visible=latest_visible_of(state.visible, state))


def _is_complete_before(vnode: VnodeState, epoch: Epoch) -> bool:
    return vnode.complete is not None and vnode.complete < epoch


def _forgotten(vnode: VnodeState, visibility: Mapping[Epoch, VisibleAt], kept_since: Epoch) -> VnodeState:
    def is_past(epoch: Epoch) -> bool:
        return FORGOTTEN != epoch < kept_since and visibility[epoch].position <= vnode.applied

    past = {epoch for epoch in vnode.read_epochs if is_past(epoch)}
    if not past:
        return vnode
    reads = tuple((ordinal, FORGOTTEN if epoch in past else epoch) for ordinal, epoch in vnode.reads)
    return replace(vnode, reads=reads)


def check_laws(before: BackfillState, after: BackfillState, plan: SplitPlan, resnapshot: frozenset[VnodeId]) -> None:
    """Raise if the step from one commit to the next breaks a law; `resnapshot` are vnodes set back on request."""
    if after.revision != before.revision + 1 or after.epoch not in (before.epoch, before.epoch + 1):
        raise LawBrokenError(
            f"commit {before.revision} of epoch {before.epoch} cannot be followed by commit {after.revision} "
            f"of epoch {after.epoch}"
        )
    if after.written < before.written:
        raise LawBrokenError(f"the written offset would fall from {before.written} to {after.written}")
    check_assignment(after.assignment, plan.vnode_count)
    _check_own_slice(after)
    replanned = before.plan_generation != after.plan_generation
    for old, new in zip(before.vnodes, after.vnodes, strict=True):
        if new is old and not replanned:
            continue
        _check_vnode(old, new, set_back=new.vnode in resnapshot)
        if replanned or new.reads is not old.reads or new.complete is not old.complete or new.phase is not old.phase:
            _check_reads(new, plan)


def _check_own_slice(state: BackfillState) -> None:
    intent = state.intent
    if intent is None or not intent.own_slice:
        return
    if intent.kind is not BarrierKind.CHECKPOINT or intent.ordinals or not state.is_live:
        raise LawBrokenError(
            f"epoch {intent.epoch} would merge its own slice, but it is a {intent.kind} of a job that "
            f"{'is' if state.is_live else 'is not'} live and reads ranges {sorted(intent.ordinals)}"
        )


def _check_vnode(old: VnodeState, new: VnodeState, *, set_back: bool) -> None:
    name = f"vnode {new.vnode}"
    if new.applied is not old.applied and new.applied < old.applied:
        raise LawBrokenError(f"{name}: the applied offset would fall from {old.applied} to {new.applied}")
    if new.epoch < old.epoch or new.rows < old.rows:
        raise LawBrokenError(
            f"{name}: epoch or rows would fall from {old.epoch}, {old.rows} to {new.epoch}, {new.rows}"
        )
    if _ORDER[new.phase] < _ORDER[old.phase] and not set_back:
        raise LawBrokenError(f"{name}: phase would go back from {old.phase} to {new.phase} without a re-snapshot")
    if new.reads is old.reads or set_back:
        return
    # Reads are appended: only where they are not is it worth looking at each.
    if new.reads[: len(old.reads)] != old.reads and not old.read_ordinals <= new.read_ordinals:
        lost = sorted(old.read_ordinals - new.read_ordinals)
        raise LawBrokenError(f"{name}: ranges {lost} were read and would count as unread")


def _check_reads(vnode: VnodeState, plan: SplitPlan) -> None:
    planned = {r.ordinal for r in plan.of_vnode(vnode.vnode)}
    if len(vnode.reads) != len(vnode.read_ordinals) or not vnode.read_ordinals <= planned:
        raise LawBrokenError(
            f"vnode {vnode.vnode}: read ranges {vnode.reads} are not each one of its planned ranges once"
        )
    if (vnode.complete is not None) != (vnode.read_ordinals == planned):
        raise LawBrokenError(
            f"vnode {vnode.vnode}: complete={vnode.complete} but {len(vnode.reads)} of {len(planned)} ranges are read"
        )
    if vnode.phase in (Phase.CATCH_UP, Phase.LIVE) and vnode.complete is None:
        raise LawBrokenError(f"vnode {vnode.vnode}: phase {vnode.phase} while ranges are unread")
