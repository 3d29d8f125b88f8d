"""Cuts the rows of both sides into groups that can be compared, and finds the groups that disagree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from consume_upstream.upstream_table import Stretch, Sums
from vnode_backfill.verify.tasks import Groups, Placement
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import PlanRefusedError
from vnode_backfill.words.key import Key, KeyPart
from vnode_backfill.words.key_range import Bound, KeyRange, SplitPlan

__all__ = ["Agreement", "agreement", "asked_of", "dealt", "placement_of", "power_of_two", "rounds", "stretches_of"]

BUCKET_ROWS = 64
_MOST_BUCKETS = 65_536
_ROUND_ROWS = 300_000
"""Keys and digests that one process holds at once."""
_ROUND_GROUPS = 4_096
Item = TypeVar("Item")


def stretches_of(plan: SplitPlan | None) -> tuple[Stretch, ...]:
    """The planned ranges and what is before, between and after them: together every key, each once."""
    if plan is None or not plan.ranges:
        return (Stretch(KeyRange(None, None)),)
    ranges = [planned.range for planned in plan.ranges]
    stretches = [Stretch(KeyRange(None, ranges[0].low))]
    for here, following in pairwise([*ranges, None]):
        assert here is not None
        stretches.append(Stretch(here))
        low = following.low if following is not None else None
        if here.high is None or here.high != low:
            stretches.append(_behind(here, low))
    return tuple(stretches)


def _behind(here: KeyRange, high: Bound | None) -> Stretch:
    if here.closed and here.high is not None:
        return Stretch(KeyRange(None, high), after=here.high.key)
    return Stretch(KeyRange(here.high, high))


def placement_of(definition: TableDefinition, stretches: Sequence[Stretch], rows: int) -> Placement:
    """Groups that are the stretches where the key's values are ordered here, else buckets of about 64 rows."""
    parts = _ordered_parts(definition)
    if parts:
        return Placement(parts, tuple(_starts(stretches)), 1)
    return Placement((), (), power_of_two(rows // BUCKET_ROWS))


def _ordered_parts(definition: TableDefinition) -> tuple[KeyPart, ...]:
    """The parts of a key whose order is computed here for many keys at once; none for every other key."""
    try:
        parts = definition.key_parts
    except PlanRefusedError:
        return ()
    return parts if all(part.kind.is_fixed for part in parts) else ()


def _starts(stretches: Sequence[Stretch]) -> Iterator[tuple[Key, bool]]:
    for stretch in stretches[1:]:
        if stretch.after is not None:
            yield stretch.after, True
        elif stretch.range.low is not None:
            yield stretch.range.low.key, False


def asked_of(
    stretches: Sequence[Stretch], placement: Placement, groups: Groups
) -> list[tuple[Stretch, tuple[int, ...]]]:
    """The stretches to read for some groups, each with the buckets of it that count."""
    if not placement.parts:
        buckets = tuple(int(group) for group in groups)
        return [(stretch, buckets) for stretch in stretches]
    numbers, chosen = groups // placement.buckets, groups % placement.buckets
    return [
        (stretches[number], tuple(int(bucket) for bucket in chosen[numbers == number])) for number in np.unique(numbers)
    ]


def rounds(groups: Groups, rows: Groups) -> Iterator[Groups]:
    """The groups in portions that this process can hold."""
    start, held = 0, 0
    for place, count in enumerate(rows):
        if place > start and (held + count > _ROUND_ROWS or place - start >= _ROUND_GROUPS):
            yield groups[start:place]
            start, held = place, 0
        held += int(count)
    if start < len(groups):
        yield groups[start:]


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """How many rows are in groups that agree; of the others, the number of each and the rows of its larger side."""

    rows: int
    groups: Groups
    sizes: Groups


def agreement(source: Sums, target: Sums) -> Agreement:
    """Groups agree if both sides have as many rows and the same sum of digests."""
    numbers = np.union1d(source.groups, target.groups)
    counts, sums = np.zeros((2, len(numbers)), np.int64), np.zeros((2, len(numbers)), np.uint64)
    for side, told in enumerate((source, target)):
        place = np.searchsorted(numbers, told.groups)
        counts[side, place], sums[side, place] = told.rows, told.sums
    equal = (counts[0] == counts[1]) & (sums[0] == sums[1])
    return Agreement(int(counts[0][equal].sum()), numbers[~equal], counts.max(axis=0)[~equal])


def dealt(items: Sequence[Item], lanes: int) -> list[tuple[Item, ...]]:
    count = min(lanes, len(items))
    return [tuple(items[lane::count]) for lane in range(count)]


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`, within the number of buckets there may be."""
    return min(_MOST_BUCKETS, 1 << max(0, count - 1).bit_length())
