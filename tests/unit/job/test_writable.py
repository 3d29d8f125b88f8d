"""A folder that a job could not write to is refused with its key, and looking leaves nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.spark import REPOSITORY
from progress.faces.web import check_web
from vnode_backfill.config.job import Config
from vnode_backfill.job.open.writable import check_writable
from vnode_backfill.words.errors import ConfigError


def config(folder: Path, **paths: str) -> Config:
    state, lake = paths.get("state", f"{folder}/state"), paths.get("lake", f"{folder}/lake")
    source = {"host": "db", "user": "u", "database": "d", "table": "t"}
    return Config.model_validate(
        {"job": "j", "mysql": source, "state": {"path": state}, "sink": {"delta": {"path": lake}}}
    )


def test_folders_that_can_be_made_are_fine_and_are_not_made(tmp_path: Path) -> None:
    check_writable(config(tmp_path, state=f"{tmp_path}/a/b/c", lake=f"file://{tmp_path}/lake"))
    check_writable(config(tmp_path, state="s3://bucket/state", lake="s3://bucket/lake"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("{}/file", "{}/file is not a folder"),
        ("{}/file/state", "{}/file is not a folder"),
        ("{}/nowhere/state", "{}/nowhere is a link to what does not exist"),
        ("{}/loop/state", "Too many levels of symbolic links"),
        ("{}/" + "x" * 300, "File name too long"),
        ("{}/gone/" + "x" * 300, "a name in it is longer than the file system allows"),
        ("{}/" + "x/" * 1_950, "it is longer than the system allows"),
        ("/dev/null", "/dev/null is not a folder"),
    ],
)
@pytest.mark.parametrize("key", ["state", "lake"])
def test_a_path_that_cannot_become_a_folder_is_refused(tmp_path: Path, key: str, path: str, fault: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match=rf"^{'state' if key == 'state' else 'sink.delta'}\.path is ") as caught:
        check_writable(config(tmp_path, **{key: path.format(tmp_path)}))
    assert fault.format(tmp_path) in caught.value.detail
    assert len(str(caught.value)) < 6_000


def test_a_folder_that_this_account_may_not_write_is_refused(tmp_path: Path) -> None:
    """Root may write everywhere, so another account looks where these tests run as root."""
    (tmp_path / "locked").mkdir(mode=0o755)
    lines = f"""
import os
from vnode_backfill.job.open.writable import _fault
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
else:
    os.chmod({str(tmp_path / "locked")!r}, 0o555)
print(_fault(__import__("pathlib").Path({str(tmp_path / "locked" / "state")!r})))
"""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert f"{tmp_path}/locked may not be written by this account" in done.stdout, done.stderr


def test_looking_for_the_port_of_the_page_leaves_it_free() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    check_web("127.0.0.1", port)
    check_web("127.0.0.1", port)
    check_web("nowhere.invalid", 0)
    with pytest.raises(ConfigError, match=r"^ui\.host: cannot listen on 203\.0\.113\.7"):
        check_web("203.0.113.7", port)
