"""Sends executors the code they run: the driver's own.

A wheel given with `--py-files` reaches the executors as a file that Spark does not put on their search path (it does so
for .zip, .egg and .jar), and a release installed on the executors may be another one than the driver's. So a driver of
a cluster sends its own packages, wherever it has them from: a folder, an installation, a wheel. What the packages need
must be installed on the executors.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from pyspark import SparkContext, SparkFiles

PACKAGES = ("vnode_backfill", "consume_upstream", "progress")
_ARCHIVE = "vnode-backfill-code.zip"


def ship_packages(spark: SparkContext) -> None:
    """Put the packages on the search path of every executor, those that come later included."""
    # Executors fetch the file from the driver whenever they start; Spark removes this folder when the session ends.
    folder = Path(SparkFiles.getRootDirectory()) / "vnode-backfill"
    folder.mkdir(exist_ok=True)
    spark.addPyFile(str(archive_packages(folder)))


def archive_packages(folder: Path) -> Path:
    """The packages as this process has them, in one archive."""
    archive = folder / _ARCHIVE
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for package in PACKAGES:
            for name, file in _files_of(files(package), package):
                target.writestr(name, file.read_bytes())
    return archive


def _files_of(folder: Traversable, name: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        inside = f"{name}/{entry.name}"
        if entry.is_file():
            yield inside, entry
        elif entry.name != "__pycache__":
            yield from _files_of(entry, inside)
