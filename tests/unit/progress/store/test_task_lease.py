"""A task writes only while its driver's lease runs, as the driver has written it down."""

from __future__ import annotations

import pickle
from copy import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from progress.store.lease import Heartbeat, Lease, Process
from progress.store.task_lease import LeaseGuard
from tests.unit.progress.store.state_folder import MINUTE, Clock
from vnode_backfill.words.errors import SinkError, SinkUnavailableError


class Guarded:
    """A guard on a clock of the test's, which moves by what the guard waits."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        now = self.clock()
        self.lease = Lease(4, "anna", Process("h", 1, "m", "0"), now, now + MINUTE, MINUTE)
        self.heartbeat = Heartbeat(str(folder), {})
        made = LeaseGuard.of(str(folder), {}, self.lease)
        self.guard = LeaseGuard(
            made.heartbeat, made.generation, made.duration, made.until, self.clock, lambda s: self.go_on(seconds=s)
        )

    def go_on(self, seconds: float) -> None:
        self.clock.wait(timedelta(seconds=seconds))

    def renew(self, generation: int | None = None) -> None:
        lease = self.lease.renewed(self.clock())
        self.heartbeat.write(Lease(generation or lease.generation, lease.owner, lease.process, lease.since, lease.expires, MINUTE))  # fmt: skip


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


def test_a_lease_that_runs_is_not_asked_for(guarded: Guarded) -> None:
    guarded.go_on(seconds=49)
    guarded.guard()
    assert guarded.clock() < guarded.guard.until


def test_a_renewed_lease_is_found_when_the_old_one_ends(guarded: Guarded) -> None:
    guarded.go_on(seconds=40)
    guarded.renew()
    guarded.go_on(seconds=40)
    guarded.guard()
    assert guarded.guard.until == guarded.lease.since + timedelta(seconds=90)


def test_a_lease_that_nobody_renews_stops_the_task_after_a_wait(guarded: Guarded) -> None:
    guarded.go_on(seconds=55)
    with pytest.raises(SinkUnavailableError, match="without a lease") as caught:
        guarded.guard()
    assert caught.value.retryable
    assert guarded.clock() >= guarded.lease.since + timedelta(seconds=115)


def test_the_lease_of_another_driver_does_not_count(guarded: Guarded) -> None:
    guarded.go_on(seconds=55)
    guarded.renew(generation=5)
    with pytest.raises(SinkUnavailableError, match="without a lease"):
        guarded.guard()


def test_a_guard_can_be_sent_to_a_task(tmp_path: Path) -> None:
    made = LeaseGuard.of(str(tmp_path), {}, Guarded(tmp_path).lease)
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_task_whose_clock_is_behind_the_drivers_writes_nothing(guarded: Guarded) -> None:
    guard = copy(guarded.guard)
    guarded.go_on(seconds=-5.1)
    with pytest.raises(SinkError, match=r"is at least 5\.1 s behind the driver's") as caught:
        guard()
    assert not caught.value.retryable


def test_a_task_whose_clock_is_a_little_behind_writes(guarded: Guarded) -> None:
    guard = copy(guarded.guard)
    guarded.go_on(seconds=-4.9)
    guard()
    assert guard.sent is None


def test_a_guard_that_was_sent_carries_the_time(tmp_path: Path) -> None:
    sent = pickle.loads(pickle.dumps(LeaseGuard.of(str(tmp_path), {}, Guarded(tmp_path).lease)))
    assert sent.sent is not None
    assert sent.sent <= datetime.now(UTC)
