"""Sums up a steady stretch of time: percentiles of an age, rates of counters, and whether the age grows.

A counter is a list of (moment, count so far), in order of time. The stretch begins and ends between two of its samples,
so the count there is taken on the straight line between them:

    (10.0, 400), (12.0, 1400)      at 11.0 the count was 900
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

Counter = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """From `began` to `ended`, on the machine's monotonic clock."""

    began: float
    ended: float

    @property
    def minutes(self) -> float:
        return (self.ended - self.began) / 60

    def holds(self, moment: float) -> bool:
        return self.began <= moment < self.ended

    def per_second(self, counter: Counter) -> float:
        """How fast the counter rose in the stretch."""
        return (count_at(counter, self.ended) - count_at(counter, self.began)) / (self.ended - self.began)

    def growth(self, samples: Sequence[tuple[float, float]]) -> float:
        """The median of the stretch's last third against that of its middle third: above 1 what is sampled rises."""
        third = (self.ended - self.began) / 3
        middle = [value for at, value in samples if self.began + third <= at < self.began + 2 * third]
        last = [value for at, value in samples if self.began + 2 * third <= at < self.ended]
        return statistics.median(last) / statistics.median(middle)


def count_at(counter: Counter, moment: float) -> float:
    """The count at a moment between the first and the last sample; any other is refused, as nobody counted then."""
    if not counter or not counter[0][0] <= moment <= counter[-1][0]:
        raise ValueError(f"the counter was not read around {moment}")
    following = max(1, bisect_left(counter, moment, key=lambda sample: sample[0]))
    (before, low), (after, high) = counter[following - 1], counter[following]
    return low + (high - low) * (moment - before) / (after - before)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` percent of the values do not exceed: always one that was measured."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share / 100 * len(ordered)) - 1)]
