"""Parallel, per-vnode snapshot backfill and change capture from MySQL and MariaDB into Delta Lake, on Spark.

`Backfill` is loaded when it is asked for: a command that needs nothing of it pays nothing for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vnode_backfill.commands.backfill import Backfill

__all__ = ["Backfill", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name != "Backfill":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vnode_backfill.commands.backfill import Backfill

    return Backfill
