"""Follows the log of the copied table: reads it, marks each change, and buffers those that no read sees.

The names that a reader of RisingWave looks for are found here and imported when they are first asked for. So
`import consume_upstream` costs nothing: `status` and `requests` need neither Spark nor Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from consume_upstream.buffer import ChangeBuffer
    from consume_upstream.executor import UpstreamTableExecutor
    from consume_upstream.log.offset import CdcOffset
    from consume_upstream.mark import mark_chunk
    from consume_upstream.upstream_table import UpstreamTable

__all__ = ["CdcOffset", "ChangeBuffer", "UpstreamTable", "UpstreamTableExecutor", "mark_chunk"]
_MODULES = {
    "CdcOffset": "consume_upstream.log.offset",
    "ChangeBuffer": "consume_upstream.buffer",
    "UpstreamTable": "consume_upstream.upstream_table",
    "UpstreamTableExecutor": "consume_upstream.executor",
    "mark_chunk": "consume_upstream.mark",
}

if not TYPE_CHECKING:
    # A type checker that saw this function would accept any name.
    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)
