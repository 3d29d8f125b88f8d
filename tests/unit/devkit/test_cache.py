"""What the cache, the guarded processes and the downloads promise, without any download."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from devkit.cache import cached
from devkit.errors import DevkitError
from devkit.packages import Artifact
from devkit.process import GuardedProcess, free_ports
from devkit.waiting import wait_for
from vnode_backfill.config.cache_folder import cache_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vnode-backfill"


def test_cache_lies_in_the_users_cache_folder(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == own_cache
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache_folder() == Path("/home/ada/.cache/vnode-backfill")


def test_folder_is_built_once() -> None:
    builds = []

    def build(target: Path) -> None:
        builds.append(target)
        (target / "content").write_text("whole")

    assert cached("part", build) == cached("part", build)
    assert len(builds) == 1
    assert (cached("part", build) / "content").read_text() == "whole"


def test_failed_build_leaves_nothing(own_cache: Path) -> None:
    def build(target: Path) -> None:
        (target / "half").touch()
        raise DevkitError("connection lost")

    with pytest.raises(DevkitError, match="connection lost"):
        cached("part", build)
    assert [path.name for path in own_cache.iterdir()] == [".lock"]


def test_artifact_has_the_file_name_maven_gives_it() -> None:
    assert Artifact("g", "name", "1.2").file_name == "name-1.2.jar"
    assert Artifact("g", "name", "1.2", "zip", "linux").file_name == "name-1.2-linux.zip"


def test_free_ports_are_different_and_below_the_clients_range() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(15_000 <= port < 32_000 for port in ports)


def test_guarded_process_is_stopped_in_order(tmp_path: Path) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit('bye')); print('up', flush=True)"
    process = GuardedProcess([sys.executable, "-c", f"{code}; signal.pause()"], log=tmp_path / "log")
    wait_for(lambda: "up" in process.log_tail(), "the process is up", state=process.log_tail)
    process.stop()
    process.stop()
    assert not process.running
    assert process.log_tail() == "up\nbye"


def test_guarded_process_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
    process = GuardedProcess([sys.executable, "-c", f"{code}; signal.pause()"], log=tmp_path / "log")
    wait_for(lambda: "up" in process.log_tail(), "the process is up", state=process.log_tail)
    process.stop(seconds=0.1)
    assert not process.running


def test_process_that_ends_too_early_shows_its_log(tmp_path: Path) -> None:
    process = GuardedProcess([sys.executable, "-c", "raise SystemExit('no such table')"], log=tmp_path / "log")
    with pytest.raises(DevkitError, match="server ended before it was ready") as failure:
        process.wait_until(lambda: False, seconds=30, what="server")
    assert "no such table" in failure.value.detail
    assert process.wait(1) == 1


def test_folder_goes_with_the_owner(tmp_path: Path) -> None:
    doomed, seen = tmp_path / "doomed", tmp_path / "seen"
    doomed.mkdir()
    owner = GuardedProcess([sys.executable, "-c", _OWNER, str(doomed), str(seen)], log=tmp_path / "log")
    wait_for(seen.exists, "the owner started its process", state=owner.log_tail)
    os.kill(owner.pid, signal.SIGKILL)
    wait_for(lambda: not doomed.exists(), "the folder is removed")


_OWNER = f"""
import pathlib, sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r})
from devkit.process import GuardedProcess
folder, seen = map(pathlib.Path, sys.argv[1:])
process = GuardedProcess([sys.executable, "-c", "import signal; signal.pause()"], log=folder / "log", remove=folder)
seen.touch()
process.wait(600)
"""
