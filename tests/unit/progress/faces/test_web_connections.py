"""Slow clients, ones that never read, or send anything at all: the page's server stays small and serves the others."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devkit.process import free_ports
from devkit.waiting import wait_for
from progress.faces.web import CONNECTIONS, WebReporter
from tests.job_reports import ImaginaryJob

_JOB = ImaginaryJob()
_BEGUN = b"GET /healthz HTTP/1.1\r\nX-Slow: "


def port_of(web: WebReporter) -> int:
    return int(web.address.rstrip("/").rpartition(":")[2])


def connect(web: WebReporter, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port_of(web)), timeout=30)
    client.sendall(sent)
    return client


def status(web: WebReporter, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(web), timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def answered(web: WebReporter, sent: bytes) -> bytes:
    """All that the server sends back before it closes; it may close while we still send."""
    got = b""
    with connect(web) as client, suppress(ConnectionError):
        client.sendall(sent)
        while piece := client.recv(65536):
            got += piece
    return got


def send_until_cut_off(client: socket.socket) -> int:
    """How many bytes of one endless header the server lets us send; 100 MB if it never minds."""
    sent = 0
    with suppress(ConnectionError):
        client.sendall(b"GET / HTTP/1.1\r\nA: ")
        while sent < 100_000_000:
            client.sendall(b"b" * 65536)
            sent += 65536
    return sent


def handlers() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.fixture
def web() -> Iterator[WebReporter]:
    reporter = WebReporter("127.0.0.1", free_ports()[0])
    reporter.show(_JOB.report(_JOB.at(0.5)))
    yield reporter
    reporter.close()


@pytest.fixture
def hasty() -> Iterator[WebReporter]:
    """A server with little patience."""
    reporter = WebReporter("127.0.0.1", free_ports()[0], patience=0.3)
    reporter.show(_JOB.report(_JOB.at(0.5)))
    yield reporter
    reporter.close()


def drip(clients: list[socket.socket], ended: threading.Event) -> None:
    while not ended.wait(0.1):
        for client in clients:
            with suppress(OSError):
                client.send(b"x")


def test_everything_answers_while_200_connections_drip(web: WebReporter) -> None:
    ended = threading.Event()
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(web, _BEGUN)) for _ in range(200)]
        dripping = threading.Thread(target=drip, args=(clients, ended), daemon=True)
        dripping.start()
        for path in ("/healthz", "/metrics", "/", "/page.json") * 3:
            assert status(web, path) == 200
            assert handlers() < 2 * CONNECTIONS
        ended.set()
        dripping.join()


def test_dripping_connection_is_closed_when_its_time_is_over(hasty: WebReporter) -> None:
    ended = threading.Event()
    with connect(hasty, _BEGUN) as client:
        dripping = threading.Thread(target=drip, args=([client], ended), daemon=True)
        dripping.start()
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
        ended.set()
        dripping.join()
    wait_for(lambda: handlers() == 0, "no connection is served any more", seconds=30, state=handlers)


def test_clients_that_never_read_their_answer_keep_nobody_out() -> None:
    job = ImaginaryJob(vnodes=32768, ranges=40_000, workers=8)
    web = WebReporter("127.0.0.1", free_ports()[0], patience=0.5)
    web.show(job.report(job.at(0.5)))
    with ExitStack() as stack:
        for _ in range(CONNECTIONS + 4):
            stack.enter_context(connect(web, b"GET /progress.json HTTP/1.1\r\n\r\n"))
        assert status(web, "/healthz") == 200
        wait_for(lambda: handlers() == 0, "no answer is being sent any more", seconds=60, state=handlers)
    web.close()


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"GET /healthz HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET /healthz HTTP/1.1\nHost: localhost\n\n", b"200 OK"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"BREW / HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"\x00\xff\r\n\r\n", b"400 Bad Request"),
        (b"GET http://[ HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505 HTTP Version Not Supported"),
        (b"GET /../../../etc/passwd HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"431 Request Header Fields Too Large"),
        (b"GET /" + b"x" * 20_000, b"431 Request Header Fields Too Large"),
    ],
    ids=lambda value: str(value[:24]),
)
def test_odd_request_gets_a_plain_answer(web: WebReporter, sent: bytes, expected: bytes) -> None:
    got = answered(web, sent)
    assert got.split(b"\r\n")[0] == b"HTTP/1.0 " + expected
    assert b"Content-Security-Policy: default-src 'none'" in got
    assert b"root:" not in got


def test_one_connection_carries_one_request(web: WebReporter) -> None:
    got = answered(web, b"GET /healthz HTTP/1.1\r\nConnection: keep-alive\r\n\r\n" * 3)
    assert got.count(b"HTTP/1.0 200") == 1


def test_endless_head_is_cut_off(web: WebReporter) -> None:
    with connect(web) as client:
        sent = send_until_cut_off(client)
    assert sent < 100_000_000
    wait_for(lambda: handlers() == 0, "no connection is served any more", seconds=30, state=handlers)


def test_no_request_can_fail_the_server(hasty: WebReporter, caplog: pytest.LogCaptureFixture) -> None:
    """Random bytes, also after the beginning of a good request: whatever they are, no handler ends in an exception."""
    caplog.set_level(logging.DEBUG, "progress.faces.web")
    beginnings = st.sampled_from([b"", b"GET ", b"GET /", b"GET /vnodes.json?", b"GET /metrics HTTP/1.1\r\nAccept: "])

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(beginnings, st.binary(max_size=200))
    def unharmed(beginning: bytes, rest: bytes) -> None:
        answered(hasty, beginning + rest + b"\r\n\r\n")
        assert status(hasty, "/healthz") == 200

    unharmed()
    raised = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [error for error in raised if not isinstance(error, OSError)] == []
