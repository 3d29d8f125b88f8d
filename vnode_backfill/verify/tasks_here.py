"""Runs the tasks of a comparison on this machine without Spark: a JVM would cost more than most comparisons.

A task of the source only waits for the server, so it is a thread. A task of the target hashes rows in Python, one
thread at a time. So the files of a large target are read by processes of their own, which take some tenths of a second
each to start, and those of a small one by threads.

What must be true: no process outlives this one, however it ends, and an interrupted command ends at once. A process
reads its tasks from a pipe and ends when the pipe does (`reader_process`). Threads are daemons: nobody waits for a
query of an interrupted comparison.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from vnode_backfill.verify.tasks import Result, Source, Target
from vnode_backfill.words.errors import ActorError, BackfillError

__all__ = ["TasksHere"]

_LARGE_ROWS = 2_000_000
"""From so many rows on processes of their own are worth their start."""
_ROWS_EACH = 1_000_000
_THREADS = 2
_END_SECONDS = 10.0


class TasksHere:
    """Where tasks run; a context manager that ends the processes. Several threads may run tasks at the same time.

    `large_rows` is the size from which on a target is read by other processes.
    """

    def __init__(self, processes: int | None = None, *, large_rows: int = _LARGE_ROWS) -> None:
        self._most = processes or os.cpu_count() or 1
        self._large = large_rows
        self._lock, self._turns = threading.Lock(), threading.BoundedSemaphore(self._most)
        self._idle: list[_Reader] = []
        self._started: list[_Reader] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            readers, self._started, self._idle = self._started, [], []
        for reader in readers:
            reader.end(at_once=error is not None)

    def lanes(self, rows: int) -> int:
        return _THREADS if rows < self._large else max(1, min(self._most, rows // _ROWS_EACH))

    def run(
        self, function: Callable[[Source | Target], Result], source: Sequence[Source], target: Sequence[Target]
    ) -> tuple[list[Result], list[Result]]:
        apart = sum(task.files.rows for task in target) >= self._large
        waited = [_started(partial(function, task)) for task in source]
        waited += [
            _started(partial(self._elsewhere, function, task) if apart else partial(function, task)) for task in target
        ]
        found = [each.result() for each in waited]
        failures = [outcome for outcome in found if isinstance(outcome, BackfillError)]
        if failures:
            raise min(failures, key=lambda failure: failure.retryable)
        results = [outcome for outcome in found if not isinstance(outcome, BackfillError)]
        return results[: len(source)], results[len(source) :]

    def _elsewhere(self, function: Callable[[Target], Result], task: Target) -> Result | BackfillError:
        """What a process finds that has nothing to do, or a new one; no more of them at once than there may be."""
        with self._turns:
            with self._lock:
                reader = self._idle.pop() if self._idle else None
                if reader is None:
                    reader = _Reader()
                    self._started.append(reader)
            found = reader.ask(function, task)
            with self._lock:
                self._idle.append(reader)
        return found


class _Reader:
    """A process that runs one task at a time."""

    def __init__(self) -> None:
        # The very folders that this process imports from, and not the current one unless it is among them.
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from vnode_backfill.verify.reader_process import main; main()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, function: Callable[[Target], Result], task: Target) -> Result | BackfillError:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            pickle.dump((function, task), self._process.stdin)
            self._process.stdin.flush()
            found: Result | BackfillError = pickle.load(self._process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise ActorError(
                "a process that read the target has ended",
                detail=f"It ended with {self._process.wait(_END_SECONDS)}.",
                hint="If the system has killed it, memory was short: `--master local[1]` reads with one process at a "
                "time.",
            ) from error
        return found

    def end(self, *, at_once: bool) -> None:
        """At once, or by the end of its tasks."""
        if at_once:
            self._process.kill()
        with suppress(OSError), self._process:  # closes its pipes, and waits for its end
            pass


def _started(work: Callable[[], Result | BackfillError]) -> Future[Result | BackfillError]:
    """The work, in a thread that nobody has to wait for. An error that a user can act on is a result."""
    future: Future[Result | BackfillError] = Future()
    threading.Thread(target=_fulfil, args=(future, work), daemon=True).start()
    return future


def _fulfil(future: Future[Result | BackfillError], work: Callable[[], Result | BackfillError]) -> None:
    try:
        future.set_result(work())
    except BackfillError as error:
        future.set_result(error)
    except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
        future.set_exception(error)
