"""The process that Spark forks its Python workers from, on one machine: what every task needs is loaded before the
first fork.

Spark's own daemon forks empty workers, and each then imports the same libraries and loads the same compiled kernels:
about two CPU-seconds per worker before its first row, at the same time on the same cores. Here that is done once. What
must be true: nothing below starts a thread of ours or opens a connection, since neither survives a fork (the
allocators' and numpy's own threads do: they are started again in the child). On a cluster Spark's daemon stays, because
a package that was given with `--py-files` is not there yet when a daemon starts.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence, Set
from importlib import import_module
from pathlib import Path

from vnode_backfill.spark.early_daemon import hand_over, waiting
from vnode_backfill.spark.without_pandas import hide_pandas

PRELOADED = (
    "deltalake.fs",
    "consume_upstream.executor",
    "consume_upstream.mysql.table",
    "consume_upstream.mysql.rows.result_rows",
    "vnode_backfill.delta.object_store",
    "vnode_backfill.merge.merge_epoch",
    "vnode_backfill.snapshot.vnode_stream",
    "vnode_backfill.sinks.delta.sink",
    "vnode_backfill.verify.tasks",
)
"""The modules that tasks are made of, by name: nothing here may import what is above it.

One may have kernels to load.
"""


def main(*more: str) -> None:
    """Become Spark's daemon, with `more` modules loaded; or leave that to one that was started ahead.

    What tasks use without `more` needs no pandas.
    """
    ahead = waiting(sys.argv[1:])
    if ahead is None and hand_over(sys.argv[1:]):
        return
    sys.path[:] = without_archives(sys.path)
    if not more:
        hide_pandas()
    for name in (*PRELOADED, *more):
        load_kernels = getattr(import_module(name), "load_kernels", None)
        if load_kernels is not None:
            load_kernels()
    from pyspark.daemon import manager

    from vnode_backfill.spark.tasks import forget_archives

    # Spark collects garbage in its workers after every task: without this each collection would walk, and so copy, all
    # that was loaded here.
    gc.collect()
    gc.freeze()
    forget_archives()
    if ahead is None or ahead.take_over():
        manager()  # type: ignore[no-untyped-call]


def without_archives(paths: Sequence[str]) -> list[str]:
    """The search path without those archives of Spark whose contents are installed beside them.

    Spark puts `pyspark.zip` first. Nothing compiled is kept of what is imported from an archive: that took 1.2 of 3
    seconds here.
    """
    folders = {Path(path).resolve() for path in paths}
    return [path for path in paths if not _is_installed(Path(path).resolve(), folders)]


def _is_installed(archive: Path, folders: Set[Path]) -> bool:
    """Whether this is an archive of a `pyspark` that is installed, with `py4j`, in one of the folders."""
    if archive.suffix != ".zip" or archive.parts[-4:-1] != ("pyspark", "python", "lib"):
        return False
    folder = archive.parents[3]
    return folder in folders and all((folder / name / "__init__.py").is_file() for name in ("pyspark", "py4j"))


if __name__ == "__main__":
    main()
