"""Reads the bounds of a file's key columns: whether it may hold keys of a range, and its smallest and largest key.

Bounds are compared in Python, which orders numbers, dates and instants as every database does. Text is not compared:
its order is the server's collation, so a file may hold any text.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from vnode_backfill.delta.files import DataFile
from vnode_backfill.sinks import Weighing
from vnode_backfill.sinks.changes import comparable
from vnode_backfill.words.key import Key, KeyKind, KeyPart, keys_of, order_keys
from vnode_backfill.words.key_range import KeyRange

_EXACT = (KeyKind.INT, KeyKind.UINT, KeyKind.DECIMAL, KeyKind.DATE)
"""Kinds whose statistics are values of the file; instants are rounded and text is cut."""


def may_hold(file: DataFile, ranges: Sequence[KeyRange], first: KeyPart) -> bool:
    """False only if no key of the ranges can be in the file, by its bounds of the first key column."""
    low, high = file.low[0], file.high[0]
    if low is None or high is None or first.kind is KeyKind.TEXT:
        return True
    lowest, highest = comparable(low), comparable(high, up=True)
    return any(
        (each.low is None or comparable(each.low.key[0]) <= highest)
        and (each.high is None or comparable(each.high.key[0]) >= lowest)
        for each in ranges
    )


def bounds_as_keys(file: DataFile, parts: Sequence[KeyPart], schema: pa.Schema) -> list[pa.Array] | None:
    """The smallest and the largest key as a column of two rows, if the bounds are exactly these.

    Where rows of the file are gone, its smallest or its largest key may be among them.
    """
    if (
        file.vector is not None
        or len(parts) > 1
        or parts[0].kind not in _EXACT
        or file.low[0] is None
        or file.high[0] is None
    ):
        return None
    return [pa.array([file.low[0], file.high[0]], schema.field(0).type)]


def extremes(parts: Sequence[KeyPart], columns: Sequence[pa.Array], weights: Weighing | None) -> list[Key]:
    """The smallest and the largest key of the columns; all keys where text comes without the server's weights."""
    if not len(columns[0]):
        return []
    keys = keys_of(parts, columns)
    if weights is None and any(part.kind is KeyKind.TEXT for part in parts):
        return keys
    orders = order_keys(parts, columns, (weights(columns) if weights else None) or ())
    lowest, highest = min(range(len(orders)), key=orders.__getitem__), max(range(len(orders)), key=orders.__getitem__)
    return [keys[lowest], keys[highest]]
