"""The process that Spark forks its Python workers from, on one machine: what every task needs is loaded before the first fork.

Spark's own daemon forks empty workers, and each then imports the same libraries and loads the same compiled kernels: about two
CPU-seconds per worker before its first row, at the same time on the same cores. Here that is done once. What must be true: nothing below
starts a thread of ours or opens a connection, since neither survives a fork (the allocators' and numpy's own threads do: they are started
again in the child). On a cluster Spark's daemon stays, because a package that was given with `--py-files` is not there yet when a daemon
starts.
"""

from __future__ import annotations

import gc

import numpy as np
import pyarrow as pa

from consume_upstream import executor
from consume_upstream.mysql import server
from consume_upstream.mysql.resultset import RowDecoder
from consume_upstream.mysql.statement import RowBlock
from vnode_backfill import merge, snapshot
from vnode_backfill.columns import Column
from vnode_backfill.sinks import delta
from vnode_backfill.tasks import forget_archives

PRELOADED = (executor, server, merge, snapshot, delta)
"""The modules that tasks are made of; importing them is what counts."""
_TYPES = ("int", "bigint unsigned", "varchar(9)", "decimal(18,4)", "datetime(6)", "double", "date")


def load_kernels() -> None:
    """Decode no rows of the common types: that loads the compiled code, or compiles it where it was never compiled."""
    decoder = RowDecoder([Column.parse(f"c{i}", text, nullable=True) for i, text in enumerate(_TYPES)])
    nowhere = np.empty(0, np.int64)
    decoder.decode(RowBlock(np.empty(0, np.uint8), nowhere, nowhere))
    # At its first conversion Arrow imports pandas, which takes half a second.
    pa.array([0]).to_numpy()


def main() -> None:
    """Become Spark's daemon."""
    from pyspark.daemon import manager

    load_kernels()
    # Spark's workers collect garbage after every task. Without this each would walk (and so copy) all that was loaded here: 0.25 s a task.
    gc.collect()
    gc.freeze()
    forget_archives()
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
