"""Holds a model server with several tables: one log, and transactions that change rows of more than one table.

Each table is a model source of its own. The log of each has every transaction of the server, with the part that concerns
the table, which may be nothing. So offsets, transactions and what is visible are the same for all of them. At any offset
the tables together hold each transaction as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from consume_upstream.log.offset import CdcOffset
from tests.simulation.source import Flavour, ModelSource, NewRow, RowChange, Statement, Transaction

Part = tuple["TableSource", NewRow]
"""What a transaction does to one row of one table."""


class ModelServer:
    """The server of one run. `spanning` transactions had rows of more than one table."""

    def __init__(self, random: Random, flavour: Flavour) -> None:
        self.random, self.flavour = random, flavour
        self.tables: list[TableSource] = []
        self.stalled: set[str] = set()
        self.spanning = 0
        self._weights: list[float] = []
        self._slice_ends: dict[tuple[tuple[int, int], tuple[int, int]], CdcOffset | None] = {}

    def table(self, random: Random, keys: int) -> TableSource:
        """One more table; nothing has been written yet."""
        made = TableSource(self, random, keys)
        self.tables.append(made)
        self._weights.append(self.random.choice((1.0, 1.0, 0.1)))
        return made

    def step(self) -> str:
        """Something happens to one of the tables; to some of them most of the time nothing does."""
        return self.random.choices(self.tables, self._weights)[0].step()

    def rows_beside(self, table: TableSource) -> list[Part]:
        """What the transaction changes in one more table, if it does."""
        other = self.random.choices(self.tables, self._weights)[0]
        if other is table or self.random.random() < 0.5:
            return []
        return [(other, row) for row in other.some_rows()]

    def write(
        self,
        writer: TableSource,
        parts: Sequence[Part],
        gtid: str,
        statement: Statement | None = None,
        hidden: tuple[RowChange, ...] = (),
    ) -> Transaction:
        """Log a transaction, which is not visible yet in the other tables; the writer's part of it."""
        whole = ModelSource._log(writer, [row for _, row in parts], gtid, statement, hidden)
        owners = [owner for owner, _ in parts]
        self.spanning += len({id(owner) for owner in owners}) > 1
        for table in self.tables:
            changes = tuple(c for owner, c in zip(owners, whole.changes, strict=True) if owner is table)
            if table is not writer:
                table.take_part(replace(whole, changes=changes, statement=None, hidden=()), writer)
            else:
                table.log[-1] = replace(whole, changes=changes)
        return writer.log[-1]

    def shown(self, table: TableSource, gtid: str) -> None:
        """The transaction is visible in a table, and so in the others."""
        for other in self.tables:
            if other is not table:
                other.show_part(gtid)

    def slice_end(self, last: CdcOffset, written: CdcOffset) -> CdcOffset | None:
        """Any boundary between the two, or none; the same one for all that ask."""
        asked = last.order, written.order
        if asked not in self._slice_ends:
            ends = [t.end for t in self.tables[0].log if last < t.end < written]
            end = self.random.choice(ends) if ends and self.random.random() < 0.6 else None
            gtids = self.tables[0].gtids_before(end) if end else ""
            self._slice_ends[asked] = replace(end, gtids=gtids) if end else None
        return self._slice_ends[asked]

    def fail_over(self, needed: frozenset[str]) -> None:
        """Another server takes over: it has the needed transactions and some of those after them, in its own order."""
        log = self.tables[0].log
        last = max((number for number, t in enumerate(log) if t.gtid in needed), default=-1)
        kept = [*range(self.random.randrange(last + 1, len(log) + 1))]
        for _ in range(len(kept) if self.flavour == "mysql" else 0):
            at = self.random.randrange(len(kept))
            if at and not any(t.log[kept[at]].keys & t.log[kept[at - 1]].keys for t in self.tables):
                kept[at - 1 : at + 1] = [kept[at], kept[at - 1]]
        transactions = [[table.log[number] for table in self.tables] for number in kept]
        self._new_log()
        for parts in transactions:
            self._write_again(parts)
        for table in self.tables:
            table.show_all()

    def reset_log(self) -> None:
        """The log begins again, and nobody knows what was in it."""
        self.tables[0].settle()
        for table in self.tables:
            table.keep_rows()
        self._new_log()

    def _new_log(self) -> None:
        era, number = self.tables[0].next_era, self.random.choice((1, 5))
        self._slice_ends.clear()
        for table in self.tables:
            table.begin_log(era, number)

    def _write_again(self, parts: Sequence[Transaction]) -> None:
        pairs = [*zip(self.tables, parts, strict=True)]
        alone = [pair for pair in pairs if pair[1].statement or pair[1].hidden]
        writer, mine = next(iter(alone or [pair for pair in pairs if pair[1].changes]), pairs[0])
        rows = [(t, (c.op, c.old_key, c.new_key, c.value)) for t, part in pairs for c in part.changes]
        writer.written_again(self.write(writer, rows, mine.gtid, mine.statement, mine.hidden))


class TableSource(ModelSource):
    """One table of a server."""

    def __init__(self, server: ModelServer, random: Random, keys: int) -> None:
        super().__init__(random, server.flavour, keys)
        self.server = server
        self._stalled = server.stalled

    @property
    def next_era(self) -> int:
        return self._era + 1

    def some_rows(self) -> list[NewRow]:
        return self._some_rows()[1]

    def take_part(self, part: Transaction, writer: TableSource) -> None:
        """Another table's transaction is logged, with this part of it."""
        self._number, self._pos, self._transactions = writer._number, writer._pos, writer._transactions
        self.log.append(part)
        self.unseen.append(part)
        if part.changes:
            self._note(part)

    def show_part(self, gtid: str) -> None:
        part = next((each for each in self.unseen if each.gtid == gtid), None)
        if part is not None:
            self.unseen.remove(part)
            ModelSource._show(self, part)

    def written_again(self, part: Transaction) -> None:
        """It is in the log of another server now, as a transaction of this table."""
        self._note(part)
        self._define(part)

    def show_all(self) -> None:
        """Another server has everything visible that it has."""
        self.unseen.clear()
        self.visible = dict(self.logged)

    def keep_rows(self) -> None:
        self._base, self._base_columns = dict(self.logged), self.columns

    def begin_log(self, era: int, number: int) -> None:
        self._begin_log(era, number, self._base)
        self.columns = self._base_columns

    def _show(self, transaction: Transaction) -> None:
        super()._show(transaction)
        self.server.shown(self, transaction.gtid)

    def _log(
        self,
        rows: Sequence[NewRow],
        gtid: str,
        statement: Statement | None = None,
        hidden: tuple[RowChange, ...] = (),
    ) -> Transaction:
        beside = self.server.rows_beside(self) if rows else []
        return self.server.write(self, [*((self, row) for row in rows), *beside], gtid, statement, hidden)
