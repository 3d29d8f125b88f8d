"""Random chains of statements: what is carried out step by step is what the server shows in the end.

A chain has one to three statements, all of which the server has carried out before the first is derived. The seed is
printed; `SCHEMA_SEED` and `SCHEMA_STATEMENTS` repeat a run.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass

import pytest

from devkit.mysql import SqlServer
from tests.system.consume_upstream.mysql.schema.followed_table import Followed
from vnode_backfill.words.schema_change import Carried, Emptied, NoEffect

SEED = 20261117
TYPES = (
    "TINYINT", "INT", "INT UNSIGNED", "MEDIUMINT UNSIGNED", "BIGINT", "BIGINT UNSIGNED", "DECIMAL(7,2)", "DECIMAL(12,4)", "FLOAT",
    "DOUBLE", "VARCHAR(10)", "VARCHAR(200)", "TEXT", "TINYTEXT", "CHAR(4)", "CHAR(9)", "VARBINARY(10)", "VARBINARY(100)",
    "BLOB", "BINARY(4)", "DATE", "DATETIME(3)", "TIME(2)", "YEAR", "BIT(1)", "BIT(12)", "ENUM('a','b')", "ENUM('a','b','c')",
    "SET('a','b')", "SET('a','b','c')", "VARCHAR(10) CHARACTER SET latin1", "TIMESTAMP NULL", "INT AS (id + 1)",
)  # fmt: skip
DEFAULTS = {
    "TINYINT": "7", "INT": "-70000", "BIGINT": "5000000000", "DECIMAL": "12.34", "FLOAT": "0.1", "DOUBLE": "0.1", "VARCHAR": "'it''s'",
    "CHAR": "'x '", "DATE": "'2020-02-29'", "DATETIME": "'2020-02-29 01:02:03.456'", "TIME": "'-01:02:03.5'", "YEAR": "1999",
    "BIT": "b'1'", "ENUM": "'b'", "SET": "'a,b'", "VARBINARY": "'x'", "MEDIUMINT": "3",
}  # fmt: skip
VALUES = (
    "NULL", "0", "1", "-1", "127", "'a'", "'b'", "'a,b'", "0.1", "2000000000", "'2021-03-04 05:06:07'", "'12:34:56'",
    "'x  '", "''", "'é'", "X'00FF'",
)  # fmt: skip


@dataclass
class Draw:
    """Draws clauses over the columns that the table has as far as the chain goes; some of them the server refuses."""

    random: random.Random
    columns: list[str]
    made: int = 0

    def statement(self) -> str:
        if self.random.random() < 0.03:
            return "TRUNCATE t"
        clauses = [self.clause() for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
        return f"ALTER TABLE t {', '.join(clauses)}"

    def clause(self) -> str:
        kinds = (self._add, self._add, self._add, self._drop, self._rename, self._modify, self._modify, self._change, self._exchange, self._none)  # fmt: skip
        return self.random.choice(kinds)()

    def _name(self) -> str:
        return self.random.choice(self.columns)

    def _new_name(self) -> str:
        self.made += 1
        return f"c{self.made}"

    def _type(self) -> str:
        kind = self.random.choice(TYPES)
        default = DEFAULTS.get(kind.split("(", maxsplit=1)[0].split(" ", maxsplit=1)[0])
        if " AS " in kind or self.random.random() < 0.4:
            return kind
        if default and self.random.random() < 0.6:
            return f"{kind} {self.random.choice(('', 'NOT NULL'))} DEFAULT {default}"
        return f"{kind} NOT NULL" if "NULL" not in kind else kind

    def _place(self) -> str:
        return self.random.choice(("", "", " FIRST", f" AFTER {self._name()}"))

    def _add(self) -> str:
        name = self._new_name()
        clause = f"ADD {name} {self._type()}{self._place()}"
        self.columns.append(name)
        return clause

    def _drop(self) -> str:
        name = self._name()
        if name != "id" and len(self.columns) > 4:
            self.columns.remove(name)
        return f"DROP COLUMN {name}"

    def _renamed(self) -> tuple[str, str]:
        old, new = self._name(), self._new_name()
        self.columns[self.columns.index(old)] = new
        return old, new

    def _rename(self) -> str:
        old, new = self._renamed()
        return f"RENAME COLUMN {old} TO {new}"

    def _change(self) -> str:
        old, new = self._renamed()
        return f"CHANGE {old} {new} {self._type()}{self._place()}"

    def _modify(self) -> str:
        return f"MODIFY {self._name()} {self._type()}{self._place()}"

    def _exchange(self) -> str:
        one, two = self._name(), self._name()
        return f"RENAME COLUMN {one} TO {two}, RENAME COLUMN {two} TO {one}"

    def _none(self) -> str:
        name = self._name()
        return self.random.choice((f"ADD INDEX ({name})", "COMMENT 'x'", "FORCE", f"ALTER {name} SET DEFAULT 1"))


def prepare(followed: Followed, drawn: random.Random) -> Draw:
    """A table of its own for each chain, with rows of random values."""
    types = drawn.sample([kind for kind in TYPES if " AS " not in kind], 6)
    columns = [f"a{at}" for at in range(len(types))]
    followed.run("DROP TABLE IF EXISTS t")
    wanted = ", ".join(f"{name} {kind}" for name, kind in zip(columns, types, strict=True))
    followed.run(f"CREATE TABLE t (id {drawn.choice(('INT', 'BIGINT', 'SMALLINT UNSIGNED'))} PRIMARY KEY, {wanted})")
    for key in range(1, 8):
        values = ", ".join(drawn.choice(VALUES) for _ in columns)
        followed.run(f"INSERT IGNORE INTO t VALUES ({key}, {values})")
    followed.begin()
    return Draw(drawn, ["id", *columns])


def check(server: SqlServer, database: str, seed: int, statements: int) -> Counter[str]:
    drawn, counts, wrong = random.Random(seed), Counter[str](), list[str]()
    followed = Followed(server, database)
    followed.run("SET SESSION sql_mode = ''")
    while counts["statements"] < statements:
        draw = prepare(followed, drawn)
        chain = [draw.statement() for _ in range(drawn.randint(1, 3))]
        refused: list[str] = []
        effects = followed.follow(*chain, refused=refused)
        counts.update(statements=len(chain), refused=len(refused))
        counts.update(type(effect).__name__ for effect in effects)
        if all(isinstance(effect, Carried | Emptied | NoEffect) for effect in effects):
            wrong += [f"{chain}: {difference}" for difference in followed.differences()]
    print(f"seed {seed}: {dict(counts)}")
    assert wrong == [], f"seed {seed}: {len(wrong)} differences:\n" + "\n".join(wrong[:20])
    return counts


def test_chains_lead_to_what_the_server_shows(source_server: SqlServer, database: str) -> None:
    counts = check(source_server, database, SEED, 30)
    assert counts["Carried"] > 5, counts


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_chains(source_server: SqlServer, database: str) -> None:
    seed = int(os.environ.get("SCHEMA_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed}")
    check(source_server, database, seed, int(os.environ.get("SCHEMA_STATEMENTS", "1000")))
