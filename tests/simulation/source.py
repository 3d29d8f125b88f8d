"""A model source: a table, a log that is written before its changes are visible, and the two questions asked of it.

Row locks are modelled: a key touched by a transaction that is logged but not visible cannot be touched by another one.
Visibility may come out of log order (`mysql`), or in log order (`mariadb`), and may lag over many epochs. Some
transactions end on their last change, as one that MySQL compressed does: all its changes have its end as their
position.

The table has one or two columns beside its key. Statements add the second, drop it, empty the table, take some rows
away by their first column, change nothing, or change every row without a word in the log. One waits until nothing is in flight, as a server's metadata lock makes it,
and nothing else is written before it is visible.

A parent's rows may go, and rows of the table with them: the log holds the parent's transaction, and not a word of what
it did to the table (`hidden`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from consume_upstream.log.gtid import GtidSet
from consume_upstream.log.offset import CdcOffset, LoggedTransaction, Visibility, VisibleAt, VisibleGtids
from vnode_backfill.words.change import ChangeOp

Flavour = Literal["mysql", "mariadb"]
Row = tuple[int, ...]
Table = dict[int, Row]
NewRow = tuple[ChangeOp, int | None, int | None, Row]
"""What a transaction does to one row: the key before and after, and the new value."""
PURGED = 30
"""How far back a partition reaches that is dropped."""
_SERVERS = "3e11fa47-71ca-11e1-9e33-c80aa9429{:03d}"
"""The name of the server of an era."""


class NoSuchColumnError(Exception):
    """The server refuses a query."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row of an event that ends at `offset`: the key before and after (None where there is none) and the new
    value."""

    op: ChangeOp
    offset: CdcOffset
    row: int
    old_key: int | None
    new_key: int | None
    value: Row


@dataclass(frozen=True, slots=True)
class Statement:
    """`add`, `drop`, `truncate`, `purge`, `index`, `comment`, `convert` or `recreate`.

    Rows that are there get `value` by an `add`. A `purge` takes the rows of a partition: those that are in `partition`.
    A `recreate` drops the table and creates it again, with one column or two.
    """

    kind: str
    value: int = 0

    @property
    def partition(self) -> range:
        """The values of the first column of the rows that a `purge` takes: some of the last ones that were written."""
        return range(self.value - PURGED, self.value - PURGED // 3)

    def leaves(self, row: Row) -> bool:
        return self.kind not in ("truncate", "recreate") and not (self.kind == "purge" and row[0] in self.partition)

    def columns_after(self, columns: int) -> int:
        """How many columns a table has after it that had so many before."""
        created = {"recreate": 1 + self.value % 2}
        return {"add": 2, "drop": 1, **created}.get(self.kind, columns)

    def carried_out(self, row: Row) -> Row:
        match self.kind:
            case "add":
                return (*row, self.value)
            case "drop":
                return row[:1]
            case "convert":
                return tuple(-value for value in row)
            case _:
                return row


@dataclass(frozen=True, slots=True)
class Transaction:
    gtid: str
    start: CdcOffset
    end: CdcOffset
    changes: tuple[RowChange, ...]
    statement: Statement | None = None
    hidden: tuple[RowChange, ...] = ()
    """Changes of rows that are not in the log."""

    @property
    def keys(self) -> frozenset[int]:
        if self.statement is not None:
            return frozenset(range(1000))
        changes = (*self.changes, *self.hidden)
        return frozenset(k for c in changes for k in (c.old_key, c.new_key) if k is not None)


class ModelSource:
    """The source of one run; every random choice comes from `random`."""

    def __init__(self, random: Random, flavour: Flavour, keys: int) -> None:
        self.random, self.flavour, self.keys = random, flavour, keys
        self.logged: Table = {}
        self.visible: Table = {}
        self.log: list[Transaction] = []
        self.unseen: list[Transaction] = []
        self.history: list[tuple[tuple[int, int], Table]] = [((1, 4), {})]
        self._era, self._number, self._pos, self._value, self._transactions = 0, 1, 4, 0, 0
        self._base: Table = {}
        """What the table held where the log begins."""
        self.columns = self._base_columns = 1
        self.statements = 0.0
        """How often a step is a statement."""
        self.recreates = 0
        """How often a statement creates the table again; an `add` has the weight 6."""
        self.cascades = 0.0
        """How often a step is a change of a parent."""
        self._stalled: set[str] = set()
        self._stall = random.choice((0.0, 0.1, 0.3))

    def offset(self, pos: int) -> CdcOffset:
        return CdcOffset.at(self._server, f"binlog.{self._number}", pos, era=self._era)

    @property
    def _server(self) -> str:
        return _SERVERS.format(self._era)

    def written_offset(self) -> CdcOffset:
        """The end of the log, with the transactions the server reports: MySQL the visible ones, MariaDB all that are
        logged."""
        unseen = {t.gtid for t in self.unseen} if self.flavour == "mysql" else set()
        known = gtids_of(t for t in self.log if t.gtid not in unseen)
        return replace(self.offset(self._pos), gtids=str(known))

    def visible_offset(self) -> Visibility:
        if self.flavour == "mariadb":
            return self.visible_prefix()
        unseen = {t.gtid for t in self.unseen}
        return VisibleGtids(gtids_of(t for t in self.log if t.gtid not in unseen))

    def visible_prefix(self) -> VisibleAt:
        starts = [t.start for t in self.unseen]
        return VisibleAt(min(starts, key=lambda s: s.order) if starts else self.written_offset())

    def read(self, holds: frozenset[int], columns: int = 1) -> Table:
        """What a query that runs now sees of the given keys; refused if the table has no such column."""
        if columns > self.columns:
            raise NoSuchColumnError(f"the table has {self.columns} columns, not {columns}")
        return {k: v[:columns] for k, v in self.visible.items() if k in holds}

    def table_at(self, offset: CdcOffset) -> Table:
        at = bisect_right(self.history, offset.order, key=lambda pair: pair[0]) - 1
        return self.history[at][1]

    def slice(self, after: CdcOffset, upto: CdcOffset) -> list[Transaction]:
        return [t for t in self.log if after < t.end and t.end <= upto]

    @property
    def oldest(self) -> CdcOffset:
        """Where the log begins."""
        return self.log[0].start

    def gtids_before(self, start: CdcOffset) -> str:
        return str(gtids_of(t for t in self.log if t.end <= start))

    def statement_at(self, start: CdcOffset) -> Statement:
        """The statement whose transaction begins there."""
        return {t.start: t.statement for t in self.log if t.statement is not None}[start]

    def logged_transactions(self, after: CdcOffset, upto: CdcOffset) -> list[LoggedTransaction]:
        return [LoggedTransaction(t.gtid, t.start) for t in self.slice(after, upto)]

    def step(self) -> str:
        """One random thing that happens at the source: a transaction, one becoming visible, or the end of a stall."""
        if self.statements and self.random.random() < self.statements:
            return self.statement()
        if self.cascades and self.random.random() < self.cascades:
            return self._cascade()
        if self._stalled and self.random.random() < 0.03:
            self._stalled.clear()
            return "stall over"
        if self.unseen and self.random.random() < 0.45:
            ready = self.unseen if self.flavour == "mysql" else self.unseen[:1]
            ready = [t for t in ready if t.gtid not in self._stalled]
            if ready:
                chosen = self.random.choice(ready)
                self.unseen.remove(chosen)
                self._show(chosen)
                return f"visible {chosen.end}"
        return self._transaction()

    def settle(self) -> None:
        """Make everything visible."""
        self._stalled.clear()
        while self.unseen:
            self._show(self.unseen.pop(0))

    def fail_over(self, needed: frozenset[str]) -> None:
        """Another server takes over: it has the needed transactions and some of those after them, in its own order."""
        last = max((number for number, t in enumerate(self.log) if t.gtid in needed), default=-1)
        kept = self.log[: self.random.randrange(last + 1, len(self.log) + 1)]
        if self.flavour == "mysql":
            for _ in range(len(kept)):
                at = self.random.randrange(len(kept))
                if at and not kept[at].keys & kept[at - 1].keys:
                    kept[at - 1 : at + 1] = [kept[at], kept[at - 1]]
        self._new_log(self._base)
        self.columns = self._base_columns
        for transaction in kept:
            rows = [(change.op, change.old_key, change.new_key, change.value) for change in transaction.changes]
            self._note(self._log(rows, transaction.gtid, transaction.statement, transaction.hidden))
            self._define(transaction)
        self.visible = dict(self.logged)

    def reset_log(self) -> None:
        """The log begins again, and nobody knows what was in it."""
        self.settle()
        self._base, self._base_columns = dict(self.logged), self.columns
        self._new_log(self._base)

    def position_after(self, gtids: str) -> CdcOffset:
        """Where the first transaction outside the given ones begins."""
        known = GtidSet.parse(gtids)
        starts = (t.start for t in self.log if not known.holds(t.gtid))
        return replace(next(starts, self.written_offset()), gtids=gtids)

    def _new_log(self, table: Table) -> None:
        self._begin_log(self._era + 1, self.random.choice((1, 5)), table)

    def _begin_log(self, era: int, number: int, table: Table) -> None:
        self._era, self._number, self._pos = era, number, 4
        self.log, self.unseen, self.logged = [], [], dict(table)
        self._stalled.clear()
        self.history.append((self.offset(self._pos).order, dict(table)))

    def _note(self, transaction: Transaction) -> None:
        _apply(self.logged, transaction)
        self.history.append((transaction.end.order, dict(self.logged)))

    def _show(self, transaction: Transaction) -> None:
        _apply(self.visible, transaction)
        self._define(transaction)

    def _define(self, transaction: Transaction) -> None:
        if transaction.statement is not None:
            self.columns = transaction.statement.columns_after(self.columns)

    def statement(self, kind: str = "") -> str:
        """A statement of this kind, or of any."""
        self.settle()
        self._value += 1
        kinds = ("add" if self.columns == 1 else "drop", "truncate", "index", "comment", "convert", "purge", "recreate")
        weights = (6, 2, 2, 2, 1, 3, self.recreates)
        statement = Statement(kind or self.random.choices(kinds, weights)[0], self._value)
        self._transactions += 1
        transaction = self._log([], f"{self._server}:{self._transactions}", statement)
        self._note(transaction)
        if self.random.random() < 0.5:
            self._show(transaction)
        else:
            self.unseen.append(transaction)
            if self.random.random() < 0.3:
                self._stalled.add(transaction.gtid)
        return f"{statement.kind} at {transaction.start}-{transaction.end}"

    def _cascade(self) -> str:
        """Some rows of the table go, or have another value, by a change of their parent."""
        locked = frozenset(k for t in self.unseen for k in t.keys)
        held = [k for k in self.logged if k not in locked]
        self._transactions, self._value = self._transactions + 1, self._value + 1
        hidden = tuple(
            RowChange(ChangeOp.DELETE, self.offset(self._pos), 0, key, None, ())
            if self.random.random() < 0.5
            else RowChange(ChangeOp.UPDATE, self.offset(self._pos), 0, key, key, (self._value,) * self.columns)
            for key in self.random.sample(held, min(len(held), 3))
        )
        transaction = self._log([], f"{self._server}:{self._transactions}", None, hidden)
        self._note(transaction)
        self.unseen.append(transaction)
        if self.random.random() < 0.7 and (self.flavour == "mysql" or len(self.unseen) == 1):
            self._show(self.unseen.pop())
        return f"cascade {[(c.old_key, c.new_key, c.value) for c in hidden]} at {transaction.end}"

    def _transaction(self) -> str:
        kind, rows = self._some_rows()
        if not rows:
            return "nothing"
        self._transactions += 1
        transaction = self._log(rows, f"{self._server}:{self._transactions}")
        self._note(transaction)
        self.unseen.append(transaction)
        if self.random.random() < self._stall and len(self._stalled) < 2:
            self._stalled.add(transaction.gtid)
        elif self.random.random() < 0.7 and (self.flavour == "mysql" or len(self.unseen) == 1):
            self._show(self.unseen.pop())
        return f"{kind} {[(c.old_key, c.new_key, c.value) for c in transaction.changes]} at {transaction.end}"

    def _some_rows(self) -> tuple[str, list[NewRow]]:
        """What a transaction may do to rows that no other one has locked, each with a value of its own."""
        locked = frozenset(k for t in self.unseen for k in t.keys)
        free = [k for k in range(self.keys) if k not in locked]
        kind = self.random.choice(("insert", "update", "delete", "move", "swap", "large", "edge"))
        rows = self._rows(kind, free)
        first = self._value + 1
        self._value += len(rows)
        return kind, [(*row, (first + number,) * self.columns) for number, row in enumerate(rows)]

    def _rows(self, kind: str, free: list[int]) -> list[tuple[ChangeOp, int | None, int | None]]:
        held = [k for k in free if k in self.logged]
        gone = [k for k in free if k not in self.logged]
        pick = self.random.choice
        if kind == "insert" and gone:
            return [(ChangeOp.INSERT, None, pick(gone))]
        if kind == "edge" and gone:
            return [(ChangeOp.INSERT, None, pick([gone[0], gone[-1]]))]
        if kind == "update" and held:
            key = pick(held)
            return [(ChangeOp.UPDATE, key, key)]
        if kind == "delete" and held:
            return [(ChangeOp.DELETE, pick(held), None)]
        if kind == "move" and held and gone:
            return [(ChangeOp.UPDATE, pick(held), pick(gone))]
        if kind == "swap" and len(held) > 1 and gone:
            a, b = self.random.sample(held, 2)
            spare = pick(gone)
            return [(ChangeOp.UPDATE, a, spare), (ChangeOp.UPDATE, b, a), (ChangeOp.UPDATE, spare, b)]
        if kind == "large":
            return [self._any(k) for k in self.random.sample(free, min(len(free), 8))]
        return []

    def _any(self, key: int) -> tuple[ChangeOp, int | None, int | None]:
        if key not in self.logged:
            return (ChangeOp.INSERT, None, key)
        return (ChangeOp.DELETE, key, None) if self.random.random() < 0.5 else (ChangeOp.UPDATE, key, key)

    def _log(
        self,
        rows: Sequence[NewRow],
        gtid: str,
        statement: Statement | None = None,
        hidden: tuple[RowChange, ...] = (),
    ) -> Transaction:
        if self.random.random() < 0.08:
            self._number, self._pos = self._number + 1, 4
        start = self.offset(self._pos)
        changes: list[RowChange] = []
        row, packed, ends_on_change = 0, self.random.random() < 0.2, self.random.random() < 0.2
        for op, old, new, value in rows:
            if changes and (packed or self.random.random() < 0.5):
                row += 1
            else:
                self._pos, row = self._pos + 10, 0
            changes.append(RowChange(op, self.offset(self._pos), row, old, new, value))
        if statement or hidden or not (packed or ends_on_change):
            self._pos += 10
        transaction = Transaction(gtid, start, self.offset(self._pos), tuple(changes), statement, hidden)
        self.log.append(transaction)
        return transaction


def gtids_of(transactions: Iterable[Transaction]) -> GtidSet:
    """The set of the transactions. Numbers in a row are joined first: to parse each would be half of a run's time."""
    runs: list[tuple[str, int, int]] = []
    for transaction in transactions:
        server, _, number = transaction.gtid.partition(":")
        first = last = int(number)
        if runs and runs[-1][0] == server and runs[-1][2] == last - 1:
            first = runs.pop()[1]
        runs.append((server, first, last))
    return GtidSet.parse(",".join(f"{server}:{first}-{last}" for server, first, last in runs))


def _apply(table: Table, transaction: Transaction) -> None:
    if transaction.statement is not None:
        for key, row in [*table.items()]:
            table[key] = transaction.statement.carried_out(row)
            if not transaction.statement.leaves(row):
                del table[key]
    for change in (*transaction.changes, *transaction.hidden):
        if change.old_key is not None:
            table.pop(change.old_key, None)
        if change.new_key is not None:
            table[change.new_key] = change.value
