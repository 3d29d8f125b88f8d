"""Makes a network fail on request: a TCP proxy in front of a server, which stalls or cuts a connection in mid-stream.

    with TcpProxy(server.host, server.port) as proxy:
        fault = proxy.stall_after(100_000)
        … a client that reads through proxy.port …
        fault.wait()        # one connection has been sent 100,000 bytes and gets no more, without being closed

        held = proxy.hold(b"START TRANSACTION")
        … a client …
        held.wait()         # it has sent the statement, and the server has not got it yet
        proxy.heal()

A fault strikes once: connections opened later go through. A stalled one stays as it is until the client gives it up or
`heal` is called.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

from devkit.errors import DevkitError

_BLOCK = 65_536


class FaultKind(StrEnum):
    STALL = "stall"
    CUT = "cut"


@dataclass
class Fault:
    """Strikes the first connection over which the server has sent more than `size` bytes since the fault was set."""

    kind: FaultKind
    size: int
    _struck: threading.Event = field(default_factory=threading.Event)
    _taken: threading.Lock = field(default_factory=threading.Lock)

    @property
    def struck(self) -> bool:
        return self._struck.is_set()

    def wait(self, seconds: float = 60) -> None:
        """Return once it has struck."""
        if not self._struck.wait(seconds):
            raise DevkitError(f"no connection was sent {self.size:,} bytes within {seconds:g} s")

    def strike(self, sent: int) -> bool:
        """Whether this connection, over which `sent` bytes came so far, is the one."""
        if sent <= self.size or self.struck or not self._taken.acquire(blocking=False):
            return False
        self._struck.set()
        return True


@dataclass
class Held:
    """The first time that a client sends this text after it was set, the server does not get it before `heal`."""

    text: bytes
    _struck: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float = 60) -> None:
        """Return once it is held."""
        if not self._struck.wait(seconds):
            raise DevkitError(f"no client has sent {self.text!r} within {seconds:g} s")

    def strike(self, sent: bytes) -> bool:
        if self.text not in sent or self._struck.is_set():
            return False
        self._struck.set()
        return True


class TcpProxy:
    """Forwards connections from its own port to a server."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._fault: Fault | None = None
        self._held: Held | None = None
        self._healed = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def stall_after(self, size: int) -> Fault:
        """Let one connection hang after so many bytes from the server, as a lost network does."""
        return self._set(Fault(FaultKind.STALL, size))

    def cut_after(self, size: int) -> Fault:
        """Close one connection after so many bytes from the server, in the middle of whatever is sent."""
        return self._set(Fault(FaultKind.CUT, size))

    def hold(self, text: bytes) -> Held:
        """Let the next statement that holds this text wait on its way to the server."""
        self._healed.clear()
        self._held = Held(text)
        return self._held

    def heal(self) -> None:
        """Let stalled connections and held statements continue."""
        self._healed.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self.heal()
        with self._lock:
            for each in self._open:
                _close(each)

    def _set(self, fault: Fault) -> Fault:
        self._healed.clear()
        self._fault = fault
        return fault

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            _close(client)
            return
        with self._lock:
            self._open |= {client, server}
        threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
        self._answer(server, client)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        try:
            while data := client.recv(_BLOCK):
                if self._held is not None and self._held.strike(data):
                    self._healed.wait()
                server.sendall(data)
        except OSError:
            pass
        finally:
            self._end(client, server)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        """What the server sends, counted from the moment a fault was set."""
        sent, counted_for = 0, self._fault
        try:
            while data := server.recv(_BLOCK):
                fault = self._fault
                if fault is not counted_for:
                    sent, counted_for = 0, fault
                sent += len(data)
                if fault is not None and fault.strike(sent):
                    # Half of a block, so that a packet is torn.
                    client.sendall(data[: len(data) // 2])
                    if fault.kind is FaultKind.CUT:
                        return
                    self._healed.wait()
                    data = data[len(data) // 2 :]
                client.sendall(data)
        except OSError:
            pass
        finally:
            self._end(client, server)

    def _end(self, *sockets: socket.socket) -> None:
        for each in sockets:
            _close(each)
        with self._lock:
            self._open -= set(sockets)


def _close(connection: socket.socket) -> None:
    # A thread that waits in recv wakes up only by a shutdown.
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
