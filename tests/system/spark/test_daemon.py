"""The daemon that is loaded ahead serves Spark, what Spark starts serves itself where it is not there, and nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devkit.waiting import wait_for
from vnode_backfill.spark.early_daemon import DaemonAhead, hand_over

MODULE = "vnode_backfill.spark.daemon"
PLACE = "VNODE_BACKFILL_TASK_DAEMON"


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a name that leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="sockets-") as name:
        yield Path(name)


@contextmanager
def started_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """As a driver does it; `stdin` is what the driver holds."""
    monkeypatch.setenv(PLACE, "")
    ahead = DaemonAhead()
    ahead.reserve(MODULE)
    ahead.load()
    process = ahead.process
    assert process is not None
    place = Path(os.environ[PLACE])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(place.parent, ignore_errors=True)


@contextmanager
def started_by_spark(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """As Spark does it, with settings that only its own environment has."""
    own = {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder)}
    # More than one call to the socket takes.
    own |= {f"LARGE_{number}": "x" * 100_000 for number in range(5)}
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, "pyspark.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, **own},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def listens_at(process: subprocess.Popen[bytes]) -> Path:
    """Where the daemon that has these streams says that it takes orders for workers."""
    assert process.stdout is not None
    (length,) = struct.unpack("!i", process.stdout.read(4))
    return Path(process.stdout.read(length).decode())


def loaded(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has the kernels' compiler in memory, which only a loaded daemon has."""
    return "llvmlite" in Path(f"/proc/{process.pid}/maps").read_text()


def close(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def test_daemon_ahead_serves_spark_with_its_environment_and_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    with started_ahead(monkeypatch) as ahead:
        place = Path(os.environ[PLACE])
        assert place.parent.stat().st_mode & 0o077 == 0
        with started_by_spark(folder) as spark:
            assert listens_at(spark).parent == folder
            assert loaded(ahead)
            assert not loaded(spark)
            assert not place.parent.exists()
            # The driver may go on without it: it belongs to Spark now.
            close(ahead)
            assert ahead.poll() is None
            close(spark)
            ahead.wait(10)
            assert spark.wait(10) == 0


def test_it_serves_the_first_that_comes_and_the_next_one_serves_itself(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    with started_ahead(monkeypatch), started_by_spark(folder) as first, started_by_spark(folder) as second:
        places = {listens_at(first), listens_at(second)}
        assert len(places) == 2
        assert sorted(map(loaded, (first, second))) == [False, True]


@pytest.mark.parametrize("already", [False, True], ids=["before anybody came", "while somebody waits"])
def test_what_spark_started_serves_itself_when_the_one_ahead_was_killed(
    monkeypatch: pytest.MonkeyPatch, folder: Path, already: bool
) -> None:
    with started_ahead(monkeypatch) as ahead:
        if not already:
            ahead.kill()
            ahead.wait()
        else:
            # It takes nothing any more, and whoever comes waits.
            ahead.send_signal(signal.SIGSTOP)
        with started_by_spark(folder) as spark:
            if already:
                wait_for(lambda: has_a_connection(spark), "what Spark started to come", seconds=30)
                ahead.kill()
                ahead.wait()
            assert listens_at(spark).parent == folder
            assert loaded(spark)


def has_a_connection(process: subprocess.Popen[bytes]) -> bool:
    links = (entry.readlink() for entry in Path(f"/proc/{process.pid}/fd").iterdir())
    return any(link.name.startswith("socket:") for link in links)


def test_it_ends_with_the_driver_that_never_needed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with started_ahead(monkeypatch) as ahead:
        place = Path(os.environ[PLACE])
        close(ahead)
        assert ahead.wait(60) == 0
        assert not place.parent.exists()


def test_nothing_is_given_to_a_socket_that_somebody_else_put_where_the_daemon_was(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    place = folder / "taken" / "socket"
    place.parent.mkdir()
    monkeypatch.setenv(PLACE, str(place))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen(1)
        # As if the process that listens belonged to another user, in a folder of this user.
        monkeypatch.setattr(os, "geteuid", lambda: place.parent.stat().st_uid + 1)
        assert not hand_over(["pyspark.worker"])
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1) == b""


def test_what_a_killed_daemon_left_is_cleared_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with started_ahead(monkeypatch) as ahead:
        place = Path(os.environ[PLACE])
        ahead.kill()
        ahead.wait()
        assert place.exists()
        assert not hand_over(["pyspark.worker"])
        assert not place.parent.exists()


@pytest.mark.parametrize("named", ["", "mine", "mine/kept", "mine/missing"])
def test_nothing_else_is_removed_whatever_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str
) -> None:
    kept = tmp_path / "mine" / "kept"
    kept.parent.mkdir()
    kept.touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PLACE, named)
    assert not hand_over(["pyspark.worker"])
    assert kept.exists()


def test_nothing_is_started_where_there_is_no_room_for_its_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(PLACE, raising=False)
    long = tmp_path / ("x" * 200)
    long.mkdir()
    for folder in (long, tmp_path / "missing"):
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        ahead = DaemonAhead()
        ahead.reserve(MODULE)
        ahead.load()
        assert ahead.process is None
        assert PLACE not in os.environ
    assert list(long.iterdir()) == []


def test_one_that_nobody_wanted_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE, "")
    ahead = DaemonAhead()
    ahead.reserve(MODULE)
    place = Path(os.environ[PLACE])
    assert place.exists()
    ahead.close()
    ahead.load()
    assert ahead.process is None
    assert not place.parent.exists()
    assert not hand_over(["pyspark.worker"])


def test_one_that_is_wanted_before_its_place_is_known_is_loaded_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE, "")
    ahead = DaemonAhead()
    ahead.load()
    ahead.reserve(MODULE)
    assert ahead.process is not None
    ahead.process.kill()
    ahead.process.wait()
    shutil.rmtree(Path(os.environ[PLACE]).parent)


def test_what_spark_started_too_soon_waits_for_it(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv(PLACE, "")
    ahead = DaemonAhead()
    ahead.reserve(MODULE)
    with started_by_spark(folder) as spark:
        wait_for(lambda: has_a_connection(spark), "what Spark started to come", seconds=30)
        ahead.load()
        assert listens_at(spark).parent == folder
        assert not loaded(spark)
        close(spark)
        assert ahead.process is not None
        ahead.process.wait(10)


def test_other_workers_of_spark_are_not_its_business(monkeypatch: pytest.MonkeyPatch) -> None:
    with started_ahead(monkeypatch):
        assert not hand_over(["pyspark.sql.worker.analyze_udtf"])
        assert not hand_over([])
