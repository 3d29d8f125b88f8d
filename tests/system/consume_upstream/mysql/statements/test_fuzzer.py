"""Nothing changes a table unnoticed: statements drawn from a grammar run on a real server, and an oracle compares.

The oracle knows nothing of statements. Before and after each it asks the server for the table's definition and rows.
The rows that the log holds must lead from the one to the other; if they do not, the reader must have stopped. What
stops it although the table is unchanged is counted, and must at least name the table or its database, or be a change of
rows logged as a statement.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import pymysql
import pytest
from pymysql.connections import Connection

from consume_upstream.mysql.binlog.events import LogPosition
from consume_upstream.mysql.binlog.reader import read_log
from consume_upstream.mysql.schema.definition import read_definition
from consume_upstream.mysql.statements.text import folded
from devkit.mysql import SqlServer
from tests.system.consume_upstream.mysql.statements.statement_grammar import Case, Grammar, Names
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import BackfillError

TABLES = (Names("fuzz", "t"), Names("fuzz", "bücher"), Names("büro", "表"))
SEED = 20261117
_server_ids = count(940_000)

Rows = dict[int, tuple[object, ...]]
State = tuple[str, Rows] | None


@dataclass
class World:
    """The table, its neighbours, and what can reach it from another database. Set up without a trace in the log."""

    server: SqlServer
    names: Names
    control: Connection = field(init=False)
    session: Connection = field(init=False)
    definition: TableDefinition = field(init=False)

    def __post_init__(self) -> None:
        self.control = self.connect()
        self._run(self.control, "SET SESSION sql_log_bin = 0", "SET GLOBAL log_bin_trust_function_creators = 1")
        self.rebuild()
        self.definition = read_definition(self.control, self.names.database, self.names.table)

    def rebuild(self) -> None:
        """Everything from the beginning."""
        self._run(
            self.control, *(f"DROP DATABASE IF EXISTS `{each}`" for each in (self.names.database, self.names.other))
        )
        self.mend()

    def mend(self) -> None:
        """Put back what the last statement took away, and give the next one a session of its own."""
        self.session = self.connect()
        ours, theirs, name = self.names.database, self.names.other, self.names.table
        parts = "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
        columns, reached = "(id INT PRIMARY KEY, a INT) COLLATE utf8mb4_general_ci", f"`{ours}`.`{name}`"
        for database in (ours, theirs):
            self._run(self.control, f"CREATE DATABASE IF NOT EXISTS `{database}`", f"USE `{database}`")
            self._run(
                self.control, "DROP TABLE IF EXISTS fresh", "DROP VIEW IF EXISTS fresh", "DROP PROCEDURE IF EXISTS runs"
            )
            self._run(
                self.control,
                *(f"DROP {kind} IF EXISTS whatever" for kind in ("TRIGGER", "PROCEDURE", "FUNCTION", "EVENT")),
            )
            for table, more in ((name, ""), ("other", ""), ("parted", parts), ("bait", "")):
                self._run(self.control, f"CREATE TABLE IF NOT EXISTS `{table}` {columns} {more}")
            self._run(
                self.control,
                f"REPLACE INTO `{name}` (id, a) VALUES (1, 1), (2, 2)",
                "INSERT IGNORE INTO other (id) VALUES (1), (2)",
            )
        self._run(
            self.control,
            f"CREATE TRIGGER IF NOT EXISTS springs AFTER INSERT ON bait FOR EACH ROW REPLACE INTO {reached} VALUES (NEW.id, 7)",
            f"CREATE FUNCTION IF NOT EXISTS adds(i INT) RETURNS INT BEGIN REPLACE INTO {reached} VALUES (i, 3); RETURN i; END",
            "CREATE FUNCTION IF NOT EXISTS pure(i INT) RETURNS INT DETERMINISTIC RETURN i + 1",
            f"CREATE PROCEDURE IF NOT EXISTS empties() TRUNCATE {reached}",
            f"CREATE PROCEDURE IF NOT EXISTS fills() INSERT INTO {reached} VALUES (900, 1)",
        )  # fmt: skip

        with suppress(pymysql.Error):
            self._run(self.control, f"CREATE VIEW seen AS SELECT * FROM {reached}")

    def connect(self) -> Connection:
        """Without TLS: a case has two connections, and loading the authorities for each would be half of the time."""
        server = self.server
        return pymysql.connect(
            host=server.host, port=server.port, user=server.user, charset="utf8mb4", autocommit=True,
            read_timeout=60, ssl_disabled=True
        )  # fmt: skip

    def restore(self, clean: State, *, all_of_it: bool) -> None:
        """Make the world as it was, the table exactly, the rest well enough."""
        if self.state() != clean and not all_of_it:
            try:
                self._run(self.control, f"DROP TABLE IF EXISTS `{self.names.database}`.`{self.names.table}`")
            except pymysql.Error:
                all_of_it = True
        if not all_of_it:
            try:
                self.mend()
            except pymysql.Error:
                all_of_it = True
        if all_of_it or self.state() != clean:
            self.rebuild()
        assert self.state() == clean

    def try_case(self, case: Case) -> bool:
        """Whether the server took the statement."""
        try:
            for each in case.sent:
                with self.session.cursor() as cursor:
                    cursor.execute(each)  # type: ignore[call-overload] # sent as it is
                    while cursor.nextset():
                        pass
        except (pymysql.Error, UnicodeError):
            return False
        return True

    def end(self) -> None:
        """End the session, and with it whatever it has left open."""
        self.session.close()

    def state(self) -> State:
        """Definition and rows, or None if there is no such table."""
        name = f"`{self.names.database}`.`{self.names.table}`"
        try:
            with self.control.cursor() as cursor:
                cursor.execute(f"SHOW CREATE TABLE {name}")
                definition = re.sub(r" AUTO_INCREMENT=\d+", "", str(cursor.fetchall()[0][1]))
                cursor.execute(f"SELECT * FROM {name}")
                return definition, {row[0]: row for row in cursor.fetchall()}
        except pymysql.Error:
            return None

    def position(self) -> LogPosition:
        with self.control.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            row = cursor.fetchall()[0]
        return LogPosition(str(row[0]), int(row[1]))

    def followed(self, before: State, start: LogPosition, stop: LogPosition) -> State:
        """Where the rows of the log lead from `before`; raises where the reader stops."""
        assert before is not None
        rows = dict(before[1])
        flavour = self.server.flavour
        assert flavour in ("mysql", "mariadb")
        for batch in read_log(self.connect, next(_server_ids), self.definition, flavour, start, stop):  # type: ignore[arg-type]
            for op, old, new in zip(batch.op.tolist(), batch.before.to_pylist(), batch.after.to_pylist(), strict=True):
                if op != 0:
                    del rows[old["id"]]
                if op != 2:
                    rows[new["id"]] = (new["id"], new["a"])
        return before[0], rows

    @staticmethod
    def _run(connection: Connection, *statements: str) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


@dataclass
class Findings:
    """What the statements did, and what is wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    needless: list[str] = field(default_factory=list)

    def judge(self, world: World, case: Case) -> None:
        """Run one statement and compare."""
        before, start = world.state(), world.position()
        taken = world.try_case(case)
        world.end()
        stop = world.position()
        after = world.state()
        self.counts["taken" if taken else "refused by the server"] += 1
        if start == stop and before == after:
            return
        self.counts["logged"] += 1
        stopped = ""
        try:
            led = world.followed(before, start, stop)
        except BackfillError as error:
            led, stopped = None, f"{error.message} {error.detail}"
        if not stopped and what_counts(led) != what_counts(after):
            self.missed.append(f"{case} led to {after}, by its log to {led}")
        elif stopped:
            self.counts["stopped, changed" if before != after else "stopped, unchanged"] += 1
            self._look(world.names, case, stopped, changed=before != after)

    def _look(self, names: Names, case: Case, stopped: str, *, changed: bool) -> None:
        named = any(folded(name) in folded(case.text) for name in (names.database, names.table))
        if not changed and not named and not case.statement_format:
            self.needless.append(f"{case} stopped: {stopped}")


def what_counts(state: State) -> State:
    """The rows, the columns, what identifies a row, and the engine: a job passes over indexes and comments."""
    if state is None:
        return None
    definition, rows = state
    lines = [re.sub(r" COMMENT '(?:[^']|'')*'", "", line).rstrip(",") for line in definition.splitlines()]
    columns = [line for line in lines if re.match(r"\s+(`|PRIMARY KEY|UNIQUE KEY)", line)]
    return "\n".join((*columns, *re.findall(r"ENGINE=\w+", definition))), rows


def fuzz(server: SqlServer, seed: int, statements: int) -> Findings:
    drawn, findings = random.Random(seed), Findings()
    for names in TABLES:
        world = World(server, names)
        grammar = Grammar(server.flavour, names, drawn)
        clean = world.state()
        for number in range(1, statements // len(TABLES) + 1):
            findings.judge(world, grammar.case())
            world.restore(clean, all_of_it=number % 20 == 0)
        world.end()
        for database in (names.database, names.other):
            with world.control.cursor() as cursor:
                cursor.execute(f"DROP DATABASE `{database}`")
        world.control.close()
    return findings


def check(findings: Findings, seed: int) -> None:
    shown = "\n".join((*findings.missed[:20], *findings.needless[:20]))
    print(f"seed {seed}: {dict(findings.counts)}")
    wrong = f"seed {seed}: {len(findings.missed)} missed, {len(findings.needless)} needless stops:\n{shown}"
    assert findings.missed + findings.needless == [], wrong
    assert findings.counts["stopped, changed"] > findings.counts["taken"] / 10, findings.counts


def test_no_statement_changes_the_table_unnoticed(source_server: SqlServer) -> None:
    check(fuzz(source_server, SEED, 90), SEED)


def test_names_that_a_server_makes_equal_are_folded_alike(source_server: SqlServer) -> None:
    """With lower_case_table_names the server compares names in the lower case of its own."""
    characters = "".join(chr(code) for code in range(0x80, 0x10000) if not 0xD800 <= code < 0xE000)
    with source_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT LOWER(CONVERT(%s USING utf8mb3) COLLATE utf8mb3_general_ci)", (characters,))
        lower = str(cursor.fetchall()[0][0])
    assert len(lower) == len(characters)
    assert [hex(ord(a)) for a, b in zip(characters, lower, strict=True) if folded(a) != folded(b)] == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_statements(source_server: SqlServer) -> None:
    seed = int(os.environ.get("STATEMENT_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed}")
    check(fuzz(source_server, seed, int(os.environ.get("STATEMENTS", "1500"))), seed)
