"""Finds the planned key range that holds a key, and so the vnode the key belongs to.

A `SplitPlan` is the list of key ranges a table is read in. Its laws, checked whenever a plan is made or loaded:

- ranges are sorted and disjoint in the database's own order, so a key is in one range at most;
- generation 0 tiles `[min, max]` as it was when the plan was made: each range is half-open and ends where the next one
  begins, and the last one includes the maximum. No range is open-ended, so none grows without bound;
- later generations are extensions over keys that came afterwards; between generations there may be gaps.

The vnode of a key inside the plan is its range's vnode, which is the hash of the range's low bound: rows that are read
together share a vnode. A key outside the plan is hashed by itself: it arrives by the log only.
With the ranges [10, 20) and [20, 30] of one integer key:

    key    range       vnode
    12     [10, 20)    hash(10)
    20     [20, 30]    hash(20)
    30     [20, 30]    hash(20)
    31     none        hash(31)

What is compared is always `order` (see `words.key.order_key`), never the key itself. The key is kept beside it because
questions to the server need it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from vnode_backfill.words.errors import LawBrokenError, StateError
from vnode_backfill.words.key import (
    Int32s,
    Key,
    KeyPart,
    KeyValue,
    VnodeId,
    check_vnode_count,
    encode_key,
    fixed_orders,
    order_key,
    order_keys,
    vnode_of,
    vnodes_of,
)


@dataclass(frozen=True, slots=True, order=True)
class Bound:
    """A key and its place in the database's order; compared by the place alone."""

    key: Key = field(compare=False)
    order: bytes


Bounds: TypeAlias = tuple[tuple[Bound, int], ...]
"""The low bound and the estimated rows of each range of an unbroken stretch; the last entry is the maximum, with 0."""


def bound_of(parts: Sequence[KeyPart], key: Key, weights: Sequence[bytes | None] = ()) -> Bound:
    """The bound at `key`; `weights[i]` is the server's weight string of a TEXT part i."""
    return Bound(key, order_key(parts, key, weights))


@dataclass(frozen=True, slots=True)
class KeyRange:
    """`[low, high)`, or `[low, high]` if closed; `None` is unbounded."""

    low: Bound | None
    high: Bound | None
    closed: bool = False

    def holds(self, order: bytes) -> bool:
        if self.low is not None and order < self.low.order:
            return False
        if self.high is None or order < self.high.order:
            return True
        return self.closed and order == self.high.order


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """One range of a plan. `ordinal` is unique in a job and never used again."""

    ordinal: int
    range: KeyRange
    vnode: VnodeId
    estimated_rows: int
    generation: int = 0


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The ranges of a table, in key order; see the module for the laws they keep."""

    parts: tuple[KeyPart, ...]
    vnode_count: int
    ranges: tuple[PlannedRange, ...]
    _index: _Index = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_vnode_count(self.vnode_count)
        _check_ranges(self.ranges, self.vnode_count)
        object.__setattr__(self, "_index", _Index.of(self.parts, self.ranges))

    @property
    def compares_keys(self) -> bool:
        """Whether the place of a key is found by its value; not where one range holds every key."""
        return True

    @property
    def generation(self) -> int:
        """The newest generation; 0 for a plan without ranges."""
        return self._index.generation

    def find(self, order: bytes) -> PlannedRange | None:
        """The range that holds a key, or None for a key outside the plan."""
        position = self._index.position(order)
        return None if position < 0 else self.ranges[position]

    def find_many(self, columns: Sequence[pa.Array], weights: Sequence[pa.Array | None] | None = None) -> Int32s:
        """The position in `ranges` of the range that holds each key; -1 for a key outside the plan."""
        if self._index.search is not None:
            return self._index.search.positions(fixed_orders(self.parts, columns))
        orders = order_keys(self.parts, columns, weights or ())
        return np.fromiter(map(self._index.position, orders), dtype=np.int32, count=len(orders))

    def vnodes_of(
        self, columns: Sequence[pa.Array], weights: Sequence[pa.Array | None] | None = None
    ) -> tuple[Int32s, Int32s]:
        """For a batch of keys: positions as `find_many` gives them, and vnodes; outside the plan each key's own."""
        positions = self.find_many(columns, weights)
        outside = positions < 0
        if not self.ranges:
            return positions, vnodes_of(self.parts, columns, self.vnode_count)
        vnodes = self._index.vnodes[positions]
        if outside.any():
            strays = [column.filter(pa.array(outside)) for column in columns]
            vnodes[outside] = vnodes_of(self.parts, strays, self.vnode_count)
        return positions, vnodes

    def of_vnode(self, vnode: int) -> tuple[PlannedRange, ...]:
        """The ranges of a vnode, in key order."""
        return self._index.by_vnode.get(VnodeId(vnode), ())

    def vnodes_of_ordinals(self, ordinals: Iterable[int]) -> dict[int, VnodeId]:
        """The vnodes of those of these ranges that the plan has."""
        vnodes = self._index.vnode_by_ordinal
        known = [ordinal for ordinal in ordinals if ordinal < len(vnodes)]
        found = zip(known, vnodes[np.array(known, dtype=np.int64)].tolist(), strict=True)
        return {ordinal: VnodeId(vnode) for ordinal, vnode in found if vnode >= 0}

    def at(self, generation: int) -> SplitPlan:
        """The plan as it was when `generation` was its newest."""
        if generation >= self.generation:
            return self
        return replace(self, ranges=tuple(each for each in self.ranges if each.generation <= generation))

    def extend(self, *stretches: Bounds) -> SplitPlan:
        """The plan with one more generation, whose ranges tile each stretch; stretches without bounds add nothing.

        A stretch includes its last bound, unless a range of this plan begins there.
        """
        known = {planned.range.low for planned in self.ranges}
        ordinal = max((planned.ordinal for planned in self.ranges), default=-1) + 1
        generation = self.generation + 1
        added: list[PlannedRange] = []
        for bounds in stretches:
            closed = not bounds or bounds[-1][0] not in known
            for key_range, rows in _tiles(bounds, closed=closed):
                vnode = _vnode_of_range(self.parts, key_range, self.vnode_count)
                added.append(PlannedRange(ordinal + len(added), key_range, vnode, rows, generation))
        return replace(self, ranges=tuple(sorted([*self.ranges, *added], key=_low_order)))


def plan_of(parts: Sequence[KeyPart], bounds: Bounds, vnode_count: int) -> SplitPlan:
    """Generation 0: the ranges between the bounds, numbered in key order, the last one closed."""
    check_vnode_count(vnode_count)
    planned = [
        PlannedRange(ordinal, key_range, _vnode_of_range(parts, key_range, vnode_count), rows)
        for ordinal, (key_range, rows) in enumerate(_tiles(bounds, closed=True))
    ]
    return SplitPlan(tuple(parts), vnode_count, tuple(planned))


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A planned range as plain columns of a table; keys are typed text, exact for every kind of value."""

    ordinal: int
    generation: int
    vnode: int
    estimated_rows: int
    low_key: str
    low_order: bytes
    high_key: str
    high_order: bytes
    closed: bool


def to_rows(plan: SplitPlan) -> tuple[PlanRow, ...]:
    """The plan's ranges as rows, in key order."""
    return tuple(_to_rows(plan.ranges))


def rows_of_generation(plan: SplitPlan, generation: int) -> Iterator[PlanRow]:
    """The ranges of one generation as rows, in key order."""
    return _to_rows(planned for planned in plan.ranges if planned.generation == generation)


def from_rows(parts: Sequence[KeyPart], vnode_count: int, rows: Iterable[PlanRow]) -> SplitPlan:
    """The plan that `to_rows` turned into these rows, which may come in any order."""
    planned = sorted(_from_rows(rows), key=_low_order)
    for each in planned:
        vnode = _vnode_of_range(parts, each.range, vnode_count)
        if vnode != each.vnode:
            raise StateError(
                f"range {each.ordinal} of the stored plan is in vnode {each.vnode} but hashes to vnode {vnode}",
                detail=f"{_shown(each)} with {vnode_count} vnodes and key {', '.join(part.name for part in parts)}.",
            )
    return SplitPlan(tuple(parts), vnode_count, tuple(planned))


def key_to_text(key: Key) -> str:
    """A key as JSON in which each value says its type; `key_from_text` gives back exactly this key."""
    return json.dumps([_value_to_text(value) for value in key])


def key_from_text(text: str) -> Key:
    try:
        return tuple(_value_from_text(kind, value) for kind, value in json.loads(text))
    except (ValueError, ArithmeticError, TypeError) as error:
        raise StateError(f"stored key {text!r} cannot be read", detail=str(error)) from error


@dataclass(frozen=True, slots=True)
class _Search:
    """The bounds as arrays, for keys whose every part is a 64-bit number."""

    lows: npt.NDArray[np.generic]
    highs: npt.NDArray[np.generic]
    closed: npt.NDArray[np.bool_]

    def positions(self, orders: npt.NDArray[np.generic]) -> Int32s:
        if not len(self.lows):
            return np.full(len(orders), -1, dtype=np.int32)
        found = np.searchsorted(self.lows, orders, side="right").astype(np.int32) - np.int32(1)
        highs = self.highs[found]
        inside = (orders < highs) | (self.closed[found] & (orders == highs))
        found[(found < 0) | ~inside] = -1
        return found


@dataclass(frozen=True, slots=True)
class _Index:
    """What a plan computes once: bounds to search, and the ranges of each vnode."""

    lows: list[bytes]
    ranges: tuple[PlannedRange, ...]
    vnodes: Int32s
    vnode_by_ordinal: Int32s
    """-1 where the plan has no such range."""
    generation: int
    by_vnode: dict[VnodeId, tuple[PlannedRange, ...]]
    search: _Search | None

    @classmethod
    def of(cls, parts: Sequence[KeyPart], ranges: tuple[PlannedRange, ...]) -> _Index:
        by_vnode: defaultdict[VnodeId, list[PlannedRange]] = defaultdict(list)
        for planned in ranges:
            by_vnode[planned.vnode].append(planned)
        vnodes = np.array([planned.vnode for planned in ranges], dtype=np.int32)
        ordinals = np.array([planned.ordinal for planned in ranges], dtype=np.int64)
        vnode_by_ordinal = np.full(int(ordinals.max(initial=-1)) + 1, -1, dtype=np.int32)
        vnode_by_ordinal[ordinals] = vnodes
        return cls(
            lows=[_low_order(planned) for planned in ranges],
            ranges=ranges,
            vnodes=vnodes,
            vnode_by_ordinal=vnode_by_ordinal,
            generation=max((planned.generation for planned in ranges), default=0),
            by_vnode={vnode: tuple(held) for vnode, held in by_vnode.items()},
            search=_search(parts, ranges) if all(part.kind.is_fixed for part in parts) else None,
        )

    def position(self, order: bytes) -> int:
        position = bisect_right(self.lows, order) - 1
        return position if position >= 0 and self.ranges[position].range.holds(order) else -1


def _search(parts: Sequence[KeyPart], ranges: Sequence[PlannedRange]) -> _Search:
    lows = [_low_order(planned) for planned in ranges]
    highs = [_bounds(planned)[1].order for planned in ranges]
    width = 8 * len(parts)
    if {*map(len, lows), *map(len, highs)} - {width}:
        raise LawBrokenError(f"a bound of a key of {len(parts)} numbers is not ordered by {width} bytes")
    return _Search(
        lows=_order_array(lows, width),
        highs=_order_array(highs, width),
        closed=np.array([planned.range.closed for planned in ranges], dtype=np.bool_),
    )


def _order_array(orders: list[bytes], width: int) -> npt.NDArray[np.generic]:
    if width == 8:
        return np.frombuffer(b"".join(orders), dtype=">u8").astype(np.uint64)
    return np.array(orders, dtype=f"S{width}")


def _tiles(bounds: Bounds, *, closed: bool) -> Iterator[tuple[KeyRange, int]]:
    last = len(bounds) - 2
    for position, ((low, rows), (high, _)) in enumerate(pairwise(bounds)):
        yield KeyRange(low, high, closed=closed and position == last), rows


def _vnode_of_range(parts: Sequence[KeyPart], key_range: KeyRange, vnode_count: int) -> VnodeId:
    if key_range.low is None:
        raise LawBrokenError("a planned range has no low bound")
    return vnode_of(encode_key(parts, key_range.low.key), vnode_count)


def _check_ranges(ranges: Sequence[PlannedRange], vnode_count: int) -> None:
    lows = [_low_order(planned) for planned in ranges]
    highs = [_bounds(planned)[1].order for planned in ranges]
    for planned, low, high in zip(ranges, lows, highs, strict=True):
        if not (low < high or (low == high and planned.range.closed)):
            raise LawBrokenError(f"planned range is empty: {_shown(planned)}")
        if not 0 <= planned.vnode < vnode_count:
            raise LawBrokenError(f"planned range is in vnode {planned.vnode} of {vnode_count}: {_shown(planned)}")
    for (before, after), end, start in zip(pairwise(ranges), highs, lows[1:], strict=False):
        if end > start or (end == start and before.range.closed):
            raise LawBrokenError(f"planned ranges overlap or are unsorted: {_shown(before)} and {_shown(after)}")
    for before, after in pairwise([planned for planned in ranges if planned.generation == 0]):
        if before.range.high is not after.range.low and before.range.high != after.range.low:
            raise LawBrokenError(f"the first plan leaves a gap: {_shown(before)} and {_shown(after)}")
    if len({planned.ordinal for planned in ranges}) != len(ranges):
        raise LawBrokenError("an ordinal of the plan was used twice")


def _bounds(planned: PlannedRange) -> tuple[Bound, Bound]:
    low, high = planned.range.low, planned.range.high
    if low is None or high is None:
        raise LawBrokenError(f"planned range {planned.ordinal} is open-ended")
    return low, high


def _low_order(planned: PlannedRange) -> bytes:
    return _bounds(planned)[0].order


def _shown(planned: PlannedRange) -> str:
    low, high = _bounds(planned)
    return f"#{planned.ordinal} [{low.key!r}, {high.key!r}{']' if planned.range.closed else ')'}"


def _to_rows(ranges: Iterable[PlannedRange]) -> Iterator[PlanRow]:
    """A range begins where the one before it ends: its text need not be made twice."""
    end, end_text = None, ""
    for planned in ranges:
        low, high = _bounds(planned)
        text = end_text if low is end else key_to_text(low.key)
        end, end_text = high, key_to_text(high.key)
        yield PlanRow(
            ordinal=planned.ordinal,
            generation=planned.generation,
            vnode=planned.vnode,
            estimated_rows=planned.estimated_rows,
            low_key=text,
            low_order=low.order,
            high_key=end_text,
            high_order=high.order,
            closed=planned.range.closed,
        )


def _from_rows(rows: Iterable[PlanRow]) -> Iterator[PlannedRange]:
    """Ranges that touch share their bound, as they do when a plan is made."""
    end, end_text = None, ""
    for row in rows:
        shared = end is not None and row.low_key == end_text and row.low_order == end.order
        low = end if shared else Bound(key_from_text(row.low_key), row.low_order)
        end, end_text = Bound(key_from_text(row.high_key), row.high_order), row.high_key
        key_range = KeyRange(low, end, closed=row.closed)
        yield PlannedRange(row.ordinal, key_range, VnodeId(row.vnode), row.estimated_rows, row.generation)


def _value_to_text(value: KeyValue) -> tuple[str, str]:
    match value:
        case datetime():
            return "datetime", value.isoformat()
        case date():
            return "date", value.isoformat()
        case bytes():
            return "binary", value.hex()
        case str():
            return "text", value
        case Decimal():
            return "decimal", str(value)
        case _:
            return "int", str(value)


def _value_from_text(kind: str, text: str) -> KeyValue:
    match kind:
        case "datetime":
            return datetime.fromisoformat(text)
        case "date":
            return date.fromisoformat(text)
        case "binary":
            return bytes.fromhex(text)
        case "text":
            return text
        case "decimal":
            return Decimal(text)
        case "int":
            return int(text)
        case _:
            raise ValueError(f"unknown kind of value {kind!r}")
