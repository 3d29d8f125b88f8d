"""Adds up how far the tasks of the epoch in progress are: they send datagrams, the driver reports the sum per actor.

Spark says nothing of a task before it ends, and a task may run as long as an epoch. So a task sends its totals by
itself, in one datagram each time; the driver listens, adds up the tasks of an actor and reports the sum. What must be
true:

- Sending never holds a task up and never fails it: a datagram needs no connection and no answer. One that is lost is
  made good by the next, which holds totals; where none gets through (a firewall), progress moves at checkpoints only.
- Only the barrier in progress counts. Each actor subscribes its barriers: a new one, or a new attempt, begins at
  nothing.
- What is sent is shown, and nothing is decided by it.
- No datagram can do harm. It has one fixed size and form and starts with the secret of this run; anything else is
  dropped before it is read any further. So there is nothing to parse that a stranger has written, and the thread that
  listens ends with `close` only.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from progress.state.barriers import CdcTableBackfillProgress, CreateMviewProgress, LocalBarrierManager
from vnode_backfill.words.epoch import Actor, Barrier, Epoch

Result = TypeVar("Result")
_ACTORS = (Actor.SNAPSHOT, Actor.UPSTREAM, Actor.MERGE)
_SECRET_BYTES = 16
_DATAGRAM = struct.Struct(f"!{_SECRET_BYTES}sBqqqqq")
"""The secret, the actor's place in `_ACTORS`, epoch, attempt, part, rows, ranges."""
_PAUSE_AFTER_ERROR = 0.5
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """What a task needs to report how far it is. Can be pickled."""

    host: str
    port: int
    secret: bytes
    actor: Actor
    barrier: Barrier
    part: int

    def tell(self, rows: int, ranges: int = 0) -> None:
        """Send the totals of this task so far; returns at once, whether anybody listens or not."""
        barrier = self.barrier
        totals = (barrier.epoch, barrier.attempt, self.part, rows, ranges)
        with suppress(OSError, struct.error), socket.socket(_family(self.host), socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(_DATAGRAM.pack(self.secret, _ACTORS.index(self.actor), *totals), (self.host, self.port))


@dataclass(frozen=True, slots=True)
class ReadBefore:
    """What the snapshot had read before the epoch in progress, and how many ranges there are."""

    ranges: int = 0
    ranges_total: int = 0
    rows: int = 0


class EpochProgress:
    """Listens to the tasks of one driver's run. `close` ends it; what comes later is not heard."""

    def __init__(self, barriers: LocalBarrierManager[Result], host: str, bind: str = "") -> None:
        self._barriers = barriers
        self._secret = secrets.token_bytes(_SECRET_BYTES)
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
        """The snapshot begins an epoch; what it reports is added to what was read before."""
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
        """Runs until the socket is closed.

        One byte more than a datagram has is asked for, so that a longer one is seen as such.
        """
        while self._socket is not None and self._socket.fileno() >= 0:
            try:
                self._hear(self._socket.recv(_DATAGRAM.size + 1))
            except TimeoutError:
                continue
            except OSError:
                # Closed, which the loop sees, or short of memory, which passes.
                time.sleep(_PAUSE_AFTER_ERROR if self._socket.fileno() >= 0 else 0)

    def _hear(self, datagram: bytes) -> None:
        """Strangers may send anything: what is not ours is nothing."""
        ours = hmac.compare_digest(datagram[:_SECRET_BYTES], self._secret)
        if not ours or len(datagram) != _DATAGRAM.size:
            return
        _, place, epoch, attempt, part, rows, ranges = _DATAGRAM.unpack(datagram)
        if place < len(_ACTORS):
            self._count(_ACTORS[place], Epoch(epoch), attempt, part, (rows, ranges))

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
        _log.warning("tasks cannot report how far they are, progress moves at checkpoints only error=%s", error)
        return None, "", 0
    return found, str(address[0]), int(found.getsockname()[1])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
