"""Says what the rest of the system may ask of the table it copies, whatever database holds it.

`UpstreamTable` is a description that can be sent to a worker: it holds no connection. Questions about the log open one
for themselves; everything about rows and keys goes through an `UpstreamSession`, which is one connection. The driver
asks over `UpstreamQuestions`, a few connections that stay open.

The promises that correctness rests on:

- everything a reader can see now is at or below `written_offset`;
- everything `visible_offset` covers is seen by every read that starts later (a weaker answer loses rows);
- everything at or below `first_offset` is seen by every read that starts later, and everything above it is in the log;
- a range is read completely or the read raises; it never ends early;
- keys are ordered as the database orders them, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from consume_upstream.log.ahead import LogAhead
from consume_upstream.log.cascade import CascadingParent
from consume_upstream.log.offset import SHORT_STRETCH_BYTES, CdcOffset, Visibility, is_short_stretch
from consume_upstream.log.source_log import SourceLog
from consume_upstream.log.statement import FoundStatement, LogCut, MetStatements, PassedStatement
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import Bound, KeyRange
from vnode_backfill.words.plan import TableFacts
from vnode_backfill.words.schema_change import CreatedTable, RowsOfPartitions, StatementOutcome

if TYPE_CHECKING:
    from consume_upstream.log.batch import LogBatch, SharedBatch

__all__ = [
    "FORM", "ROW_DIGEST", "CanonicalKey", "Checksums", "HeldLog", "KeyWalk", "Stretch", "Sums", "TableSize",
    "UpstreamLog", "UpstreamQuestions", "UpstreamSession", "UpstreamTable", "ValueForms", "Weights",
]  # fmt: skip

Weights = tuple[bytes | None, ...]
"""The database's sort key of each text column of a key; None where the client compares the values themselves."""
CanonicalKey = tuple[object, ...]
"""The values of a key as an Arrow row holds them, in the order of the key's columns."""
FORM, ROW_DIGEST = "key form", "row digest"
"""The columns that checksums add to the key's. Each name holds a space, which no column of a Delta table can."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the key that is read in one go: `range`, without the keys up to `after` itself."""

    range: KeyRange
    after: Key | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Rows and the sum of their digests (modulo 2^64) of some groups of rows; a group that is not named has no rows."""

    groups: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    sums: npt.NDArray[np.uint64]


class TableSize(NamedTuple):
    """What the database's statistics say; both are estimates."""

    rows: int
    row_bytes: int


def is_read_by_driver(after: CdcOffset, upto: CdcOffset, held_log: Callable[[], HeldLog | None]) -> bool:
    """Whether the driver reads `(after, upto]` by itself, because it is short; tasks read what is long.

    The ends of a stretch that goes on in the next file do not say how long it is, so the source is asked. A log begins
    a new file now and then, and that alone must not start Spark for a live job, which would keep it. A stretch over
    more files counts as long.
    """
    if upto.number - after.number != 1:
        return is_short_stretch(after, upto)
    held = held_log()
    if held is None or held.bytes_before(after) < 0:
        return False
    return held.bytes_after(after) - held.bytes_after(upto) <= SHORT_STRETCH_BYTES


class HeldLog(Protocol):
    """What the database holds of its log."""

    @property
    def kept_seconds(self) -> float | None:
        """For how long it keeps a part of the log; None if nothing is removed by age."""
        ...

    def bytes_before(self, offset: CdcOffset) -> int:
        """How much of the held log is before a point; less than nothing if the point itself is gone."""
        ...

    def bytes_after(self, offset: CdcOffset) -> int:
        """How much of the held log is after a point."""
        ...


class UpstreamSession(Protocol):
    """One connection for reading rows and asking about keys; one question at a time, from one thread."""

    def read_range(
        self, key_range: KeyRange, *, after: Key | None = None, limit: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a range in key order, as the definition's Arrow schema: those after `after`, at most `limit`.

        Each call has its own read view, opened when iteration starts. An iterator that is given up uses the session up.
        """
        ...

    def read_rows(self, keys: Sequence[Key]) -> pa.Table:
        """The rows that these keys have, all in one read view; keys that are gone are left out."""
        ...

    def table_facts(self) -> TableFacts:
        """What the planner starts from: the smallest and largest key, and estimates."""
        ...

    def min_max(self) -> tuple[Bound | None, Bound | None]:
        """The smallest and largest key now; None for an empty table."""
        ...

    def estimate_rows(self, bounds: Sequence[Bound]) -> list[int]:
        """About how many rows are between each two neighbours of `bounds`, the lower one included.

        The answer is cheap, and only a hint.
        """
        ...

    def next_bound(self, after: Bound, rows: int) -> Bound | None:
        """The key `rows` rows after `after`, or None past the last; the database skips, no row travels."""
        ...

    def first_beyond(self, key: Key) -> Bound | None:
        """The first key of the table after `key`, which need not be one of them; None past the last."""
        ...

    def last_before(self, bound: Bound) -> Bound | None:
        """The last key of the table before a bound; None before the first."""
        ...

    def collation_keys(self, keys: Sequence[Key], definition: TableDefinition | None = None) -> list[Weights]:
        """The database's sort keys of text key columns, for `order_key`.

        They are of this table's key, or of the key of another table of the same database, given its definition.
        """
        ...

    def order_bounds(self, keys: Sequence[Key]) -> list[Bound]:
        """Each key with its place in the database's order."""
        ...

    def close(self) -> None: ...


class KeyWalk(Protocol):
    """One connection that walks the table in the database's own order, whatever that order is; one read at a time."""

    def read(self, after: Key | None, limit: int) -> Iterator[pa.RecordBatch]:
        """The next `limit` rows after a cursor, or from the table's first.

        They are fewer only where the table ends; anything else raises.
        """
        ...


class Checksums(Protocol):
    """One connection over which the database computes checksums, so that equal rows need not travel.

    It takes one question at a time.
    """

    def sums(self, stretch: Stretch, buckets: int = 1) -> Sums:
        """Rows and sums of the stretch in each bucket of keys that holds any.

        With one bucket, that is the whole stretch.
        """
        ...

    def digests(self, stretch: Stretch, buckets: int = 1, chosen: Sequence[int] = ()) -> pa.Table:
        """Key, `FORM` and `ROW_DIGEST` of each row of the stretch whose key is in one of the chosen buckets."""
        ...

    def digests_of(self, keys: Sequence[CanonicalKey]) -> pa.Table:
        """Key, `FORM` and `ROW_DIGEST` of the rows that the database finds by these keys; one that is gone has none."""
        ...

    def rows_of(self, keys: Sequence[CanonicalKey]) -> pa.Table:
        """The rows that the database finds by these keys, as the definition's columns."""
        ...

    def key_behind(self, stretch: Stretch, rows: int) -> Key | None:
        """The key of the stretch's row number `rows`, or None where it has fewer.

        The database skips, one key travels.
        """
        ...


class ValueForms(Protocol):
    """Computes here, from Arrow values, what `Checksums` computes in the database; can be pickled."""

    def row_forms(self, columns: Sequence[Column], rows: pa.RecordBatch | pa.Table) -> pa.Array:
        """The bytes of each row: equal for two rows if and only if their canonical values are."""
        ...

    def digests(self, forms: pa.Array) -> npt.NDArray[np.uint64]: ...

    def bucket_numbers(self, forms: pa.Array, buckets: int) -> npt.NDArray[np.int64]:
        """The bucket, one of a power of two, that a key of each form belongs to."""
        ...


class UpstreamQuestions(Protocol):
    """The driver's own questions, over a few connections that stay open. Safe to call from any thread."""

    def of(self, table: UpstreamTable) -> UpstreamQuestions:
        """Questions about another table of the same server, over the same connections."""
        ...

    def session(self) -> AbstractContextManager[UpstreamSession]:
        """A session over one of the connections, for the time of the `with` block."""
        ...

    def written_offset(self, last: CdcOffset) -> CdcOffset:
        """The end of the log, with the identity of its file. `last` is the sample before."""
        ...

    def visible_offset(self) -> Visibility: ...

    def slice_end(self, after: CdcOffset, upto: CdcOffset, length: int) -> CdcOffset | None:
        """A boundary of the log at least `length` bytes after `after` and before `upto`; None if none is known.

        Whoever asks with the same `after` is given the same one, as long as it is before `upto`.
        """
        ...

    def held_log(self) -> HeldLog | None:
        """What the source holds of its log now; None where the account may not ask."""
        ...

    def threads_running(self) -> float:
        """Statements being executed right now, this question included."""
        ...

    def query_number(self, query: str) -> float:
        """The number that a query of the operator's returns in its first column of its first row."""
        ...

    def replica_lag(self, host: str, port: int) -> float:
        """Seconds that a replica is behind the source; a replica that is not replicating raises."""
        ...

    def close(self) -> None: ...


class UpstreamLog(Protocol):
    """The log of the database that holds the table: its ends, where in it a job may begin, and its changes."""

    def written_offset(self) -> CdcOffset: ...

    def visible_offset(self) -> Visibility: ...

    def first_offset(self) -> CdcOffset: ...

    def beginning(self) -> CdcOffset:
        """The first offset of a job that reads the table later.

        It returns once nothing that was logged below the offset is still prepared.
        """
        ...

    def source_log(self, *, with_time: bool = False, stored: CdcOffset | None = None) -> SourceLog:
        """What the log holds now, counted as era 0; when its oldest part was begun only `with_time`.

        `stored` is an offset that a job may continue from; the identity of its part of the log is then read too.
        """
        ...

    def position_at_time(self, moment: datetime, log: SourceLog) -> CdcOffset:
        """Where the first transaction of that second or later begins; the end of the log if there is none yet."""
        ...

    def position_after_gtids(self, gtids: str, log: SourceLog) -> CdcOffset:
        """Where the first transaction outside the given ones begins; the end of the log if there is none."""
        ...

    def unknown_gtids(self, gtids: str, log: SourceLog) -> str:
        """Those of the given transactions that the log does not hold; empty if it holds all."""
        ...

    def boundary_fault(self, offset: CdcOffset, log: SourceLog) -> str:
        """Why a position that the log holds is not between two transactions; empty if it is."""
        ...

    def identified(self, offset: CdcOffset) -> CdcOffset:
        """The offset with the identity of its log, taken from the log if it has none yet."""
        ...

    def check_log(self, offset: CdcOffset) -> None:
        """Raise unless the log still is the one whose identity the offset has."""
        ...

    def held_log(self) -> HeldLog | None:
        """What the source holds of its log now; None where the account may not ask."""
        ...

    def log_stretches(self, after: CdcOffset, upto: CdcOffset) -> list[tuple[CdcOffset, CdcOffset]]:
        """`(after, upto]` in pieces that can be read on their own, each beginning where a transaction begins."""
        ...

    @property
    def spare_reader(self) -> int:
        """The number of a reader of the log that is not one of a running job's."""
        ...

    def read_log(
        self, after: CdcOffset, upto: CdcOffset, reader: int = 0, met: MetStatements | None = None
    ) -> Iterator[LogBatch]:
        """Every change of the table in `(after, upto]`, in log order, or an error; never fewer.

        With `met` a statement that may change the table ends the slice before it and is written down there. Without,
        it raises.

        Both ends must be ends of transactions. Where `after` has the identity of its log, another log raises. Readers
        at work at the same time have different numbers.
        """
        ...

    def found_statement(self, after: CdcOffset, upto: CdcOffset, met: LogCut | PassedStatement) -> FoundStatement:
        """The offsets around a statement that a reader of `(after, upto]` has met; a job can continue from both."""
        ...

    def may_hold_packed_transactions(self) -> bool:
        """Whether the log holds, or may hold, transactions that are one compressed event each."""
        ...


class UpstreamTable(UpstreamLog, Protocol):
    """The copied table and the log of the database that holds it; can be pickled."""

    @property
    def definition(self) -> TableDefinition:
        """The definition as stored with the job."""
        ...

    @property
    def parents(self) -> tuple[CascadingParent, ...]:
        """The tables whose changes change rows of this one outside the log, as far as they are known."""
        ...

    def with_parents(self) -> Self:
        """The same table, with its parents as they are now; refused where one of them cannot be looked at."""
        ...

    def with_known_parents(self, stored: Sequence[CascadingParent]) -> Self:
        """The same table, with the parents that are stored with its copy, and beside them those that it has now."""
        ...

    def parent(self, parent: CascadingParent) -> Self:
        """One of the parents as a table whose log can be read."""
        ...

    @property
    def server(self) -> str:
        """The server whose log the offsets are of; positions of one mean nothing on another."""
        ...

    @property
    def forms(self) -> ValueForms: ...

    def read_together(
        self,
        tables: Sequence[Self],
        after: CdcOffset,
        upto: CdcOffset,
        reader: int,
        met: Sequence[MetStatements],
    ) -> Iterator[SharedBatch]:
        """Every change of each of the tables in `(after, upto]`; the log is read once, by one reader.

        All tables are of the server of this one, which need not be among them. Each has its `met`, in the same order.
        A statement that may change a table ends what is read of that one, as with `read_log`. What is wrong with a
        table is written into its `met` instead of raised: nothing of the table counts then. The others are read on.
        What is wrong with the log raises.
        """
        ...

    def look_ahead(self, tables: Sequence[tuple[Self, CdcOffset]]) -> list[LogAhead]:
        """What the log holds of each of the tables after its offset, in the same order; the log is read once.

        Each table's definition must have been read again after the offset was chosen, and be the same.
        """
        ...

    def on_its_own(self) -> Self:
        """The same table, without what it was opened by together with others."""
        ...

    def in_era(self, era: int) -> Self:
        """The same table, whose log counts as that one of the job's logs (see `consume_upstream.log.offset`)."""
        ...

    def current_definition(self) -> TableDefinition:
        """The definition as it is now."""
        ...

    def with_definition(self, definition: TableDefinition) -> Self:
        """The same table, read by another version of its definition."""
        ...

    def effect_of(self, found: FoundStatement, *, gone: RowsOfPartitions = "delete") -> StatementOutcome | None:
        """What a statement in the log has done to the table that had this definition, and partitions, before it.

        None if that cannot be said yet: a table that is gone may come back within a minute. Rows of partitions that the
        statement takes away are deleted by their bounds where these are certain, or kept, or the table is read again,
        as `gone` says.
        """
        ...

    def created_since(self, after: CdcOffset) -> CreatedTable | None:
        """The table as its creation has left it, where the log after an offset shows that; None if it does not.

        Everything that the table holds is in the log after its creation.
        """
        ...

    def estimated_size(self) -> TableSize: ...

    def unordered_key(self) -> str:
        """Why keys of the table cannot be ordered outside the database; empty if they can."""
        ...

    def check_walkable(self) -> None:
        """Refuse a key whose place cannot be given to the database exactly."""
        ...

    def cursor_of(self, rows: pa.RecordBatch | pa.Table) -> Key:
        """The key of the last row, as the values that the database compares it by."""
        ...

    def session(self) -> AbstractContextManager[UpstreamSession]:
        """Open a connection; it is closed at the end of the `with` block."""
        ...

    def walk(self) -> AbstractContextManager[KeyWalk]: ...

    def checksums(self, columns: Sequence[str]) -> AbstractContextManager[Checksums]:
        """Checksums over these columns, key included."""
        ...

    def questions(self) -> UpstreamQuestions:
        """The driver's own questions; the caller closes them."""
        ...
