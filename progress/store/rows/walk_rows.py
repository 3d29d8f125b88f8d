"""State schema v1: everything a job of the single executor knows, as one row of one Delta table.

    version  job  last_key         offset  row_count  finished  record  document  lease
    1        4f…  [["int","71"]]   {…}     71000      false     {…}     {…}       {…}

`last_key` is the cursor, as the values by which the server compares it. `offset` is the written offset: the buffer
holds every change up to it. `row_count` and `finished` say how far the walk is. `record` is what the job is, `document`
everything else of the epoch protocol, `lease` who drives the job; before a job exists there is only the lease.

The form is fixed: it does not change with the schema of the parallel executor, so that every release reads it, to
continue it or to migrate it. Only the version differs where the target has deletion vectors, which earlier releases
would lose. `to_row` and `from_row` are each other's inverse; another version, or what cannot be read
exactly, is a `StateError`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

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
from progress.state.walk_state import WHOLE_KEY, Walk
from progress.store.lease import Lease
from progress.store.rows.checkpoint_rows import Bookkeeping, numbers_from_text, numbers_to_text
from progress.store.rows.job_rows import COPIED_VERSION, PLAIN_VERSIONS, VECTORS_VERSION, JobRecord
from progress.store.rows.schema_rows import schema_from_text, schema_to_text
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.errors import LawBrokenError, StateError
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import key_from_text, key_to_text

VERSION = PLAIN_VERSIONS["single"]
PLANS = ((0, "walk"),)
"""What the bookkeeping names as the plan: a walk has none that could be stored."""
WALK_SCHEMA = pa.schema(
    [
        pa.field("version", pa.int32(), nullable=False),
        ("job", pa.string()),
        ("last_key", pa.string()),
        ("offset", pa.string()),
        ("row_count", pa.int64()),
        ("finished", pa.bool_()),
        ("record", pa.string()),
        ("document", pa.string()),
        ("lease", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class StoredWalk:
    """A job of the single executor at one commit."""

    record: JobRecord
    state: BackfillState
    books: Bookkeeping
    walk: Walk


def to_row(stored: StoredWalk | None, lease: Lease) -> pa.Table:
    """The one row; only the lease where there is no job."""
    row: dict[str, object] = {"version": VERSION, "lease": lease.to_json()}
    if stored is not None:
        # Earlier releases look at the row's version only.
        row["version"] = stored.record.format_version if stored.record.has_vectors else VERSION
        walk, state = stored.walk, stored.state
        row |= {
            "job": stored.record.id,
            "last_key": None if walk.last_key is None else key_to_text(walk.last_key),
            "offset": state.written.to_json(),
            "row_count": walk.rows,
            "finished": state.vnodes[0].complete is not None,
            "record": record_to_json(stored.record),
            "document": _document(stored).model_dump_json(exclude_defaults=True),
        }
    return pa.Table.from_pylist([row], schema=WALK_SCHEMA)


def from_row(rows: pa.Table) -> tuple[StoredWalk | None, Lease | None]:
    """The job, if there is one, and the lease, if there is one."""
    if not rows.num_rows:
        return None, None
    if rows.num_rows != 1:
        raise StateError(f"the state of a single executor's job has {rows.num_rows} rows instead of one")
    (row,) = rows.to_pylist()
    if row["version"] not in (VERSION, VECTORS_VERSION, COPIED_VERSION):
        raise StateError(
            f"the single executor's state has version {row['version']!r}, "
            f"this program reads versions {VERSION}, {VECTORS_VERSION} and {COPIED_VERSION}",
            hint="Use the release that wrote it, or delete the job's folder under state.path and create the job again.",
        )
    try:
        stored = None if row["document"] is None else _stored(row)
        return stored, None if row["lease"] is None else Lease.from_json(row["lease"])
    except (ValidationError, ValueError, TypeError, KeyError) as error:
        raise StateError("the single executor's state cannot be read", detail=str(error)[:1000]) from error


def record_to_json(record: JobRecord) -> str:
    stored = {**asdict(record), "definition": record.definition.to_json(), "created_at": record.created_at.isoformat()}
    # A walk is a job of one table, which has none. Earlier releases know every key.
    del stored["parents"]
    return json.dumps(stored)


def record_from_json(text: str) -> JobRecord:
    stored = json.loads(text)
    created = datetime.fromisoformat(stored["created_at"]).astimezone(UTC)
    return JobRecord(**{**stored, "definition": TableDefinition.from_json(stored["definition"]), "created_at": created})


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class _StoredIntent(_Stored):
    epoch: int
    kind: BarrierKind
    written: str
    visible: str
    reads: bool


class _StoredFailure(_Stored):
    epoch: int
    message: str
    detail: str
    hint: str


class _StoredDocument(_Stored):
    revision: int
    epoch: int
    walk_epoch: int
    estimated_rows: int
    phase: Phase
    vnode_epoch: int
    read_epoch: int | None
    finished_in: int | None
    applied: str
    visible: tuple[tuple[int, str], ...]
    missing: tuple[tuple[str, str], ...]
    changed: str | None
    intent: _StoredIntent | None
    assignment_generation: int
    paused: bool
    rows_per_second: int | None
    acknowledged: tuple[tuple[int, int, str], ...]
    failure: _StoredFailure | None
    stopped: bool
    requests: str
    percent: float
    accepted: str = ""
    """Written only where it is set: releases before it know every key. The same holds for the next two."""
    definitions: str | None = None
    """Of a job that has begun a new copy, which those releases refuse by its version."""
    asked_of: str = ""


def _document(stored: StoredWalk) -> _StoredDocument:
    state, books = stored.state, stored.books
    (vnode,) = state.vnodes
    if vnode.replaces or vnode.floor is not None or state.plan_generation:
        raise LawBrokenError(f"a walk has nothing to read again, but its state is {vnode}")
    return _StoredDocument(
        revision=state.revision,
        epoch=state.epoch,
        walk_epoch=stored.walk.epoch,
        estimated_rows=stored.walk.estimated_rows,
        phase=vnode.phase,
        vnode_epoch=vnode.epoch,
        read_epoch=dict(vnode.reads).get(WHOLE_KEY),
        finished_in=vnode.complete,
        applied=vnode.applied.to_json(),
        visible=tuple((epoch, visible.position.to_json()) for epoch, visible in state.visible),
        missing=tuple((transaction.gtid, transaction.start.to_json()) for transaction in state.missing),
        changed=None if state.changed is None else state.changed.to_json(),
        intent=None if state.intent is None else _stored_intent(state.intent),
        assignment_generation=state.assignment_generation,
        paused=state.controls.paused,
        rows_per_second=state.controls.rows_per_second,
        acknowledged=tuple((a.request, a.epoch, _plain(a.refused)) for a in state.acknowledged),
        failure=None if state.failure is None else _stored_failure(state.failure),
        stopped=state.stopped,
        requests=numbers_to_text(books.requests),
        percent=books.percent,
        accepted=state.controls.accepted,
        definitions=schema_to_text(state.schema) if stored.record.format_version == COPIED_VERSION else None,
        asked_of=books.asked_of,
    )


def _stored_intent(intent: Intent) -> _StoredIntent:
    if intent.own_slice:
        raise LawBrokenError(f"the form of a walk has no place for an epoch that merges its own slice: {intent}")
    return _StoredIntent(
        epoch=intent.epoch,
        kind=intent.kind,
        written=intent.written.to_json(),
        visible=visibility_to_json(intent.visible),
        reads=WHOLE_KEY in intent.ordinals,
    )


def _stored_failure(failure: Failure) -> _StoredFailure:
    return _StoredFailure(
        epoch=failure.epoch, message=_plain(failure.message), detail=_plain(failure.detail), hint=_plain(failure.hint)
    )


def _plain(text: str) -> str:
    """What a server said may hold bytes that are not text; a reason that cannot be stored would hide itself."""
    return text.encode("utf-8", "replace").decode()


def _stored(row: dict[str, str | int | None]) -> StoredWalk:
    document = _StoredDocument.model_validate_json(str(row["document"]))
    record = record_from_json(str(row["record"]))
    rows = int(row["row_count"] or 0)
    last_key = None if row["last_key"] is None else key_from_text(str(row["last_key"]))
    if bool(row["finished"]) != (document.finished_in is not None) or row["job"] != record.id:
        raise StateError(f"the state of job {record.name!r} contradicts itself", detail=str(row)[:1000])
    state = _state(document, CdcOffset.from_json(str(row["offset"])), rows)
    walk = Walk(Epoch(document.walk_epoch), last_key, rows, document.estimated_rows)
    answered = numbers_from_text(document.requests)
    books = Bookkeeping(record.id, PLANS, answered, document.percent, document.asked_of)
    return StoredWalk(record, state, books, walk)


def _state(stored: _StoredDocument, written: CdcOffset, rows: int) -> BackfillState:
    return BackfillState(
        revision=stored.revision,
        epoch=Epoch(stored.epoch),
        written=written,
        visible=tuple((Epoch(epoch), VisibleAt(CdcOffset.from_json(text))) for epoch, text in stored.visible),
        vnodes=(_vnode(stored, rows),),
        assignment=split_evenly(1, 1),
        intent=None if stored.intent is None else _intent(stored.intent),
        missing=tuple(LoggedTransaction(gtid, CdcOffset.from_json(start)) for gtid, start in stored.missing),
        changed=None if stored.changed is None else CdcOffset.from_json(stored.changed),
        assignment_generation=stored.assignment_generation,
        controls=Controls(stored.paused, bounded_rate(stored.rows_per_second), stored.accepted),
        acknowledged=tuple(Acknowledgement(number, Epoch(epoch), why) for number, epoch, why in stored.acknowledged),
        failure=None if stored.failure is None else _failure(stored.failure),
        stopped=stored.stopped,
        schema=schema_from_text(stored.definitions),
    )


def _vnode(stored: _StoredDocument, rows: int) -> VnodeState:
    """The protocol counts the rows of a range once it is read to its end."""
    return VnodeState(
        vnode=VnodeId(0),
        phase=stored.phase,
        applied=CdcOffset.from_json(stored.applied),
        epoch=Epoch(stored.vnode_epoch),
        reads=() if stored.read_epoch is None else ((WHOLE_KEY, Epoch(stored.read_epoch)),),
        rows=0 if stored.finished_in is None else rows,
        complete=None if stored.finished_in is None else Epoch(stored.finished_in),
    )


def _intent(stored: _StoredIntent) -> Intent:
    return Intent(
        Epoch(stored.epoch),
        stored.kind,
        CdcOffset.from_json(stored.written),
        visibility_from_json(stored.visible),
        ((WHOLE_KEY,) if stored.reads else (),),
        0,
    )


def _failure(stored: _StoredFailure) -> Failure:
    return Failure(Epoch(stored.epoch), stored.message, stored.detail, stored.hint)
