"""The process that Spark forks its Python workers from, on one machine: what every task needs is loaded before the first fork.

Spark's own daemon forks empty workers, and each then imports the same libraries and loads the same compiled kernels: about two
CPU-seconds per worker before its first row, at the same time on the same cores. Here that is done once. What must be true: nothing below
starts a thread of ours or opens a connection, since neither survives a fork (the allocators' and numpy's own threads do: they are started
again in the child). On a cluster Spark's daemon stays, because a package that was given with `--py-files` is not there yet when a daemon
starts.
"""

from __future__ import annotations

import gc

from consume_upstream import executor
from consume_upstream.mysql import server
from consume_upstream.mysql.resultset import load_kernels
from vnode_backfill import merge, snapshot, verify_tasks
from vnode_backfill.sinks import delta
from vnode_backfill.tasks import forget_archives

PRELOADED = (executor, server, merge, snapshot, delta, verify_tasks)
"""The modules that tasks are made of; importing them is what counts."""


def main() -> None:
    """Become Spark's daemon."""
    from pyspark.daemon import manager

    load_kernels()
    # Spark collects garbage in its workers after every task: without this each collection would walk, and so copy, all that was loaded here.
    gc.collect()
    gc.freeze()
    forget_archives()
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
