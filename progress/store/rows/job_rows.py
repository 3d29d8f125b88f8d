"""Turns what a job is and how its table is split into rows of the `jobs` and `plan` tables, and back.

A job's record is written once; only its version changes later, with the target (`JobRecord.fit_for`). A plan is written
generation by generation; every write has its own name, and the checkpoint says which write of each generation counts.
So a driver that died half-way, or one that was overtaken while it planned, leaves rows that nobody reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice, starmap
from operator import attrgetter
from uuid import uuid4

import pyarrow as pa

from consume_upstream.log.cascade import CascadingParent
from progress.state.estimates import Estimates
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import StateError
from vnode_backfill.words.key_range import PlanRow, SplitPlan, from_rows, rows_of_generation
from vnode_backfill.words.whole_plan import WholePlan, is_whole_row, whole_plan, whole_row

JOB_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("created_at", pa.timestamp("us", tz="UTC")),
        ("format_version", pa.int32()),
        ("executor", pa.string()),
        ("vnode_count", pa.int32()),
        ("server", pa.string()),
        ("database", pa.string()),
        ("table", pa.string()),
        ("definition", pa.string()),
        ("sink", pa.string()),
    ]
)
PLAN_SCHEMA = pa.schema(
    [
        pa.field("write", pa.string(), nullable=False),
        ("ordinal", pa.int64()),
        ("generation", pa.int32()),
        ("vnode", pa.int32()),
        ("estimated_rows", pa.int64()),
        ("low_key", pa.string()),
        ("low_order", pa.binary()),
        ("high_key", pa.string()),
        ("high_order", pa.binary()),
        ("closed", pa.bool_()),
    ]
)
_RANGE = PLAN_SCHEMA.remove(0)
"""The columns of a range, in the order of `PlanRow`."""
_BATCH = 50_000
"""Ranges that are in memory as rows at the same time, of a plan that may have a million."""
ESTIMATE_COLUMNS = ("write", "ordinal", "vnode", "estimated_rows")
PLAIN_VERSIONS = {"parallel": 2, "single": 1}
"""The version of a record by executor, where the target has no deletion vectors."""
VECTORS_VERSION = 3
"""Of a job whose target has deletion vectors: releases that do not know them would lose them, so they must refuse
it."""
COPIED_VERSION = 4
"""Of a job that has begun a new copy of its table. Earlier releases would write to the target instead of the copy.

It stays: who has followed a table through such a change has no reason to go back.
"""
PARENTS_VERSION = 5
"""Of a table whose rows are changed outside the log by foreign keys. Earlier releases would not look at its parents.

Whatever is true of a job that has begun a new copy is true of it.
"""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What a job is, fixed when it is created.

    `id` is unique per creation: a job created again under its name is another. `format_version` says which releases may
    touch the job.
    """

    name: str
    id: str
    created_at: datetime
    executor: str
    vnode_count: int
    server: str
    database: str
    table: str
    definition: TableDefinition
    sink: str
    format_version: int = PLAIN_VERSIONS["parallel"]
    parents: tuple[CascadingParent, ...] = ()
    """The tables whose changes have changed rows of this one outside the log since its copy began."""

    @classmethod
    def new(
        cls, name: str, definition: TableDefinition, *, vnode_count: int, server: str, sink: str, now: datetime
    ) -> JobRecord:
        """A record for a job of the parallel executor that is about to be created."""
        return cls(
            name=name,
            id=uuid4().hex,
            created_at=now,
            executor="parallel",
            vnode_count=vnode_count,
            server=server,
            database=definition.database,
            table=definition.table,
            definition=definition,
            sink=sink,
        )

    def with_parents(self, parents: tuple[CascadingParent, ...]) -> JobRecord:
        """The record of a copy that has these parents from its first offset on."""
        version = PARENTS_VERSION if parents else self.format_version
        return replace(self, parents=parents, format_version=version)

    @property
    def has_vectors(self) -> bool:
        """Whether only releases that know deletion vectors may touch the job."""
        return self.format_version >= VECTORS_VERSION

    def fit_for(self, *, vectors: bool) -> JobRecord:
        """The record of the same job with a target of the other kind."""
        if self.format_version >= COPIED_VERSION:
            return self
        return replace(self, format_version=VECTORS_VERSION if vectors else PLAIN_VERSIONS[self.executor])


def record_row(record: JobRecord) -> pa.Table:
    definition = record.definition.to_json()
    if record.parents:
        definition["parents"] = [parent.to_json() for parent in record.parents]
    row = {name: getattr(record, name) for name in JOB_SCHEMA.names} | {"definition": json.dumps(definition)}
    return pa.Table.from_pylist([row], schema=JOB_SCHEMA)


def read_record(rows: pa.Table, job: str) -> JobRecord | None:
    """The record of the job with this id, or None; refused where its format is not known."""
    found = [row for row in rows.to_pylist() if row["id"] == job]
    if not found:
        return None
    row = found[0]
    _refuse_unknown(row["format_version"])
    try:
        stored = json.loads(row["definition"])
        definition = TableDefinition.from_json(stored)
        parents = tuple(CascadingParent.from_json(each) for each in stored.get("parents", ()))
    except (ValueError, TypeError, KeyError) as error:
        raise StateError(f"the table definition of job {row['name']!r} cannot be read", detail=str(error)) from error
    known = {"definition": definition, "parents": parents, "created_at": row["created_at"].astimezone(UTC)}
    return JobRecord(**{**row, **known})


def _refuse_unknown(version: object) -> None:
    first, last = PLAIN_VERSIONS["parallel"], PARENTS_VERSION
    if version not in range(first, last + 1):
        raise StateError(
            f"the job's record has format version {version!r}, this program reads versions {first} to {last}",
            hint="Use the release that wrote it; this one might damage the job's target.",
        )


def plan_rows(plan: SplitPlan, generation: int, write: str) -> pa.Table:
    """The ranges of one generation, under the name of this write."""
    whole = (row for row in (whole_row(plan),) if row.generation == generation) if isinstance(plan, WholePlan) else None
    found = whole or rows_of_generation(plan, generation)
    batches = []
    while rows := list(islice(found, _BATCH)):
        columns = (pa.array(map(attrgetter(field.name), rows), field.type) for field in _RANGE)
        batches.append(pa.record_batch([pa.array([write] * len(rows)), *columns], schema=PLAN_SCHEMA))
    return pa.Table.from_batches(batches, PLAN_SCHEMA)


def plan_from_rows(record: JobRecord, rows: pa.Table) -> SplitPlan:
    """The plan that the given rows, of any number of generations, make up."""
    if rows.num_rows == 1 and is_whole_row(only := next(_ranges(rows))):
        return whole_plan(record.definition.key, record.vnode_count, only.estimated_rows)
    return from_rows(record.definition.key_parts, record.vnode_count, _ranges(rows))


def _ranges(rows: pa.Table) -> Iterator[PlanRow]:
    for batch in rows.select(_RANGE.names).to_batches(max_chunksize=_BATCH):
        yield from starmap(PlanRow, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def estimates_from_rows(rows: pa.Table) -> Estimates:
    columns = (rows[name].to_pylist() for name in ("ordinal", "vnode", "estimated_rows"))
    return Estimates.of_ranges(zip(*columns, strict=True))
