"""Tasks report how far they are by datagrams; the driver adds them up, for the barrier in progress only."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devkit.waiting import wait_for
from progress.state.barriers import (
    CdcTableBackfillProgress,
    CreateMviewProgress,
    LocalBarrierEvent,
    LocalBarrierManager,
)
from progress.task_progress import EpochProgress, ReadBefore, TaskListener, TaskProgress
from vnode_backfill.words.epoch import Actor, Barrier, BarrierKind, Epoch

FIRST = Barrier(Epoch(3), BarrierKind.CHECKPOINT)


@dataclass
class Ear:
    barriers: LocalBarrierManager[str]
    progress: EpochProgress
    listener: TaskListener

    def task(self, actor: Actor, barrier: Barrier = FIRST, part: int = 0) -> TaskProgress:
        found = self.progress.of_task(actor, barrier, part)
        assert found is not None
        return found

    def until(self, wanted: LocalBarrierEvent[str]) -> list[LocalBarrierEvent[str]]:
        """Everything that is reported up to and with `wanted`."""
        heard: list[LocalBarrierEvent[str]] = []

        def arrived() -> bool:
            event = self.barriers.next_event(0.05)
            heard.extend([event] if event is not None else [])
            return wanted in heard

        wait_for(arrived, f"{wanted} is reported", seconds=30, state=lambda: heard)
        return heard


@pytest.fixture
def ear() -> Iterator[Ear]:
    barriers: LocalBarrierManager[str] = LocalBarrierManager()
    listener = TaskListener("127.0.0.1")
    progress = EpochProgress(barriers, listener)
    barriers.inject(FIRST)
    yield Ear(barriers, progress, listener)
    listener.close()


def test_lanes_are_added_to_what_was_read_before(ear: Ear) -> None:
    ear.progress.reading(ReadBefore(ranges=10, ranges_total=40, rows=1000))
    ear.task(Actor.SNAPSHOT, part=0).tell(50, 1)
    ear.until(CdcTableBackfillProgress(Epoch(3), 11, 40, 1050))
    ear.task(Actor.SNAPSHOT, part=1).tell(70, 2)
    ear.until(CdcTableBackfillProgress(Epoch(3), 13, 40, 1120))
    ear.task(Actor.SNAPSHOT, part=0).tell(60, 2)
    ear.until(CdcTableBackfillProgress(Epoch(3), 14, 40, 1130))


def test_changes_are_reported_per_actor(ear: Ear) -> None:
    ear.task(Actor.UPSTREAM).tell(7)
    ear.until(CreateMviewProgress(Actor.UPSTREAM, Epoch(3), 7))
    ear.task(Actor.MERGE).tell(5)
    ear.until(CreateMviewProgress(Actor.MERGE, Epoch(3), 5))


def test_repeated_epoch_begins_at_nothing_and_ignores_tasks_of_the_old_attempt(ear: Ear) -> None:
    ear.task(Actor.UPSTREAM, part=0).tell(7)
    ear.until(CreateMviewProgress(Actor.UPSTREAM, Epoch(3), 7))
    again = replace(FIRST, attempt=1)
    ear.barriers.inject(again)
    ear.task(Actor.UPSTREAM, FIRST, part=1).tell(900)
    ear.task(Actor.UPSTREAM, again, part=1).tell(2)
    assert ear.until(CreateMviewProgress(Actor.UPSTREAM, Epoch(3), 2, attempt=1)) == [
        CreateMviewProgress(Actor.UPSTREAM, Epoch(3), 2, attempt=1)
    ]


def test_older_datagram_that_comes_late_takes_nothing_back(ear: Ear) -> None:
    task = ear.task(Actor.MERGE)
    task.tell(9)
    task.tell(4)
    ear.task(Actor.MERGE, part=1).tell(1)
    heard = ear.until(CreateMviewProgress(Actor.MERGE, Epoch(3), 10))
    assert [event.rows for event in heard if isinstance(event, CreateMviewProgress)] == [9, 9, 10]


_NOISE = [b"", b"\xff\xfe", b"[" * 1024, b"[" * 60_000, b'["x", "merge", 3, 0, 0, 5, 0]', b'{"a": 1}', b"9" * 1024]


@pytest.mark.parametrize("noise", _NOISE, ids=lambda noise: f"{noise[:2]!r}x{len(noise)}")
def test_datagram_of_a_stranger_is_nothing(ear: Ear, noise: bytes) -> None:
    task = ear.task(Actor.MERGE)
    send(task, noise)
    task.tell(1)
    assert ear.until(CreateMviewProgress(Actor.MERGE, Epoch(3), 1)) == [CreateMviewProgress(Actor.MERGE, Epoch(3), 1)]


def test_any_datagrams_leave_the_driver_listening() -> None:
    """With and without the secret, of any length: a task that sends its totals afterwards is still heard."""
    barriers: LocalBarrierManager[str] = LocalBarrierManager()
    listener = TaskListener("127.0.0.1")
    progress = EpochProgress(barriers, listener)
    barriers.inject(FIRST)
    ear = Ear(barriers, progress, listener)
    told = iter(range(1, 1_000_000))

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        noise=st.lists(st.tuples(st.booleans(), st.binary(max_size=120) | st.text('[{"', max_size=3000)), max_size=4)
    )
    def still_heard(noise: list[tuple[bool, bytes | str]]) -> None:
        task = ear.task(Actor.MERGE)
        for with_secret, content in noise:
            body = content.encode() if isinstance(content, str) else content
            send(task, task.secret + body if with_secret else body)
        rows = next(told)
        task.tell(rows)
        ear.until(CreateMviewProgress(Actor.MERGE, Epoch(3), rows))

    still_heard()
    listener.close()


def send(task: TaskProgress, noise: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.sendto(noise, (task.host, task.port))


def test_task_that_nobody_hears_goes_on(ear: Ear) -> None:
    task = pickle.loads(pickle.dumps(ear.task(Actor.MERGE)))
    ear.listener.close()
    task.tell(1)
    ear.listener.close()


def test_driver_without_an_address_hears_nothing_and_works(caplog: pytest.LogCaptureFixture) -> None:
    listener = TaskListener("203.0.113.7")
    progress = EpochProgress(LocalBarrierManager[str](), listener)
    assert progress.of_task(Actor.MERGE, FIRST, 0) is None
    assert "progress moves at checkpoints only" in caplog.text
    listener.close()


def test_tasks_of_two_tables_are_counted_apart() -> None:
    listener = TaskListener("127.0.0.1")
    ears = [
        Ear(barriers, EpochProgress(barriers, listener), listener)
        for barriers in (LocalBarrierManager[str](), LocalBarrierManager[str]())
    ]
    for ear in ears:
        ear.barriers.inject(FIRST)
    for rows, ear in enumerate(ears, start=1):
        ear.task(Actor.MERGE).tell(rows)
        assert ear.until(CreateMviewProgress(Actor.MERGE, Epoch(3), rows)) == [
            CreateMviewProgress(Actor.MERGE, Epoch(3), rows)
        ]
    listener.close()
