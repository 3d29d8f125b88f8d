"""Loading the workers' daemon while the JVM still starts: two seconds that every job would wait for before its first
row.

Spark starts its daemon itself, when the first Python task is there, and speaks with it through the daemon's standard
streams. So the driver starts another process ahead, which loads what tasks need and waits; what Spark then starts only
gives it its streams and its environment, and stays until it ends. What must be true: a daemon serves Spark in any case,
and none outlives its driver. Why it is:

- Nothing is lost where any of it fails: whoever Spark started and whose streams nobody took becomes the daemon itself.
- It serves the first that comes, and nobody after: the way to it is removed when its streams are taken.
- While it waits it has a pipe from the driver, whose end is its end; then it has Spark's, like every daemon.
- Its socket is in a folder that is the user's alone, and each side asks the kernel whose process the other one is:
  the name is known, and free when the folder is gone. Nothing is given to another user's process, and nothing is taken
  from one.
- It begins as Spark would have begun it, as far as that cannot be made up for later: the variables that count before
  the first line of Python or the first import, and the number of open files. Where a job sets variables of its own,
  nothing is started ahead.

    driver ─ starts ─▶ ahead: loads … waits … takes streams, environment ─▶ forks workers
       └─ starts ─▶ JVM ─ first task ─▶ daemon module: gives them ┘ waits for its end
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

AHEAD = "--ahead"
_PLACE = "VNODE_BACKFILL_TASK_DAEMON"
_WORKER = "pyspark.worker"
_PREFIX, _SOCKET = "vnode-backfill-daemon-", "socket"
_STREAMS = (0, 1, 2)
_TAKEN = b"!"
_LONGEST = 1 << 20


class DaemonAhead:
    """In the driver: a daemon that is on its way. Whoever prepares the job first has the machine's cores for that.

    `reserve` comes before the JVM is started, which must know where the daemon will be; `load` when nothing else is
    left to do; they may come in any order and from any thread. Where a daemon cannot be had, both do nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reserved: tuple[str, Path, socket.socket] | None = None
        self._wanted = False
        self.process: subprocess.Popen[bytes] | None = None

    def reserve(self, module: str) -> None:
        with self._lock, suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            listener = socket.socket(socket.AF_UNIX)
            try:
                listener.bind(str(folder / _SOCKET))
                listener.listen(1)
            except OSError:
                _clear(listener, folder)
                raise
            self._reserved = module, folder, listener
            os.environ[_PLACE] = str(folder / _SOCKET)
            self._load_if_wanted()

    def load(self) -> None:
        with self._lock:
            self._wanted = True
            self._load_if_wanted()

    def close(self) -> None:
        """One that was not loaded by now never will be; one that was continues."""
        with self._lock:
            self._wanted = False
            reserved, self._reserved = self._reserved, None
            if reserved is not None:
                _clear(reserved[2], reserved[1])

    def _load_if_wanted(self) -> None:
        if self._reserved is None or not self._wanted:
            return
        (module, folder, listener), self._reserved = self._reserved, None
        with listener:
            try:
                self.process = _start(module, folder, listener.fileno())
            except OSError:
                _clear(listener, folder)


def _clear(listener: socket.socket, folder: Path) -> None:
    listener.close()
    _remove(folder)


def _remove(folder: Path) -> None:
    """The folder of a socket, if nothing else is in it.

    Its name comes from the environment, which anybody may have set.
    """
    place = folder / _SOCKET
    with suppress(OSError):
        if place.is_socket():
            place.unlink()
        if folder.name.startswith(_PREFIX):
            folder.rmdir()


def _start(module: str, folder: Path, listener: int) -> subprocess.Popen[bytes]:
    # Spark keeps the user's hash seed and none of the user's number of threads.
    environment = {"PYTHONHASHSEED": "0", **os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "YES"}
    return subprocess.Popen(
        [sys.executable, "-m", module, AHEAD, str(listener), str(folder)], stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[listener], process_group=0, env=environment,
    )  # fmt: skip


def hand_over(arguments: Sequence[str]) -> bool:
    """In the process that Spark started.

    Give its streams to the one that is ahead; whether that was its daemon and has ended.
    """
    place = os.environ.get(_PLACE)
    if not place or list(arguments) != [_WORKER]:
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        _connect(connection, Path(place))
        environment = json.dumps(dict(os.environ)).encode() + b"\n"
        sent = socket.send_fds(connection, [environment], _STREAMS)
        connection.sendall(environment[sent:])
        if connection.recv(1) == _TAKEN:
            connection.recv(1)
            return True
    return False


def _connect(connection: socket.socket, place: Path) -> None:
    try:
        connection.connect(str(place))
    except ConnectionRefusedError:
        # It was killed, and left its folder behind.
        _remove(place.parent)
        raise
    if _peer_user(connection) != os.geteuid():
        raise PermissionError(f"{place} is somebody else's")


def _peer_user(connection: socket.socket) -> int:
    """Whose process is at the other end: the one that connected, or the one that listened."""
    form = struct.Struct("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
    _, user, _ = form.unpack(credentials)
    return int(user)


class Waiting:
    """The process that is ahead."""

    def __init__(self, descriptor: int, folder: str) -> None:
        self._listener, self._folder = socket.socket(fileno=descriptor), folder
        self._connection: socket.socket | None = None
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # A JVM raises its own limit, and its children have it.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    def take_over(self) -> bool:
        """Wait for whom Spark starts, and take its place; False if the driver ended before."""
        try:
            ready, _, _ = select.select([sys.stdin, self._listener], [], [])
            if self._listener not in ready:
                return False
            # Held until this process ends; whoever gave its streams waits for that.
            self._connection, _ = self._listener.accept()
            if _peer_user(self._connection) != os.geteuid():
                return False
        finally:
            self._listener.close()
            _remove(Path(self._folder))
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
