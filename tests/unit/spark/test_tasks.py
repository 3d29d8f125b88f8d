"""What a worker process keeps and forgets between tasks."""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path

import pytest

from vnode_backfill.spark.daemon import without_archives
from vnode_backfill.spark.tasks import forget_archives


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


@pytest.mark.parametrize(("installed", "stays"), [(("pyspark", "py4j"), False), (("pyspark",), True), ((), True)])
def test_archives_of_spark_are_left_out_only_where_what_they_hold_is_installed(
    tmp_path: Path, installed: tuple[str, ...], stays: bool
) -> None:
    for name in installed:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    archives = [str(tmp_path / "pyspark" / "python" / "lib" / name) for name in ("pyspark.zip", "py4j-0.10-src.zip")]
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path)
    given = ["/job", *archives, "/elsewhere/pyspark/python/lib/pyspark.zip", "/mine.zip", str(linked)]
    left = without_archives(given)
    assert [path for path in archives if path in left] == (archives if stays else [])
    assert [path for path in left if path not in archives] == [path for path in given if path not in archives]
