"""How far the tasks of the epoch in hand are: told by datagrams, summed per actor, reported through the barrier manager.

Spark says nothing of a task before it ends, and a task may run as long as an epoch. So a task tells its totals by itself, in one
datagram each time; the driver listens, adds up the tasks of an actor and reports the sum. What must be true:

- Telling never holds a task up and never fails it: a datagram needs no connection and no answer. One that is lost is made good by
  the next, which holds totals; where none gets through (a firewall), progress moves at checkpoints only.
- Only the barrier in hand counts. Each actor subscribes its barriers: a new one, or a new attempt, begins at nothing.
- What is told is shown and never decided on. A datagram without the secret of this run is ignored.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from progress.barriers import CdcTableBackfillProgress, CreateMviewProgress, LocalBarrierManager
from vnode_backfill.epoch import Actor, Barrier, Epoch

Result = TypeVar("Result")
_LARGEST = 1024
_ACTORS = (Actor.SNAPSHOT, Actor.UPSTREAM, Actor.MERGE)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """What a task needs to tell how far it is. Can be pickled."""

    host: str
    port: int
    secret: str
    actor: Actor
    barrier: Barrier
    part: int

    def tell(self, rows: int, ranges: int = 0) -> None:
        """Tell the totals of this task so far; returns at once, whether anybody listens or not."""
        barrier = self.barrier
        told = [self.secret, self.actor, barrier.epoch, barrier.attempt, self.part, rows, ranges]
        with suppress(OSError), socket.socket(_family(self.host), socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(json.dumps(told).encode(), (self.host, self.port))


@dataclass(frozen=True, slots=True)
class ReadBefore:
    """What the snapshot had read before the epoch in hand, and how many ranges there are."""

    ranges: int = 0
    ranges_total: int = 0
    rows: int = 0


class EpochProgress:
    """Listens to the tasks of one driver's run. `close` ends it; what comes later is not heard."""

    def __init__(self, barriers: LocalBarrierManager[Result], host: str, bind: str = "") -> None:
        self._barriers = barriers
        self._secret = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._in_hand: dict[Actor, Barrier] = {}
        self._told: dict[Actor, dict[int, tuple[int, int]]] = {actor: {} for actor in _ACTORS}
        self._before = ReadBefore()
        self._socket, self._host, self._port = _listening(host, bind)
        for actor in _ACTORS:
            barriers.subscribe_barrier(actor, partial(self._begin, actor))
        self._thread = threading.Thread(target=self._listen, name="task-progress", daemon=True)
        self._thread.start()

    def of_task(self, actor: Actor, barrier: Barrier, part: int) -> TaskProgress | None:
        """For the task to take along; None where this driver cannot listen."""
        if self._socket is None:
            return None
        return TaskProgress(self._host, self._port, self._secret, actor, barrier, part)

    def reading(self, before: ReadBefore) -> None:
        """The snapshot begins an epoch; what it tells is added to what was read before."""
        with self._lock:
            self._before = before

    def close(self) -> None:
        """A second call does nothing."""
        if self._socket is not None:
            self._socket.close()

    def _begin(self, actor: Actor, barrier: Barrier) -> None:
        with self._lock:
            self._in_hand[actor] = barrier
            self._told[actor].clear()

    def _listen(self) -> None:
        while self._socket is not None:
            try:
                datagram = self._socket.recv(_LARGEST)
            except TimeoutError:
                continue
            except OSError:
                return
            self._hear(datagram)

    def _hear(self, datagram: bytes) -> None:
        """Strangers may send anything: what is not ours is nothing."""
        try:
            secret, actor, epoch, attempt, part, rows, ranges = json.loads(datagram)
            known = isinstance(secret, str) and hmac.compare_digest(secret, self._secret)
            if known:
                self._count(Actor(actor), Epoch(int(epoch)), int(attempt), int(part), (int(rows), int(ranges)))
        except (ValueError, TypeError):
            return

    def _count(self, actor: Actor, epoch: Epoch, attempt: int, part: int, told: tuple[int, int]) -> None:
        with self._lock:
            barrier, parts = self._in_hand.get(actor), self._told[actor]
            if barrier is None or (barrier.epoch, barrier.attempt) != (epoch, attempt):
                return
            # Datagrams may overtake each other.
            parts[part] = max(told, parts.get(part, told))
            rows, ranges = (sum(each) for each in zip(*parts.values(), strict=True))
            before = self._before
        if actor is Actor.SNAPSHOT:
            self._barriers.report_cdc_table_backfill_progress(
                CdcTableBackfillProgress(
                    epoch, before.ranges + ranges, before.ranges_total, before.rows + rows, attempt
                )
            )
        else:
            self._barriers.report_create_mview_progress(CreateMviewProgress(actor, epoch, rows, attempt))


def _listening(host: str, bind: str) -> tuple[socket.socket | None, str, int]:
    """A socket on the address by which executors reach the driver, that address as a number, and its port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        found = socket.socket(family, socket.SOCK_DGRAM)
        found.settimeout(0.5)
        found.bind((bind or address[0], 0))
    except OSError as error:
        _log.warning("tasks cannot tell how far they are, progress moves at checkpoints only error=%s", error)
        return None, "", 0
    return found, str(address[0]), int(found.getsockname()[1])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
