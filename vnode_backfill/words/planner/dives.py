"""Cuts a key of one integer column by even steps of its value, corrected by the optimiser's estimates.

An estimate (`EstimateRows`) is an index dive: cheap whatever the range, and many are asked for at once where keys are
spread evenly. A step with fewer than half the target is widened, one with more than twice the target is narrowed, and
the density just seen is the next step's guess. Where a dive found next to nothing the planner asks for the next row and
jumps over the gap.

A dive that claims more rows than there are values between its bounds is cut down to them. If dives do not settle on a
range in a few questions, the server is asked to count its rows. If that happens too often, or the last range turns out
to be larger than the dives said, the rest of the table is walked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import TypeAlias

from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.key import KeyPart
from vnode_backfill.words.key_range import Bound, bound_of
from vnode_backfill.words.planner.questions import Asking, Cuts, EstimateRows, Walk

__all__ = ["Dives"]

_DIVES_PER_RANGE = 8
_JUMPS_PER_RANGE = 2
_SPARE_QUESTIONS = 64
_SPARE_RANGES = 1024
_RUN = 64
_Cut: TypeAlias = tuple[Bound, int]


@dataclass(frozen=True, slots=True)
class _Fit:
    """A range's width in values, its estimated rows, and the width that `target` rows should have after it."""

    width: int
    rows: int
    step: int


class Dives:
    """Cutting one integer key by estimates, with `walk` for what they cannot settle."""

    def __init__(self, parts: Sequence[KeyPart], walk: Walk) -> None:
        self._parts = parts
        self._walk = walk
        self._target = walk.target
        self._top = _value(walk.maximum)
        self._asked = 0

    def finish(self, cuts: Cuts) -> Asking[None]:
        """Ranges of about `target` rows up to the maximum."""
        span = self._top - _value(cuts.low)
        step = span * self._target // max(self._walk.estimated_rows - cuts.rows, 1)
        while self._trusted(cuts.ranges):
            fit = yield from self._fit(_value(cuts.low), step)
            if _value(cuts.low) + fit.width >= self._top:
                return (yield from self._last(cuts, fit))
            cuts.add(fit.rows, self._bound(_value(cuts.low) + fit.width))
            run, step = yield from self._run(_value(cuts.low), fit.step)
            for (_, rows), (following, _) in pairwise(run):
                cuts.add(rows, following)
        return (yield from self._walk.finish(cuts))

    def _trusted(self, ranges: int) -> bool:
        """Whether the questions and ranges so far are in proportion to each other and to the table."""
        expected = self._walk.estimated_rows // self._target
        return self._asked <= 4 * ranges + _SPARE_QUESTIONS and ranges <= 4 * expected + _SPARE_RANGES

    def _last(self, cuts: Cuts, fit: _Fit) -> Asking[None]:
        """End with the range `[low, maximum]`, joined to the one before it if small, walked if estimated too small."""
        if fit.width > 2 * self._target:
            hidden = yield from self._walk.next_bound(cuts.low, 2 * self._target)
            if hidden is not None:
                return (yield from self._walk.finish(cuts))
        rows = max(fit.rows, 1)
        if cuts.ranges and 2 * rows < self._target and cuts.bounds[-2][1] + rows <= 2 * self._target:
            rows += cuts.take_back()
        cuts.add(rows, self._walk.maximum)
        return None

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
