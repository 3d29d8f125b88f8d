"""Answers, for a MySQL or MariaDB table, everything that the rest of the system may ask of an upstream table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Self

import pyarrow as pa

from consume_upstream.log.ahead import LogAhead
from consume_upstream.log.batch import SharedBatch
from consume_upstream.log.cascade import CascadingParent, together
from consume_upstream.log.continuity import check_same_file
from consume_upstream.log.identity import LogIdentity
from consume_upstream.log.offset import CdcOffset, Visibility, era_shift
from consume_upstream.log.source_log import FIRST_POSITION, SourceLog
from consume_upstream.log.statement import FoundStatement, LogCut, MetStatements, PassedStatement
from consume_upstream.mysql import sql
from consume_upstream.mysql.binlog.events import LogPosition
from consume_upstream.mysql.binlog.reader import LogBatch, WantedTable, read_log, read_together
from consume_upstream.mysql.connection import SourceAddress, connect
from consume_upstream.mysql.driver_source import DriverSource
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.opened_together import OpenedTogether
from consume_upstream.mysql.positions import ahead, start, statements
from consume_upstream.mysql.positions.file_identity import identity_now, take_identity
from consume_upstream.mysql.positions.held_log import HeldFiles, read_held_log
from consume_upstream.mysql.positions.prepared import wait_for_prepared
from consume_upstream.mysql.preflight.facts import has_packed_transactions, read_table_profile
from consume_upstream.mysql.rows.checksums import ServerChecksums
from consume_upstream.mysql.rows.key_walk import WalkSession, check_walkable, cursor_of
from consume_upstream.mysql.rows.result_rows import ZeroDates
from consume_upstream.mysql.rows.session import MySqlSession
from consume_upstream.mysql.rows.value_forms import SameForms
from consume_upstream.mysql.schema.cascades import read_parents
from consume_upstream.mysql.schema.collation import unorderable
from consume_upstream.mysql.schema.definition import read_definition
from consume_upstream.mysql.server import ask, identify
from consume_upstream.upstream_table import TableSize
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import BackfillError, PlanRefusedError, SourceError
from vnode_backfill.words.key import Key, KeyKind
from vnode_backfill.words.schema_change import CreatedTable, RowsOfPartitions, StatementOutcome

__all__ = ["MySqlTable"]


@dataclass(frozen=True, slots=True)
class MySqlTable(KnownTable):
    """The upstream table of a job. RisingWave calls this `ExternalStorageTable`."""

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
    ) -> Self:
        """Ask the server who it is and what the table looks like now."""
        with connect(address) as connection:
            definition = read_definition(connection, database, table)
            identity = identify(connection)
        return cls(address, definition, identity, zero_dates, watermark_table, visibility_timeout, server_ids)

    @classmethod
    def known(
        cls,
        address: SourceAddress,
        definition: TableDefinition,
        *,
        zero_dates: ZeroDates = "null",
        watermark_table: str | None = None,
        visibility_timeout: float = 60.0,
        server_ids: tuple[int, int] = (5400, 5499),
        together: OpenedTogether | None = None,
    ) -> Self:
        """Ask the server who it is, unless others have; the table is known by a stored definition."""
        if together is not None:
            identity = together.identity()
        else:
            with connect(address) as connection:
                identity = identify(connection)
        options = zero_dates, watermark_table, visibility_timeout, server_ids
        return cls(address, definition, identity, *options, together=together)

    @property
    def server(self) -> str:
        return self.identity.server

    @property
    def forms(self) -> SameForms:
        return SameForms()

    @property
    def spare_reader(self) -> int:
        """The last of the server ids: the readers of a job take the first ones."""
        first, last = self.server_ids
        return last - first

    def on_its_own(self) -> Self:
        return replace(self, together=None)

    def in_era(self, era: int) -> Self:
        return replace(self, era=era)

    def with_definition(self, definition: TableDefinition) -> Self:
        return replace(self, definition=definition)

    def with_parents(self) -> Self:
        if not self.follows_parents:
            return self
        with self.lent() as connection:
            return replace(self, parents=read_parents(connection, self.definition.database, self.definition.table))

    def with_known_parents(self, stored: Sequence[CascadingParent]) -> Self:
        """A table that is gone, or of which a parent is, has those that are stored: the log says what became of it."""
        try:
            now = self.with_parents().parents
        except BackfillError as error:
            if error.retryable:
                raise
            now = ()
        return replace(self, parents=together(stored, now))

    def parent(self, parent: CascadingParent) -> Self:
        return replace(self, definition=parent.definition, parents=(), zero_dates="null")

    def effect_of(self, found: FoundStatement, *, gone: RowsOfPartitions = "delete") -> StatementOutcome | None:
        return statements.effect_of(self, found, gone=gone)

    def created_since(self, after: CdcOffset) -> CreatedTable | None:
        return statements.created_since(self, after)

    def found_statement(self, after: CdcOffset, upto: CdcOffset, met: LogCut | PassedStatement) -> FoundStatement:
        return statements.found_statement(self, after, upto, met)

    def current_definition(self) -> TableDefinition:
        """As it is after every statement that is in the log by now."""
        with self.lent() as connection:
            # A statement is logged before the dictionary shows it, under a lock that opening the table waits for.
            ask(connection, f"SELECT 1 FROM {sql.table_name(self.definition)} LIMIT 0")
            return read_definition(connection, self.definition.database, self.definition.table)

    def estimated_size(self) -> TableSize:
        with self.lent() as connection:
            profile = read_table_profile(connection, self.identity, self.definition)
        return TableSize(profile.estimated_rows, profile.average_row_bytes)

    def may_hold_packed_transactions(self) -> bool:
        with self.lent() as connection:
            return has_packed_transactions(connection)

    def unordered_key(self) -> str:
        try:
            text = any(part.kind is KeyKind.TEXT for part in self.definition.key_parts)
        except PlanRefusedError as error:
            return error.message
        if not text:
            return ""
        with self.lent() as connection:
            return unorderable(connection, self.definition)

    def check_walkable(self) -> None:
        check_walkable(self.definition)

    def cursor_of(self, rows: pa.RecordBatch | pa.Table) -> Key:
        return cursor_of(self.definition, rows)

    @contextmanager
    def session(self) -> Iterator[MySqlSession]:
        if self.together is None:
            with closing(MySqlSession(self)) as session:
                yield session
            return
        with self.lent() as connection:
            session = MySqlSession(self, connection)
            yield session
            session.forget()

    def walk(self) -> WalkSession:
        return WalkSession(self)

    def checksums(self, columns: Sequence[str]) -> ServerChecksums:
        return ServerChecksums(self, columns)

    def questions(self) -> DriverSource:
        return DriverSource(self)

    def visible_offset(self) -> Visibility:
        return self.log_questions().visible_offset()

    def first_offset(self) -> CdcOffset:
        return self.log_questions().first_offset()

    def beginning(self) -> CdcOffset:
        """The first offset of a job that reads the table later.

        It returns once nothing that was logged below the offset is still prepared.
        """
        first = self.first_offset()
        with self.lent() as connection:
            wait_for_prepared(connection, self.visibility_timeout)
        return first

    def source_log(self, *, with_time: bool = False, stored: CdcOffset | None = None) -> SourceLog:
        if self.together is not None:
            return self.together.source_log(self, with_time=with_time, stored=stored)
        return start.read_source_log(self, with_time=with_time, stored=stored)

    def look_ahead(self, tables: Sequence[tuple[Self, CdcOffset]]) -> list[LogAhead]:
        return ahead.look_ahead(tables)

    def position_at_time(self, moment: datetime, log: SourceLog) -> CdcOffset:
        return start.position_at_time(self, moment, log)

    def position_after_gtids(self, gtids: str, log: SourceLog) -> CdcOffset:
        return start.position_after_gtids(self, gtids, log)

    def unknown_gtids(self, gtids: str, log: SourceLog) -> str:
        return start.unknown_gtids(self, gtids, log)

    def boundary_fault(self, offset: CdcOffset, log: SourceLog) -> str:
        return start.boundary_fault(self, offset, log)

    def held_log(self) -> HeldFiles | None:
        """What the server holds of its log now; None where the account may not ask."""
        with closing(self.connect()) as connection:
            return read_held_log(connection)

    def log_stretches(self, after: CdcOffset, upto: CdcOffset) -> list[tuple[CdcOffset, CdcOffset]]:
        """`(after, upto]` cut where a file of the log begins, which is where a transaction begins.

        The identities of the first and the last file are known, those of the files between are not.
        """
        starts = [
            replace(upto, number=number, pos=FIRST_POSITION, gtids="", log=upto.log if number == upto.number else "")
            for number in range(after.number + 1, upto.number + 1)
        ]
        ends = [after, *starts, upto]
        return [(low, high) for low, high in pairwise(ends) if low < high]

    def read_log(
        self, after: CdcOffset, upto: CdcOffset, reader: int = 0, met: MetStatements | None = None
    ) -> Iterator[LogBatch]:
        """Every change of the table in `(after, upto]`, in log order, or an error.

        Readers at work have different numbers. With `met` a statement about the table ends the slice before it.
        """
        batches = read_log(
            self.connect,
            self._server_id(reader),
            self.definition,
            self.identity.flavour,
            *_ends(after, upto),
            zero_dates=self.zero_dates,
            log=after.log,
            met=met,
        )
        return self._in_own_era(batches, met) if self.era else batches

    def read_together(
        self, tables: Sequence[Self], after: CdcOffset, upto: CdcOffset, reader: int, met: Sequence[MetStatements]
    ) -> Iterator[SharedBatch]:
        """Every change of each of the tables in `(after, upto]`, over one dump of this table's server."""
        wanted = [
            WantedTable(table.definition, table.zero_dates, found, tuple(each.definition for each in table.parents))
            for table, found in zip(tables, met, strict=True)
        ]
        server_id, flavour = self._server_id(reader), self.identity.flavour
        batches = read_together(self.connect, server_id, wanted, flavour, *_ends(after, upto), log=after.log)
        return self._all_in_own_era(batches, met) if self.era else batches

    def _in_own_era(self, batches: Iterator[LogBatch], met: MetStatements | None) -> Iterator[LogBatch]:
        shared = (SharedBatch(0, batch) for batch in batches)
        return (batch.rows for batch in self._all_in_own_era(shared, [met] if met else []))

    def _all_in_own_era(self, batches: Iterator[SharedBatch], met: Sequence[MetStatements]) -> Iterator[SharedBatch]:
        """The reader knows files by their own numbers; offsets of a job hold the era too, also those of statements."""
        files = era_shift(self.era)
        for number, rows in batches:
            yield SharedBatch(number, rows.shifted(files))
        for found in met:
            found.shift(files)

    def _server_id(self, reader: int) -> int:
        first, last = self.server_ids
        if not 0 <= reader <= last - first:
            raise SourceError(
                f"reader {reader} of the log has no server id",
                detail=f"The range is {first}-{last}.",
                hint="Widen `mysql.server_id_range`.",
            )
        return first + reader

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


def _ends(after: CdcOffset, upto: CdcOffset) -> tuple[LogPosition, LogPosition]:
    return LogPosition(after.file, after.pos), LogPosition(upto.file, upto.pos)
