"""Drives a real headless Chromium through its DevTools protocol, for the tests and pictures of the progress page.

The protocol is JSON over a websocket. The little of a websocket that it needs is here, so that a test needs no browser
driver. Chromium is found on the machine; as root on Debian it is installed when missing.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from devkit.cache import cache_lock
from devkit.commands import find_program, run_command
from devkit.errors import DevkitError
from devkit.process import GuardedProcess

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
_START_SECONDS = 60
_ANSWER_SECONDS = 30
_HELPERS_SECONDS = 30
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10


def find_chromium() -> Path:
    """Chromium on this machine; installed first if that is possible."""
    found = _installed()
    if found is None:
        # Packages that one process has downloaded are deleted when another one has installed its own.
        with cache_lock():
            if _installed() is None:
                _install()
        found = _installed()
    if found is None:
        raise DevkitError("Chromium is not installed", hint="install it, for example with `apt-get install chromium`")
    return found


class Browser:
    """One Chromium process with its own profile, both gone at the end of the `with` block."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-")
        profile = Path(self._folder.name) / "profile"
        command: list[str | Path] = [find_chromium(), *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        log = Path(self._folder.name) / "log"
        self._process = GuardedProcess(command, log=log, remove=Path(self._folder.name))
        port_file = profile / "DevToolsActivePort"
        self._process.wait_until(
            lambda: port_file.exists() and len(port_file.read_text().splitlines()) >= 2,
            seconds=_START_SECONDS,
            what="Chromium",
        )
        self._port = int(port_file.read_text().splitlines()[0])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop(seconds=10)
        self._remove_profile()

    def _remove_profile(self) -> None:
        """Chromium's helpers live on for a moment after it and may still write to the profile."""
        deadline, pause = time.monotonic() + _HELPERS_SECONDS, threading.Event()
        while True:
            try:
                return self._folder.cleanup()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                pause.wait(0.1)

    def open(self, address: str, *, width: int = 1280, height: int = 900, scale: float = 1, dark: bool = False) -> Page:
        """A new tab of that size that shows `address`."""
        # PUT, because Chromium refuses to open tabs by GET, which any page could make it do.
        with urlopen(Request(f"http://127.0.0.1:{self._port}/json/new?about:blank", method="PUT")) as answer:
            page = Page(str(json.load(answer)["webSocketDebuggerUrl"]))
        page.resize(width, height, scale)
        page.set_dark(dark=dark)
        page.go(address)
        return page


class Page:
    """One tab."""

    def __init__(self, address: str) -> None:
        self._socket = _WebSocket(address)
        self._number = 0
        self._call("Page.enable")
        self._call("Runtime.enable")

    def go(self, address: str) -> None:
        """Show `address`; returns once it is loaded."""
        answer = self._call("Page.navigate", url=address)
        if "errorText" in answer:
            raise DevkitError(f"the browser could not open {address}", detail=str(answer["errorText"]))
        self.wait_until(f"document.URL === {json.dumps(address)} && document.readyState === 'complete'")

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 500,
        )

    def set_dark(self, *, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, expression: str) -> object:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise DevkitError(
                f"the page could not evaluate {expression}", detail=json.dumps(answer["exceptionDetails"])
            )
        result = answer["result"]
        assert isinstance(result, dict)
        return result.get("value")

    def text(self, selector: str) -> str:
        """What an element shows; empty if there is none."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def wait_until(self, expression: str, *, seconds: float = 30) -> None:
        """Return once a JavaScript expression is true; raise with what the page shows when the time is up."""
        deadline, pause = time.monotonic() + seconds, threading.Event()
        while self.evaluate(f"Boolean({expression})") is not True:
            if time.monotonic() > deadline:
                raise DevkitError(f"waited {seconds:g} s in vain for {expression}", detail=self.text("body"))
            pause.wait(0.05)

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Store a PNG of the page, down to its end or as far as the window shows it."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(str(answer["data"])))

    def close(self) -> None:
        self._call("Page.close")
        self._socket.close()

    def _call(self, method: str, **parameters: object) -> Mapping[str, object]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.receive())
            if answer.get("id") != self._number:
                continue
            if "error" in answer:
                raise DevkitError(f"Chromium refused {method}", detail=json.dumps(answer["error"]))
            result = answer["result"]
            assert isinstance(result, dict)
            return result


class _WebSocket:
    """The client's side of RFC 6455, as far as DevTools needs it: text messages, no extensions."""

    def __init__(self, address: str) -> None:
        where = urlsplit(address)
        self._socket = socket.create_connection((where.hostname or "127.0.0.1", where.port or 80), _ANSWER_SECONDS)
        self._stream = self._socket.makefile("rb")
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self._socket.sendall(
            f"GET {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        status = self._stream.readline()
        if b" 101 " not in status:
            raise DevkitError("Chromium did not open its DevTools", detail=status.decode(errors="replace"))
        while self._stream.readline() not in (b"\r\n", b""):
            pass

    def send(self, text: str) -> None:
        self._send(_TEXT, text.encode())

    def receive(self) -> str:
        """The next whole message."""
        message = bytearray()
        while True:
            final, kind, payload = self._frame()
            if kind == _PING:
                self._send(_PONG, payload)
            elif kind == _CLOSE:
                raise DevkitError("Chromium closed its DevTools")
            elif kind != _PONG:
                message += payload
                if final:
                    return message.decode()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def _send(self, kind: int, payload: bytes) -> None:
        if len(payload) < 126:
            size = bytes([0x80 | len(payload)])
        elif len(payload) < 1 << 16:
            size = bytes([0x80 | 126]) + struct.pack(">H", len(payload))
        else:
            size = bytes([0x80 | 127]) + struct.pack(">Q", len(payload))
        # Masked with zeros: the mask protects proxies, and there is none on the loopback.
        self._socket.sendall(bytes([0x80 | kind]) + size + b"\0\0\0\0" + payload)

    def _frame(self) -> tuple[bool, int, bytes]:
        first, second = self._read(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", self._read(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._read(8))
        return bool(first & 0x80), first & 0x0F, self._read(size)

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise DevkitError("Chromium went away")
        return data


def _installed() -> Path | None:
    return next((program for name in _NAMES if (program := find_program(name))), None)


def _install() -> None:
    apt = find_program("apt-get")
    if apt is None or os.geteuid() != 0:
        return
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    # Somebody else may be installing something.
    apt_get = (apt, "-q", "-o", "DPkg::Lock::Timeout=600")
    run_command([*apt_get, "update"], environment=quiet)
    packages = ("chromium", "fonts-dejavu-core")
    run_command([*apt_get, "install", "-y", "--no-install-recommends", *packages], environment=quiet)
