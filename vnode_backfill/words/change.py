"""Defines a change of the log: what happened to a key, what becomes of the change, and its columns in the buffer.

A change of a primary key is two changes: a delete of the old key and an insert of the new one, each with its own range
and vnode. They share an offset; `half` orders them (delete 0, insert 1). So is an update whose key bytes changed though
the collation calls them equal, because the sink keeps bytes.
"""

from __future__ import annotations

from enum import IntEnum

VNODE = "_vnode"
EPOCH = "_epoch"
FILE = "_offset_file"
POS = "_offset_pos"
ROW = "_offset_row"
HALF = "_offset_half"
OP = "_op"
TIMESTAMP = "_timestamp"
BEFORE_PREFIX = "_before_"
OFFSET_COLUMNS = (FILE, POS, ROW, HALF)
RESERVED_COLUMNS = frozenset({VNODE, EPOCH, FILE, POS, ROW, HALF, OP, TIMESTAMP})


class ChangeOp(IntEnum):
    """What happened to a key. INSERT and UPDATE both leave the after-image in the sink."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2


class Mark(IntEnum):
    """What becomes of a change."""

    DROP = 0
    """A read proven to include it has happened or will happen."""
    BUFFER = 1
    """Kept until its vnode's first merge."""
    FORWARD = 2
    """Its vnode is live: part of the next merge."""
