"""Judges the events that the routing kernel leaves to Python: statements, table maps, XA, and what nobody understands.

What must be true: an event that may change a table in a way that rows do not show raises. A statement that may change
the table's definition ends its reading before it, where the caller follows statements (`met`). Changes logged as
statements, a transaction that takes back logged changes, a prepared XA transaction, a partial image and an incident
raise. Everything else moves the reader on, and nothing more.

A reader of several tables keeps them apart (`isolates`): what is wrong with one table is written into its `met`, the
reader gives the table up and continues with the others. What is wrong with the log itself raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from consume_upstream.log.batch import SharedBatch
from consume_upstream.log.statement import LogCut, MetStatements, PassedStatement
from consume_upstream.mysql.binlog import route
from consume_upstream.mysql.binlog.batch import Listing, RowBuffer, TableRows, without_rows
from consume_upstream.mysql.binlog.decoder import RowDecoder, ZeroDates, image_schema
from consume_upstream.mysql.binlog.events import HEADER_BYTES, EventKind, Statement, is_ignorable, unpack_rows
from consume_upstream.mysql.binlog.place import Place
from consume_upstream.mysql.binlog.table_map import Flavour, accepted_map
from consume_upstream.mysql.binlog.wanted import WantedTables
from consume_upstream.mysql.schema.labels import Doubts, doubtful_labels, with_labels
from consume_upstream.mysql.statements.actions import has_effect
from consume_upstream.mysql.statements.effect import Effect, effect_of, effects_of, text_of
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import BackfillError, LogFormatError, SchemaChangedError
from vnode_backfill.words.hints import READ_AGAIN

__all__ = ["EventJudge", "TableJudge"]

_STATEMENT_END = 1
_WAIT_FOR_JOB = (
    "Let the job follow the statement first: `vnode-backfill status` shows what is pending. Then try it again."
)
"""Only a job follows statements. Whoever else reads the log waits for it."""


class TableJudge:
    """Judges events about one table. `met`, where it is given, holds what was found."""

    def __init__(
        self,
        place: Place,
        definition: TableDefinition,
        flavour: Flavour,
        zero_dates: ZeroDates = "error",
        met: MetStatements | None = None,
        parents: Sequence[TableDefinition] = (),
    ) -> None:
        self.place, self.definition, self.met = place, definition, met
        self._parents = parents
        self._flavour, self._zero_dates = flavour, zero_dates
        self._rows: TableRows | None = None
        self._doubts: Doubts = {}

    @property
    def name(self) -> tuple[str, str]:
        return self.definition.database, self.definition.table

    def make_decoder(self) -> TableRows:
        """What decodes the table's rows. It is made once, when rows come: of many tables most have none."""
        if self._rows is None:
            self._doubts = doubtful_labels(self.definition, self._flavour)
            self._rows = TableRows(self._decoder(self._doubts))
        return self._rows

    def _decoder(self, doubts: Doubts) -> RowDecoder:
        if doubts:
            return RowDecoder(self.definition, self._flavour, zero_dates=self._zero_dates, doubts=doubts)
        return _known_decoder(self.definition, self._flavour, self._zero_dates)

    def accept_map(self, body: bytes) -> bool:
        """Rows of the table follow; whether they are to be decoded."""
        found = accepted_map(body, self.definition, self._flavour)
        rows = self.make_decoder()
        if self._doubts and found.labels:
            # What the log says of its labels holds for the whole slice: a statement that changes them ends it.
            self.definition, self._doubts = with_labels(self.definition, found), {}
            rows.decode_by(self._decoder({}))
        return True

    def judge_statement(self, effect: Effect, statement: Statement, *, touched: bool) -> None:
        """Stop for what may change the table. `touched` says whether the open transaction has changed it."""
        if effect in (Effect.ROLLBACK, Effect.ROLLBACK_TO) and touched:
            self.place.refuse(
                "a transaction takes back changes of the table that are in the log",
                "It changed a table of an engine without transactions as well, so the server logged both.",
            )
        if effect in (Effect.SCHEMA, Effect.DATA):
            if effect is Effect.DATA or has_effect(statement, *self.name, primary=self.definition.primary):
                self.refuse_statement(effect, statement)
            else:
                self.pass_over(statement)

    def judge_for_parents(self, statement: Statement) -> None:
        """Write down what may change a parent. Its rows are read by a definition that may no longer be theirs, its keys
        may cascade from other tables, and its rows may have gone without a change in the log.

        Nothing is judged as a statement of the table itself. A table that is its own parent judges it twice.
        """
        if self.met is None:
            return
        for parent in self._parents:
            name = parent.database, parent.table
            effect = effect_of(statement, *name)
            if effect is Effect.DATA or (
                effect is Effect.SCHEMA and has_effect(statement, *name, primary=parent.primary)
            ):
                self.met.parent_changed = self.place.file.number, self.place.pos
                return

    def refuse_statement(self, effect: Effect, statement: Statement) -> None:
        """The statement that ends here may change the table or its rows; a reader of rows can only stop."""
        name, text = ".".join(self.name), text_of(statement)[:500]
        if effect is Effect.SCHEMA and self.met is not None:
            self.met.cut = LogCut(*self._around(statement), text, *self.place.open_statement(0)[1:])
            return
        where = f"{self.place.position.file}:{self.place.pos}"
        if effect is Effect.SCHEMA:
            raise SchemaChangedError(
                f"a statement in the log at {where} may change table {name}", detail=text, hint=_WAIT_FOR_JOB
            )
        raise LogFormatError(
            f"the log at {where} holds changes as a statement, not as rows, and {name} may be among the changed tables",
            detail=text,
            hint=f"SET GLOBAL binlog_format = ROW, and look for sessions that set their own. {READ_AGAIN}",
        )

    def pass_over(self, statement: Statement) -> None:
        """The statement that ends here is about the table, and changes neither its rows nor its columns."""
        if self.met is not None:
            self.met.passed.append(PassedStatement(*self._around(statement), text_of(statement)[:500]))

    def _around(self, statement: Statement) -> tuple[tuple[int, int], tuple[int, int]]:
        place = self.place
        return place.open_statement(len(statement.raw))[0], (place.file.number, place.pos)

    def refuse_prepared(self) -> None:
        """A prepared transaction is in the log long before it is visible."""
        self.place.refuse(
            "an XA PREPARE touches the table",
            "Its changes become visible at an XA COMMIT, which may come much later or never.",
            f"End it at the source: XA RECOVER lists it, XA COMMIT or XA ROLLBACK ends it. {READ_AGAIN}",
        )

    def refuse_partial_update(self) -> None:
        self.place.refuse(
            "an update of the table holds a part of a JSON value",
            "binlog_row_value_options is PARTIAL_JSON. What is logged like that stays so, whatever is set now.",
            "SET GLOBAL binlog_row_value_options = ''; "
            "sessions that are open keep the old value until they connect again. "
            f"{READ_AGAIN}",
        )


class EventJudge:
    """Judges events of the log for the tables that are read; `rows` are the row events that wait to be decoded."""

    def __init__(self, place: Place, tables: Sequence[TableJudge], *, isolates: bool = False) -> None:
        self.place, self.tables, self._isolates = place, tables, isolates
        self.wanted = WantedTables([table.definition for table in tables], place.state)
        self.rows = RowBuffer()
        self._failed: set[int] = set()

    @property
    def nothing_left(self) -> bool:
        """Whether no table is read any more."""
        return not self.wanted.left

    def accept_table_map(self, event: bytes) -> None:
        """Rows of a table follow."""
        place = self.place
        if place.transaction < 0:
            place.refuse("a table is mapped outside a transaction", "The log was not read from a boundary.")
        if place.skipping:
            return
        body = event[HEADER_BYTES + 8 :]
        number = self.wanted.find(body)
        with self._about(number):
            if self.tables[number].accept_map(body):
                self.wanted.check(number, body, _table_id(event))

    def judge_statement(self, statement: Statement) -> None:
        """Let each table judge it; then see whether the statement begins or ends a transaction."""
        place, left = self.place, self.wanted.left
        effects = effects_of(statement, [self.tables[number].name for number in left])
        if not place.skipping:
            for number, effect in zip(left, effects, strict=True):
                self._judge_for(number, effect, statement)
        if Effect.BEGIN in effects:
            place.begin_transaction()
        elif not place.begun or Effect.COMMIT in effects or Effect.ROLLBACK in effects:
            place.close_transaction()

    def _judge_for(self, number: int, effect: Effect, statement: Statement) -> None:
        table = self.tables[number]
        with self._about(number):
            table.judge_statement(effect, statement, touched=self.wanted.is_touched(number))
            table.judge_for_parents(statement)
        if table.met is not None and table.met.cut is not None:
            # Rows of its transaction come again when the log is read from before the statement.
            self.rows.drop(number, self.place.transaction)
            self.wanted.give_up(number)

    def end_xa(self, event: bytes) -> None:
        """A prepared transaction is refused by the tables it touches; with ONE PHASE it is committed."""
        one_phase = len(event) > HEADER_BYTES and event[HEADER_BYTES] != 0
        if not one_phase and not self.place.skipping:
            for number in self.wanted.left:
                if self.wanted.is_touched(number):
                    with self._about(number):
                        self.tables[number].refuse_prepared()
        self.place.close_transaction()

    def accept_compressed_rows(self, event: bytes) -> None:
        """Rows that MariaDB compressed because of log_bin_compress."""
        place, number = self.place, self._table_of_rows(event)
        if not place.skipping:
            with self._about(number):
                kind, unpacked = unpack_rows(event)
                self.rows.append_event(unpacked, kind, number, place.transaction, place.pos)
        self.wanted.touch(number)
        self._end_of_statement(event)

    def judge_unknown(self, event: bytes) -> None:
        """Pass over an event only if it says that it may be passed over."""
        kind = event[4]
        if kind == EventKind.INCIDENT:
            self.place.refuse(
                "the log holds an incident: the server lost changes",
                event[HEADER_BYTES:].decode("utf-8", "replace"),
                f"Look into the server's error log for what it lost. {READ_AGAIN}",
            )
        if kind == EventKind.PARTIAL_UPDATE_ROWS:
            number = self._table_of_rows(event)
            with self._about(number):
                self.tables[number].refuse_partial_update()
            self._end_of_statement(event)
        elif not is_ignorable(event):
            self.place.refuse(f"the log holds an event of type {kind}, which is not understood", event[:64].hex())

    def _table_of_rows(self, event: bytes) -> int:
        number = self.wanted.of_rows(_table_id(event)) if self.place.transaction >= 0 else -1
        if number < 0:
            self.place.refuse(
                "rows come outside a transaction, or of a table that is not mapped",
                "The log was not read from a boundary.",
            )
        return number

    def _end_of_statement(self, event: bytes) -> None:
        if event[HEADER_BYTES + 6] & _STATEMENT_END:
            self.wanted.end_statement()

    def decoded(self, limits: tuple[int, int]) -> Iterator[SharedBatch]:
        """Decode what waits, table by table, and list every transaction of the book."""
        place = self.place
        listing = Listing(place.book, place.file.number, int(place.state[route.TRANSACTIONS]))
        for number, waiting in self.rows.by_table():
            if number not in self._failed:
                begins = (place.file.number, int(place.book.starts[waiting.transactions[0]]))
                with self._about(number, begins):
                    for batch in self.tables[number].make_decoder().batches(self.rows.data, waiting, listing, limits):
                        yield SharedBatch(number, batch)
        rest = listing.rest()
        if rest:
            yield SharedBatch(0, without_rows(listing.file, image_schema(self.tables[0].definition), rest))
        self.rows.clear()

    @contextmanager
    def _about(self, number: int, begins: tuple[int, int] | None = None) -> Iterator[None]:
        """What fails here is about this table alone; its transaction begins at `begins`, or is the open one."""
        try:
            yield
        except BackfillError as error:
            met = self.tables[number].met
            if not self._isolates or met is None or error.retryable:
                raise
            met.error, met.failed_at = error, begins or self.place.open_statement(0)[0]
            self._failed.add(number)
            self.wanted.give_up(number)


@lru_cache(maxsize=1024)
def _known_decoder(definition: TableDefinition, flavour: Flavour, zero_dates: ZeroDates) -> RowDecoder:
    """A decoder holds nothing of what it decodes. A live job makes a reader every second, of the same tables."""
    return RowDecoder(definition, flavour, zero_dates=zero_dates)


def _table_id(event: bytes) -> int:
    return int.from_bytes(event[HEADER_BYTES : HEADER_BYTES + 6], "little")
