"""Cuts a table into key ranges, with few and cheap questions to the server.

The planner is a generator: it yields questions, is sent their answers, and returns the bounds. It never speaks to a
server itself. What must be true of the bounds, whatever the answers were: they begin at the table's minimum, end at its
maximum and ascend in the database's order, so that the ranges between them tile the table. What should be true: a range
holds about `target` rows.

Keys of one integer column are cut by even steps of the value, corrected by the optimiser's estimates. An estimate
(`EstimateRows`) is an index dive: cheap whatever the range, and many are asked for at once where keys are spread
evenly. A step with fewer than half the target is widened, one with more than twice the target is narrowed, and the
density just seen is the next step's guess. Where a dive found next to nothing the planner asks for the next row and
jumps over the gap. All other keys are walked (`NextBound`): the server counts the rows and sends only the bound, which
is exact and costs a pass over the index.

An estimate is a hint, never a bound. A dive that claims more rows than there are values between its bounds is cut down
to them. If dives do not settle on a range in a few questions, the server is asked to count its rows. If that happens
too often, or the last range turns out to be larger than the dives said, the rest of the table is walked. So the planner
ends with sensible ranges even if every estimate is wrong.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeAlias, TypeVar

from vnode_backfill.words.errors import KeyOrderError, LawBrokenError
from vnode_backfill.words.key import KeyKind, KeyPart
from vnode_backfill.words.key_range import Bound, Bounds, SplitPlan, bound_of, plan_of

MIN_TARGET_ROWS = 5_000
MAX_TARGET_ROWS = 50_000
RANGES_PER_VNODE = 4

_DIVES_PER_RANGE = 8
_JUMPS_PER_RANGE = 2
_SPARE_QUESTIONS = 64
_SPARE_RANGES = 1024
_RUN = 64


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What is known before planning; `minimum` and `maximum` are None for an empty table, the rest are estimates."""

    parts: tuple[KeyPart, ...]
    minimum: Bound | None
    maximum: Bound | None
    estimated_rows: int
    average_row_bytes: int


@dataclass(frozen=True, slots=True)
class EstimateRows:
    """About how many rows are between each two neighbours of `bounds`? The answer is a hint for each stretch."""

    bounds: tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class NextBound:
    """Which row comes `rows` rows after `after`, in key order? The answer is its bound, or None if there is none.

    `after` need not be a row: with `rows=1` the answer is the first row beyond it. It is final: a planner that was
    interrupted while walking can be started again with `after` as the minimum.
    """

    after: Bound
    rows: int


Question: TypeAlias = EstimateRows | NextBound
Answer: TypeAlias = tuple[int, ...] | Bound | None
_Result = TypeVar("_Result")
Asking: TypeAlias = Generator[Question, Answer, _Result]


def target_rows(rows: int, vnode_count: int, average_row_bytes: int, max_range_bytes: int) -> int:
    """How many rows a range should hold: some ranges per vnode, neither tiny nor huge, and never too many bytes."""
    even = rows // (RANGES_PER_VNODE * vnode_count)
    target = min(max(even, MIN_TARGET_ROWS), MAX_TARGET_ROWS)
    return max(1, min(target, max_range_bytes // max(average_row_bytes, 1)))


def plan_bounds(facts: TableFacts, target: int) -> Asking[Bounds]:
    """Ask for what is needed to cut the table into ranges of about `target` rows; `()` for an empty table."""
    low, high = facts.minimum, facts.maximum
    if low is None or high is None:
        return ()
    if low > high:
        raise KeyOrderError(f"the table's minimum {low.key!r} sorts after its maximum {high.key!r}")
    if low == high:
        return (low, 1), (high, 0)
    walk = _Walk(high, max(1, target), facts.estimated_rows)
    if len(facts.parts) == 1 and facts.parts[0].kind in (KeyKind.INT, KeyKind.UINT):
        cuts = yield from _Dives(facts.parts, walk).cuts(low)
    else:
        cuts = yield from walk.cuts(low)
    return (*cuts, (high, 0))


def make_plan(parts: Sequence[KeyPart], bounds: Bounds, vnode_count: int) -> SplitPlan:
    """The plan of a new job from the bounds `plan_bounds` returned; without bounds a plan without ranges."""
    return plan_of(parts, bounds, vnode_count)


def extend_plan(plan: SplitPlan, below: Bounds = (), above: Bounds = ()) -> SplitPlan:
    """The plan with a new generation of ranges over keys that came below its minimum and above its maximum.

    `below` may end at the plan's minimum, which stays where it is; `above` begins after the plan's maximum.
    """
    if plan.ranges:
        low, high = plan.ranges[0].range.low, plan.ranges[-1].range.high
        if below and low is not None and below[-1][0] > low:
            raise LawBrokenError(
                f"extension below the plan reaches {below[-1][0].key!r}, the plan begins at {low.key!r}"
            )
        if above and high is not None and above[0][0] <= high:
            raise LawBrokenError(
                f"extension above the plan begins at {above[0][0].key!r}, the plan ends at {high.key!r}"
            )
    return plan.extend(below, above)


_Cut: TypeAlias = tuple[Bound, int]


@dataclass(frozen=True, slots=True)
class _Walk:
    """Cutting by letting the server count."""

    maximum: Bound
    target: int
    estimated_rows: int

    def cuts(self, low: Bound, done: int = 0) -> Asking[list[_Cut]]:
        """Ranges of exactly `target` rows from `low` on; `done` rows are before it. The last takes what is left."""
        cuts: list[_Cut] = []
        while (following := (yield from self.next_bound(low, self.target))) is not None:
            cuts.append((low, self.target))
            low = following
        left = self.estimated_rows - done - self.target * len(cuts)
        return [*cuts, (low, min(max(left, 1), self.target))]

    def next_bound(self, after: Bound, rows: int) -> Asking[Bound | None]:
        """The row `rows` after `after`, or None at or beyond the maximum: rows that came since are not planned."""
        answer = yield NextBound(after, rows)
        if isinstance(answer, tuple):
            raise LawBrokenError(f"NextBound was answered with {answer!r}")
        if answer is None or answer >= self.maximum:
            return None
        if answer <= after:
            raise KeyOrderError(
                f"the server put {answer.key!r} after {after.key!r}, but it sorts before it here",
                detail="The keys' order in the client is not the server's.",
                hint="Use `executor: single`, which compares no keys.",
            )
        return answer


@dataclass(frozen=True, slots=True)
class _Fit:
    """A range's width in values, its estimated rows, and the width that `target` rows should have after it."""

    width: int
    rows: int
    step: int


class _Dives:
    """Cutting one integer key by estimates, with `walk` for what they cannot settle."""

    def __init__(self, parts: tuple[KeyPart, ...], walk: _Walk) -> None:
        self._parts = parts
        self._walk = walk
        self._target = walk.target
        self._top = _value(walk.maximum)
        self._asked = 0

    def cuts(self, minimum: Bound) -> Asking[list[_Cut]]:
        low, cuts = minimum, list[_Cut]()
        span = self._top - _value(low)
        step = span * self._target // max(self._walk.estimated_rows, 1)
        while self._trusted(len(cuts)):
            fit = yield from self._fit(_value(low), step)
            if _value(low) + fit.width >= self._top:
                return (yield from self._last(cuts, low, fit))
            cuts.append((low, fit.rows))
            low, step = self._bound(_value(low) + fit.width), fit.step
            run, step = yield from self._run(_value(low), step)
            cuts += run[:-1]
            low = run[-1][0]
        rest = yield from self._walk.cuts(low, done=sum(rows for _, rows in cuts))
        return [*cuts, *rest]

    def _trusted(self, ranges: int) -> bool:
        """Whether the questions and ranges so far are in proportion to each other and to the table."""
        expected = self._walk.estimated_rows // self._target
        return self._asked <= 4 * ranges + _SPARE_QUESTIONS and ranges <= 4 * expected + _SPARE_RANGES

    def _last(self, cuts: list[_Cut], low: Bound, fit: _Fit) -> Asking[list[_Cut]]:
        """End with the range `[low, maximum]`, joined to the one before it if small, walked if estimated too small."""
        if fit.width > 2 * self._target:
            hidden = yield from self._walk.next_bound(low, 2 * self._target)
            if hidden is not None:
                rest = yield from self._walk.cuts(low, done=sum(rows for _, rows in cuts))
                return [*cuts, *rest]
        rows = max(fit.rows, 1)
        if cuts and 2 * rows < self._target and cuts[-1][1] + rows <= 2 * self._target:
            low, before = cuts.pop()
            rows += before
        return [*cuts, (low, rows)]

    def _fit(self, low: int, step: int) -> Asking[_Fit]:
        """A width from `low` on that holds about the target, or all that is left; after some tries by counting."""
        search = _Search(self._target, self._top - low, step)
        if search.rest <= self._target:
            return _Fit(search.rest, min(search.rest, self._walk.estimated_rows), step)
        for _ in range(_DIVES_PER_RANGE):
            rows = yield from self._estimate(low, search.width)
            if search.accepts(rows):
                return search.fit(rows)
            if search.misses(rows):
                if search.jumps == _JUMPS_PER_RANGE:
                    break
                self._asked += 1
                following = yield from self._walk.next_bound(self._bound(low + search.width - 1), 1)
                if following is None:
                    return _Fit(search.rest, rows + 1, step)
                search.jump(_value(following) - low)
            search.aim()
        self._asked += 1
        following = yield from self._walk.next_bound(self._bound(low), self._target)
        width = search.rest if following is None else _value(following) - low
        return _Fit(width, min(self._target, width), width)

    def _run(self, low: int, step: int) -> Asking[tuple[list[_Cut], int]]:
        """As many ranges of one width from `low` on as hold about the target; then where they end, and the next step.

        A server far away takes a round trip for each question, so where keys are spread evenly one question cuts many.
        """
        width = max(step, self._target)
        count = min((self._top - low) // width - 1, _RUN)
        if count < 2:
            return [(self._bound(low), 0)], step
        found = yield from self._estimates(low, width, count)
        fitting = list(takewhile(lambda rows: self._target <= 2 * rows <= 4 * self._target, found))
        cuts = [(self._bound(low + number * width), rows) for number, rows in enumerate((*fitting, 0))]
        return cuts, width * len(fitting) * self._target // sum(fitting) if fitting else step

    def _estimate(self, low: int, width: int) -> Asking[int]:
        (rows,) = yield from self._estimates(low, width, 1)
        return rows

    def _estimates(self, low: int, width: int, count: int) -> Asking[list[int]]:
        self._asked += 1
        answer = yield EstimateRows(tuple(self._bound(low + number * width) for number in range(count + 1)))
        if not isinstance(answer, tuple) or len(answer) != count:
            raise LawBrokenError(f"EstimateRows was answered with {answer!r}")
        return [min(max(rows, 0), width) for rows in answer]

    def _bound(self, value: int) -> Bound:
        return bound_of(self._parts, (value,))


class _Search:
    """The hunt for one range's width between a width known to hold too few rows and one known to hold too many."""

    def __init__(self, target: int, rest: int, step: int) -> None:
        self.rest = rest
        self.width = min(max(step, target), rest)
        self._target = target
        self._step = max(step, target)
        self._few = (0, 0)
        self._many: tuple[int, int] | None = None
        self.jumps = 0
        self._behind_gap = False

    def accepts(self, rows: int) -> bool:
        enough = 2 * rows >= self._target or self.width == self.rest
        return enough and rows <= 2 * self._target

    def fit(self, rows: int) -> _Fit:
        """The range as it is; the next step follows the density of the part beyond what held too few rows."""
        width, held = self.width - self._few[0], rows - self._few[1]
        if 8 * held < self._target:
            width, held = self.width, max(rows, 1)
        return _Fit(self.width, rows, width * self._target // held)

    def misses(self, rows: int) -> bool:
        """Take note of rows that did not fit; true if the last widening found next to nothing: a gap, perhaps."""
        if rows > 2 * self._target:
            self._many = (self.width, rows)
            return False
        found = rows - self._few[1]
        self._few = (self.width, rows)
        return 16 * found < self._target

    def jump(self, width: int) -> None:
        """The next row is `width` values from the low bound: up to there nothing is added."""
        gap = width - self._few[0]
        self._few = (width, self._few[1])
        if self._many is not None and self._many[0] <= width:
            self._many = None  # the rows it claimed are not there
        # After the first gap rows are probably as dense as before it; after that, only what was seen counts.
        self._behind_gap = gap > self._step and not self.jumps
        self.jumps += 1

    def aim(self) -> None:
        """Choose the next width to ask about; `n` missing rows need at least `n` values."""
        few_width, few_rows = self._few
        missing = self._target - few_rows
        if self._many is not None:
            many_width, many_rows = self._many
            beyond = (many_width - few_width) * missing // max(many_rows - few_rows, 1)
            self.width = max(min(few_width + max(beyond, missing), many_width - 1), few_width + 1)
            return
        seen = max(few_width, 1)
        stride = self._step if self._behind_gap else min(seen * self._target // max(few_rows, 1), 64 * seen)
        self.width = min(few_width + max(stride * missing // self._target, missing), self.rest)


def _value(bound: Bound) -> int:
    (value,) = bound.key
    if not isinstance(value, int):
        raise LawBrokenError(f"bound {bound.key!r} is not an integer")
    return value
