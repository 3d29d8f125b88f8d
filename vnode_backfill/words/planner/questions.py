"""Holds what a planner asks, what it has settled so far, and the walk that needs no estimate.

`Cuts` are the ranges that are settled. They begin at the table's minimum and ascend without a gap, whatever was
answered. So they may be stored at any time, and a planner that is given them continues behind the last one: what is
settled is never asked for again.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias, TypeVar

from vnode_backfill.words.errors import KeyOrderError, LawBrokenError
from vnode_backfill.words.key import Key, KeyPart
from vnode_backfill.words.key_range import Bound, Bounds

__all__ = [
    "Answer", "Asking", "Cuts", "EstimateRows", "FirstBeyond", "LastBefore", "NextBound", "Question", "TableFacts",
    "Walk", "asked_for_bound",
]  # fmt: skip


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

    `after` need not be a row: with `rows=1` the answer is the first row beyond it.
    """

    after: Bound
    rows: int


@dataclass(frozen=True, slots=True)
class FirstBeyond:
    """Which is the first row beyond this key? The key is a guess: it need not be a row, and its place is not known."""

    key: Key


@dataclass(frozen=True, slots=True)
class LastBefore:
    """Which is the last row before this bound?"""

    bound: Bound


Question: TypeAlias = EstimateRows | NextBound | FirstBeyond | LastBefore
Answer: TypeAlias = tuple[int, ...] | Bound | None
_Result = TypeVar("_Result")
Asking: TypeAlias = Generator[Question, Answer, _Result]


def asked_for_bound(question: NextBound | FirstBeyond | LastBefore) -> Asking[Bound | None]:
    answer = yield question
    if isinstance(answer, tuple):
        raise LawBrokenError(f"{type(question).__name__} was answered with {answer!r}")
    return answer


@dataclass(slots=True)
class Cuts:
    """The ranges that are settled, in key order; the last entry is where the rest of the table begins, with 0 rows."""

    bounds: list[tuple[Bound, int]]
    rows: int = field(init=False)
    """How many rows the settled ranges are estimated to hold."""

    def __post_init__(self) -> None:
        if not self.bounds or any(low >= high for (low, _), (high, _) in pairwise(self.bounds)):
            raise LawBrokenError(f"settled ranges do not ascend: {[bound.key for bound, _ in self.bounds][:5]!r}")
        self.rows = sum(rows for _, rows in self.bounds)

    @classmethod
    def none_from(cls, low: Bound) -> Cuts:
        return cls([(low, 0)])

    @property
    def low(self) -> Bound:
        """Where the next range begins."""
        return self.bounds[-1][0]

    @property
    def ranges(self) -> int:
        return len(self.bounds) - 1

    @property
    def settled(self) -> Bounds:
        return tuple(self.bounds)

    def add(self, rows: int, following: Bound) -> None:
        """Settle the next range: it holds about `rows` rows and ends where `following` is."""
        low = self.low
        if following <= low:
            raise LawBrokenError(f"a range that begins at {low.key!r} cannot end at {following.key!r}")
        self.bounds[-1] = (low, rows)
        self.bounds.append((following, 0))
        self.rows += rows

    def take_back(self) -> int:
        """Open the last range again; how many rows it was estimated to hold."""
        self.bounds.pop()
        low, rows = self.bounds[-1]
        self.bounds[-1] = (low, 0)
        self.rows -= rows
        return rows


@dataclass(frozen=True, slots=True)
class Walk:
    """Cuts by letting the server count: exact, at the price of a pass over the index."""

    maximum: Bound
    target: int
    estimated_rows: int

    def finish(self, cuts: Cuts) -> Asking[None]:
        """Ranges of exactly `target` rows up to the maximum. The last takes what is left."""
        while (following := (yield from self.next_bound(cuts.low, self.target))) is not None:
            cuts.add(self.target, following)
        left = self.estimated_rows - cuts.rows
        cuts.add(min(max(left, 1), self.target), self.maximum)

    def next_bound(self, after: Bound, rows: int) -> Asking[Bound | None]:
        """The row `rows` after `after`, or None at or beyond the maximum: rows that came since are not planned."""
        answer = yield from asked_for_bound(NextBound(after, rows))
        if answer is None or answer >= self.maximum:
            return None
        if answer <= after:
            raise KeyOrderError(
                f"the server put {answer.key!r} after {after.key!r}, but it sorts before it here",
                detail="The keys' order in the client is not the server's.",
                hint="Use `executor: single`, which compares no keys.",
            )
        return answer
