"""Says before a job what its Delta target will be: who can read it, and how much disk it takes.

The disk is an estimate. Its arithmetic, with R rows of B bytes at the source, so S = R × B bytes of rows at most
(Parquet files are compressed, so usually less):

- A copy that ends takes S.
- With vectors, a merge of c changes adds their rows, c × B, which joins write about three times more. The vector of a
  touched file is written again with all its earlier deletes, about 2 bytes each. A file is folded when the vectors
  written since its last fold have its size. Over k merges its vectors have c × k² bytes, so that is after √(S / c)
  merges, and a merge costs 2 × √(S × c) bytes, fold included. All of it stays for the retention: at one merge per
  `epoch.live` of 500 scattered changes a second, S + retention / epoch × (4 × c × B + 2 × √(S × c)).
- With rewriting, a merge writes every file again that it touches: up to S if changes are scattered. That stays for the
  retention, too. How often it happens is not known before, so no sum is given.

2,000,000 rows of 20 bytes, 6 hours: 40 MB + 21,600 × (40 kB + 283 kB) = 7 GB.
"""

from __future__ import annotations

from datetime import timedelta
from math import isqrt

from vnode_backfill.config.job import MergeMode
from vnode_backfill.words.finding import Finding, Level
from vnode_backfill.words.plan import TableFacts
from vnode_backfill.words.units import format_duration

CHANGES_PER_SECOND = 500
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_WRITTEN_AGAIN = 4
_READERS = {
    MergeMode.VECTORS: Finding(
        Level.INFO,
        "target.merge",
        "rows are changed by deletion vectors, which Spark (Delta 2.3), polars and deltalake's QueryBuilder read, and "
        "deltalake's to_pandas and to_pyarrow, and daft, refuse; see docs/readers.md",
    ),
    MergeMode.REWRITE: Finding(
        Level.OK,
        "target.merge",
        "rows are changed by writing files again: every reader of Delta can read the table",
    ),
}


def readers_of(mode: MergeMode) -> Finding:
    """How rows are changed, and who can read the table then."""
    return _READERS[mode]


def other_mode(path: str, found: MergeMode, asked: MergeMode) -> Finding:
    """The file asks for another mode than the table has."""
    return Finding(
        Level.REFUSED,
        "target.merge",
        f"rows of {path} are changed by {found}, and the file asks for {asked}",
        f"vnode-backfill upgrade --merge {asked}, or set sink.delta.merge: {found}",
    )


def disk_of(mode: MergeMode, facts: TableFacts, kept: timedelta, epoch: timedelta, *, follows: bool) -> Finding:
    """How much disk the target needs at most, about."""
    rows = facts.estimated_rows * facts.average_row_bytes
    text = f"the rows take {_about(rows)} at most"
    if follows and mode is MergeMode.VECTORS:
        size = superseded_by_vectors(facts, kept, epoch)
        text += f", and what merges supersede within {format_duration(kept)} {_about(size)}, "
        text += f"at {CHANGES_PER_SECOND} scattered changes a second"
    elif follows:
        text += f"; each merge supersedes the files that it touches, which stay for {format_duration(kept)}"
    return Finding(Level.INFO, "target.disk", text)


def superseded_by_vectors(facts: TableFacts, kept: timedelta, epoch: timedelta) -> int:
    """Bytes of rows, vectors and files that merges by vectors write within the retention; see the module."""
    changes = max(1, int(CHANGES_PER_SECOND * epoch.total_seconds()))
    size = facts.estimated_rows * facts.average_row_bytes
    merge = _WRITTEN_AGAIN * changes * facts.average_row_bytes + 2 * isqrt(size * changes)
    return int(kept / epoch * merge)


def _about(size: int) -> str:
    shown, unit = float(size), 0
    while shown >= 1000 and unit + 1 < len(_UNITS):
        shown, unit = shown / 1000, unit + 1
    return f"about {shown:.3g} {_UNITS[unit]}"
