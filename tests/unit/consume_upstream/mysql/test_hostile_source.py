"""A server that answers questions by asking for a file of this machine gets none, and is named."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from consume_upstream.mysql.connection import SourceAddress, connect
from consume_upstream.mysql.rows.prepared_statement import PreparedStatement
from vnode_backfill.commands.cli import execute
from vnode_backfill.words.errors import SourceError

_OK = b"\x00\x00\x00\x02\x00\x00\x00"
_QUERY, _PREPARE, _EXECUTE = 0x03, 0x16, 0x17
_PREPARED = b"\x00" + struct.pack("<IHHBH", 1, 0, 0, 0, 0)
_CAPABILITIES = 0x00AA_A205
SECRET = b"root:secret"


@dataclass
class HostileServer:
    """Speaks the protocol up to the login; wants `file` where `wants` says so, and keeps everything it is sent."""

    file: str
    wants: Callable[[int], bool]
    received: bytes = b""
    _listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def address(self) -> SourceAddress:
        port = int(self._listener.getsockname()[1])
        return SourceAddress("127.0.0.1", port, "root", read_timeout=20.0)

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            self._send(client, 0, _greeting())
            self._receive(client)
            self._send(client, 2, _OK)
            while True:
                command = self._receive(client)[0]
                self._send(client, 1, self._answer(command))

    def _answer(self, command: int) -> bytes:
        if self.wants(command):
            return b"\xfb" + self.file.encode()
        return _PREPARED if command == _PREPARE else _OK

    def _receive(self, client: socket.socket) -> bytes:
        head = self._read(client, 4)
        return self._read(client, int.from_bytes(head[:3], "little"))

    def _read(self, client: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = client.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        self.received += data
        return data

    @staticmethod
    def _send(client: socket.socket, sequence: int, payload: bytes) -> None:
        client.sendall(len(payload).to_bytes(3, "little") + bytes((sequence,)) + payload)


def _greeting() -> bytes:
    low, high = _CAPABILITIES & 0xFFFF, _CAPABILITIES >> 16
    numbers = struct.pack("<HBHHB", low, 45, 2, high, 21)
    return (
        b"\x0a8.0.33\0"
        + struct.pack("<I", 7)
        + b"saltsalt\0"
        + numbers
        + b"\0" * 10
        + b"saltsaltsalt\0mysql_native_password\0"
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shadow"
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def hostile(file: Path) -> Iterator[Callable[[int], HostileServer]]:
    servers: list[HostileServer] = []

    def start(command: int) -> HostileServer:
        server = HostileServer(str(file), lambda asked: asked == command)
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


def test_login_that_is_answered_by_a_wish_for_a_file_fails_by_name(hostile: Callable[[int], HostileServer]) -> None:
    server = hostile(_QUERY)
    with pytest.raises(SourceError, match="asked for a file of this machine while connecting to root@") as raised:
        connect(server.address)
    assert "mysql.tls.enabled: true" in raised.value.hint
    assert not raised.value.retryable
    assert SECRET not in server.received


@pytest.mark.parametrize("command", [_PREPARE, _EXECUTE])
def test_statement_that_is_answered_by_a_wish_for_a_file_fails_by_name(
    hostile: Callable[[int], HostileServer], command: int
) -> None:
    server = hostile(command)
    with connect(server.address) as connection, pytest.raises(SourceError, match="asked for a file of this machine"):
        PreparedStatement(connection, "SELECT 1").execute()
    assert SECRET not in server.received


def test_command_reports_it_without_a_traceback(
    hostile: Callable[[int], HostileServer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = hostile(_QUERY)
    settings = {
        "job": "orders",
        "mysql": {"host": "127.0.0.1", "port": server.address.port, "user": "root", "database": "shop",
            "table": "orders"},
        "sink": {"delta": {"path": str(tmp_path / "lake")}},
        "state": {"path": str(tmp_path / "state")},
    }  # fmt: skip
    config = tmp_path / "job.yaml"
    config.write_text(json.dumps(settings))
    assert execute(["plan", "--config", str(config)]) == 1
    assert "vnode-backfill: the source asked for a file of this machine" in capsys.readouterr().err
    assert SECRET not in server.received
    assert not (tmp_path / "state").exists()
