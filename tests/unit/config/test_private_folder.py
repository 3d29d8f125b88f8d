"""A file that another user of the machine has put where this user's processes keep things is never run."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from vnode_backfill.config.cache_folder import cache_folder, is_private, private_cache_folder, private_folder
from vnode_backfill.spark.class_archive import archive_path, may_be_used, sharing_options

REPOSITORY = Path(__file__).resolve().parents[3]
OTHER_USER = 65534
KERNEL = """
from consume_upstream.mysql.compiled import compiled

@compiled
def doubled(number: int) -> int:
    return number + number
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


class Marked:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self._mark),)


def give_away(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OTHER_USER, OTHER_USER)


def open_to_all(folder: Path) -> None:
    folder.chmod(0o777)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A module with a kernel, as an executor has it: in an archive."""
    path = tmp_path / "code.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("kernel.py", KERNEL)
    return path


def run_kernel(archive: Path, **places: Path) -> str:
    """Call it in a process that keeps things in these places; how often compiled code was found."""
    environment = {"PYTHONPATH": f"{archive}:{REPOSITORY}", "PATH": os.environ["PATH"]}
    code = "from kernel import doubled; assert doubled(21) == 42; print(sum(doubled.stats.cache_hits.values()))"
    own = {"HOME": archive.parent / "home", "TMPDIR": archive.parent / "tmp"}
    for place in own.values():
        place.mkdir(exist_ok=True)
    environment |= {name: str(path) for name, path in (own | places).items()}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=archive.parent, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def plant(folder: Path, mark: Path) -> None:
    """Put a pickle in place of every index of compiled code."""
    found = list(folder.rglob("*.nbi"))
    assert found
    for index in found:
        index.write_bytes(pickle.dumps(Marked(mark)))


@pytest.mark.parametrize(
    ("variable", "spoil"),
    [
        *(pytest.param(name, give_away, marks=needs_root) for name in ("XDG_CACHE_HOME", "TMPDIR", "NUMBA_CACHE_DIR")),
        ("HOME", open_to_all),
    ],
)
def test_index_that_another_user_may_have_written_is_not_loaded(
    tmp_path: Path, archive: Path, variable: str, spoil: Callable[[Path], None]
) -> None:
    place, mark = tmp_path / "place", tmp_path / "mark"
    place.mkdir()
    # Nothing can be kept below a file.
    places = {"HOME": archive, variable: place} if variable == "TMPDIR" else {variable: place}
    run_kernel(archive, **places)
    plant(place, mark)
    spoil(place)
    assert run_kernel(archive, **places) == "0"
    assert not mark.exists()


def test_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]
    assert private_folder(folder) == folder
    assert is_private(folder)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="can be written to by others"):
        private_folder(folder)
    assert not is_private(folder)


def test_folder_below_one_that_others_may_write_to_is_refused_unless_that_is_sticky(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o1777)
    assert is_private(private_folder(parent / "mine"))
    parent.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written to by others"):
        private_folder(parent / "mine")
    with pytest.raises(PermissionError):
        private_folder(parent / "new")
    assert not (parent / "new").exists()


@needs_root
def test_nothing_is_made_in_the_home_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `sudo` keeps it."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, OTHER_USER, OTHER_USER)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = private_cache_folder("kernels")
    assert found == tmp_path / f"vnode-backfill-{os.geteuid()}" / "kernels"
    assert list(home.iterdir()) == []


def test_path_with_a_link_is_used_only_as_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert private_folder(tmp_path / "link" / "x") == tmp_path / "real" / "x"
    assert not is_private(tmp_path / "link" / "x")
    assert is_private(tmp_path / "real" / "x")


def test_user_without_a_home_has_no_folder_in_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache_folder().name == f"vnode-backfill-{os.geteuid()}"
    assert cache_folder().is_absolute()


@pytest.mark.parametrize("prefix", [sys.base_prefix, "venv"], ids=["in the user's cache", "in the environment"])
@pytest.mark.parametrize("spoil", [pytest.param(give_away, marks=needs_root), open_to_all])
def test_classes_that_another_user_may_have_written_are_not_given_to_the_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, spoil: Callable[[Path], None]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "prefix", prefix if prefix == sys.base_prefix else str(tmp_path / prefix))
    path = archive_path()
    assert path is not None
    path.parent.mkdir(parents=True)
    path.touch()
    path.chmod(0o644)
    assert may_be_used(path)
    spoil(path.parent)
    assert not may_be_used(path)
    assert sharing_options() == ""
