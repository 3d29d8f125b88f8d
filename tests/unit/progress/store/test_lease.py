"""One driver at a time commits; one that was overtaken never does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from progress.state.backfill_state import Acknowledgement, BackfillState, Request, RequestKind
from progress.store.lease import Lease, Process
from progress.store.state_table import DEFAULT_RETENTION
from progress.store.store import Retention, StateStore
from tests.unit.progress.store.state_folder import (
    MINUTE,
    Clock,
    OpenStore,
    checkpoints,
    create,
    following,
    stored_state,
)
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import FencedError, StateError


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_store(tmp_path: Path, clock: Clock) -> OpenStore:
    def open_store(
        job: str = "orders", retention: Retention = DEFAULT_RETENTION, process: Process | None = None
    ) -> StateStore:
        return StateStore(str(tmp_path), job, now=clock, retention=retention, process=process)

    return open_store


def test_nothing_is_committed_without_a_lease(open_store: OpenStore) -> None:
    store = open_store()
    state = create(store)
    with pytest.raises(FencedError, match="without a lease"):
        open_store().commit(following(state))


def test_second_driver_is_refused_and_told_who_drives(open_store: OpenStore) -> None:
    create(open_store())
    process = Process.current()
    with pytest.raises(StateError, match=f"driven by anna on {process.host}, process {process.pid}") as caught:
        open_store().acquire_lease("ben", MINUTE)
    assert "since 2026-03-01T12:00:00" in caught.value.detail
    assert "another 60 s" in caught.value.detail


def test_driver_that_slept_through_a_takeover_can_neither_commit_nor_renew(open_store: OpenStore, clock: Clock) -> None:
    sleeper, second = open_store(), open_store()
    state = create(sleeper)
    clock.wait(MINUTE)
    assert second.acquire_lease("ben", MINUTE).generation == 2
    with pytest.raises(FencedError, match="another driver took over") as caught:
        sleeper.commit(following(state))
    assert "generation 1, the newest is 2, ben" in caught.value.detail
    with pytest.raises(FencedError):
        sleeper.renew()
    other = replace(following(state), stopped=True)
    second.commit(other)
    assert stored_state(open_store()) == other


def test_driver_that_was_overtaken_cannot_renew(open_store: OpenStore, clock: Clock) -> None:
    sleeper = open_store()
    create(sleeper)
    clock.wait(MINUTE)
    open_store().acquire_lease("ben", MINUTE)
    with pytest.raises(FencedError, match="another driver took over"):
        sleeper.renew()
    assert sleeper.lease is None


def test_driver_that_slept_longer_than_the_log_is_kept_is_fenced(open_store: OpenStore, clock: Clock) -> None:
    short = Retention(hours=0, commits=5, log_checkpoint_commits=2)
    sleeper, second = open_store(retention=short), open_store(retention=short)
    state = slept = create(sleeper)
    clock.wait(MINUTE)
    second.acquire_lease("ben", MINUTE)
    for _ in range(12):
        state = following(state)
        second.commit(state)
    assert not Path(second.folder, "checkpoints/_delta_log/00000000000000000002.json").exists()
    with pytest.raises(FencedError):
        sleeper.commit(following(slept))
    assert stored_state(open_store()) == state


def test_commit_and_heartbeat_both_renew_the_lease(open_store: OpenStore, clock: Clock) -> None:
    store = open_store()
    state = create(store)
    clock.wait(MINUTE / 2)
    store.commit(following(state))
    clock.wait(MINUTE * 0.9)
    version = checkpoints(store).version()
    store.renew()
    clock.wait(MINUTE * 0.9)
    with pytest.raises(StateError, match="driven by anna"):
        open_store().acquire_lease("ben", MINUTE)
    assert checkpoints(store).version() == version, "a heartbeat is not a commit"
    clock.wait(MINUTE)
    assert open_store().acquire_lease("ben", MINUTE).generation == 2


def test_lease_of_a_process_that_ended_need_not_run_out(open_store: OpenStore) -> None:
    gone = replace(Process.current(), started="0")
    create(open_store(process=gone))
    with pytest.raises(StateError, match="driven by anna"):
        open_store().acquire_lease("ben", MINUTE, wait_out=True)
    assert open_store().acquire_lease("ben", MINUTE).generation == 2


def test_process_of_another_machine_is_never_taken_for_ended(open_store: OpenStore) -> None:
    elsewhere = Process("db2", 1, "another boot", "0")
    create(open_store(process=elsewhere))
    with pytest.raises(StateError, match="driven by anna on db2, process 1"):
        open_store().acquire_lease("ben", MINUTE)


def test_released_lease_is_had_at_once(open_store: OpenStore) -> None:
    store = open_store()
    state = create(store)
    store.renew()
    store.release()
    store.release()
    assert open_store().current_lease() is None
    second = open_store()
    second.acquire_lease("ben", MINUTE)
    second.commit(following(state))
    assert stored_state(store) == following(state)


def test_release_by_a_driver_that_was_overtaken_changes_nothing(open_store: OpenStore, clock: Clock) -> None:
    sleeper, second = open_store(), open_store()
    create(sleeper)
    clock.wait(MINUTE)
    lease = second.acquire_lease("ben", MINUTE)
    sleeper.release()
    assert second.current_lease() == lease


def test_of_drivers_that_start_together_one_wins(open_store: OpenStore) -> None:
    def attempt(number: int) -> Lease | None:
        try:
            return open_store().acquire_lease(f"driver {number}", MINUTE)
        except StateError:
            return None

    with ThreadPoolExecutor(6) as pool:
        won = [lease for lease in pool.map(attempt, range(6)) if lease]
    assert len(won) == 1
    assert open_store().current_lease() == won[0]


def test_takeover_while_the_old_driver_commits_has_one_winner(open_store: OpenStore, clock: Clock) -> None:
    old, new = open_store(), open_store()
    state = create(old)

    def commit_until_fenced() -> BackfillState:
        landed = state
        while True:
            try:
                old.commit(following(landed))
            except FencedError:
                return landed
            landed = following(landed)
            clock.wait(MINUTE)

    def take_over() -> BackfillState:
        while True:
            try:
                new.acquire_lease("ben", MINUTE)
            except StateError:
                clock.wait(MINUTE)
                continue
            taken = replace(following(stored_state(new)), stopped=True)
            new.commit(taken)
            return taken

    with ThreadPoolExecutor(2) as pool:
        old_last, new_first = pool.submit(commit_until_fenced), pool.submit(take_over)
        taken = new_first.result(60)
        # Whatever had landed for the old driver is below what the new one committed, and that is what stays.
        assert old_last.result(60).revision < taken.revision
    assert stored_state(old) == taken


def test_dropped_job_is_gone_and_can_be_created_anew(open_store: OpenStore) -> None:
    store = open_store()
    state = create(store)
    store.append_request(Request(0, RequestKind.PAUSE), "anna", "desk")
    store.commit(replace(following(state), acknowledged=(Acknowledgement(1, Epoch(1)),)))
    store.drop("anna")
    assert not store.exists()
    assert store.current_lease() is None
    again = open_store()
    fresh = create(again, "ben")
    assert stored_state(again) == fresh
    assert again.unacknowledged(fresh) == ()
    assert again.append_request(Request(0, RequestKind.PAUSE), "ben", "desk") == 1
    assert [request.id for request in again.unacknowledged(fresh)] == [1]


def test_driver_that_slept_through_a_drop_is_fenced(open_store: OpenStore, clock: Clock) -> None:
    sleeper = open_store()
    state = create(sleeper)
    clock.wait(MINUTE)
    open_store().drop("ben")
    with pytest.raises(FencedError):
        sleeper.commit(following(state))
    fresh = create(open_store(), "ben")
    with pytest.raises(FencedError):
        sleeper.renew()
    assert stored_state(open_store()) == fresh


def test_job_is_not_dropped_while_it_is_driven(open_store: OpenStore) -> None:
    create(open_store())
    with pytest.raises(StateError, match="driven by anna"):
        open_store().drop("ben")
