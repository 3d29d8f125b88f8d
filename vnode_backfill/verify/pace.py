"""Limits how fast a comparison reads the source: by the job's `limits.rows_per_second` and `limits.throttle`.

The source digests whole ranges by itself, so a limit cannot hold within a query. The ranges are asked for in rounds
instead. Before each round the comparison waits while the source is too busy, and until the rows of the rounds before
are paid for. So the rows that the source has scanned never exceed `rows_per_second` × seconds by more than one round. A
round is about five seconds' worth or one range, whichever is more. Without limits everything is one round, and nothing
is asked.

Tables that are compared side by side pay from one account, so that each reads as fast as the others leave it. A table
with a limit of its own keeps that as well.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

_ROUND_SECONDS = 5.0
_ROUND_ROWS = 1_000_000
"""Rows of a round where only the throttle limits it: some seconds of work."""

Piece = TypeVar("Piece")


def _not_busy() -> str:
    return ""


def _say(text: str) -> None:
    print(text, file=sys.stderr)


@dataclass
class RowAccount:
    """So many rows a second for all who take from it. Safe to use from any thread."""

    rows_per_second: int
    _paid_until: float = field(default=0.0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def take(self, rows: int, now: float) -> float:
        """Take so many rows; how many seconds to wait before they are read."""
        with self._lock:
            due, self._paid_until = self._paid_until, max(now, self._paid_until) + rows / self.rows_per_second
        return max(0.0, due - now)


@dataclass
class SourcePace:
    """`busy` returns why the source must not be read now, or nothing. `shared` is what other tables pay from, too.

    While `busy` returns a reason it is asked every `every` seconds.
    """

    rows_per_second: int | None = None
    busy: Callable[[], str] | None = None
    every: float = 5.0
    say: Callable[[str], None] = _say
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep
    shared: RowAccount | None = None

    def __post_init__(self) -> None:
        own = RowAccount(self.rows_per_second) if self.rows_per_second else None
        self._accounts = [each for each in (own, self.shared) if each is not None]

    def rounds(self, pieces: Sequence[Piece], rows_each: int) -> Iterator[Sequence[Piece]]:
        """The pieces in rounds, each as large as may be read now; `rows_each` is about what one piece costs.

        There is one round at least.
        """
        size = max(1, self.most_rows // max(1, rows_each)) if self._limited else max(1, len(pieces))
        for first in range(0, max(1, len(pieces)), size):
            some = pieces[first : first + size]
            self.pay(rows_each * len(some))
            yield some

    def pay(self, rows: int) -> None:
        """Return when so many rows more may be read."""
        if not self._limited:
            return
        self._wait_while_busy()
        now = self.clock()
        waits = [account.take(rows, now) for account in self._accounts]
        if waits:
            self.wait(max(waits))

    @property
    def most_rows(self) -> int:
        """How many rows one question should ask for at most."""
        rate = min((account.rows_per_second for account in self._accounts), default=0)
        return max(1, int(rate * _ROUND_SECONDS)) if rate else _ROUND_ROWS

    @property
    def _limited(self) -> bool:
        return bool(self._accounts) or self.busy is not None

    def _wait_while_busy(self) -> None:
        told, busy = "", self.busy or _not_busy
        while reason := busy():
            if reason != told:
                self.say(f"verify waits: {reason}")
                told = reason
            self.wait(self.every)
        if told:
            self.say("verify continues")


NO_LIMITS = SourcePace()
