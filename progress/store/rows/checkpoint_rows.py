"""Turns a job's whole state into rows of the `checkpoints` table, and back into the same state.

Format version 2, one row per vnode. A checkpoint's rows:

    row     vnode  phase     epoch  rows   complete  applied  reads      …   document
    lease   –                                                                who drives the job
    job     –                41                                              everything that is not per vnode, as JSON
    vnode   0      live      41     1200   37        {…}      [{0,5,5}]
    vnode   1      catch-up  40     1180   40        {…}      [{40,9,11}]

A live table among many has one row in place of these (`live_row`).

What is per vnode is in columns, because there may be 32,768 of them and every reader of Delta can look at them. `reads`
are runs of consecutive ranges read in one epoch, in the order in which the state keeps them. `worker` is written for
those who look; it is not read back, the bitmaps of the job's row decide.

`own_slice` of an intent is written only where it is set. A state without it is as releases before it wrote it, and they
read it. One with it they refuse, because they know every key of an intent: they would merge that epoch to another
bound, and take a merge that has landed for theirs. The same holds for `definitions`, `accepted` and `asked_of` of a
job.

`to_rows` and `from_rows` are each other's inverse, GTIDs that travel along with offsets included; anything that cannot
be read exactly is a `StateError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from consume_upstream.log.offset import (
    CdcOffset,
    LoggedTransaction,
    VisibleAt,
    visibility_from_json,
    visibility_to_json,
)
from progress.state.backfill_state import (
    Acknowledgement,
    BackfillState,
    Controls,
    Failure,
    Intent,
    Phase,
    VnodeState,
    bounded_rate,
)
from progress.store.rows.live_row import LIVE, is_one_row, live_document, vnodes_of_live
from progress.store.rows.schema_rows import schema_from_text, schema_to_text
from progress.store.state_table import rows_where
from vnode_backfill.words.bitmap import VnodeBitmap
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.errors import StateError
from vnode_backfill.words.key import VnodeId

FORMAT_VERSION = 2
LEASE, JOB, VNODE = "lease", "job", "vnode"
TABLE = "table"
"""A column that only the shared checkpoints of a job of many tables have: the table that a row belongs to."""

_RUN = pa.struct([("epoch", pa.int64()), ("first", pa.int64()), ("last", pa.int64())])
CHECKPOINT_SCHEMA = pa.schema(
    [
        pa.field("row", pa.string(), nullable=False),
        ("vnode", pa.int32()),
        ("worker", pa.int32()),
        ("phase", pa.string()),
        ("epoch", pa.int64()),
        ("rows", pa.int64()),
        ("complete", pa.int64()),
        ("applied", pa.string()),
        ("reads", pa.list_(_RUN)),
        ("replaces", pa.list_(pa.int64())),
        ("floor", pa.string()),
        ("document", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Bookkeeping:
    """What the store keeps with every checkpoint beside the state.

    `plans` names, per generation, the write of the plan table that counts (a crash may leave others there); `requests`
    are the numbers of all requests ever acknowledged, of which the state remembers the newest only; `percent` is the
    highest percentage ever reached. `asked_of` is the id of the job's first copy where this is a later one: requests
    are kept under it, so that one made while a new copy begins is found by that copy.
    """

    job: str
    plans: tuple[tuple[int, str], ...] = ()
    requests: frozenset[int] = frozenset()
    percent: float = 0.0
    asked_of: str = ""

    @property
    def asked_as(self) -> str:
        """The id under which requests to the job are kept."""
        return self.asked_of or self.job


def to_rows(state: BackfillState, books: Bookkeeping, *, one_of_many: bool = False) -> pa.Table:
    """The state as the `job` row and one row per vnode; of a live table among many one row for all vnodes."""
    job = document_row(JOB, _document(state, books), epoch=state.epoch)
    if one_of_many and is_one_row(state):
        return pa.concat_tables([job, document_row(LIVE, live_document(state, _runs))])
    return pa.concat_tables([job, _vnode_rows(state)])


def document_row(row: str, document: str, epoch: int | None = None) -> pa.Table:
    """A row that is a JSON text and nothing else."""
    values: dict[str, object] = {"row": row, "epoch": epoch, "document": document}
    return pa.Table.from_pylist([values], schema=CHECKPOINT_SCHEMA)


def document_of(rows: pa.Table, row: str) -> str | None:
    """The JSON text of the one row of this kind, or None if there is none."""
    found: list[str] = [
        text for kind, text in zip(rows["row"].to_pylist(), rows["document"].to_pylist(), strict=True) if kind == row
    ]
    if len(found) > 1:
        raise StateError(f"the checkpoint holds {len(found)} rows of kind {row!r}")
    return found[0] if found else None


def check_version(document: str) -> None:
    """Refuse a state that another version of this program wrote in a form this one does not know."""
    try:
        version = json.loads(document).get("version")
    except (ValueError, AttributeError) as error:
        raise StateError("the checkpoint's document cannot be read", detail=str(error)) from error
    refuse_unknown_version(version)


def refuse_unknown_version(version: object) -> None:
    if version != FORMAT_VERSION:
        raise StateError(
            f"the job's state has format version {version!r}, this program reads version {FORMAT_VERSION}",
            hint="Use the release that wrote it, or delete the job's folder under state.path and create the job again.",
        )


def from_rows(rows: pa.Table) -> tuple[BackfillState, Bookkeeping] | None:
    """The state that `to_rows` wrote, or None where the rows hold no job."""
    document = document_of(rows, JOB)
    if document is None:
        return None
    check_version(document)
    try:
        stored = _StoredJob.model_validate_json(document)
        live = document_of(rows, LIVE)
        vnodes = tuple(_read_vnodes(rows) if live is None else vnodes_of_live(live))
        state = _state(stored, vnodes)
    except (ValidationError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StateError("the checkpoint cannot be read", detail=str(error)[:1000]) from error
    if [vnode.vnode for vnode in vnodes] != list(range(stored.vnode_count)):
        raise StateError(f"the checkpoint holds {len(vnodes)} rows for {stored.vnode_count} vnodes")
    plans = tuple((generation, write) for generation, write in stored.plans)
    requests = numbers_from_text(stored.requests)
    return state, Bookkeeping(stored.job, plans, requests, stored.percent, stored.asked_of)


def identity_of(rows: pa.Table) -> tuple[str, int]:
    """The id under which requests of the job are kept, and its number of vnodes, without reading the rest."""
    document = document_of(rows, JOB)
    if document is None:
        raise StateError("the checkpoint holds no job")
    check_version(document)
    stored = json.loads(document)
    return str(stored.get("asked_of") or stored["job"]), int(stored["vnode_count"])


def numbers_to_text(numbers: Iterable[int]) -> str:
    """Whole numbers as `1-57,60`."""
    runs = _runs((number, 0) for number in sorted(numbers))
    return ",".join(str(first) if first == last else f"{first}-{last}" for _, first, last in runs)


def numbers_from_text(text: str) -> frozenset[int]:
    pieces = (piece.partition("-") for piece in text.split(",") if piece)
    return frozenset(n for first, _, last in pieces for n in range(int(first), int(last or first) + 1))


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class _StoredIntent(_Stored):
    epoch: int
    kind: BarrierKind
    written: str
    visible: str
    ranges: tuple[tuple[int, ...], ...]
    plan_generation: int
    own_slice: bool = False


class _StoredAcknowledgement(_Stored):
    request: int
    epoch: int
    refused: str


class _StoredFailure(_Stored):
    epoch: int
    message: str
    detail: str
    hint: str


class _StoredJob(_Stored):
    version: int
    job: str
    vnode_count: int
    revision: int
    epoch: int
    written: str
    visible: tuple[tuple[int, str], ...]
    assignment: tuple[str, ...]
    intent: _StoredIntent | None
    missing: tuple[tuple[str, str], ...]
    changed: str | None
    plan_generation: int
    assignment_generation: int
    paused: bool
    rows_per_second: int | None
    acknowledged: tuple[_StoredAcknowledgement, ...]
    failure: _StoredFailure | None
    stopped: bool
    plans: tuple[tuple[int, str], ...]
    requests: str
    percent: float
    definitions: str | None = None
    accepted: str = ""
    asked_of: str = ""


def _document(state: BackfillState, books: Bookkeeping) -> str:
    return _StoredJob(
        version=FORMAT_VERSION,
        job=books.job,
        vnode_count=len(state.vnodes),
        revision=state.revision,
        epoch=state.epoch,
        written=state.written.to_json(),
        visible=tuple((epoch, visible.position.to_json()) for epoch, visible in state.visible),
        assignment=tuple(map(str, state.assignment)),
        intent=None if state.intent is None else _stored_intent(state.intent),
        missing=tuple((transaction.gtid, transaction.start.to_json()) for transaction in state.missing),
        changed=None if state.changed is None else state.changed.to_json(),
        plan_generation=state.plan_generation,
        assignment_generation=state.assignment_generation,
        paused=state.controls.paused,
        rows_per_second=state.controls.rows_per_second,
        acknowledged=tuple(
            _StoredAcknowledgement(request=a.request, epoch=a.epoch, refused=_plain(a.refused))
            for a in state.acknowledged
        ),
        failure=None if state.failure is None else _stored_failure(state.failure),
        stopped=state.stopped,
        plans=books.plans,
        requests=numbers_to_text(books.requests),
        percent=books.percent,
        definitions=schema_to_text(state.schema),
        accepted=state.controls.accepted,
        asked_of=books.asked_of,
    ).model_dump_json(exclude_defaults=True)


def _stored_intent(intent: Intent) -> _StoredIntent:
    return _StoredIntent(
        epoch=intent.epoch,
        kind=intent.kind,
        written=intent.written.to_json(),
        visible=visibility_to_json(intent.visible),
        ranges=intent.ranges,
        plan_generation=intent.plan_generation,
        own_slice=intent.own_slice,
    )


def _stored_failure(failure: Failure) -> _StoredFailure:
    return _StoredFailure(
        epoch=failure.epoch,
        message=_plain(failure.message),
        detail=_plain(failure.detail),
        hint=_plain(failure.hint),
    )


def _plain(text: str) -> str:
    """What a server said may hold bytes that are not text; a reason that cannot be stored would hide itself."""
    return text.encode("utf-8", "replace").decode()


def _state(stored: _StoredJob, vnodes: tuple[VnodeState, ...]) -> BackfillState:
    return BackfillState(
        revision=stored.revision,
        epoch=Epoch(stored.epoch),
        written=CdcOffset.from_json(stored.written),
        visible=tuple((Epoch(epoch), VisibleAt(CdcOffset.from_json(text))) for epoch, text in stored.visible),
        vnodes=vnodes,
        assignment=tuple(VnodeBitmap.parse(text, stored.vnode_count) for text in stored.assignment),
        intent=None if stored.intent is None else _intent(stored.intent),
        missing=tuple(LoggedTransaction(gtid, CdcOffset.from_json(start)) for gtid, start in stored.missing),
        changed=None if stored.changed is None else CdcOffset.from_json(stored.changed),
        plan_generation=stored.plan_generation,
        assignment_generation=stored.assignment_generation,
        controls=Controls(stored.paused, bounded_rate(stored.rows_per_second), stored.accepted),
        acknowledged=tuple(Acknowledgement(a.request, Epoch(a.epoch), a.refused) for a in stored.acknowledged),
        failure=None if stored.failure is None else _failure(stored.failure),
        stopped=stored.stopped,
        schema=schema_from_text(stored.definitions),
    )


def _intent(stored: _StoredIntent) -> Intent:
    return Intent(
        Epoch(stored.epoch),
        stored.kind,
        CdcOffset.from_json(stored.written),
        visibility_from_json(stored.visible),
        stored.ranges,
        stored.plan_generation,
        stored.own_slice,
    )


def _failure(stored: _StoredFailure) -> Failure:
    return Failure(Epoch(stored.epoch), stored.message, stored.detail, stored.hint)


def _vnode_rows(state: BackfillState) -> pa.Table:
    vnodes = state.vnodes
    text = _offset_texts()
    workers = {vnode: worker for worker, bitmap in enumerate(state.assignment) for vnode in bitmap}
    columns = {
        "row": [VNODE] * len(vnodes),
        "vnode": [v.vnode for v in vnodes],
        "worker": [workers.get(v.vnode) for v in vnodes],
        "phase": [v.phase.value for v in vnodes],
        "epoch": [v.epoch for v in vnodes],
        "rows": [v.rows for v in vnodes],
        "complete": [v.complete for v in vnodes],
        "applied": [text(v.applied) for v in vnodes],
        "reads": _run_lists([v.reads for v in vnodes]),
        "replaces": [sorted(v.replaces) for v in vnodes],
        "floor": [None if v.floor is None else text(v.floor) for v in vnodes],
        "document": [None] * len(vnodes),
    }
    return pa.table(columns, schema=CHECKPOINT_SCHEMA)


def _offset_texts() -> Callable[[CdcOffset], str]:
    """Most vnodes are at the same few offsets, whose text (with a long GTID set perhaps) need not be made again."""
    known: dict[tuple[CdcOffset, str], str] = {}

    def text(offset: CdcOffset) -> str:
        # GTIDs take no part in an offset's equality.
        key = (offset, offset.gtids)
        if key not in known:
            known[key] = offset.to_json()
        return known[key]

    return text


def _run_lists(reads: Sequence[tuple[tuple[int, Epoch], ...]]) -> pa.Array:
    """(epoch, first, last) of each run of consecutive ordinals of one epoch, in the order given, for each vnode.

    There may be a million reads, so nothing here looks at them one by one.
    """
    counts = np.fromiter(map(len, reads), np.int64, len(reads))
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    flat = np.fromiter(chain.from_iterable(chain.from_iterable(reads)), np.int64, 2 * int(starts[-1]))
    ordinals, epochs = flat[::2], flat[1::2]
    begins = np.ones(len(ordinals) + 1, np.bool_)
    begins[1:-1] = (ordinals[1:] != ordinals[:-1] + 1) | (epochs[1:] != epochs[:-1])
    begins[starts] = True
    at = np.flatnonzero(begins)
    first, last = at[:-1], at[1:] - 1
    fields = [pa.array(values, pa.int64()) for values in (epochs[first], ordinals[first], ordinals[last])]
    values = pa.StructArray.from_arrays(fields, fields=list(_RUN))
    return pa.ListArray.from_arrays(pa.array(np.searchsorted(at, starts), pa.int32()), values)


def _runs(pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(epoch, first, last) of each run of consecutive ordinals of one epoch, in the order given."""
    first = last = epoch = -1
    started = False
    for ordinal, read_in in pairs:
        if started and ordinal == last + 1 and read_in == epoch:
            last = ordinal
            continue
        if started:
            yield epoch, first, last
        first, last, epoch, started = ordinal, ordinal, read_in, True
    if started:
        yield epoch, first, last


_PHASES = {phase.value: phase for phase in Phase}
_NONE: frozenset[int] = frozenset()


def _read_vnodes(rows: pa.Table) -> Iterator[VnodeState]:
    rows = rows_where(rows, (kind == VNODE for kind in rows["row"].to_pylist()))
    vnodes = rows["vnode"].to_pylist()
    rows = (rows if vnodes == sorted(vnodes) else rows.sort_by("vnode")).combine_chunks()
    if not rows.num_rows:
        return
    offsets: dict[str, CdcOffset] = {}

    def offset(text: str) -> CdcOffset:
        if text not in offsets:
            offsets[text] = CdcOffset.from_json(text)
        return offsets[text]

    names = ("vnode", "phase", "applied", "epoch", "rows", "complete", "replaces", "floor")
    reads = _reads_of(rows["reads"].chunk(0))
    for vnode, phase, applied, epoch, count, complete, replaces, floor in zip(
        *(rows[name].to_pylist() for name in names), strict=True
    ):
        yield VnodeState(
            vnode=VnodeId(vnode),
            phase=_PHASES[phase],
            applied=offset(applied),
            epoch=Epoch(epoch),
            reads=next(reads),
            rows=count,
            complete=None if complete is None else Epoch(complete),
            replaces=frozenset(replaces) if replaces else _NONE,
            floor=None if floor is None else offset(floor),
        )


def _reads_of(runs: pa.ListArray) -> Iterator[tuple[tuple[int, Epoch], ...]]:
    epochs, firsts, lasts = (runs.values.field(place).to_pylist() for place in range(3))
    for start, end in pairwise(runs.offsets.to_pylist()):
        if start == end:
            yield ()
            continue
        yield tuple(
            (ordinal, Epoch(epochs[at])) for at in range(start, end) for ordinal in range(firsts[at], lasts[at] + 1)
        )
