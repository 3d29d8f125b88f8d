"""Runs reshapes in a process of their own, at a lower priority, so that epochs do not wait for it.

Reading and writing a file of 128 MB keeps a core busy for seconds, and much of that holds the interpreter's lock: in a
thread of the driver it would delay every epoch. The process gets its task by its standard input, secrets included, so
that no command line shows them. It ends when the driver does, whichever way that ends: its standard input closes then.
It commits nothing; what it has written before it was killed belongs to nobody and is swept up later.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import BinaryIO, cast

from vnode_backfill.sinks.delta.compaction import GivenUpError, always
from vnode_backfill.sinks.delta.reshape import Reshape, Reshaped, Reshaper
from vnode_backfill.words.errors import BackfillError, SinkUnavailableError

_LOOK_SECONDS = 0.2
_MOST_SECONDS = 3600.0
"""A process that has not ended after this time never will."""
_LESS_URGENT = 10


def run_apart(reshaper: Reshaper, tasks: Sequence[Reshape]) -> list[Reshaped]:
    """Run reshapes in a process of their own. Raises what they raise, and `GivenUpError` once `goes_on` is False."""
    process = _started()
    answer: list[bytes] = []
    reading = threading.Thread(target=_exchange, args=(process, replace(reshaper, goes_on=always), tasks, answer))
    reading.start()
    try:
        _wait(reading, reshaper.goes_on)
    finally:
        process.kill()
        process.wait()
        reading.join()
        for pipe in (process.stdin, process.stdout):
            # A process that has read nothing leaves bytes behind, which closing would write.
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
    return _result(answer, process.returncode)


def _started() -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "vnode_backfill.sinks.delta.reshape_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except OSError as error:
        raise SinkUnavailableError("the process that joins files cannot be started", detail=str(error)) from error


def _exchange(
    process: subprocess.Popen[bytes], reshaper: Reshaper, tasks: Sequence[Reshape], answer: list[bytes]
) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump((reshaper, tasks), process.stdin)
        process.stdin.flush()
    except BrokenPipeError:
        return
    answer.append(process.stdout.read())


def _wait(reading: threading.Thread, goes_on: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _MOST_SECONDS
    while reading.is_alive():
        if not goes_on():
            raise GivenUpError
        if time.monotonic() > deadline:
            raise SinkUnavailableError(f"the process that joins files has not ended after {_MOST_SECONDS:.0f} s")
        reading.join(_LOOK_SECONDS)


def _result(answer: list[bytes], code: int) -> list[Reshaped]:
    try:
        result = pickle.loads(answer[0]) if answer else None
    except (EOFError, pickle.UnpicklingError):
        result = None
    if isinstance(result, list):
        return result
    if isinstance(result, BackfillError):
        raise result
    raise SinkUnavailableError(f"the process that joins files ended with {code} and no result")


def main() -> None:
    os.nice(_LESS_URGENT)
    source, target = cast("BinaryIO", sys.stdin.buffer), sys.stdout.buffer
    reshaper, tasks = pickle.load(source)
    threading.Thread(target=_end_with_driver, args=(source,), daemon=True).start()
    try:
        result: list[Reshaped] | BackfillError = [reshaper.run(task) for task in tasks]
    except BackfillError as error:
        result = error
    pickle.dump(result, target)
    target.flush()
    # The thread waits for the standard input still, and the interpreter would not end without complaint.
    os._exit(0)


def _end_with_driver(source: BinaryIO) -> None:
    while source.read(1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
