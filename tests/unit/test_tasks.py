"""What a worker process keeps and forgets between tasks."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from vnode_backfill.tasks import forget_archives


def test_forgotten_archives_can_still_be_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "given.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("first_of_archive.py", "VALUE = 1\n")
        file.writestr("second_of_archive.py", "VALUE = 2\n")
    monkeypatch.syspath_prepend(str(archive))
    assert importlib.import_module("first_of_archive").VALUE == 1
    assert str(archive) in sys.path_importer_cache
    forget_archives()
    assert str(archive) not in sys.path_importer_cache
    assert importlib.import_module("second_of_archive").VALUE == 2
