"""Lists the modules that a command loads, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from devkit.spark import REPOSITORY

HEAVY = (
    "asyncio", "deltalake.fs", "numba", "obstore", "pandas", "prometheus_client", "pyarrow.compute", "pyarrow.dataset",
    "pyarrow.fs", "pyarrow.parquet", "pymysql", "pyspark", "ssl",
)  # fmt: skip
"""What takes longer to load than a job takes to look at."""


def loaded_by(*words: str) -> set[str]:
    """The modules that the command loads. It must succeed."""
    line = [sys.executable, "-X", "importtime", "-m", "vnode_backfill", *words]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    # pyarrow asks for pandas by its name, and is told that there is none.
    return {row.rpartition("|")[2].strip() for row in done.stderr.splitlines()} - {"pandas"}


def heavy_of(loaded: set[str]) -> list[str]:
    return sorted(module for module in loaded if module.startswith(HEAVY))
