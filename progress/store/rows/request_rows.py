"""Turns an operator's request into a row for the driver to find, with who asked, and back.

The `requests` table holds one row per request, oldest first. A writer writes the whole table again with one more row,
so that it stays one small file, and only on top of the version just read: two who ask at once get two numbers, never
the same. A request is numbered per job, from 1. The driver acknowledges it in a checkpoint; the row stays, for those
who look.

What was asked of all tables of a job of many holds for tables that join it later. So the write that asks them all has
one more row, under `EVERY` in place of a job's id. Of these rows only the last one of each matter is kept: the rate
limit, the pause, the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from progress.state.backfill_state import Request, RequestKind, bounded_rate
from progress.state.report import AskedRequest
from progress.store.state_table import as_schema, rows_where
from vnode_backfill.words.bitmap import VnodeBitmap
from vnode_backfill.words.errors import StateError
from vnode_backfill.words.key import VnodeId

REQUEST_SCHEMA = pa.schema(
    [
        pa.field("job", pa.string(), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("document", pa.string(), nullable=False),
        ("who", pa.string()),
        ("host", pa.string()),
        ("asked_at", pa.timestamp("us", tz="UTC")),
    ]
)
EVERY = "*"
"""No id of a job. Releases that do not know it leave its rows as they are."""
_MATTERS = {
    RequestKind.RATE_LIMIT: "rate limit",
    RequestKind.PAUSE: "pause",
    RequestKind.RESUME: "pause",
    RequestKind.RESCALE: "workers",
}
_ROWS_KEPT = 1000
"""A forgotten request has long been acted on: nobody asks a thousand things within an epoch."""
_ROWS_KEPT_OF_MANY = 50
"""Of each table that is asked together with others: a thousand of them still fit a small file."""


def holds(request: Request) -> bool:
    """Whether it holds until it is asked otherwise. What is done once, as a stop, does not."""
    return request.kind in _MATTERS and not request.accept


def with_requests(rows: pa.Table, asked: Mapping[str, AskedRequest]) -> tuple[pa.Table, dict[str, int]]:
    """The table's rows with one more per job, and the numbers they got; those they came with do not count.

    The tables of a job of many are asked together, in one write. The more there are, the fewer rows each one keeps.
    """
    kept = [as_schema(rows_where(rows, (job not in asked for job in rows["job"].to_pylist())), REQUEST_SCHEMA)]
    most = _ROWS_KEPT if len(asked.keys() - {EVERY}) == 1 else _ROWS_KEPT_OF_MANY
    numbers: dict[str, int] = {}
    for job, new in asked.items():
        own = read_requests(rows, job)
        numbers[job] = max((each.request.id for each in own), default=0) + 1
        numbered = replace(new, request=replace(new.request, id=numbers[job]))
        kept.append(_to_rows(job, _last_of_each([*own, numbered]) if job == EVERY else [*own, numbered][-most:]))
    return pa.concat_tables(kept), numbers


def _last_of_each(asked: Sequence[AskedRequest]) -> list[AskedRequest]:
    """The last request of each matter, oldest first."""
    last = {_MATTERS[each.request.kind]: each for each in asked}
    return sorted(last.values(), key=lambda each: each.request.id)


def read_requests(rows: pa.Table, job: str) -> tuple[AskedRequest, ...]:
    """The requests of one job, oldest first; rows of a job of the same name that was dropped are not its own."""
    own = rows_where(rows, (each == job for each in rows["job"].to_pylist()))
    found = [_from_row(row["id"], row["document"], row) for row in own.to_pylist()]
    return tuple(sorted(found, key=lambda each: each.request.id))


class _StoredRequest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: RequestKind
    workers: int
    bitmaps: tuple[str, ...]
    vnode_count: int
    rows_per_second: int | None
    vnodes: tuple[int, ...]
    ordinals: tuple[int, ...]
    extend: bool
    accept: str = ""
    """Written only where it is set: releases before it know every key."""


def _to_rows(job: str, asked: Iterable[AskedRequest]) -> pa.Table:
    rows = [
        {
            "job": job,
            "id": each.request.id,
            "kind": each.request.kind.value,
            "document": _document(each.request),
            "who": each.who,
            "host": each.host,
            "asked_at": each.asked_at,
        }
        for each in asked
    ]
    return pa.Table.from_pylist(rows, schema=REQUEST_SCHEMA)


def _document(request: Request) -> str:
    return _StoredRequest(
        kind=request.kind,
        workers=request.workers,
        bitmaps=tuple(map(str, request.assignment)),
        vnode_count=request.assignment[0].vnode_count if request.assignment else 0,
        rows_per_second=request.rows_per_second,
        vnodes=tuple(sorted(request.vnodes)),
        ordinals=tuple(sorted(request.ordinals)),
        extend=request.extend,
        accept=request.accept,
    ).model_dump_json(exclude_defaults=True)


def _from_row(number: int, document: str, row: dict[str, object]) -> AskedRequest:
    try:
        stored = _StoredRequest.model_validate_json(document)
    except ValidationError as error:
        raise StateError(f"stored request {number} cannot be read", detail=str(error)) from error
    request = Request(
        id=number,
        kind=stored.kind,
        workers=stored.workers,
        assignment=tuple(VnodeBitmap.parse(text, stored.vnode_count) for text in stored.bitmaps),
        rows_per_second=bounded_rate(stored.rows_per_second),
        vnodes=frozenset(map(VnodeId, stored.vnodes)),
        ordinals=frozenset(stored.ordinals),
        extend=stored.extend,
        accept=stored.accept,
    )
    asked_at = row["asked_at"]
    assert isinstance(asked_at, datetime)
    return AskedRequest(request, str(row["who"]), str(row["host"]), asked_at)
