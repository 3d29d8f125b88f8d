"""A table on a real server whose statements are followed: rows are read once, and then only changed by derived steps.

`Followed.follow` runs statements, takes them from the log, derives the effect of each and carries it out on the rows it
has. Where it could carry out all of them, `differences` compares with what the server shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, cast

import pyarrow as pa
import pymysql
from pymysql.connections import Connection

from consume_upstream.mysql.binlog.dump import DumpStream
from consume_upstream.mysql.binlog.events import EventKind, LogPosition, Statement, checksum_matches, read_query
from consume_upstream.mysql.rows.range_reader import SnapshotReader
from consume_upstream.mysql.schema.current_table import CurrentTable, read_current
from consume_upstream.mysql.schema.definition import read_definition
from consume_upstream.mysql.schema.derive import effect_of_first
from consume_upstream.mysql.statements.actions import actions_of
from consume_upstream.mysql.statements.table_actions import TableAction
from devkit.mysql import SqlServer
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.key_range import KeyRange
from vnode_backfill.words.schema_change import (
    AddColumn,
    Carried,
    DropColumn,
    Emptied,
    NoEffect,
    RenameColumn,
    RetypeColumn,
    StatementEffect,
)

_server_ids = count(970_000)


@dataclass
class Followed:
    """One table, as the statements since `begin` leave it."""

    server: SqlServer
    database: str
    table: str = "t"
    connection: Connection = field(init=False)
    definition: TableDefinition = field(init=False)
    rows: pa.Table = field(init=False)

    def __post_init__(self) -> None:
        self.connection = self.server.connect(self.database)

    def run(self, *statements: str) -> None:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def begin(self) -> None:
        """Read the table, as a snapshot does."""
        self.definition = read_definition(self.connection, self.database, self.table)
        self.rows = self.shown(self.definition)

    def shown(self, definition: TableDefinition) -> pa.Table:
        reader = SnapshotReader(self.connection, definition)
        batches = list(reader.read_range(KeyRange(None, None)))
        return pa.Table.from_batches(batches, definition.arrow_schema)

    def follow(self, *statements: str, refused: list[str] | None = None) -> list[StatementEffect]:
        """The effects of the statements, carried out up to the first that cannot be."""
        start = self.position()
        for statement in statements:
            try:
                self.run(statement)
            except pymysql.Error as error:
                if refused is None:
                    raise
                refused.append(f"{statement}: {error}")
        return self.follow_log(start)

    def follow_log(self, start: LogPosition) -> list[StatementEffect]:
        """The effects of the statements that the log holds from `start` on."""
        chain = [actions for actions in self._actions(start) if actions]
        now = read_current(self.connection, self.database, self.table)
        return list(self._effects(chain, now))

    def differences(self) -> list[str]:
        """What the server shows and the rows that were carried over do not."""
        there = read_definition(self.connection, self.database, self.table)
        if there != self.definition:
            return [f"the definition is {there}, derived was {self.definition}"]
        shown, held = self.shown(there), self.rows
        found = [f"types are {shown.schema}, derived were {held.schema}"] if not _alike(shown, held) else []
        for name in shown.column_names:
            values = zip(shown[name].to_pylist(), held[name].to_pylist(), strict=True)
            found += [f"{name} is {a!r}, derived was {b!r}" for a, b in values if repr(a) != repr(b)]
        return found

    def _effects(self, chain: Sequence[tuple[TableAction, ...]], now: CurrentTable | None) -> Iterator[StatementEffect]:
        for at in range(len(chain)):
            effect = effect_of_first(self.definition, chain[at:], now)
            yield effect
            match effect:
                case Carried(definition):
                    self.rows, self.definition = carried_out(self.rows, effect), definition
                case Emptied(definition):
                    self.rows, self.definition = self.rows.slice(0, 0), definition
                case NoEffect():
                    pass
                case _:
                    return

    def position(self) -> LogPosition:
        with self.connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            row = cursor.fetchall()[0]
        return LogPosition(str(row[0]), int(str(row[1])))

    def _actions(self, start: LogPosition) -> Iterator[tuple[TableAction, ...]]:
        for statement in self._statements(start):
            yield actions_of(statement, self.database, self.table, folds_names=False)

    def _statements(self, start: LogPosition) -> Iterator[Statement]:
        for event in self.events(start):
            if event[4] == EventKind.QUERY:
                yield read_query(event[:-4] if checksum_matches(event) else event)

    def events(self, start: LogPosition) -> Iterator[bytes]:
        """What the log holds from `start` on."""
        flavour = cast(Literal["mysql", "mariadb"], self.server.flavour)
        stream = DumpStream(lambda: self.server.connect(read_timeout=30), next(_server_ids), flavour, start)
        try:
            for block in stream.blocks():
                yield from (block.event(index) for index in range(len(block.offsets)))
        finally:
            stream.close()


def _alike(shown: pa.Table, held: pa.Table) -> bool:
    """The same columns of the same types; a field's nullability is the sink's business."""
    return [(f.name, f.type) for f in shown.schema] == [(f.name, f.type) for f in held.schema]


def carried_out(rows: pa.Table, effect: Carried) -> pa.Table:
    """The steps one after the other, as a target carries them out, and the columns in the new order."""
    for step in effect.steps:
        match step:
            case DropColumn(name):
                rows = rows.drop_columns([name])
            case RenameColumn(old, new):
                assert new not in rows.column_names
                rows = rows.rename_columns([new if name == old else name for name in rows.column_names])
            case RetypeColumn(column):
                place = rows.column_names.index(column.name)
                rows = rows.set_column(place, column.name, rows[column.name].cast(column.arrow_type))
            case AddColumn(column):
                values = pa.repeat(step.scalar, rows.num_rows)
                rows = rows.append_column(pa.field(column.name, column.arrow_type), values)
    return rows.select([column.name for column in effect.definition.columns])
