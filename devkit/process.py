"""Starts a server's process that never outlives its owner, and finds a free port for it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from devkit.commands import last_lines
from devkit.errors import DevkitError

GUARD = Path(__file__).with_name("guard.py")
POLL_SECONDS = 0.05


class GuardedProcess:
    """A command that runs until stopped, killed, or until its owner ends in any way."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        remove: Path | None = None,
    ) -> None:
        """Start it; both its streams are appended to `log`; `remove` is deleted if the owner dies."""
        guard = [sys.executable, "-I", "-S", str(GUARD), str(remove or "-")]
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [*guard, *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **(environment or {})},
                # Ctrl-C in the terminal is for the owner, which then stops the server in order.
                start_new_session=True,
            )
        self._log = log
        self.pid = self._read_pid()

    @property
    def running(self) -> bool:
        return self._guard.poll() is None

    def log_tail(self) -> str:
        return last_lines(self._log.read_text(errors="replace"))

    def stop(self, *, seconds: float = 30) -> None:
        """End in order, by SIGKILL after `seconds`. A second call does nothing."""
        self._signal(signal.SIGTERM)
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close_pipes()

    def kill(self) -> None:
        """End by SIGKILL, as a crash would. A second call does nothing."""
        self._signal(signal.SIGKILL)
        self._guard.wait()
        self._close_pipes()

    def wait(self, seconds: float) -> int:
        """The exit code of a command that ends by itself."""
        code = self._guard.wait(seconds)
        self._close_pipes()
        return code

    def wait_until(
        self, ready: Callable[[], bool], *, seconds: float, what: str, reason: Callable[[], str] = str
    ) -> None:
        """Return once `ready()`; raise with the log and the last `reason()` when it dies or the time is up."""
        deadline = time.monotonic() + seconds
        while not ready():
            if self._ended_within(POLL_SECONDS):
                raise DevkitError(f"{what} ended before it was ready", detail=self.log_tail())
            if time.monotonic() > deadline:
                self.kill()
                raise DevkitError(f"{what} was not ready after {seconds:g} s", detail=f"{reason()}\n{self.log_tail()}")

    def _read_pid(self) -> int:
        assert self._guard.stdout is not None
        line = self._guard.stdout.readline()
        if not line:
            raise DevkitError("the process could not be started", detail=self.log_tail())
        return int(line)

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def _ended_within(self, seconds: float) -> bool:
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _close_pipes(self) -> None:
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()


def free_ports(count: int = 1) -> tuple[int, ...]:
    """Ports of the loopback nobody listens on.

    Taken below the range from which the kernel gives ports to clients, so that a server that is restarted finds its
    own port free again.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(15_000, 32_000)
        if port not in found and _is_free(port):
            found.append(port)
    return tuple(found)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
