"""Runs a job of many tables whose tables are changed by statements, each by its own, and compares every row.

Rows are written before and after the statements of a table. Where the statements are about columns, and the names `id`
and `a` stay, a thread writes these meanwhile.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pymysql

from devkit.comparer import Difference, DifferenceKind, compare_delta
from devkit.mysql import SqlServer
from tests.system.job.tables.many_tables import Tables
from tests.system.job.tables.statement_cases import DATABASE, GONE, OTHER, ROWS, Change, of_table
from tests.system.job_case import execute, fetch
from vnode_backfill.job.tables.parts import tables_store


@dataclass
class ChangedTables(Tables):
    """The job, and what happens to each of its tables."""

    cases: dict[str, Change] = field(default_factory=dict)
    copies_before: dict[str, str] = field(default_factory=dict)
    """The copy of each table that the statements met."""
    written_meanwhile: int = 0

    def copies(self) -> dict[str, str]:
        store, found = tables_store(self.loaded_config()), {}
        for name in self.cases:
            loaded = store.table(self.full_name(name)).load()
            assert loaded is not None, name
            found[name] = loaded.record.id
        return found

    def full_name(self, name: str) -> str:
        return f"{self.cases[name].database}.{name}"

    def run_on(self, name: str, statements: Sequence[str]) -> None:
        """Run statements about a table one by one, in one session. Those with a `!` are done to its file."""
        case = self.cases[name]
        with self.server.connect(case.database) as connection, connection.cursor() as cursor:
            for statement in statements:
                if statement.startswith("!"):
                    self._copy_files(name, back=statement == "!restore")
                else:
                    cursor.execute(of_table(statement, name))

    def _copy_files(self, name: str, *, back: bool) -> None:
        for ending in (".ibd", ".cfg"):
            there, saved = self.server.datadir / DATABASE / f"{name}{ending}", self.folder / f"{name}{ending}"
            shutil.copy(*((saved, there) if back else (there, saved)))

    def change(self, names: Sequence[str]) -> None:
        """Carry out the statements of these tables, with writes before, after and meanwhile."""
        for name in names:
            self._write_old_columns(name)
            with self._writing(name) if self.cases[name].meanwhile else nullcontext():
                self.run_on(name, self.cases[name].statements)
        for name in names:
            if not self.cases[name].ended:
                self._write_old_columns(name)
                self.run_on(name, self.cases[name].writes)

    def _write_old_columns(self, name: str) -> None:
        key = self.key_of(name)[0]
        self.run_on(name, (f"DELETE FROM t WHERE {key} % 13 = 0", f"UPDATE t SET a = 5 WHERE {key} % 17 = 0"))

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """A thread changes rows of the table during the block. No key comes twice, which would fail an ALTER TABLE."""
        begun, ended = threading.Event(), threading.Event()

        def write() -> None:
            with self.server.connect(self.cases[name].database) as connection, connection.cursor() as cursor:
                for number in count():
                    changes = [f"UPDATE t SET a = {number} WHERE id = {number * 7 % ROWS}"]
                    if number % 4 == 0:
                        changes.append(f"UPDATE t SET id = {10_000 + number} WHERE id = {number * 11 % ROWS}")
                        changes.append(f"DELETE FROM t WHERE id = {10_000 + number // 2}")
                    # A server may refuse a write because the table is changed just then.
                    with suppress(pymysql.err.OperationalError):
                        self.written_meanwhile += sum(cursor.execute(of_table(each, name)) for each in changes)
                        begun.set()
                    if ended.wait(0.005):
                        return

        thread = threading.Thread(target=write, name="writes meanwhile")
        thread.start()
        try:
            assert begun.wait(60), "nothing was written"
            yield
        finally:
            ended.set()
            thread.join()

    def key_of(self, name: str) -> tuple[str, ...]:
        """What identifies the rows: the primary key, else the first unique one."""
        found = fetch(self.server, self.cases[name].database, f"SHOW KEYS FROM {name} WHERE Non_unique = 0")
        primary = [str(row[4]) for row in found if row[2] == "PRIMARY"]
        return tuple(primary or [str(row[4]) for row in found if row[2] == found[0][2]]) or ("id",)

    def halves(self) -> tuple[list[str], list[str]]:
        """One half is on one side of a kill here, and on the other side with another form of the log."""
        form = str(fetch(self.server, None, "SELECT @@GLOBAL.binlog_row_metadata")[0][0])
        turn, names = ("NO_LOG", "MINIMAL", "FULL").index(form) % 2, list(self.cases)
        return names[turn::2], names[1 - turn :: 2]

    def wrong_rows(self, name: str, *, whole: bool) -> list[object]:
        """The differences between the table and its target; `whole` says that the target had every row before.

        A table that ends while it is copied leaves a part of a copy: rows may be missing or as they were before its
        last changes, and nothing else may be wrong with them.
        """
        case = self.cases[name]
        database, source = (DATABASE, f"_{name}_old") if case.ended else (case.database, name)
        key = ("id",) if case.ended else self.key_of(name)
        with self.server.connect() as connection:
            found = compare_delta(
                connection, database, source, key, self.target_of(name), ignore_columns=case.kept
            )  # fmt: skip
        if case.ended and not whole:
            return [each for each in found if not is_before_last_changes(each)]
        if case.stays is None:
            return list(found)
        extra = {each.key[0] for each in found if each.kind is DifferenceKind.EXTRA}
        stays = {number for number in case.stays if number % 13}
        others: list[object] = [each for each in found if each.kind is not DifferenceKind.EXTRA]
        return others + ([extra ^ stays] if (extra != stays if whole else extra - stays) else [])


def is_before_last_changes(each: Difference) -> bool:
    """Whether the target lacks a row, or has one as it was made by `PLAIN`, before `_write_old_columns` changed it."""
    number = each.key[0] if each.key else None
    if not isinstance(number, int):
        return False
    match each.kind:
        case DifferenceKind.MISSING:
            return True
        case DifferenceKind.EXTRA:
            return number % 13 == 0
        case DifferenceKind.DIFFERENT:
            return number % 17 == 0 and (each.column, each.target) == ("a", 2 * number)


@contextmanager
def changed_tables(server: SqlServer, folder: Path, cases: Mapping[str, Change]) -> Iterator[ChangedTables]:
    """A table for each case, with its rows, and the job of all of them."""
    databases = (DATABASE, OTHER, GONE)
    for database in databases:
        execute(server, None, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    entries = [{"table": f"{case.database}.{name}", **case.policy} for name, case in cases.items() if case.policy]
    found = ChangedTables(
        server, folder, DATABASE, cases=dict(cases), settings={"vnodes": 4},
        mysql={"tables": [*entries, f"{DATABASE}.*", f"{GONE}.*"]},
    )  # fmt: skip
    for name, case in cases.items():
        found.run_on(name, case.create)
    yield found
    for database in databases:
        execute(server, None, f"DROP DATABASE IF EXISTS {database}")
