"""What the rest of the system may ask of the table it copies, whatever database holds it.

`UpstreamTable` is a description that can be sent to a worker: it holds no connection. Questions about the log open one
for themselves; everything about rows and keys goes through an `UpstreamSession`, which is one connection.

The promises that correctness rests on:

- everything a reader can see now is at or below `written_offset`;
- everything `visible_offset` covers is seen by every read that starts later (a weaker answer loses rows);
- everything at or below `first_offset` is seen by every read that starts later, and everything above it is in the log;
- a range is read completely or the read raises; it never ends early;
- keys are ordered as the database orders them, or refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from consume_upstream.offset import CdcOffset, Visibility
from vnode_backfill.columns import TableDefinition
from vnode_backfill.keys import Bound, KeyRange
from vnode_backfill.plan import TableFacts
from vnode_backfill.vnode import Key

if TYPE_CHECKING:
    from consume_upstream.log import LogBatch

__all__ = ["UpstreamSession", "UpstreamTable", "Weights"]

Weights = tuple[bytes | None, ...]
"""The database's sort key of each text column of a key; None where the client compares the values themselves."""


class UpstreamSession(Protocol):
    """One connection for reading rows and asking about keys; one question at a time, from one thread."""

    def read_range(
        self, key_range: KeyRange, *, after: Key | None = None, limit: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a range in key order, as the definition's Arrow schema; only those behind `after`, at most `limit`.

        Each call is a read view of its own, opened when iteration starts. An iterator that is given up uses the session up.
        """
        ...

    def table_facts(self) -> TableFacts:
        """What the planner starts from: the smallest and largest key, and estimates."""
        ...

    def min_max(self) -> tuple[Bound | None, Bound | None]:
        """The smallest and largest key now; None for an empty table."""
        ...

    def estimate_rows(self, bounds: Sequence[Bound]) -> list[int]:
        """About how many rows lie between each two neighbours of `bounds`, the lower one included; cheap, and a hint."""
        ...

    def next_bound(self, after: Bound, rows: int) -> Bound | None:
        """The key `rows` rows behind `after`, or None past the last; the database skips, no row travels."""
        ...

    def collation_keys(self, keys: Sequence[Key]) -> list[Weights]:
        """The database's sort keys of text key columns, for `order_key`."""
        ...

    def order_bounds(self, keys: Sequence[Key]) -> list[Bound]:
        """Each key with its place in the database's order."""
        ...

    def close(self) -> None: ...


class UpstreamTable(Protocol):
    """The copied table and the log of the database it lives in; can be pickled."""

    @property
    def definition(self) -> TableDefinition:
        """The definition as stored with the job."""
        ...

    def current_definition(self) -> TableDefinition:
        """The definition as it is now."""
        ...

    def session(self) -> AbstractContextManager[UpstreamSession]:
        """Open a connection; it is closed at the end of the `with` block."""
        ...

    def written_offset(self) -> CdcOffset: ...

    def visible_offset(self) -> Visibility: ...

    def first_offset(self) -> CdcOffset: ...

    def log_stretches(self, after: CdcOffset, upto: CdcOffset) -> list[tuple[CdcOffset, CdcOffset]]:
        """`(after, upto]` in pieces that can be read on their own, each beginning where a transaction begins."""
        ...

    def check_log(self, offset: CdcOffset) -> None:
        """Raise unless the log still is the one whose identity the offset has."""
        ...

    def read_log(self, after: CdcOffset, upto: CdcOffset, reader: int = 0) -> Iterator[LogBatch]:
        """Every change of the table in `(after, upto]`, in log order, or an error; never fewer.

        Both ends must be ends of transactions. Where `after` has the identity of its log, another log raises. Readers at work at the same time have different numbers.
        """
        ...
