"""Every item that runs on Spark has its own partition, so that lanes run side by side and not one after the other.

The three calls that are made of Spark are answered here. Partitions are cut as Spark cuts them, and the function that
runs notes which one it was called in. `tests/system/snapshot/test_partitioning.py` shows the same of a real job on a
real Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar, cast

import pytest
from pyspark import SparkContext

from vnode_backfill.spark.tasks import run_tasks
from vnode_backfill.words.errors import ActorError, KeyOrderError, SourceLostError

Item = TypeVar("Item")
Result = TypeVar("Result")
_running_in: list[int] = []


@dataclass(frozen=True, slots=True)
class Partitions(Generic[Item]):
    """Items in partitions, each a list; `map` and `collect` go through them in order."""

    held: Sequence[Sequence[Item]]

    def map(self, function: Callable[[Item], Result]) -> Partitions[Result]:
        return Partitions(
            [[self._call(number, function, item) for item in held] for number, held in enumerate(self.held)]
        )

    def _call(self, number: int, function: Callable[[Item], Result], item: Item) -> Result:
        _running_in[:] = [number]
        return function(item)

    def collect(self) -> list[Item]:
        return [item for held in self.held for item in held]


class PartitionsOnly:
    """What `run_tasks` asks of a SparkContext."""

    def parallelize(self, items: Sequence[Item], count: int) -> Partitions[Item]:
        cuts = [number * len(items) // count for number in range(count + 1)]
        return Partitions([items[low:high] for low, high in pairwise(cuts)])


class Session:
    """Gives its context when it is asked for it, as a session does."""

    @property
    def sparkContext(self) -> SparkContext:  # noqa: N802 - Spark's own word
        return cast(SparkContext, PartitionsOnly())


SPARK = Session()


def partition_and(item: str) -> tuple[int, str]:
    return _running_in[0], item


@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_item_runs_in_a_partition_of_its_own_and_results_keep_their_order(count: int) -> None:
    items = [f"lane {number}" for number in range(count)]
    assert run_tasks(SPARK, partition_and, items) == list(enumerate(items))


def test_nothing_to_run_asks_nothing_of_spark() -> None:
    assert run_tasks(cast(SparkContext, None), partition_and, []) == []


def test_error_that_no_retry_helps_is_raised_before_one_that_may_pass() -> None:
    errors = [SourceLostError("connection lost"), KeyOrderError("wrong order"), ActorError("gone")]

    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(KeyOrderError, match="wrong order"):
        run_tasks(SPARK, fail, errors)
