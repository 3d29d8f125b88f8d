"""Keeps the rows of tables that do not change in one piece, so that a commit of a few tables need not join hundreds.

A commit writes the rows of all tables (`shared_checkpoints`), most of which are what they were. Joining 300 small
pieces takes longer than writing them. Only those that have changed since they were packed are apart:

    packed  a b c d e      commit of b      pack a c d e       apart b
                           commit of b                         apart b     nothing is packed again
                           commit of d      pack a c e         apart b d

So whatever changes again and again stays apart. When too many are, all are packed.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

__all__ = ["PackedRows"]

_MOST_APART = 64


class PackedRows:
    """The rows that were written last, by table. Not safe to use from several threads."""

    def __init__(self, most_apart: int = _MOST_APART) -> None:
        self._most_apart = most_apart
        self._packed: Mapping[str, pa.Table] = {}
        self._rows: pa.Table | None = None

    def parts(self, tables: Mapping[str, pa.Table]) -> list[pa.Table]:
        """The rows of all tables, in few pieces; those of one table are together."""
        apart = {name: rows for name, rows in tables.items() if self._packed.get(name) is not rows}
        # Rows of a table that has changed, or is gone, must not be written.
        is_stale = len(tables) - len(apart) < len(self._packed)
        if is_stale or len(apart) > self._most_apart:
            apart = apart if len(apart) <= self._most_apart else {}
            self._packed = {name: rows for name, rows in tables.items() if name not in apart}
            self._rows = pa.concat_tables(self._packed.values()).combine_chunks() if self._packed else None
        return [*([] if self._rows is None else [self._rows]), *apart.values()]
