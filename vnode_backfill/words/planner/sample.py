"""Cuts a key of any kind by halving its values, with few rows of the index touched, where the server's estimates serve.

A walk counts every row of the index, which takes hours for a large table. Here a stretch is halved by a guess
(`guess`): the server is asked for the first row beyond the guess, which becomes the bound, and for its estimate of both
halves. A half with about `target` rows is a range, a larger one is halved again. Small
neighbours are joined. The left half comes first, so ranges are settled in key order, and a planner that is interrupted
continues at the last bound.

    [00…, ff…] about 1,000,000 rows    guess 7…   → [00…, 70a1…) 490,000   [70a1…, ff…] 510,000
    [00…, 70a1…) 490,000               guess 3…   → [00…, 3804…) 250,000   [3804…, 70a1…) 240,000        and so on

Why the bounds hold whatever is answered: a bound counts only if it is after the stretch's first row and before its end,
in the server's order, so every half is smaller than the whole and all of them ascend.

Estimates are hints. The first ranges and some later ones are counted: one that holds more than twice the target is
walked instead, and so is a stretch that no guess divides. If more than a few of those that were counted were wrong, or
if questions are out of proportion to ranges, the rest of the table is walked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.key import Key, KeyPart
from vnode_backfill.words.key_range import Bound
from vnode_backfill.words.planner.guess import Alphabet, guesses
from vnode_backfill.words.planner.questions import (
    Asking,
    Cuts,
    EstimateRows,
    FirstBeyond,
    LastBefore,
    NextBound,
    Walk,
    asked_for_bound,
)

__all__ = ["Sample"]

_GUESSES = 4
"""For one stretch, until it is walked."""
_COUNTED_FIRST = 4
_COUNTED_EVERY = 128
_MOST_WRONG = 4
"""One in so many of the counted ranges may be larger than claimed."""
_SPARE_QUESTIONS = 256
_QUESTIONS_PER_RANGE = 16


@dataclass(frozen=True, slots=True)
class _Stretch:
    """`[low, end)`, or the last one up to the table's maximum; `rows` is an estimate."""

    low: Bound
    end: Bound
    rows: int


class Sample:
    """Cutting any key by halves of its values, with `walk` for what cannot be halved."""

    def __init__(self, parts: Sequence[KeyPart], walk: Walk) -> None:
        self._parts, self._walk, self._target = parts, walk, walk.target
        self._alphabet = Alphabet()
        self._asked = self._leaves = self._counted = self._wrong = 0

    def finish(self, cuts: Cuts) -> Asking[None]:
        """Ranges of about `target` rows up to the maximum."""
        walk, joined = self._walk, _Joined(cuts, self._target)
        rows = max(walk.estimated_rows - cuts.rows, 2 * self._target)
        waiting = [_Stretch(cuts.low, walk.maximum, rows)]
        while waiting and self._is_trusted(cuts):
            stretch = waiting.pop()
            halves = None if stretch.rows <= self._target else (yield from self._halved(stretch))
            if halves is not None:
                waiting += reversed(halves)
            elif stretch.rows <= self._target and not (yield from self._is_larger(stretch)):
                joined.add(stretch)
            else:
                yield from self._walked(stretch, joined)
        joined.close(waiting[-1].low if waiting else walk.maximum)
        if waiting:
            yield from walk.finish(cuts)

    def _is_trusted(self, cuts: Cuts) -> bool:
        right = _MOST_WRONG * self._wrong <= max(self._counted, _COUNTED_FIRST)
        return right and self._asked <= _QUESTIONS_PER_RANGE * cuts.ranges + _SPARE_QUESTIONS

    def _halved(self, stretch: _Stretch) -> Asking[tuple[_Stretch, _Stretch] | None]:
        """Both halves, at the first row beyond a guess; None where no guess divides the rows.

        The stretch's end is as good as its last row for most guesses. Where rows of two tenants meet it is not: the end
        is the next tenant's first row, so the last row is asked for.
        """
        middle = yield from self._between(stretch, stretch.end.key)
        if middle is None:
            last = yield from self._ask(LastBefore(stretch.end))
            if last is None or not stretch.low < last < stretch.end:
                return None
            middle = yield from self._between(stretch, last.key)
        if middle is None:
            return None
        below, above = yield from self._estimates(stretch, middle)
        return _Stretch(stretch.low, middle, below), _Stretch(middle, stretch.end, above)

    def _between(self, stretch: _Stretch, last: Key) -> Asking[Bound | None]:
        """A row in the middle of the stretch, as far as guesses find one."""
        for key in (stretch.low.key, last):
            self._alphabet.learn(key)
        for guess in islice(guesses(self._parts, stretch.low.key, last, self._alphabet), _GUESSES):
            middle = yield from self._ask(FirstBeyond(guess))
            if middle is not None and stretch.low < middle < stretch.end:
                return middle
        return None

    def _is_larger(self, stretch: _Stretch) -> Asking[bool]:
        """Count the first stretches and some later ones: whether this one holds more than twice the target."""
        self._leaves += 1
        if self._leaves > _COUNTED_FIRST and self._leaves % _COUNTED_EVERY:
            return False
        found = yield from self._ask(NextBound(stretch.low, 2 * self._target))
        larger = found is not None and stretch.low < found < stretch.end
        self._counted += 1
        self._wrong += larger
        return larger

    def _walked(self, stretch: _Stretch, joined: _Joined) -> Asking[None]:
        """Ranges of exactly the target up to the stretch's end; the last has what is left.

        A stretch that was claimed to hold twice the target and does not hold it once is a wrong claim too.
        """
        low = stretch.low
        while True:
            following = yield from self._walk.next_bound(low, self._target)
            if following is None or following >= stretch.end:
                break
            joined.add(_Stretch(low, following, self._target))
            low = following
        self._counted += 1
        self._wrong += low == stretch.low and stretch.rows > 2 * self._target
        joined.add(_Stretch(low, stretch.end, max(self._target // 2, 1)))

    def _estimates(self, stretch: _Stretch, middle: Bound) -> Asking[tuple[int, int]]:
        """What the server claims of both halves, and at least one row each. A half beyond the maximum is not planned."""
        self._asked += 1
        answer = yield EstimateRows((stretch.low, middle, stretch.end))
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise LawBrokenError(f"EstimateRows was answered with {answer!r}")
        return max(answer[0], 1), max(answer[1], 1)

    def _ask(self, question: NextBound | FirstBeyond | LastBefore) -> Asking[Bound | None]:
        self._asked += 1
        return (yield from asked_for_bound(question))


@dataclass(slots=True)
class _Joined:
    """Settles stretches in key order; small neighbours are one range."""

    cuts: Cuts
    target: int
    rows: int = 0
    """Of the range that is open: it begins where the cuts end."""

    def add(self, stretch: _Stretch) -> None:
        if self.rows and 4 * (self.rows + stretch.rows) > 5 * self.target:
            self.close(stretch.low)
        self.rows += stretch.rows

    def close(self, end: Bound) -> None:
        """End the open range, if there is one."""
        if self.rows:
            self.cuts.add(self.rows, end)
        self.rows = 0
