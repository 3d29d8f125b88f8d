"""Runs Python functions as Spark tasks without losing what went wrong.

Spark turns an exception of a task into text. A task here returns its error as a value instead, so that the driver
raises the very error, with its detail, its hint and whether trying again can help. What Spark itself reports (a lost
executor, a broken worker) is an `ActorError`, which is retried; where its JVM has ended it is a `SparkLostError`, which
is not.

Spark is asked for nothing before there is a task to run, not even to name its jobs: a caller without tasks needs no
JVM. So whoever may have tasks holds a `Spark`, which may be a session that starts when it is first asked for its
context.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar
from zipimport import zipimporter

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from vnode_backfill.spark.jvm import jvm_end
from vnode_backfill.words.errors import ActorError, BackfillError

Item = TypeVar("Item")
Result = TypeVar("Result")
_DYING_SECONDS = 1.0


class HasContext(Protocol):
    """What has a context of Spark, or will have one when it is asked for it. Spark's own sessions are such."""

    @property
    def sparkContext(self) -> SparkContext: ...  # noqa: N802 - Spark's own word


Spark = SparkContext | HasContext


def context_of(spark: Spark) -> SparkContext:
    """The context itself; a session that has not started yet is started and waited for."""
    return spark if isinstance(spark, SparkContext) else spark.sparkContext


def _is_awaited() -> BackfillError | None:
    return None


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs that run in one pool of Spark's scheduler and can be cancelled together.

    `given_up` says why nobody waits for them any more. It is asked while their session is still starting.
    """

    name: str
    pool: str
    description: str
    given_up: Callable[[], BackfillError | None] = _is_awaited


_group: ContextVar[JobGroup | None] = ContextVar("job_group", default=None)


@contextmanager
def in_group(group: JobGroup) -> Iterator[None]:
    """Jobs of this thread belong to the group while the block lasts."""
    before = _group.set(group)
    try:
        yield
    finally:
        _group.reset(before)


def given_up() -> BackfillError | None:
    """Why nobody waits for the jobs of this thread's group any more; None if somebody does."""
    group = _group.get()
    return None if group is None else group.given_up()


def run_tasks(spark: Spark, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Run `function` on each item as a task of its own, all at once, and return the results in order."""
    if not items:
        return []
    context = context_of(spark)
    try:
        _join(context, _group.get())
        outcomes = context.parallelize(items, len(items)).map(partial(_attempt, function)).collect()
    except (Py4JError, PySparkException, OSError, EOFError) as error:
        # An answer of the JVM shows that it lived; a broken connection may be the first sign of its end.
        lost = jvm_end(context, seconds=0.0 if isinstance(error, Py4JJavaError) else _DYING_SECONDS)
        raise lost or ActorError("a Spark job failed", detail=str(error)[:4000]) from error
    failures = [outcome for outcome in outcomes if isinstance(outcome, BackfillError)]
    if failures:
        raise min(failures, key=lambda failure: failure.retryable)
    return [outcome for outcome in outcomes if not isinstance(outcome, BackfillError)]


def _join(spark: SparkContext, group: JobGroup | None) -> None:
    if group is not None:
        spark.setLocalProperty("spark.scheduler.pool", group.pool)
        spark.setJobGroup(group.name, group.description, interruptOnCancel=True)


def forget_archives() -> None:
    """Let this process forget which zip files it has imported from; they are found again when they are needed.

    Before each task Spark invalidates the import caches, and every importer of an archive then reads the whole
    directory of its file again: `pyspark.zip` is held by a dozen of them, 0.2 CPU-seconds a task.
    """
    for path, finder in tuple(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            sys.path_importer_cache.pop(path, None)


def _attempt(function: Callable[[Item], Result], item: Item) -> Result | BackfillError:
    try:
        return function(item)
    except BackfillError as error:
        return error
    finally:
        forget_archives()
