"""What a driver sends to the executors of a cluster: its own packages, complete and importable from the archive."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from vnode_backfill.spark.ship_code import PACKAGES, archive_packages

CALL = """
import numpy as np
from consume_upstream.mysql.rows import kernels as row_kernels
bounds = np.zeros(1, np.int64)
row_kernels.gather_fixed(np.zeros(8, np.uint8), bounds, np.zeros(1, np.int32), np.zeros(1, np.uint64))
print(row_kernels.__file__, sum(row_kernels.gather_fixed.stats.cache_hits.values()))
"""


def test_the_archive_holds_every_module_and_page_and_nothing_compiled(tmp_path: Path) -> None:
    names = zipfile.ZipFile(archive_packages(tmp_path)).namelist()
    assert {name.partition("/")[0] for name in names} == set(PACKAGES)
    assert {
        "vnode_backfill/spark/tasks.py",
        "consume_upstream/mysql/table.py",
        "progress/faces/web_page/page.html",
    } <= set(names)
    assert not [name for name in names if "__pycache__" in name]


def test_kernels_from_an_archive_are_compiled_once_for_all_processes(tmp_path: Path) -> None:
    archive = archive_packages(tmp_path)

    def call_kernel() -> list[str]:
        """In a process that has the project from nowhere else.

        Where it was imported from, and how often compiled code was found.
        """
        environment = {
            "PYTHONPATH": str(archive), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": os.environ["PATH"],
        }  # fmt: skip
        command = [sys.executable, "-c", CALL]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        ).stdout.split()

    where, found = call_kernel()
    assert (where.startswith(str(archive)), found) == (True, "0")
    assert call_kernel()[1] == "1"
