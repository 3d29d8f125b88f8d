"""Writes live traffic to one table: seeded, at a given rate, with a record of what was committed.

Draws transactions of every kind a copy can get wrong: rows at the tail and in gaps, updates, deletes, key changes, key
swaps, many rows at once, rollbacks, also to a savepoint. Runs in a thread (`with Workload(...)`) or as a process
(`python -m devkit.writer --port ... --database ... --rate 500`), until stopped. The same seed on the same rows makes
the same operations. With one writer the record is exact, unless a connection was lost in the middle of a commit: then
`WorkloadReport.exact` is false and the keys are read again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Self

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from devkit.operations import CommittedOp, KeySet, OpKind, WorkloadMix
from devkit.orders import SqlValue, ValueColumn, WorkloadTable, make_value, orders_table, quote

LOST = {2003, 2006, 2013, 1053, 1077, 1079, 1927, 3169, 4031}
"""Errors of a server that stops, restarts, or killed the connection."""
CONFLICT = {1205, 1213, 1062}
"""Lock time-out, deadlock, and a key another writer was faster to take: rolled back and given up."""
RECONNECT_SECONDS = 0.1
GIVE_UP_SECONDS = 120


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """What was committed. `counts` and `transactions` are complete, `operations` up to the cap."""

    transactions: int
    rolled_back: int
    counts: Mapping[OpKind, int]
    operations: tuple[CommittedOp, ...]
    exact: bool
    """Whether `operations` is everything that happened: no cap reached, no commit with unknown outcome."""


class Workload:
    """One writer. `start` and `stop` for a thread; `run` works in the caller's own thread."""

    def __init__(
        self,
        connect: Callable[[], Connection[Cursor]],
        table: WorkloadTable,
        *,
        seed: int,
        rate: float | None = None,
        mix: WorkloadMix | None = None,
        large_rows: int = 2_000,
        record_cap: int = 200_000,
    ) -> None:
        """`rate` is in changed rows per second, `None` as fast as the server goes."""
        self._connect = connect
        self._table = table
        self._random = Random(seed)
        self._rate = rate
        self._mix = mix or WorkloadMix()
        self._large_rows = large_rows
        self._record_cap = record_cap
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._keys = KeySet(())
        self._pending: list[CommittedOp] = []
        self._operations: list[CommittedOp] = []
        self._counts: Counter[OpKind] = Counter()
        self._transactions = 0
        self._rolled_back = 0
        self._exact = True
        self._lost_at: float | None = None

    @property
    def transactions(self) -> int:
        """Committed so far; may be read while it runs."""
        return self._transactions

    def start(self) -> Self:
        self._thread = threading.Thread(target=self._run_in_thread, name="workload", daemon=True)
        self._thread.start()
        return self

    def request_stop(self) -> None:
        """End after the current transaction; safe in a signal handler."""
        self._stopping.set()

    def stop(self) -> WorkloadReport:
        """End after the current transaction; raise what made the thread fail, if anything did."""
        self.request_stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return self.report()

    def report(self) -> WorkloadReport:
        return WorkloadReport(
            transactions=self._transactions,
            rolled_back=self._rolled_back,
            counts=dict(self._counts),
            operations=tuple(self._operations),
            exact=self._exact,
        )

    def run(self, *, transactions: int | None = None) -> WorkloadReport:
        """Write until asked to stop, or until this many further transactions were committed."""
        goal = None if transactions is None else self._transactions + transactions
        connection: Connection[Cursor] | None = None
        due = time.monotonic()
        while not self._stopping.is_set() and (goal is None or self._transactions < goal):
            try:
                connection = connection or self._open()
                changed = self._one_transaction(connection)
            except pymysql.err.MySQLError as error:
                connection = self._after_error(connection, error)
                continue
            due = self._pace(due, changed)
        if connection is not None:
            connection.close()
        return self.report()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except BaseException as failure:  # noqa: BLE001  raised again by stop()
            self._failure = failure

    def _open(self) -> Connection[Cursor]:
        connection = self._connect()
        connection.autocommit(False)
        with connection.cursor() as cursor:
            key = quote(self._table.key)
            cursor.execute(f"SELECT {key} FROM {self._table.quoted} ORDER BY {key}")
            self._keys = KeySet(int(row[0]) for row in cursor.fetchall())
        connection.rollback()
        self._lost_at = None
        return connection

    def _after_error(
        self, connection: Connection[Cursor] | None, error: pymysql.err.MySQLError
    ) -> Connection[Cursor] | None:
        """Roll back a conflict and continue; forget a lost connection; anything else is a mistake and is raised."""
        code = error.args[0] if error.args else 0
        if code in CONFLICT and connection is not None:
            self._roll_back(connection, 0)
            return connection
        self._lost_at = self._lost_at or time.monotonic()
        lost = code in LOST or isinstance(error, pymysql.err.InterfaceError)
        if not lost or time.monotonic() - self._lost_at > GIVE_UP_SECONDS:
            raise error
        if connection is not None and connection.open:
            connection.close()
        # An open transaction may have been committed or not: only the table knows.
        self._exact = self._exact and not self._pending
        self._pending.clear()
        self._stopping.wait(RECONNECT_SECONDS)
        return None

    def _pace(self, due: float, changed: int) -> float:
        """Wait until the rows just changed fit the rate; a long stall is not made up for by a burst."""
        if self._rate is None:
            return due
        due = max(due + changed / self._rate, time.monotonic() - 1)
        self._stopping.wait(max(0.0, due - time.monotonic()))
        return due

    def _one_transaction(self, connection: Connection[Cursor]) -> int:
        (name,) = self._random.choices(self._mix.names(), self._mix.weights())
        with connection.cursor() as cursor:
            match name:
                case "multi_row":
                    self._several(cursor, self._random.randint(2, 20))
                case "large":
                    self._large(cursor)
                case "rollback":
                    self._several(cursor, self._random.randint(1, 5))
                    return self._roll_back(connection, 0)
                case "savepoint":
                    self._with_savepoint(cursor)
                case single:
                    self._single(cursor, single)
        return self._commit(connection)

    def _several(self, cursor: Cursor, count: int) -> None:
        singles = ("insert", "insert_in_gap", "update", "delete", "rekey", "swap")
        for _ in range(count):
            self._single(cursor, self._random.choice(singles))

    def _with_savepoint(self, cursor: Cursor) -> None:
        self._several(cursor, self._random.randint(1, 3))
        cursor.execute("SAVEPOINT halfway")
        kept = len(self._pending)
        self._several(cursor, self._random.randint(1, 3))
        cursor.execute("ROLLBACK TO SAVEPOINT halfway")
        self._forget(kept)

    def _single(self, cursor: Cursor, name: str) -> None:
        # A table that was emptied is filled again.
        if name == "insert" or len(self._keys) < 2:
            self._insert(cursor, None)
        elif name == "insert_in_gap":
            self._insert(cursor, self._keys.draw_gap(self._random))
        elif name == "update":
            self._update(cursor, self._keys.draw(self._random))
        elif name == "delete":
            self._delete(cursor, self._keys.draw(self._random))
        elif name == "rekey":
            self._rekey(cursor, self._keys.draw(self._random), self._keys.draw_gap(self._random))
        else:
            self._swap(cursor)

    def _insert(self, cursor: Cursor, key: int | None) -> None:
        if key is None and not self._table.auto_increment:
            key = self._keys.high + 1
        values = self._values(self._table.values)
        names = [self._table.key, *values]
        marks = ", ".join(["%s"] * len(names))
        columns = ", ".join(map(quote, names))
        cursor.execute(f"INSERT INTO {self._table.quoted} ({columns}) VALUES ({marks})", [key, *values.values()])
        self._did(OpKind.INSERT, int(cursor.lastrowid) if key is None else key, values=values)

    def _update(self, cursor: Cursor, key: int) -> None:
        columns = self._random.sample(self._table.values, self._random.randint(1, len(self._table.values)))
        values = self._values(columns)
        settings = ", ".join(f"{quote(name)} = %s" for name in values)
        statement = f"UPDATE {self._table.quoted} SET {settings} WHERE {quote(self._table.key)} = %s"
        cursor.execute(statement, [*values.values(), key])
        self._did(OpKind.UPDATE, key, values=values)

    def _delete(self, cursor: Cursor, key: int) -> None:
        cursor.execute(f"DELETE FROM {self._table.quoted} WHERE {quote(self._table.key)} = %s", [key])
        self._did(OpKind.DELETE, key)

    def _rekey(self, cursor: Cursor, old: int, new: int) -> None:
        self._set_key(cursor, old, new)
        self._did(OpKind.REKEY, old, new_key=new)

    def _swap(self, cursor: Cursor) -> None:
        first, second = self._keys.draw(self._random), self._keys.draw(self._random)
        if first == second:
            return
        # A primary key admits no two equal rows, not even for a moment: the first row steps aside.
        aside = self._keys.draw_gap(self._random)
        for old, new in ((first, aside), (second, first), (aside, second)):
            self._set_key(cursor, old, new)
        self._did(OpKind.SWAP, first, new_key=second)

    def _set_key(self, cursor: Cursor, old: int, new: int) -> None:
        key = quote(self._table.key)
        cursor.execute(f"UPDATE {self._table.quoted} SET {key} = %s WHERE {key} = %s", [new, old])

    def _large(self, cursor: Cursor) -> None:
        """One statement that inserts many rows, then one that updates as many neighbours."""
        values = self._values(self._table.values)
        names = [self._table.key, *values]
        # Keys at the tail are taken from the server first, so that the record knows each of them.
        self._insert(cursor, None)
        first = self._pending[-1].key + 1
        keys = range(first, first + self._large_rows // 2)
        marks = f"({', '.join(['%s'] * len(names))})"
        arguments = [argument for key in keys for argument in (key, *values.values())]
        columns = ", ".join(map(quote, names))
        statement = f"INSERT INTO {self._table.quoted} ({columns}) VALUES {', '.join([marks] * len(keys))}"
        cursor.execute(statement, arguments)
        for key in keys:
            self._did(OpKind.INSERT, key, values=values)
        self._update_neighbours(cursor)

    def _update_neighbours(self, cursor: Cursor) -> None:
        low = self._keys.draw(self._random)
        high = low + self._large_rows // 2
        values = self._values([self._random.choice(self._table.values)])
        settings = ", ".join(f"{quote(name)} = %s" for name in values)
        where = f"{quote(self._table.key)} BETWEEN %s AND %s"
        cursor.execute(f"UPDATE {self._table.quoted} SET {settings} WHERE {where}", [*values.values(), low, high])
        for key in range(low, high + 1):
            if key in self._keys:
                self._did(OpKind.UPDATE, key, values=values)

    def _values(self, columns: list[ValueColumn] | tuple[ValueColumn, ...]) -> dict[str, SqlValue]:
        return {column.name: make_value(column, self._random) for column in columns}

    def _did(
        self, kind: OpKind, key: int, *, new_key: int | None = None, values: Mapping[str, SqlValue] | None = None
    ) -> None:
        operation = CommittedOp(self._transactions + 1, kind, key, new_key, tuple((values or {}).items()))
        self._pending.append(operation)
        self._keys.apply(operation)

    def _commit(self, connection: Connection[Cursor]) -> int:
        connection.commit()
        changed = len(self._pending)
        self._transactions += 1
        self._counts.update(operation.kind for operation in self._pending)
        room = self._record_cap - len(self._operations)
        self._operations += self._pending[:room]
        self._exact = self._exact and changed <= room
        self._pending.clear()
        return changed

    def _roll_back(self, connection: Connection[Cursor], kept: int) -> int:
        connection.rollback()
        self._rolled_back += 1
        changed = len(self._pending) - kept
        self._forget(kept)
        return changed

    def _forget(self, kept: int) -> None:
        for operation in reversed(self._pending[kept:]):
            self._keys.undo(operation)
        del self._pending[kept:]


def main(arguments: list[str] | None = None) -> int:
    """Write to an orders table until SIGTERM or Ctrl-C, then print what was done as one line of JSON."""
    options = _parser().parse_args(arguments)

    def connect() -> Connection[Cursor]:
        return pymysql.connect(
            host=options.host,
            port=options.port,
            user=options.user,
            password=os.environ.get(options.password_env, ""),
            charset="utf8mb4",
            connect_timeout=10,
        )

    table = orders_table(options.database, options.table)
    workload = Workload(connect, table, seed=options.seed, rate=options.rate, record_cap=0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: workload.request_stop())
    report = workload.run(transactions=options.transactions)
    counts = {kind.value: count for kind, count in report.counts.items()}
    print(json.dumps({"transactions": report.transactions, "rolled_back": report.rolled_back, "counts": counts}))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m devkit.writer", description="live traffic on an orders table")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--user", default="root")
    parser.add_argument("--password-env", default="VNODE_BACKFILL_WRITER_PASSWORD", help="variable with the password")
    parser.add_argument("--database", required=True)
    parser.add_argument("--table", default="orders")
    parser.add_argument("--rate", type=float, help="changed rows per second; as fast as possible without it")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--transactions", type=int, help="stop after this many instead of on a signal")
    return parser


if __name__ == "__main__":
    sys.exit(main())
