"""A MySQL or MariaDB table as the upstream: a description that can be pickled, and sessions opened from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import pyarrow as pa
from pymysql.connections import Connection

from consume_upstream.continuity import check_same_file
from consume_upstream.log_identity import LogIdentity
from consume_upstream.mysql import collation, sql
from consume_upstream.mysql.connection import SourceAddress, connect
from consume_upstream.mysql.definition import read_definition
from consume_upstream.mysql.events import LogPosition
from consume_upstream.mysql.facts import ServerFacts, TableProfile, read_server_facts, read_table_profile
from consume_upstream.mysql.file_identity import identity_now, take_identity
from consume_upstream.mysql.log_reader import LogBatch, read_log
from consume_upstream.mysql.positions import Lend, LogQuestions
from consume_upstream.mysql.prepared import wait_for_prepared
from consume_upstream.mysql.resultset import ZeroDates
from consume_upstream.mysql.session import ServerIdentity, ask, check_server, identify
from consume_upstream.mysql.snapshot import SnapshotReader
from consume_upstream.offset import CdcOffset, Visibility, era_shift
from consume_upstream.upstream_table import Weights
from vnode_backfill.columns import TableDefinition
from vnode_backfill.errors import SourceError
from vnode_backfill.keys import Bound, KeyRange
from vnode_backfill.plan import TableFacts
from vnode_backfill.vnode import Key, keys_of

__all__ = ["MySqlSession", "MySqlTable"]

_FILE_START = 4


@dataclass(frozen=True, slots=True)
class MySqlTable:
    """Address, definition and how to read: all a worker needs. RisingWave calls this `ExternalStorageTable`."""

    address: SourceAddress
    definition: TableDefinition
    identity: ServerIdentity
    zero_dates: ZeroDates = "null"
    watermark_table: str | None = None
    visibility_timeout: float = 60.0
    server_ids: tuple[int, int] = (5400, 5499)
    """The first and last id under which the log may be read; each reader takes its own."""
    era: int = 0
    """Which of the job's logs this server's is (see `offset`); every offset told or taken here is of it."""

    @classmethod
    def open(
        cls,
        address: SourceAddress,
        database: str,
        table: str,
        *,
        zero_dates: ZeroDates = "null",
        watermark_table: str | None = None,
        visibility_timeout: float = 60.0,
        server_ids: tuple[int, int] = (5400, 5499),
    ) -> MySqlTable:
        """Ask the server who it is and what the table looks like now."""
        with connect(address) as connection:
            definition = read_definition(connection, database, table)
            identity = identify(connection)
        return cls(address, definition, identity, zero_dates, watermark_table, visibility_timeout, server_ids)

    def connect(self) -> Connection:
        """A read-only connection to the server the job knows, and to no other; the caller closes it."""
        return self._connect(read_only=True)

    def _connect(self, *, read_only: bool) -> Connection:
        connection = connect(self.address, read_only=read_only)
        try:
            check_server(connection, self.identity)
        except SourceError:
            connection.close()
            raise
        return connection

    def current_definition(self) -> TableDefinition:
        """As it is behind every statement that is in the log by now."""
        with self.connect() as connection:
            # A statement is logged before the dictionary shows it, under a lock that opening the table waits for.
            ask(connection, f"SELECT 1 FROM {sql.table_name(self.definition)} LIMIT 0")
            return read_definition(connection, self.definition.database, self.definition.table)

    def current_identity(self) -> ServerIdentity:
        """Which server answers at the address now; another one after a failover."""
        with connect(self.address) as connection:
            return identify(connection)

    def server_facts(self) -> ServerFacts:
        with self.connect() as connection:
            return read_server_facts(connection, self.identity, self.definition)

    def table_profile(self) -> TableProfile:
        with self.connect() as connection:
            return read_table_profile(connection, self.identity, self.definition)

    def session(self) -> closing[MySqlSession]:
        return closing(MySqlSession(self))

    def written_offset(self) -> CdcOffset:
        return self.log_questions().written_offset()

    def visible_offset(self) -> Visibility:
        return self.log_questions().visible_offset()

    def first_offset(self) -> CdcOffset:
        return self.log_questions().first_offset()

    def beginning(self) -> CdcOffset:
        """The first offset of a job that reads the table later, once nothing is prepared any more that was logged below it."""
        first = self.first_offset()
        with self.connect() as connection:
            wait_for_prepared(connection, self.visibility_timeout)
        return first

    def log_stretches(self, after: CdcOffset, upto: CdcOffset) -> list[tuple[CdcOffset, CdcOffset]]:
        """`(after, upto]` cut where a file of the log begins, which is where a transaction begins.

        The identities of the first and the last file are known, those of the files between are not.
        """
        starts = [
            replace(upto, number=number, pos=_FILE_START, gtids="", log=upto.log if number == upto.number else "")
            for number in _between(after, upto)
        ]
        ends = [after, *starts, upto]
        return [(low, high) for low, high in pairwise(ends) if low < high]

    def read_log(self, after: CdcOffset, upto: CdcOffset, reader: int = 0) -> Iterator[LogBatch]:
        """Every change of the table in `(after, upto]`, in log order, or an error; readers at work have different numbers."""
        first, last = self.server_ids
        if not 0 <= reader <= last - first:
            raise SourceError(
                f"reader {reader} of the log has no server id of its own",
                detail=f"The range is {first}-{last}.",
                hint="Widen `mysql.server_id_range`.",
            )
        start, stop = LogPosition(after.file, after.pos), LogPosition(upto.file, upto.pos)
        batches = read_log(
            self.connect,
            first + reader,
            self.definition,
            self.identity.flavour,
            start,
            stop,
            zero_dates=self.zero_dates,
            log=after.log,
        )
        return (batch.shifted(era_shift(self.era)) for batch in batches) if self.era else batches

    def identified(self, offset: CdcOffset) -> CdcOffset:
        """The offset with the identity of its file, taken from the server's log if it has none yet."""
        if offset.log:
            return offset
        return replace(offset, log=str(take_identity(self.connect, self.identity.flavour, offset)))

    def check_log(self, offset: CdcOffset) -> None:
        """Raise unless the file of an offset that has an identity still is the same."""
        if offset.log:
            found = identity_now(self.connect, self.identity.flavour, offset)
            check_same_file(str(offset), LogIdentity.parse(offset.log), found)

    def log_questions(self, connect: Lend | None = None) -> LogQuestions:
        """Asked over connections of their own, or over those that `connect` lends."""
        return LogQuestions(
            connect=connect or self.connect,
            connect_writable=partial(self._connect, read_only=False),
            identity=self.identity,
            watermark_table=self.watermark_table,
            deadline_seconds=self.visibility_timeout,
            era=self.era,
        )


def _between(after: CdcOffset, upto: CdcOffset) -> range:
    """The numbers of the files that begin behind `after`, up to the one that holds `upto`."""
    return range(after.number + 1, upto.number + 1)


class MySqlSession:
    """One connection to one table: its rows and its keys, in the server's own order."""

    def __init__(self, table: MySqlTable, connection: Connection | None = None) -> None:
        self._table = table
        self.definition = table.definition
        self._connection = table.connect() if connection is None else connection
        try:
            self._reader = SnapshotReader(self._connection, table.definition, zero_dates=table.zero_dates)
        except SourceError:
            self.close()
            raise

    def read_range(
        self, key_range: KeyRange, *, after: Key | None = None, limit: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self._reader.read_range(key_range, after=after, limit=limit)

    def read_rows(self, keys: Sequence[Key]) -> pa.Table:
        return self._reader.read_rows(keys)

    def table_facts(self) -> TableFacts:
        minimum, maximum = self.min_max()
        profile = read_table_profile(self._connection, self._table.identity, self.definition)
        return TableFacts(
            self.definition.key_parts, minimum, maximum, profile.estimated_rows, profile.average_row_bytes
        )

    def min_max(self) -> tuple[Bound | None, Bound | None]:
        first = self._key(sql.first_key(self.definition, self._reader.index))
        last = self._key(sql.last_key(self.definition, self._reader.index))
        if first is None or last is None:
            return None, None
        low, high = self.order_bounds([first, last])
        return low, high

    def estimate_rows(self, bounds: Sequence[Bound]) -> list[int]:
        """The optimiser dives into the index at both ends of each stretch; nothing is read in between."""
        told = self._reader.explain(sql.explain_stretches(self.definition, self._reader.index, bounds))
        found = [0] * (len(bounds) - 1)
        for number, rows in zip(told.column("id").to_pylist(), told.column("rows").to_pylist(), strict=True):
            # "Impossible WHERE" and the like have no number: the optimiser knows that nothing is there.
            if number is not None and rows is not None:
                found[int(number) - 1] = int(rows)
        return found

    def next_bound(self, after: Bound, rows: int) -> Bound | None:
        if rows < 1:
            raise SourceError(f"cannot skip {rows} rows")
        key = self._key(sql.skip_rows(self.definition, self._reader.index, after.key, rows))
        return None if key is None else self.order_bounds([key])[0]

    def collation_keys(self, keys: Sequence[Key]) -> list[Weights]:
        return collation.collation_keys(self._connection, self.definition, keys)

    def order_bounds(self, keys: Sequence[Key]) -> list[Bound]:
        return collation.order_bounds(self._connection, self.definition, keys)

    def close(self) -> None:
        if self._connection.open:
            self._connection.close()

    def _key(self, query: sql.Query) -> Key | None:
        found = self._reader.read_keys(query).combine_chunks()
        keys = keys_of(self.definition.key_parts, [column.combine_chunks() for column in found.columns])
        return keys[0] if keys else None
