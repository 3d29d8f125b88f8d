"""Loading the workers' daemon while the JVM still starts: two seconds that every job would wait for before its first row.

Spark starts its daemon itself, when the first Python task is there, and speaks with it through the daemon's standard streams. So
the driver starts another process ahead, which loads what tasks need and waits; what Spark then starts only gives it its streams and its
environment, and stays until it ends. What must be true: a daemon serves Spark in any case, and none outlives its driver. Why it is:

- Nothing is lost where any of it fails: whoever Spark started and whose streams nobody took becomes the daemon itself.
- It serves the first that comes, and nobody after: the way to it is removed when its streams are taken.
- While it waits it has a pipe from the driver, whose end is its end; then it has Spark's, like every daemon.
- Only this user's processes find it: its socket lies in a folder that is the user's alone.

    driver ─ starts ─▶ ahead: loads … waits … takes streams, environment ─▶ forks workers
       └─ starts ─▶ JVM ─ first task ─▶ daemon module: gives them ┘ waits for its end
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

AHEAD = "--ahead"
_PLACE = "VNODE_BACKFILL_TASK_DAEMON"
_WORKER = "pyspark.worker"
_STREAMS = (0, 1, 2)
_TAKEN = b"!"
_LONGEST = 1 << 20
_started: list[subprocess.Popen[bytes]] = []
"""Kept, because a process that nobody holds is waited for."""


def start_ahead(module: str) -> None:
    """In the driver, before its JVM starts: have `module` loaded. Does nothing where that is not possible."""
    folder = Path(tempfile.mkdtemp(prefix="vnode-backfill-daemon-"))
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "socket"))
            listener.listen(1)
            words = [sys.executable, "-m", module, AHEAD, str(listener.fileno()), str(folder)]
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()], process_group=0, env=_environment(),
            )  # fmt: skip
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        return
    _started.append(process)
    os.environ[_PLACE] = str(folder / "socket")


def _environment() -> dict[str, str]:
    """What Spark would set, as far as it counts before the first line of Python or the first import."""
    return {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **os.environ}


def hand_over(arguments: Sequence[str]) -> bool:
    """In the process that Spark started: give its streams to the one that is ahead; whether that was its daemon and has ended."""
    place = os.environ.get(_PLACE)
    if place is None or list(arguments) != [_WORKER]:
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        socket.send_fds(connection, [json.dumps(dict(os.environ)).encode() + b"\n"], _STREAMS)
        if connection.recv(1) == _TAKEN:
            connection.recv(1)
            return True
    return False


class Waiting:
    """The process that is ahead."""

    def __init__(self, descriptor: int, folder: str) -> None:
        self._listener, self._folder = socket.socket(fileno=descriptor), folder
        self._connection: socket.socket | None = None
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def take_over(self) -> bool:
        """Wait for whom Spark starts, and take its place; False if the driver ended before."""
        try:
            ready, _, _ = select.select([sys.stdin, self._listener], [], [])
            if self._listener not in ready:
                return False
            # Held until this process ends; whoever gave its streams waits for that.
            self._connection, _ = self._listener.accept()
        finally:
            self._listener.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        environment, streams = _received(self._connection)
        for number, descriptor in zip(_STREAMS, streams, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(environment)
        self._connection.sendall(_TAKEN)
        return True


def waiting(arguments: Sequence[str]) -> Waiting | None:
    """The process that is ahead, if this is it; takes the arguments that Spark would give in place of its own."""
    if list(arguments[:1]) != [AHEAD]:
        return None
    found = Waiting(int(arguments[1]), arguments[2])
    sys.argv[1:] = [_WORKER]
    return found


def _received(connection: socket.socket) -> tuple[dict[str, str], list[int]]:
    data, streams, _, _ = socket.recv_fds(connection, _LONGEST, len(_STREAMS))
    while not data.endswith(b"\n"):
        more = connection.recv(_LONGEST)
        if not more:
            raise EOFError("whoever gave its streams is gone")
        data += more
    return json.loads(data), streams
