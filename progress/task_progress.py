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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from progress.state.barriers import CdcTableBackfillProgress, CreateMviewProgress, LocalBarrierManager
from vnode_backfill.words.epoch import Actor, Barrier, Epoch

Result = TypeVar("Result")
_ACTORS = (Actor.SNAPSHOT, Actor.UPSTREAM, Actor.MERGE)
_SECRET_BYTES = 16
_DATAGRAM = struct.Struct(f"!{_SECRET_BYTES}sIBqqqqq")
"""The secret, the number of the table, the actor's place in `_ACTORS`, epoch, attempt, part, rows, ranges."""
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
    number: int = 0

    def tell(self, rows: int, ranges: int = 0) -> None:
        """Send the totals of this task so far; returns at once, whether anybody listens or not."""
        barrier = self.barrier
        totals = (barrier.epoch, barrier.attempt, self.part, rows, ranges)
        with suppress(OSError, struct.error), socket.socket(_family(self.host), socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            place = _ACTORS.index(self.actor)
            out.sendto(_DATAGRAM.pack(self.secret, self.number, place, *totals), (self.host, self.port))


@dataclass(frozen=True, slots=True)
class ReadBefore:
    """What the snapshot had read before the epoch in progress, and how many ranges there are."""

    ranges: int = 0
    ranges_total: int = 0
    rows: int = 0


Heard = Callable[[Actor, Epoch, int, int, tuple[int, int]], None]
"""Takes what a task of one table has sent: actor, epoch, attempt, part, and its rows and ranges."""


class TaskListener:
    """Listens to the tasks of one driver, whatever number of tables it copies. `close` ends it."""

    def __init__(self, host: str, bind: str = "") -> None:
        self.secret = secrets.token_bytes(_SECRET_BYTES)
        self._heard: dict[int, Heard] = {}
        self._socket, self.host, self.port = _listening(host, bind)
        self._thread = threading.Thread(target=self._listen, name="task-progress", daemon=True)
        self._thread.start()

    @property
    def listens(self) -> bool:
        return self._socket is not None

    def listen_for(self, heard: Heard) -> int:
        """Let `heard` take what tasks of one more table send; the number that they send it with."""
        number = len(self._heard)
        self._heard[number] = heard
        return number

    def close(self) -> None:
        """A second call does nothing."""
        if self._socket is not None:
            self._socket.close()

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
        ours = hmac.compare_digest(datagram[:_SECRET_BYTES], self.secret)
        if not ours or len(datagram) != _DATAGRAM.size:
            return
        _, number, place, epoch, attempt, part, rows, ranges = _DATAGRAM.unpack(datagram)
        heard = self._heard.get(number)
        if heard is not None and place < len(_ACTORS):
            heard(_ACTORS[place], Epoch(epoch), attempt, part, (rows, ranges))


class EpochProgress:
    """Adds up what the tasks of one table send, and reports it; what comes after `close` of the listener is not
    heard."""

    def __init__(self, barriers: LocalBarrierManager[Result], listener: TaskListener) -> None:
        self._barriers, self._listener = barriers, listener
        self._lock = threading.Lock()
        self._in_hand: dict[Actor, Barrier] = {}
        self._told: dict[Actor, dict[int, tuple[int, int]]] = {actor: {} for actor in _ACTORS}
        self._before = ReadBefore()
        for actor in _ACTORS:
            barriers.subscribe_barrier(actor, partial(self._begin, actor))
        self._number = listener.listen_for(self._count)

    def of_task(self, actor: Actor, barrier: Barrier, part: int) -> TaskProgress | None:
        """For the task to take along; None where this driver cannot listen."""
        heard = self._listener
        if not heard.listens:
            return None
        return TaskProgress(heard.host, heard.port, heard.secret, actor, barrier, part, self._number)

    def reading(self, before: ReadBefore) -> None:
        """The snapshot begins an epoch; what it reports is added to what was read before."""
        with self._lock:
            self._before = before

    def _begin(self, actor: Actor, barrier: Barrier) -> None:
        with self._lock:
            self._in_hand[actor] = barrier
            self._told[actor].clear()

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
