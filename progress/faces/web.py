"""Serves the progress page: from the driver's memory, without ever holding up the job.

What must be true:

- The page shows, it never steers: GET and HEAD only, and no answer depends on anything but the newest report.
- It listens on the loopback unless `ui.host` says otherwise, and has no login. A page of another site must not read it
  through a name that points here (DNS rebinding), so the Host asked for must be an address, `localhost`, this machine's
  name, or `ui.host`; anything else is misdirected (421).
- The browser may run and load what comes from here, nothing else: no inline script or style, no other host.
- A port that is taken must not stop a copy. Like Spark's own page, the next of 16 ports is tried, and `address` says
  which one it is. Only when all are taken the job is refused.
- A page that is open when the job ends gets the last report before the server ends: the reason of a failure is on it.
- Slow clients keep nobody out. A connection carries one request. Its head must arrive within `patience` seconds and be
  small, and the client must read the answer within as long. Where all connections are in use, the newest gets the place
  of the one that has waited longest for its own request.
"""

from __future__ import annotations

import errno
import io
import ipaddress
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from progress.faces.history import History
from progress.faces.metrics import CdcBackfillMetrics
from progress.faces.reporters import NullReporter, Reporter
from progress.faces.web_answers import Answer, Answers
from progress.state.report import Report
from vnode_backfill.words.errors import ConfigError

PORTS_TRIED = 16
CONNECTIONS = 32
_MOST_IN_HEAD = 16 * 1024
_PATIENCE_SECONDS = 5.0
_GIVE_WAY_SECONDS = 1.0
_LAST_WORD_SECONDS = 2.0
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_log = logging.getLogger(__name__)


class WebReporter:
    """Serves the page from a thread of its own until closed. `address` is where."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8321,
        *,
        metrics: CdcBackfillMetrics | None = None,
        history: History | None = None,
        clock: Callable[[], float] = time.time,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        """Listen on `port` or one of the 15 after it; `metrics` is what /metrics exposes.

        A client has `patience` seconds to finish its request, and as many to read the answer.
        """
        self._answers = Answers(metrics or CdcBackfillMetrics(), history, clock)
        self._server = _listen(host, port, self._answers)
        self._server.patience = patience
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="web", daemon=True)
        self._thread.start()
        _log.info("progress page served address=%s", self.address)

    @property
    def address(self) -> str:
        host = self._server.shown_host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}/"

    def show(self, report: Report) -> None:
        self._answers.show(report)

    def close(self) -> None:
        """Wait until an open page has the last report, then stop listening. A second call does nothing."""
        if self._thread.is_alive():
            self._answers.last_word(_LAST_WORD_SECONDS)
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


def open_web(host: str, port: int, *, metrics: CdcBackfillMetrics | None = None) -> Reporter:
    """The page as `ui` of the configuration says; with port 0 there is none."""
    return NullReporter() if port == 0 else WebReporter(host, port, metrics=metrics)


def check_web(host: str, port: int) -> None:
    """Raise ConfigError if `open_web` could not listen there; nothing is left behind."""
    if port != 0:
        _listen(host, port, Answers(CdcBackfillMetrics())).server_close()


_Socket = socket.socket | tuple[bytes, socket.socket]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    patience = _PATIENCE_SECONDS

    def __init__(self, host: str, port: int, answers: Answers) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = found[0]
        self.answers = answers
        self.shown_host = host
        self.allowed_names = frozenset({host.lower(), "localhost", socket.gethostname().lower()})
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._waiting: dict[_Socket, None] = {}
        """Connections whose request is not there yet, the oldest first."""
        self._answering: dict[_Socket, None] = {}
        self._lock = threading.Lock()
        super().__init__((str(found[4][0]), port), _Handler)

    def server_bind(self) -> None:
        """As the parent, but without asking a name server who we are, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.shown_host, int(self.server_address[1])

    def process_request(self, request: _Socket, client_address: object) -> None:
        """Answer in a thread, but in a bounded number of them: an older connection is closed for a new one."""
        if self._free.acquire(blocking=False) or (self._end_oldest() and self._free.acquire(timeout=_GIVE_WAY_SECONDS)):
            with self._lock:
                self._waiting[request] = None
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: _Socket, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def has_asked(self, request: _Socket) -> None:
        """The request is there: the connection is closed for another only when none is left that waits for its own."""
        with self._lock:
            if self._waiting.pop(request, self) is None:
                self._answering[request] = None

    def shutdown_request(self, request: _Socket) -> None:
        """Forget the connection before it is closed, so that nobody ends another one that got its number."""
        with self._lock:
            self._waiting.pop(request, None)
            self._answering.pop(request, None)
        super().shutdown_request(request)

    def _end_oldest(self) -> bool:
        """Wake the thread that waits longest on its client; it then ends by itself."""
        with self._lock:
            oldest = next(iter((*self._waiting, *self._answering)), None)
            if isinstance(oldest, socket.socket):
                self._waiting.pop(oldest, None)
                self._answering.pop(oldest, None)
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        return oldest is not None

    def handle_error(self, request: _Socket, client_address: object) -> None:  # noqa: ARG002
        """A browser that went away in mid-answer is not an error, and nothing is printed."""
        _log.debug("progress page not answered", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "vnode-backfill"
    sys_version = ""
    default_request_version = "HTTP/1.0"

    def handle(self) -> None:
        """Read the head of one request as a whole, within the server's patience, and answer it."""
        head = self._head(time.monotonic() + self.server.patience)
        if not head:
            return
        self.server.has_asked(self.request)
        self.connection.settimeout(self.server.patience)
        self.rfile.close()
        self.rfile = io.BytesIO(head)
        if len(head) > _MOST_IN_HEAD:
            self.requestline, self.request_version, self.command = "", self.default_request_version, ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            self.handle_one_request()

    def _head(self, ends: float) -> bytes:
        """Everything up to the empty line after the headers; nothing if that does not come in time."""
        head = b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) <= _MOST_IN_HEAD:
            left = ends - time.monotonic()
            if left <= 0:
                return b""
            self.connection.settimeout(left)
            piece = self.connection.recv(_MOST_IN_HEAD)
            if not piece:
                return b""
            head += piece
        return head

    def parse_request(self) -> bool:
        """Refuse what no method may do."""
        if not super().parse_request():
            return False
        if self.command not in ("GET", "HEAD"):
            self._send(_refusal(HTTPStatus.METHOD_NOT_ALLOWED, "the page only shows: GET and HEAD"), Allow="GET, HEAD")
            return False
        host = self.headers.get("Host", "")
        if host and not is_own_host(host, self.server.allowed_names):
            names = ", ".join(sorted(self.server.allowed_names))
            reason = f"this server does not answer for that host; ask for its address, or one of: {names}"
            self._send(_refusal(HTTPStatus.MISDIRECTED_REQUEST, reason))
            return False
        return True

    def do_GET(self) -> None:
        self._send(self.server.answers.answer(self.path, self.headers.get("Accept", "")))

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse in the page's own form what the parent refuses by itself."""
        status = HTTPStatus(code)
        self._send(_refusal(status, message or status.phrase))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        _log.debug("progress page asked request=%r", format % args)

    def _send(self, answer: Answer, **more: str) -> None:
        self.send_response(answer.status)
        headers = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.body)), **_HEADERS, **more}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def is_own_host(header: str, names: frozenset[str]) -> bool:
    """Whether a Host header names this server. Any address does, because only a name can be made to point elsewhere."""
    if header.startswith("["):
        name = header[1:].partition("]")[0]
    else:
        name = header.rpartition(":")[0] if header.count(":") == 1 else header
    name = name.lower().rstrip(".")
    return name in names or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refusal(status: HTTPStatus, reason: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{reason}\n".encode())


def _listen(host: str, port: int, answers: Answers) -> _Server:
    last = min(port + PORTS_TRIED - 1, 65535)
    for candidate in range(port, last + 1):
        try:
            return _Server(host, candidate, answers)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(
                    f"ui.host: cannot listen on {host}, port {candidate}",
                    detail=str(error),
                    hint="Set ui.host to an address of this machine and ui.port above 1023; --ui-port 0 means no page.",
                ) from error
    raise ConfigError(
        f"ui.port: {port} to {last} are all in use on {host}",
        hint="Set ui.port or give --ui-port another one; 0 turns the page off.",
    )
