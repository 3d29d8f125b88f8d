"""A server that is not trusted gets no password that it can read, and none at all where TLS was demanded."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from pymysql.constants import CLIENT

from consume_upstream.mysql import connection
from consume_upstream.mysql.connection import SourceAddress, TlsMode, TlsOptions, connect, encryption_of
from vnode_backfill.words.errors import SourceError, SourceLostError

PASSWORD = "geheim-7"
DONE = b"\0\0\0\2\0\0\0"
_ABILITIES = CLIENT.PROTOCOL_41 | CLIENT.SECURE_CONNECTION | CLIENT.PLUGIN_AUTH | CLIENT.TRANSACTIONS


@dataclass
class PlainServer:
    """Speaks as much of the protocol as a login takes, without TLS; may ask for the password in another way."""

    asks_for: str = ""
    received: bytearray = field(default_factory=bytearray)
    port: int = 0

    def serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            client, _ = listener.accept()
            with client:
                client.settimeout(30)
                _send(client, 0, _greeting())
                self._take(client)
                if self.asks_for:
                    _send(client, 2, b"\xfe" + self.asks_for.encode() + b"\0" + b"Password: ")
                    self._take(client)
                    _send(client, 4, DONE)
                else:
                    _send(client, 2, DONE)
                while self._take(client):
                    _send(client, 1, DONE)

    def _take(self, client: socket.socket) -> bytes:
        packet = client.recv(1 << 16)
        self.received += packet
        return packet


def _send(client: socket.socket, number: int, payload: bytes) -> None:
    client.sendall(struct.pack("<I", len(payload))[:3] + bytes([number]) + payload)


def _greeting() -> bytes:
    low, high = _ABILITIES & 0xFFFF, _ABILITIES >> 16
    head = b"\x0a8.0.33\0" + struct.pack("<I", 7) + b"12345678\0" + struct.pack("<HBHHB", low, 45, 2, high, 21)
    return head + bytes(10) + b"901234567890\0" + b"mysql_native_password\0"


@contextmanager
def serving(server: PlainServer) -> Iterator[PlainServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]
        thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
        thread.start()
        yield server
        # Closing a listener does not wake who waits for it.
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(30)
        assert not thread.is_alive()


def address(server: PlainServer, mode: TlsMode) -> SourceAddress:
    return SourceAddress("127.0.0.1", server.port, "reader", PASSWORD, TlsOptions(mode), 10, 10)


@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.PREFERRED])
@pytest.mark.parametrize("plugin", ["mysql_clear_password", "dialog"])
def test_password_is_not_sent_in_clear_text_to_a_server_that_asks_for_it(mode: TlsMode, plugin: str) -> None:
    with (
        serving(PlainServer(asks_for=plugin)) as server,
        pytest.raises(SourceError, match="was asked for its password in clear text, and got none") as failure,
    ):
        connect(address(server, mode))
    assert PASSWORD.encode() not in server.received
    assert "reader" in server.received.decode(errors="replace")
    assert "mysql.tls.enabled" in failure.value.hint
    assert not failure.value.retryable


@pytest.mark.parametrize("mode", [TlsMode.REQUIRED, TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY])
def test_server_without_tls_gets_nothing_where_tls_was_asked_for(mode: TlsMode) -> None:
    with serving(PlainServer()) as server, pytest.raises(SourceError, match="is not encrypted") as failure:
        connect(address(server, mode))
    assert server.received == b""
    assert not isinstance(failure.value, SourceLostError)
    assert "mysql.tls.enabled: false" in failure.value.hint


def test_connection_is_refused_although_the_driver_went_on_in_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its releases before 1.2 do."""
    forgotten = property(lambda _: False, lambda _, __: None)
    monkeypatch.setattr(connection._Client, "_ssl_required", forgotten, raising=False)
    with serving(PlainServer()) as server, pytest.raises(SourceError, match="is not encrypted"):
        connect(address(server, TlsMode.VERIFY_IDENTITY))
    assert PASSWORD.encode() not in server.received


def test_plain_connection_says_so() -> None:
    with serving(PlainServer()) as server, connect(address(server, TlsMode.PREFERRED)) as connected:
        assert encryption_of(connected) is None
    assert PASSWORD.encode() not in server.received
