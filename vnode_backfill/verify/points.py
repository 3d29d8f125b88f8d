"""Compares an IoTDB target with the source: does it hold exactly the points of the source's rows?

Every row of the source is read once, in key order, by queries of bounded size over one connection, and compared as
points (`sinks.iotdb.compare`). Then every slot of the target is read, to find those that no row of the source has. Rows
that cannot become points are among the dead letters if those are configured. Without dead letters they are differences,
because the job would have stopped at them. Under `duplicates: last` a row whose device and time another key of the
source holds counts as sharing them, and is not a difference. What verifies as missing there is a row that lost its slot
to a key which has left it since: the job does not bring it back.

What breaks it: a source that is written to meanwhile, as for every target; `source_moved` is true then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from consume_upstream.upstream_table import UpstreamTable
from vnode_backfill.config.iotdb import Duplicates
from vnode_backfill.sinks.iotdb.compare import (
    Cell,
    PointComparison,
    PointDifference,
    PointDifferenceKind,
    compare_points,
)
from vnode_backfill.sinks.iotdb.server.store import WriterSettings
from vnode_backfill.verify.pace import NO_LIMITS, SourcePace
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import SchemaChangedError
from vnode_backfill.words.key import keys_of
from vnode_backfill.words.key_range import KeyRange

_ROWS_PER_QUERY = 100_000


@dataclass(frozen=True, slots=True)
class PointVerification:
    """What was found; `rejected_allowed` says that dead letters take what cannot become points."""

    found: PointComparison
    rejected_allowed: bool
    source_moved: bool
    seconds: float

    @property
    def equal(self) -> bool:
        return self.found.equal and (self.rejected_allowed or not self.found.rejected)

    @property
    def total(self) -> int:
        found = self.found
        return found.missing + found.extra + found.different + (0 if self.rejected_allowed else found.rejected)


def verify_points(
    table: UpstreamTable,
    definition: TableDefinition,
    settings: WriterSettings,
    *,
    limit: int = 100,
    duplicates: Duplicates = Duplicates.ERROR,
    pace: SourcePace = NO_LIMITS,
) -> PointVerification:
    """Compare every row of the source with the target; changes neither. `definition` is the one stored with the job."""
    started = time.monotonic()
    if table.definition != definition:
        raise SchemaChangedError(
            f"the target has not followed every statement on {definition.database}.{definition.table} yet",
            hint="Let the job follow (`vnode-backfill status` shows what is pending), then verify again.",
        )
    before = table.written_offset()
    found = compare_points(settings, _rows(table, pace), limit=limit, duplicates=duplicates)
    moved = table.written_offset() != before
    return PointVerification(found, settings.dead_letters, moved, time.monotonic() - started)


def to_json(verification: PointVerification) -> str:
    """One object; the names that a Delta target has too mean the same, `rows_target` counts devices' times.

    version, equal, source_moved, rows_source, rows_target, rejected, shared, total, missing, extra, different, seconds,
    differences [{kind, device, time, measurement, source, target}]
    """
    found = verification.found
    told = {
        "version": 1, "equal": verification.equal, "source_moved": verification.source_moved, "rows_source": found.rows,
        "rows_target": found.points, "rejected": found.rejected, "shared": found.shared, "total": verification.total,
        "missing": found.missing,
        "extra": found.extra, "different": found.different, "seconds": round(verification.seconds, 3),
    }  # fmt: skip
    shown = [
        {"kind": each.kind, "device": each.device, "time": each.time, "measurement": each.measurement or None,
         "source": _plain(each.source), "target": _plain(each.target)}
        for each in found.differences
    ]  # fmt: skip
    return json.dumps({**told, "differences": shown})


def render(verification: PointVerification) -> str:
    """The result for a person: a line per difference, and a last line with the verdict."""
    found = verification.found
    lines = [_line(each) for each in found.differences]
    if verification.source_moved:
        lines.append("the source was written to meanwhile: a difference may be a change under way")
    if found.rejected:
        where = "they are among the dead letters" if verification.rejected_allowed else "the job stops at them"
        lines.append(f"{found.rejected:,} rows cannot become points; {where}")
    if found.shared:
        lines.append(f"{found.shared:,} keys share a device and time with another key, which holds it")
    counted = f"{found.rows:,} rows of the source, {found.points:,} devices' times in the target"
    if verification.equal:
        return "\n".join([*lines, f"verified: {counted}, 0 differences"])
    counts = f"{found.missing:,} missing, {found.extra:,} extra, {found.different:,} different"
    cut = f" (first {len(found.differences):,} shown)" if len(found.differences) < verification.total else ""
    return "\n".join([*lines, f"compared: {counted}; {counts}", f"{verification.total:,} differences{cut}"])


def _rows(table: UpstreamTable, pace: SourcePace) -> Iterator[pa.RecordBatch]:
    """All rows in key order; no read view stays open while points are compared."""
    definition, after = table.definition, None
    most = min(_ROWS_PER_QUERY, pace.most_rows)
    with table.session() as session:
        while True:
            pace.pay(most)
            batches = [
                batch for batch in session.read_range(KeyRange(None, None), after=after, limit=most) if batch.num_rows
            ]
            yield from batches
            if sum(batch.num_rows for batch in batches) < most:
                return
            last = batches[-1].slice(batches[-1].num_rows - 1)
            (after,) = keys_of(definition.key_parts, [last.column(name) for name in definition.key])


def _line(each: PointDifference) -> str:
    slot = f"{each.device} at {each.time}"
    if each.kind is not PointDifferenceKind.DIFFERENT:
        return f"{each.kind:<10} {slot}"
    return f"different  {slot}: {each.measurement}: source {_shown(each.source)}, target {_shown(each.target)}"


def _shown(value: Cell) -> str:
    text = repr(value) if isinstance(value, str) else _plain(value) or "no point"
    return text if len(text) <= 80 else f"{text[:80]}… ({len(text):,} characters)"


def _plain(value: Cell) -> str | None:
    if value is None:
        return None
    return "0x" + value.hex() if isinstance(value, bytes) else str(value)
