"""A table is opened again as often as an epoch is tried again, and a stop ends every wait for it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from vnode_backfill.config.job import LimitsConfig
from vnode_backfill.job.tables.reopening import AsideTries, retried
from vnode_backfill.job.tables.running_table import OpenedTable
from vnode_backfill.words.errors import BackfillError, PlanRefusedError, SourceLostError

QUICK = LimitsConfig(retries=2, backoff=timedelta(milliseconds=1), max_backoff=timedelta(milliseconds=1))
SLOW = LimitsConfig(retries=2, backoff=timedelta(hours=1), max_backoff=timedelta(hours=1))


def nothing() -> None:
    """Nothing is open."""


class Failing:
    """Counts how often it is tried, and never succeeds."""

    def __init__(self, error: BackfillError, then: threading.Event | None = None) -> None:
        self.error, self.tried, self._then = error, 0, then

    def __call__(self) -> OpenedTable:
        self.tried += 1
        if self._then is not None:
            self._then.set()
        raise self.error


def test_what_may_pass_is_tried_again_and_what_may_not_is_not() -> None:
    lost, refused = Failing(SourceLostError("gone")), Failing(PlanRefusedError("no key"))
    with pytest.raises(SourceLostError):
        retried(lost, nothing, QUICK, threading.Event())
    with pytest.raises(PlanRefusedError):
        retried(refused, nothing, QUICK, threading.Event())
    assert (lost.tried, refused.tried) == (3, 1)


def test_a_stop_ends_the_pause_before_the_next_try() -> None:
    stopping = threading.Event()
    lost = Failing(SourceLostError("gone"), then=stopping)
    assert retried(lost, nothing, SLOW, stopping) is None
    assert lost.tried == 1


def test_a_table_that_could_not_be_opened_has_its_turns_with_pauses_and_no_more_than_allowed() -> None:
    tries, aside = AsideTries(SLOW), {"a": SourceLostError("gone"), "b": PlanRefusedError("no key")}
    assert tries.waiting(aside, ()) == ["a"]
    assert tries.due(["a"], now=0) == []
    assert tries.due(["a"], now=3600) == ["a"]
    assert tries.due(["a"], now=3601) == []
    assert tries.due(["a"], now=9000) == ["a"]
    assert tries.waiting(aside, ()) == []


def test_a_table_that_has_run_is_not_tried_here() -> None:
    assert AsideTries(SLOW).waiting({"a": SourceLostError("gone")}, ["a"]) == []
