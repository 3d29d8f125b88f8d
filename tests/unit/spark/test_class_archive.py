"""Which file of classes a JVM is told to use: one that was made for it, or none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vnode_backfill.spark.class_archive import archive_path, sharing_options, with_kept_classes


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that is never run."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("17")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    return program


@pytest.mark.usefixtures("java")
def test_file_is_used_only_when_it_is_there() -> None:
    path = archive_path()
    assert path is not None
    assert sharing_options() == ""
    path.parent.mkdir(parents=True)
    path.touch()
    assert sharing_options().split()[0] == f"-XX:SharedArchiveFile={path}"


@pytest.mark.usefixtures("java")
def test_options_of_the_user_do_not_cost_the_kept_classes_unless_they_are_about_them() -> None:
    path = archive_path()
    assert path is not None
    path.parent.mkdir(parents=True)
    path.touch()
    assert with_kept_classes("-Xmn9m").endswith(" -Xmn9m")
    assert with_kept_classes("-Xmn9m").startswith(f"-XX:SharedArchiveFile={path} ")
    assert with_kept_classes("-Xshare:off") == "-Xshare:off"
    assert with_kept_classes("-XX:SharedArchiveFile=/mine") == "-XX:SharedArchiveFile=/mine"


def test_another_java_has_another_file(java: Path) -> None:
    before = archive_path()
    java.write_text("17.0.1")
    assert archive_path() not in (None, before)


@pytest.mark.usefixtures("java")
def test_file_lies_in_the_users_cache_outside_of_virtual_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = archive_path()
    assert path is not None
    assert path.is_relative_to(tmp_path / "cache" / "vnode-backfill")


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("prefix", ["with space", 'with"quote'])
def test_folder_that_no_option_can_name_has_none(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    monkeypatch.setattr(sys, "prefix", f"/{prefix}")
    assert archive_path() is None
    assert sharing_options() == ""


def test_there_is_none_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert archive_path() is None
