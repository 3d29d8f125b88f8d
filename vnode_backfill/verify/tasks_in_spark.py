"""Runs the tasks of a comparison as Spark tasks: where a cluster has the cores, or a caller gave its session."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vnode_backfill.spark.session import StartingSession
from vnode_backfill.spark.tasks import run_tasks
from vnode_backfill.verify.tasks import Result, Source, Target

__all__ = ["TasksInSpark"]


class TasksInSpark:
    """The session is waited for when the first task is there: the source is looked at while a JVM starts."""

    def __init__(self, session: StartingSession) -> None:
        self._session = session

    def lanes(self, rows: int) -> int:  # noqa: ARG002 - the cores are there, whatever is to be read
        return max(2, self._session.required().defaultParallelism)

    def run(
        self, function: Callable[[Source | Target], Result], source: Sequence[Source], target: Sequence[Target]
    ) -> tuple[list[Result], list[Result]]:
        tasks: list[Source | Target] = [*source, *target]
        found = run_tasks(self._session.required(), function, tasks)
        return found[: len(source)], found[len(source) :]
