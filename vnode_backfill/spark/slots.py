"""Counts the Spark task slots that a job needs and has.

Snapshot, log and merge run at the same time. With fewer slots than they need, they wait in turn: the log waits for the
snapshot, and epochs become longer. That is slow and not wrong, so it is a warning. This module does not import Spark,
because commands ask it that start none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from vnode_backfill.config.job import Config, Executor
from vnode_backfill.words.finding import Finding, Level

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_CHECK = "spark.task_slots"
_GIVEN: ContextVar[SparkSession | None] = ContextVar("given session", default=None)
_ENDS: ContextVar[bool] = ContextVar("process ends", default=False)


def slots_needed(config: Config, workers: int | None = None) -> int:
    """One slot for each worker, each log reader and the merge; `workers` may be other than configured."""
    readers = 1 if config.executor is Executor.SINGLE else workers or config.workers
    return readers + config.limits.log_readers + 1


def local_master(config: Config) -> str:
    """The master of a session where nobody names one: this machine, with enough slots."""
    return f"local[{max(slots_needed(config), os.cpu_count() or 1)}]"


def slots_of(master: str) -> int | None:
    """How many slots a local master has; None for a cluster, which says so only to a session."""
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:, *\d+)?\])?", master)
    if found is None:
        return None
    if found[1] is None:
        return 1
    return os.cpu_count() or 1 if found[1] == "*" else int(found[1])


def session_slots(context: SparkContext) -> int:
    """How many slots the session has now; on a cluster, those of the executors that have come up."""
    known = slots_of(context.master or "")
    return context.defaultParallelism if known is None else known


def submitted() -> bool:
    """Whether spark-submit has started this process, with a JVM of its own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def within(session: SparkSession) -> Iterator[None]:
    """Let what this thread runs in the block use this session, and leave it and its JVM alive."""
    token = _GIVEN.set(session)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def given_session() -> SparkSession | None:
    """The session that the caller of this thread gave."""
    return _GIVEN.get()


def end_process_after() -> None:
    """Say that this process ends when the command has: what ends with it need not be waited for."""
    _ENDS.set(True)


def process_ends() -> bool:
    """Whether this process ends when the command of this thread has."""
    return _ENDS.get()


def known_slots(config: Config, master: str | None) -> int | None:
    """The slots of a session that this process would start on this machine; None where only a session knows."""
    if submitted() or given_session() is not None:
        return None
    return slots_of(master or local_master(config))


def needs_session(config: Config, master: str | None) -> bool:
    """Whether tasks that need no Spark have to run in it all the same: it is there already, or it is a cluster."""
    return submitted() or given_session() is not None or slots_of(master or local_master(config)) is None


def check_slots(config: Config, slots: int) -> Finding:
    """Whether so many slots are enough for the job."""
    needed, readers = slots_needed(config), config.limits.log_readers
    if slots >= needed:
        return Finding(Level.OK, _CHECK, f"Spark has {slots} task slots, {needed} are needed")
    workers = needed - readers - 1
    fact = (
        f"Spark has {slots} task slots for {workers} workers, {readers} log readers and the merge, which need {needed} "
        "at the same time: they wait in turn"
    )
    return Finding(Level.WARNING, _CHECK, fact, f"--master local[{needed}], or executors with {needed} cores together")


def check_planned_slots(config: Config, master: str | None) -> Finding:
    """As `check_slots`, for the session that `run` would open.

    The slots of a cluster are not known before one is up.
    """
    where = "the master that spark-submit was given" if submitted() else master or local_master(config)
    slots = slots_of(where)
    if slots is not None:
        return check_slots(config, slots)
    fact = f"the job needs {slots_needed(config)} task slots at the same time; `run` says whether {where} has them"
    return Finding(Level.INFO, _CHECK, fact)
