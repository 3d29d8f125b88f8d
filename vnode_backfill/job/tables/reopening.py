"""Opens tables again beside the others: those that need a new copy, that are taken up, or that could not be opened.

What may pass is tried again, as often and with the same pauses as an epoch is. A stop ends every wait: what is in
progress is carried to its end, and nothing more is begun. The next run opens such a table again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from vnode_backfill.config.job import LimitsConfig
from vnode_backfill.job.tables.running_table import OpenedTable, RunningTable
from vnode_backfill.words.errors import ActorError, BackfillError, StuckError

__all__ = ["AsideTries", "Reopening"]

_END_SECONDS = 600.0
_LOOK_SECONDS = 1.0
Reopened = OpenedTable | BackfillError | None
"""None where a stop came first."""


class Reopening:
    """The tables that are being opened again, each in a thread. `stopping` ends their waits."""

    def __init__(self, limits: LimitsConfig, stopping: threading.Event, happened: Callable[[], object]) -> None:
        self._limits, self._stopping, self._happened = limits, stopping, happened
        self._threads: dict[str, threading.Thread] = {}
        self._done: list[tuple[RunningTable, Reopened]] = []

    def __contains__(self, name: object) -> bool:
        return name in self._threads

    def __bool__(self) -> bool:
        return bool(self._threads)

    def begin(self, table: RunningTable, opened: Callable[[], OpenedTable]) -> None:
        """Open a table that has stopped again; returns at once."""

        def work() -> None:
            self._done.append((table, self._opened(table, opened)))
            self._happened()

        self._threads[table.name] = thread = threading.Thread(target=work, daemon=True)
        thread.start()

    def take(self) -> list[tuple[RunningTable, Reopened]]:
        """What has come of those that are opened by now, once each."""
        taken: list[tuple[RunningTable, Reopened]] = []
        while self._done:
            taken.append(self._done.pop())
        for table, _ in taken:
            self._threads.pop(table.name, None)
        return taken

    def _opened(self, table: RunningTable, opened: Callable[[], OpenedTable]) -> Reopened:
        """Nothing of the run before may still be at work: it has the same generation, so that the target would take
        what it writes late."""
        try:
            if not self._has_ended(table):
                return None
            return retried(opened, table.services.sink.close, self._limits, self._stopping)
        except BackfillError as error:
            return error
        except Exception as error:  # noqa: BLE001 - every outcome is reported, none is swallowed
            return ActorError(f"the table could not be opened again: {type(error).__name__}", detail=str(error))

    def _has_ended(self, table: RunningTable) -> bool:
        """Wait for what the table has begun; False if a stop came first."""
        ends = time.monotonic() + _END_SECONDS
        while not table.performer.has_ended(_LOOK_SECONDS):
            if self._stopping.is_set():
                return False
            if time.monotonic() >= ends:
                raise StuckError(
                    f"what was begun for {table.name} has not ended after {_END_SECONDS:.0f} s",
                    hint="Stop the job and run it again.",
                )
        return True


def retried(
    opened: Callable[[], OpenedTable],
    before: Callable[[], object],
    limits: LimitsConfig,
    stopping: threading.Event,
) -> OpenedTable | None:
    """What comes of it, tried again while what goes wrong may pass; None if a stop came first."""
    attempt = 0
    while not stopping.is_set():
        try:
            before()
            return opened()
        except BackfillError as error:
            attempt += 1
            if not error.retryable or attempt > limits.retries:
                raise
            stopping.wait(limits.pause(attempt))
    return None


class AsideTries:
    """Decides when tables that could not be opened for a reason that may pass are tried again, and for how long."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._tries: dict[str, tuple[int, float]] = {}
        """Per table how often it was tried again, and when it is its turn next."""

    def waiting(self, aside: Mapping[str, BackfillError], running: Iterable[str]) -> list[str]:
        """The tables that are still tried: not those that run, whose own tries are over."""
        known = set(running)
        return [name for name, error in aside.items() if name not in known and error.retryable and not self._over(name)]

    def due(self, waiting: Iterable[str], now: float) -> list[str]:
        """Those whose turn has come; each one's next turn is later."""
        found = []
        for name in waiting:
            tries, at = self._tries.setdefault(name, (0, now + self._limits.pause(1)))
            if now >= at:
                found.append(name)
                self._tries[name] = tries + 1, now + self._limits.pause(tries + 2)
        return found

    def _over(self, name: str) -> bool:
        return self._tries.get(name, (0, 0.0))[0] >= self._limits.retries
