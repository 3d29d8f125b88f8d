"""Finds out what a statement in the log has done to the table, and where a job continues after it.

The log holds the statement, but not what it means: that depends on the definition before and on the server. So the
server is asked for the definition now, and the log for every statement about the table up to now. With one statement
the definition after it is the one the server has. With several, `schema.derive` finds the definitions in between.

What must be true: the statements found are exactly those that lead from the stored definition to the one that was read.
The definition is read before and after the end of the log is asked for, each time after the table was opened, which
waits for a statement that is logged and not done. If both readings are equal, every statement up to the end is in them,
and none that was logged later.

    read A ── end of the log ── read B        A = B: no statement was logged or finished between the two

A table that is gone may come back: tools that change a table online drop or rename it and put another in its place. It
counts as ended only if no statement brings it back within a minute of the log.

A table that was created is empty after its CREATE, so a copy can begin there and read nothing. Not after a CREATE …
SELECT: its rows follow in the same transaction, and a log is read from the end of a transaction on.

Where parents of the table are looked at, a foreign key that cascades makes a new copy, which knows its parents from its
beginning on. Otherwise it makes a table that cannot be copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pymysql.connections import Connection

from consume_upstream.log.continuity import check_same_file
from consume_upstream.log.gtid import GtidSet, sampled_of
from consume_upstream.log.identity import LogIdentity
from consume_upstream.log.offset import CdcOffset
from consume_upstream.log.statement import FoundStatement, LogCut, PassedStatement
from consume_upstream.mysql import sql
from consume_upstream.mysql.binlog.dump import NO_REPLICA
from consume_upstream.mysql.binlog.events import LogPosition
from consume_upstream.mysql.binlog.reader import read_log
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.positions.file_identity import identity_now, take_identity
from consume_upstream.mysql.positions.logged_statements import LoggedStatement, logged_statements
from consume_upstream.mysql.schema.creation import last_creation
from consume_upstream.mysql.schema.current_table import CurrentTable, read_current
from consume_upstream.mysql.schema.derive import effect_of_first
from consume_upstream.mysql.schema.follow_partitions import changes_partitions, partitions_after
from consume_upstream.mysql.server import ask
from consume_upstream.mysql.sql import quoted
from consume_upstream.mysql.statements.table_actions import (
    Nothing,
    PartitionsEmptied,
    TableAction,
    TableGone,
)
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import SourceError, SourceLostError
from vnode_backfill.words.partitioning import Partitioning
from vnode_backfill.words.schema_change import (
    Carried,
    CreatedTable,
    Ended,
    NewCopy,
    NoEffect,
    RowsOfPartitions,
    SetAside,
    StatementEffect,
    StatementOutcome,
)

__all__ = ["created_since", "effect_of", "found_statement", "only_removes_partitions"]

_COMES_BACK_WITHIN = 60
"""Seconds of the log."""
_ATTEMPTS = 5


def effect_of(
    table: KnownTable, found: FoundStatement, *, gone: RowsOfPartitions = "delete"
) -> StatementOutcome | None:
    """What the statement did to the table that has the known definition, and partitions, before it.

    None if that cannot be said yet. `gone` says what becomes of the rows of partitions that are dropped.
    """
    seen = _see(table)
    now, logged = seen.now, logged_statements(table, found.before, seen.end, folds=seen.folds)
    chain = [each.actions for each in logged]
    effect = effect_of_chain(table.definition, chain, now, gone=gone)
    exchanged = [action for action in (chain or [()])[0] if _is_exchange(action)]
    if exchanged and (gone == "keep" or isinstance(effect, Carried)):
        came_empty = _came_empty(table, found, exchanged, folds=seen.folds)
        effect = effect_of_exchange(effect, chain, now, came_empty=came_empty, gone=gone)
    if isinstance(effect, Ended) and seen.clock - found.logged_at < _COMES_BACK_WITHIN:
        return None
    if isinstance(effect, NewCopy):
        effect = replace(effect, created=_creation(table, found.before, seen, logged))
    return StatementOutcome(effect, _partitions_after(table.definition, chain, now))


def created_since(table: KnownTable, after: CdcOffset) -> CreatedTable | None:
    """The table as its CREATE has left it, if that is in the log after an offset.

    None if the log does not show it, or does not show it exactly.
    """
    seen = _see(table)
    return _creation(table, after, seen, logged_statements(table, after, seen.end, folds=seen.folds))


@dataclass(frozen=True, slots=True)
class _Seen:
    """The table now, None if it is gone; the end of the log at that moment, and what else the server says."""

    now: CurrentTable | None
    end: CdcOffset
    folds: bool
    clock: int


def _see(table: KnownTable) -> _Seen:
    """Look at the table twice, and ask for the end of the log in between."""
    for _ in range(_ATTEMPTS):
        before, folds, _ = _look(table)
        end = table.written_offset()
        now, _, clock = _look(table)
        if now == before:
            return _Seen(now, end, folds, clock)
    raise SourceLostError(
        f"the definition of {table.definition.database}.{table.definition.table} changes while it is looked at",
        detail=f"{_ATTEMPTS} times it was another one after the end of the log was asked for.",
    )


def _creation(
    table: KnownTable, after: CdcOffset, seen: _Seen, logged: Sequence[LoggedStatement]
) -> CreatedTable | None:
    """The last CREATE of the stretch, if the table is still what it was after it."""
    now = seen.now
    if now is None or now.definition is None:
        return None
    place = last_creation([each.actions for each in logged], primary=now.primary)
    if place is None:
        return None
    found = found_statement(table, after, seen.end, logged[place].at)
    return CreatedTable(now.definition, found.after.to_json())


def _partitions_after(
    definition: TableDefinition, chain: Sequence[tuple[TableAction, ...]], now: CurrentTable | None
) -> Partitioning | None:
    return partitions_after(definition.partitioning, chain, now.partitioning if now else None) if chain else None


def _is_exchange(action: TableAction) -> bool:
    return isinstance(action, PartitionsEmptied) and action.kind == "exchange"


def _came_empty(table: KnownTable, found: FoundStatement, exchanged: Sequence[TableAction], *, folds: bool) -> bool:
    """Whether the exchange has brought no row that is still there.

    The log does not say what the other table held. But a partition that is empty now holds no row that came, and
    whatever took such a row away again is in the log. That is so unless a later statement has moved rows to other
    partitions; it would be in the log before the end that is asked for afterwards.
    """
    names = [name for action in exchanged if isinstance(action, PartitionsEmptied) for name in action.names]
    shown = ", ".join(map(quoted, names))
    try:
        with table.connect() as connection:
            rows = ask(connection, f"SELECT 1 FROM {sql.table_name(table.definition)} PARTITION ({shown}) LIMIT 1")
    except SourceError as error:
        if error.retryable:
            raise
        return False
    later = logged_statements(table, found.before, table.written_offset(), folds=folds)[1:]
    moved = any(changes_partitions(each.actions, table.definition.partitioning) for each in later)
    return not rows and not moved


def effect_of_chain(
    definition: TableDefinition,
    chain: Sequence[tuple[TableAction, ...]],
    now: CurrentTable | None,
    *,
    gone: RowsOfPartitions = "reread",
) -> StatementEffect:
    """The effect of the first of all statements up to now, whatever the others do.

    Without an action it is about a table of another spelling. Where only a new copy would help, a table that is gone
    has ended, and one that cannot be copied any more is set aside.
    """
    first, *later = chain or [()]
    if not first or (gone == "keep" and only_removes_partitions(first)):
        return NoEffect()
    return _if_copied(effect_of_first(definition, [first, *filter(None, later)], now, gone), chain, now)


def effect_of_exchange(
    effect: StatementEffect,
    chain: Sequence[tuple[TableAction, ...]],
    now: CurrentTable | None,
    *,
    came_empty: bool,
    gone: RowsOfPartitions,
) -> StatementEffect:
    """What an EXCHANGE PARTITION did; `effect` is what it does if only rows go.

    Rows that came must be read. Where none came, those that went are kept like those of a partition that is dropped.
    """
    if not came_empty:
        return _if_copied(NewCopy("EXCHANGE PARTITION has brought rows"), chain, now)
    return NoEffect() if gone == "keep" else effect


def _if_copied(
    effect: StatementEffect, chain: Sequence[tuple[TableAction, ...]], now: CurrentTable | None
) -> StatementEffect:
    """The effect, unless it is a new copy and none can be made."""
    if not isinstance(effect, NewCopy):
        return effect
    if now is not None:
        return SetAside(f"{effect.reason}; {now.refused}") if now.refused else effect
    left = [action for actions in chain for action in actions if isinstance(action, TableGone)]
    return Ended(left[-1].how) if left else effect


def only_removes_partitions(actions: tuple[TableAction, ...]) -> bool:
    """Whether the rows of some partitions go and nothing else happens; EXCHANGE brings rows as well."""
    gone = [action for action in actions if isinstance(action, PartitionsEmptied)]
    return bool(gone) and all(
        isinstance(action, Nothing) or (isinstance(action, PartitionsEmptied) and action.kind != "exchange")
        for action in actions
    )


def found_statement(
    table: KnownTable, after: CdcOffset, upto: CdcOffset, met: LogCut | PassedStatement
) -> FoundStatement:
    """The statement between two offsets that a job can continue from, also on another server.

    `after` and `upto` are the ends of the stretch in which it was met. Of the transactions before it those count that
    `upto` holds: one that is logged and not executed yet is in no sample, and the log would seem to have lost it. Where
    one is left out, so is the statement: a job that moves to another server begins at the first that is left out, and
    would meet the statement again (`meets_statement_again`).
    """
    (number, begin), (_, end) = met.start, met.end
    start, stop = (replace(upto, number=number, pos=pos, gtids="", log="") for pos in (begin, end))
    if isinstance(met, PassedStatement):
        return FoundStatement(start, stop, met.text)
    log = next((offset.log for offset in (after, upto) if offset.number == number and offset.log), "")
    log = log or _identity_between(table, stop, upto)
    logged = _gtids_at(table, after, start)
    before = replace(start, gtids=sampled_of(logged, upto.gtids), log=log)
    is_whole = before.gtids == logged
    behind = replace(stop, gtids=_with_gtid(table, before, stop, met.gtid) if is_whole else before.gtids, log=log)
    return FoundStatement(before, behind, met.text, met.gtid, met.timestamp)


def _identity_between(table: KnownTable, point: CdcOffset, upto: CdcOffset) -> str:
    """The identity of a file between the first and the last of a stretch, whose identities are known.

    A log that was reset before it was taken has another last file, too, which is noticed here. One that is reset later
    is noticed when the file is read.
    """
    identity = take_identity(table.connect, table.identity.flavour, point)
    if upto.log:
        now = identity_now(table.connect, table.identity.flavour, upto)
        check_same_file(str(upto), LogIdentity.parse(upto.log), now)
    return str(identity)


def _look(table: KnownTable) -> tuple[CurrentTable | None, bool, int]:
    """The definition, whether names of tables are folded, and the server's time."""
    with table.connect() as connection:
        asked = ask(connection, "SELECT @@lower_case_table_names AS folds, UNIX_TIMESTAMP() AS clock")[0]
        _wait_for_statements(connection, table)
        definition = table.definition
        now = read_current(connection, definition.database, definition.table, follows_parents=table.follows_parents)
    return now, bool(int(asked["folds"] or 0)), int(asked["clock"] or 0)


def _wait_for_statements(connection: Connection, table: KnownTable) -> None:
    """A statement is logged before the dictionary shows it, under a lock that opening the table waits for."""
    try:
        ask(connection, f"SELECT 1 FROM {sql.table_name(table.definition)} LIMIT 0")
    except SourceError as error:
        if error.retryable:
            raise


def _gtids_at(table: KnownTable, after: CdcOffset, point: CdcOffset) -> str:
    """The transactions up to a point that is after an offset whose transactions are known."""
    if table.identity.flavour == "mariadb":
        return _mariadb_gtids(table, point)
    if not after.gtids:
        return ""
    start, stop = LogPosition(after.file, after.pos), LogPosition(point.file, point.pos)
    passed = [
        transaction.gtid
        for batch in read_log(
            table.connect, NO_REPLICA, table.definition, table.identity.flavour, start, stop,
            skip_gtids=lambda _: True,
        )
        for transaction in batch.transactions
        if transaction.gtid
    ]  # fmt: skip
    return str(GtidSet.parse(",".join((after.gtids, *passed))))


def _with_gtid(table: KnownTable, before: CdcOffset, point: CdcOffset, gtid: str) -> str:
    if table.identity.flavour == "mariadb":
        return _mariadb_gtids(table, point)
    return str(GtidSet.parse(f"{before.gtids},{gtid}")) if before.gtids and gtid else before.gtids


def _mariadb_gtids(table: KnownTable, point: CdcOffset) -> str:
    with table.connect() as connection:
        asked = ask(connection, "SELECT BINLOG_GTID_POS(%s, %s) AS gtids", (point.file, point.pos))
    return str(asked[0]["gtids"] or "")
