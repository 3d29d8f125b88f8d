"""Compares every row of the source with the target, also while the source is written to and the job runs.

Every row of both sides belongs to one group (see `tasks`): the planned ranges and the stretches before, between and
after them tile the whole key (`stretches_of`). Each side reports how many rows each group has and the sum of their
digests over all columns. Where both agree the rows are equal, and none has travelled. A group that disagrees is
narrowed down: cut into buckets where it is large, then by the keys and digests of its rows. Only rows that are reported
are fetched.

    source          target             result
    1  'a'          1  'a'             equal
    2  'b'          2  ''              different, column name
    3  'c'                             missing
                    4  'd'             extra
    5  'e'          5  'e', 5  'e'     extra: a key the target holds twice

Why it is right while both sides move. Let A be the offset that the job's state says is applied, read *before* the
target's version is fixed. Let S be an offset of which everything at or below is visible, taken *before* the first row
is read. Let W be the end of the log *after* the last row was read. The version holds every change up to A and none
beyond W. Every read of the source shows every change up to S and none beyond W. So a key that the log names in no
change of (min(A, S), W] had one and the same row in all of these reads, and in the version if the version is right: a
difference of such a key is a difference, whatever was written elsewhere. It is reported. A key that the log does name
proves nothing. It is compared again, alone, once the job has applied its change, and so on until it agrees, or differs
without having been changed meanwhile. Keys that still change after the last attempt, and all that were changed while no
driver runs the job, are counted as changed since and reported as such, never as a difference.

Log and state are read by the code that copies, but they decide only which rows prove nothing. Values are always those
of a query.

What breaks it: a log that no longer reaches back to A, or that holds a statement on the table (an error, unless nothing
differs), and a table whose snapshot is not complete (refused by the command). Without a job to ask, the target counts
as current.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from consume_upstream.log.offset import CdcOffset
from consume_upstream.upstream_table import FORM, ROW_DIGEST, Checksums, Stretch, Sums, UpstreamTable
from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.storage import Storage
from vnode_backfill.verify.changed_keys import ChangedKeys
from vnode_backfill.verify.delta_version import TargetView, open_target
from vnode_backfill.verify.groups import (
    BUCKET_ROWS,
    Agreement,
    agreement,
    asked_of,
    dealt,
    placement_of,
    power_of_two,
    rounds,
    stretches_of,
)
from vnode_backfill.verify.pace import NO_LIMITS, SourcePace
from vnode_backfill.verify.result import Difference, DifferenceKind, Value, Verification, render, to_json
from vnode_backfill.verify.tasks import (
    Groups,
    Placement,
    SourceDigests,
    SourceKeys,
    SourceSums,
    TargetDigests,
    TargetFiles,
    TargetRows,
    TargetSums,
    TaskRunner,
    combined,
    tell_rows,
    tell_sums,
)
from vnode_backfill.words.errors import LawBrokenError, SchemaChangedError
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import Bound, KeyRange, SplitPlan

__all__ = [
    "Difference", "DifferenceKind", "JobProgress", "Stretch", "Verification", "render", "stretches_of",
    "to_json", "verify_table",
]  # fmt: skip

_STRETCH_ROWS = 100_000
"""Rows of a stretch outside the plan that one query reads."""
_SMALLEST_STRETCH = 1000
_LEAF_ROWS = 10_000
"""Rows of a group that are compared one by one without cutting it again."""
_ATTEMPTS = 6
_APPLY_SECONDS = 60.0
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What is applied to every vnode of the target, and whether a driver continues to apply."""

    applied: CdcOffset
    running: bool


AskJob = Callable[[], JobProgress]


@dataclass(frozen=True, slots=True)
class _Found:
    """A key whose rows are not equal; how often each side has it.

    `view` is the version of the target that was looked at.
    """

    key: tuple[Value, ...]
    form: bytes
    source: int
    target: int
    view: TargetView

    @property
    def kind(self) -> DifferenceKind:
        if not self.target:
            return DifferenceKind.MISSING
        return DifferenceKind.DIFFERENT if self.source == self.target == 1 else DifferenceKind.EXTRA


def verify_table(  # noqa: PLR0913 - the options are keyword-only
    tasks: TaskRunner,
    table: UpstreamTable,
    plan: SplitPlan | None,
    target: Storage,
    *,
    workers: int,
    limit: int = 100,
    job: AskJob | None = None,
    pace: SourcePace = NO_LIMITS,
) -> Verification:
    """Compare every row of the source with the Delta table at `target`; changes neither.

    `tasks` runs what reads many rows. `plan` is None for a job without ranges. `workers` connections read the source.
    `limit` bounds the keys whose difference is reported; all are counted. `job` says how far the target is. `pace` is
    how fast the source may be read.
    """
    started = time.monotonic()
    _check_definition(table)
    progress = job() if job is not None else None
    view = open_target(table.definition, target, table.forms)
    comparison = _Comparison(tasks, table, view, _Limits(workers, limit, pace), job)
    comparison.begin(progress)
    ranges = stretches_of(plan)
    try:
        comparison.compare(ranges, {planned.range for planned in plan.ranges} if plan is not None else set())
        return comparison.result(len(ranges), started)
    except SchemaChangedError as error:
        raise _not_followed(table, f"{error.message} {error.detail}".strip()) from error


@dataclass(frozen=True, slots=True)
class _Limits:
    """How many connections read the source, how many differing keys are reported, and how fast the source may be
    read."""

    workers: int
    told: int
    pace: SourcePace


class _Comparison:
    """One comparison: what was found so far, and the passes that find it."""

    def __init__(
        self, tasks: TaskRunner, table: UpstreamTable, view: TargetView, limits: _Limits, job: AskJob | None
    ) -> None:
        self._tasks = tasks
        self._table, self._definition, self._view = table, table.definition, view
        self._workers, self._limit, self._pace, self._job = limits.workers, limits.told, limits.pace, job
        self._rows_each = 1
        self._found: list[_Found] = []
        self._counts = dict.fromkeys(DifferenceKind, 0)
        self._unproven: dict[bytes, _Found] = {}
        self._rechecked = self._rows_source = self._rows_target = self._common = 0

    def begin(self, progress: JobProgress | None) -> None:
        """Note where the log has to be read from. The job was asked, and the target's version fixed, before."""
        self._first = self._table.first_offset()
        self._written = self._table.written_offset()
        applied = self._first if progress is None else progress.applied
        self._changes = ChangedKeys(self._table, min(applied, self._first))

    def compare(self, ranges: Sequence[Stretch], planned: set[KeyRange]) -> None:
        """All passes over the rows: sums, narrowing, and again what was changed meanwhile."""
        stretches = self._cut(ranges, planned)
        self._rows_each = self._view.rows // max(1, len(stretches)) + 1
        placement = placement_of(self._definition, stretches, self._view.rows)
        source, target = self._sums(list(enumerate(stretches)), placement, None)
        self._rows_source, self._rows_target = int(source.rows.sum()), int(target.rows.sum())
        for found, narrowed in self._narrowed(stretches, placement, agreement(source, target)):
            for groups in rounds(found.groups, found.sizes):
                self._compare_rows(stretches, narrowed, groups)
        self._settle()

    def result(self, ranges: int, started: float) -> Verification:
        differences = (*self._view.told, *self._explained())
        moved = self._table.written_offset() != self._written
        return Verification(
            rows_source=self._rows_source, rows_target=self._rows_target, rows_compared=self._common, ranges=ranges,
            missing=self._counts[DifferenceKind.MISSING], extra=self._counts[DifferenceKind.EXTRA],
            different=self._counts[DifferenceKind.DIFFERENT], columns=len(self._view.told), differences=differences,
            source_moved=moved, target_version=self._view.version, seconds=time.monotonic() - started,
            changed_since=len(self._unproven), rechecked=self._rechecked,
        )  # fmt: skip

    def _cut(self, ranges: Sequence[Stretch], planned: set[KeyRange]) -> list[Stretch]:
        """The stretches outside the plan in pieces that one query may read; planned ranges are small already."""
        cut: list[Stretch] = []
        piece = min(_STRETCH_ROWS, max(_SMALLEST_STRETCH, self._pace.most_rows))
        with self._table.checksums(self._view.columns) as session:
            for stretch in ranges:
                rest = stretch
                outside = stretch.after is not None or stretch.range not in planned
                while outside and (key := self._key_behind(session, rest, piece)) is not None:
                    upto = KeyRange(rest.range.low, Bound(key, b""), closed=True)
                    cut.append(replace(rest, range=upto))
                    rest = Stretch(KeyRange(None, stretch.range.high, closed=stretch.range.closed), after=key)
                cut.append(rest)
        return cut

    def _key_behind(self, session: Checksums, rest: Stretch, rows: int) -> Key | None:
        """What is asked is paid for, however few rows there are: most stretches outside the plan are all but empty, so
        a little is asked first."""
        for asked in sorted({min(rows, _SMALLEST_STRETCH), rows}):
            self._pace.pay(asked)
            key = session.key_behind(rest, asked)
            if key is None:
                break
        return key

    def _sums(
        self, stretches: Sequence[tuple[int, Stretch]], placement: Placement, wanted: Groups | None
    ) -> tuple[Sums, Sums]:
        numbered = stretches if placement.parts else [(0, stretch) for _, stretch in stretches]
        files = None if wanted is None else self._view.files_of([s for _, s in stretches], placement.parts)
        read = [TargetSums(lane, placement, wanted) for lane in self._lanes(self._view, files)]
        source: list[Sums] = []
        target: list[Sums] = []
        for some in self._pace.rounds(numbered, self._rows_each):
            lanes = [
                SourceSums(self._table, self._view.columns, lane, placement.buckets)
                for lane in dealt(some, self._workers)
            ]
            here, there = self._tasks.run(tell_sums, lanes, read)
            source += here
            target += there
            read = []
        return combined(source), combined(target)

    def _lanes(self, view: TargetView, files: Sequence[DataFile] | None = None) -> list[TargetFiles]:
        rows = sum(file.live_rows or 0 for file in (view.files if files is None else files))
        return view.lanes(self._tasks.lanes(rows), files)

    def _narrowed(
        self, stretches: Sequence[Stretch], placement: Placement, found: Agreement
    ) -> Iterator[tuple[Agreement, Placement]]:
        """Groups small enough to compare their rows one by one.

        These are the small groups, and the buckets of large ranges that disagree.
        """
        self._common += found.rows
        large = found.sizes > _LEAF_ROWS if placement.parts else np.zeros(len(found.groups), np.bool_)
        if not large.all():
            yield Agreement(0, found.groups[~large], found.sizes[~large]), placement
        if large.any():
            finer = replace(placement, buckets=power_of_two(int(found.sizes.max()) // BUCKET_ROWS))
            ranges = found.groups[large]
            narrowed = agreement(*self._sums([(int(n), stretches[n]) for n in ranges], finer, ranges))
            self._common += narrowed.rows
            yield narrowed, finer

    def _compare_rows(self, stretches: Sequence[Stretch], placement: Placement, groups: Groups) -> None:
        """Compare the rows of some groups key by key."""
        asked = asked_of(stretches, placement, groups)
        source = (
            [
                SourceDigests(self._table, self._view.columns, lane, placement.buckets)
                for lane in dealt(some, self._workers)
            ]
            for some in self._pace.rounds(asked, self._rows_each)
        )
        files = self._view.files_of([stretch for stretch, _ in asked], placement.parts)
        target = [TargetDigests(lane, placement, groups) for lane in self._lanes(self._view, files)]
        common, found = self._compared(source, target, self._view)
        self._common += common
        self._changes.read(self._table.written_offset())
        self._judge(found, self._changes.forms)

    def _judge(self, found: Sequence[_Found], changed: set[bytes]) -> None:
        """A key that was not changed differs; of the others nothing is proven yet."""
        for each in found:
            if each.form in changed:
                self._unproven[each.form] = each
                continue
            if each.source > 1:
                raise LawBrokenError(f"key {each.key!r} of the source was read {each.source} times")
            self._counts[each.kind] += 1
            self._found.append(each)
        self._found = sorted(self._found, key=lambda each: each.key)[: self._limit]

    def _settle(self) -> None:
        """Compare keys that were changed meanwhile again, as long as the job continues and keys are left."""
        for _ in range(_ATTEMPTS):
            if not self._unproven or self._job is None:
                return
            progress = self._applied(self._changes.newest)
            if progress is None:
                return
            view = open_target(self._definition, self._view.storage, self._table.forms)
            changes = ChangedKeys(self._table, min(progress.applied, self._table.first_offset()))
            asked, self._unproven = self._unproven, {}
            found = self._compare_keys(tuple(asked.values()), view)
            self._rechecked += len(asked)
            changes.read(self._table.written_offset())
            self._changes = changes
            self._judge(found, changes.forms)

    def _applied(self, offset: CdcOffset | None) -> JobProgress | None:
        """The job's progress once it has applied `offset`.

        It is None if nobody drives the job, or if it does not get there in time.
        """
        assert self._job is not None
        ends = time.monotonic() + _APPLY_SECONDS
        while True:
            progress = self._job()
            if offset is None or progress.applied >= offset:
                return progress
            if not progress.running or time.monotonic() > ends:
                return None
            time.sleep(_POLL_SECONDS)

    def _compare_keys(self, asked: Sequence[_Found], view: TargetView) -> list[_Found]:
        forms = tuple(each.form for each in asked)
        keys = [each.key for each in asked]
        source = (
            [SourceKeys(self._table, self._view.columns, lane) for lane in dealt(some, self._workers)]
            for some in self._pace.rounds(keys, 1)
        )
        target = [TargetRows(lane, forms, whole=False) for lane in self._lanes(view)]
        _, found = self._compared(source, target, view)
        asked_for = set(forms)
        # The server finds a text key by its collation: rows that were not asked for are other keys.
        return [each for each in found if each.form in asked_for]

    def _compared(
        self,
        source: Iterable[Sequence[SourceDigests | SourceKeys]],
        target: Sequence[TargetDigests | TargetRows],
        view: TargetView,
    ) -> tuple[int, list[_Found]]:
        """Run the tasks of both sides; how many keys both have, and those whose rows are not the same.

        The source's tasks come in rounds.
        """
        here: list[pa.Table] = []
        there: list[pa.Table] = []
        for lanes in source:
            of_source, of_target = self._tasks.run(tell_rows, lanes, target)
            here += of_source
            there += of_target
            target = ()
        return _compared(here, there, self._definition.key, view)

    def _explained(self) -> Iterator[Difference]:
        """What is wrong with each key that is reported, column by column where both sides have its row."""
        both = [each for each in self._found if each.kind is DifferenceKind.DIFFERENT]
        source = self._source_rows(both)
        target: dict[bytes, tuple[Value, ...]] = {}
        for view in {id(each.view): each.view for each in both}.values():
            target |= self._target_rows([each for each in both if each.view is view], view)
        for each in self._found:
            if each.kind is not DifferenceKind.DIFFERENT:
                yield Difference(each.kind, each.key, None, each.source, each.target)
                continue
            pairs = zip(self._view.columns, source.get(each.form, ()), target.get(each.form, ()), strict=False)
            told = [Difference(each.kind, each.key, name, a, b) for name, a, b in pairs if a != b]
            yield from told or [Difference(each.kind, each.key)]

    def _source_rows(self, wanted: Sequence[_Found]) -> dict[bytes, tuple[Value, ...]]:
        if not wanted:
            return {}
        with self._table.checksums(self._view.columns) as session:
            rows = session.rows_of([each.key for each in wanted])
        forms = self._table.forms.row_forms(self._definition.key_columns, rows).to_pylist()
        return dict(zip(forms, _tuples(rows.select(list(self._view.columns))), strict=True))

    def _target_rows(self, wanted: Sequence[_Found], view: TargetView) -> dict[bytes, tuple[Value, ...]]:
        forms = tuple(each.form for each in wanted)
        rows: dict[bytes, tuple[Value, ...]] = {}
        asked = [TargetRows(lane, forms, whole=True) for lane in self._lanes(view)]
        _, found_rows = self._tasks.run(tell_rows, list[SourceKeys](), asked)
        for told in found_rows:
            if told.num_rows:
                found = _tuples(told.select(list(self._view.columns)))
                rows |= dict(zip(told.column(FORM).to_pylist(), found, strict=True))
        return rows


def _compared(
    source: Sequence[pa.Table], target: Sequence[pa.Table], key: Sequence[str], view: TargetView
) -> tuple[int, list[_Found]]:
    """How many keys both sides have, and the keys whose rows are not the same, once on each side."""
    here, there = _by_form(source, key), _by_form(target, key)
    found = [
        _Found((row or there[form])[2], form, row[0] if row else 0, there[form][0] if form in there else 0, view)
        for form in {**here, **there}
        if (row := here.get(form)) is None or row[:2] != there.get(form, (0, 0))[:2] or row[0] != 1
    ]
    return sum(form in there for form in here), found


def _by_form(tables: Sequence[pa.Table], key: Sequence[str]) -> dict[bytes, tuple[int, int, tuple[Value, ...]]]:
    """How often a key is there, the sum of its rows' digests, and its values."""
    found: dict[bytes, tuple[int, int, tuple[Value, ...]]] = {}
    for table in tables:
        if not table.num_rows:
            continue
        keys = _tuples(table.select(list(key)))
        for form, digest, values in zip(table[FORM].to_pylist(), table[ROW_DIGEST].to_pylist(), keys, strict=True):
            before = found.get(form)
            found[form] = (1, digest, values) if before is None else (before[0] + 1, before[1] + digest, values)
    return found


def _tuples(rows: pa.Table) -> list[tuple[Value, ...]]:
    return list(zip(*[column.to_pylist() for column in rows.columns], strict=True))


def _check_definition(table: UpstreamTable) -> None:
    """A column that the job does not know would not be compared."""
    if table.current_definition() != table.definition:
        raise _not_followed(table, "The source has other columns than the job knows.")


def _not_followed(table: UpstreamTable, detail: str) -> SchemaChangedError:
    """A statement changes rows that the log does not name, so that no difference would prove anything."""
    definition = table.definition
    return SchemaChangedError(
        f"a statement has changed {definition.database}.{definition.table}, and the target has not followed it yet",
        detail=detail,
        hint="Let the job follow the statement (`vnode-backfill status` shows what is pending), then verify again.",
    )
