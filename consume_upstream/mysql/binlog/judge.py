"""Judges the events that the routing kernel leaves to Python: statements, table maps, XA, and what nobody understands.

What must be true: an event that may change the table in a way that rows do not show raises. A statement that may change
the table's definition ends the reader before it, where the caller follows statements (`met`). Changes logged as
statements, a transaction that takes back logged changes, a prepared XA
transaction, a partial image and an incident raise. Everything else moves the reader on, and nothing more.
"""

from __future__ import annotations

import numpy as np

from consume_upstream.log.continuity import READ_AGAIN
from consume_upstream.log.statement import LogCut, MetStatements, PassedStatement
from consume_upstream.mysql.binlog import route
from consume_upstream.mysql.binlog.batch import RowBuffer
from consume_upstream.mysql.binlog.decoder import RowDecoder, ZeroDates
from consume_upstream.mysql.binlog.events import HEADER_BYTES, EventKind, Statement, unpack_rows
from consume_upstream.mysql.binlog.place import Place
from consume_upstream.mysql.binlog.table_map import Flavour, TableMap, check_table_map, read_table_map
from consume_upstream.mysql.schema.labels import doubtful_labels, with_labels
from consume_upstream.mysql.statements.actions import has_effect
from consume_upstream.mysql.statements.effect import Effect, effect_of, text_of
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import LogFormatError, SchemaChangedError

__all__ = ["EventJudge"]

_IGNORABLE = 0x80
_STATEMENT_END = 1
_WAIT_FOR_JOB = (
    "Let the job follow the statement first: `vnode-backfill status` shows what is pending. Then try it again."
)
"""Only a job follows statements. Whoever else reads the log waits for it."""


class EventJudge:
    """Judges events about one table; `rows` are the row events that wait to be decoded."""

    def __init__(
        self,
        place: Place,
        definition: TableDefinition,
        flavour: Flavour,
        zero_dates: ZeroDates = "error",
        met: MetStatements | None = None,
    ) -> None:
        self.place, self.met = place, met
        self._definition, self._flavour, self._zero_dates = definition, flavour, zero_dates
        self._doubts = doubtful_labels(definition, flavour)
        self.rows = RowBuffer(RowDecoder(definition, flavour, zero_dates=zero_dates, doubts=self._doubts))
        self.table_name = np.frombuffer(bytearray(_name_bytes(definition)), dtype=np.uint8)
        self.table_map = np.zeros(1, dtype=np.uint8)
        """The body of the table's last TABLE_MAP, as the kernel compares it."""

    def accept_table_map(self, event: bytes) -> None:
        """Rows of the table follow."""
        place = self.place
        if place.transaction < 0:
            place.refuse("a table is mapped outside a transaction", "The log was not read from a boundary.")
        if place.skipping:
            return
        found = read_table_map(event)
        check_table_map(found, self._definition, self._flavour)
        if self._doubts and found.labels:
            self._learn_labels(found)
        self.table_map = np.frombuffer(bytearray(event[HEADER_BYTES + 8 :]), dtype=np.uint8)
        place.state[route.TABLE_ID] = found.table_id

    def judge_statement(self, statement: Statement) -> None:
        """Stop for what may change the table; otherwise see whether the statement begins or ends a transaction."""
        effect = effect_of(statement, self._definition.database, self._definition.table)
        place = self.place
        if effect in (Effect.ROLLBACK, Effect.ROLLBACK_TO) and place.touched and not place.skipping:
            place.refuse(
                "a transaction takes back changes of the table that are in the log",
                "It changed a table of an engine without transactions as well, so the server logged both.",
            )
        if effect in (Effect.SCHEMA, Effect.DATA) and not place.skipping:
            if effect is Effect.DATA or has_effect(statement, self._definition.database, self._definition.table):
                self.refuse_statement(effect, statement)
            else:
                self.pass_over(statement)
        if effect is Effect.BEGIN:
            place.begin_transaction()
        elif not place.begun or effect in (Effect.COMMIT, Effect.ROLLBACK):
            place.close_transaction()

    def refuse_statement(self, effect: Effect, statement: Statement) -> None:
        """The statement that ends here may change the table or its rows; a reader of rows can only stop."""
        name, text = f"{self._definition.database}.{self._definition.table}", text_of(statement)[:500]
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

    def end_xa(self, event: bytes) -> None:
        """A prepared transaction is in the log long before it is visible; with ONE PHASE it is committed."""
        one_phase = len(event) > HEADER_BYTES and event[HEADER_BYTES] != 0
        if self.place.touched and not one_phase and not self.place.skipping:
            self.place.refuse(
                "an XA PREPARE touches the table",
                "Its changes become visible at an XA COMMIT, which may come much later or never.",
                f"End it at the source: XA RECOVER lists it, XA COMMIT or XA ROLLBACK ends it. {READ_AGAIN}",
            )
        self.place.close_transaction()

    def accept_compressed_rows(self, event: bytes) -> None:
        """Rows that MariaDB compressed because of log_bin_compress."""
        place = self.place
        if not place.skipping:
            kind, unpacked = unpack_rows(event)
            self.rows.append_event(unpacked, kind, place.transaction, place.pos)
        place.state[route.TOUCHED] = 1
        if event[HEADER_BYTES + 6] & _STATEMENT_END:
            place.state[route.TABLE_ID] = -1

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
            self.place.refuse(
                "an update of the table holds a part of a JSON value",
                "binlog_row_value_options is PARTIAL_JSON. What is logged like that stays so, whatever is set now.",
                "SET GLOBAL binlog_row_value_options = ''; "
                "sessions that are open keep the old value until they connect again. "
                f"{READ_AGAIN}",
            )
        if not int.from_bytes(event[17:19], "little") & _IGNORABLE:
            self.place.refuse(f"the log holds an event of type {kind}, which is not understood", event[:64].hex())

    def _learn_labels(self, found: TableMap) -> None:
        """What the log says of its labels holds for the whole slice: a statement that changes them ends it."""
        self._definition, self._doubts = with_labels(self._definition, found), {}
        self.rows.decode_by(RowDecoder(self._definition, self._flavour, zero_dates=self._zero_dates))


def _name_bytes(definition: TableDefinition) -> bytes:
    """Database and table as a TABLE_MAP has them."""
    names = (definition.database.encode(), definition.table.encode())
    return b"".join(bytes((len(name),)) + name + b"\0" for name in names)
