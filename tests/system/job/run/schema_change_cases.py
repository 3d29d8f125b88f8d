"""Holds a table and the statements that change it: what each test of followed statements is about."""

from __future__ import annotations

from dataclasses import dataclass

from devkit.mysql import SqlServer
from tests.system.job_case import execute

ROWS = 1_500


def create_changing_table(server: SqlServer, database: str, table: str) -> None:
    """A table of five columns and 1,500 rows, which the statements below fit."""
    execute(
        server, database,
        f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT, b VARCHAR(20), f FLOAT, e ENUM('x', 'y')) "
        "CHARACTER SET utf8mb4",
        f"INSERT INTO {table} SELECT n, n * 2, CONCAT('row ', n), n / 3, IF(n % 2, 'x', 'y') FROM "
        "(WITH RECURSIVE k AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM k WHERE n < 1000) SELECT n FROM k) k",
        f"INSERT INTO {table} SELECT id + 1000, a, b, f, e FROM {table} WHERE id <= {ROWS - 1000}",
    )  # fmt: skip


@dataclass(frozen=True)
class Change:
    """Statements on the table, writes by the new columns, the columns that only the target keeps, and new copies."""

    statements: tuple[str, ...]
    writes: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    copies: int = 1


CHANGES = {
    "index": Change(("CREATE INDEX by_a ON t (a)",), ("UPDATE t SET a = a + 1 WHERE id % 7 = 0",)),
    "comment": Change(("ALTER TABLE t COMMENT = 'x'", "ALTER TABLE t MODIFY a INT COMMENT 'y'")),
    "add": Change(("ALTER TABLE t ADD c INT",), ("UPDATE t SET c = id WHERE id % 5 = 0",)),
    "add first with a default": Change(
        ("ALTER TABLE t ADD c VARCHAR(9) NOT NULL DEFAULT 'new' FIRST",), ("UPDATE t SET c = b WHERE id < 9",)
    ),
    "add without a default": Change(("ALTER TABLE t ADD c INT NOT NULL AFTER id",), ("UPDATE t SET c = 3 WHERE id < 90",)),
    "drop": Change(("ALTER TABLE t DROP b",), ("UPDATE t SET a = 1 WHERE id % 3 = 0",), kept=("b",)),
    "rename": Change(("ALTER TABLE t RENAME COLUMN b TO d",), ("UPDATE t SET d = 'renamed' WHERE id % 11 = 0",)),
    "rename the key": Change(("ALTER TABLE t RENAME COLUMN id TO nr",), ("UPDATE t SET a = 7 WHERE nr % 11 = 0",)),
    "exchange": Change(
        ("ALTER TABLE t CHANGE a f INT, CHANGE f a FLOAT",), ("UPDATE t SET f = 8, a = 0.5 WHERE id % 6 = 0",)
    ),
    "widen": Change(
        ("ALTER TABLE t MODIFY a BIGINT, MODIFY b VARCHAR(90) NOT NULL, MODIFY f DOUBLE, MODIFY e ENUM('x', 'y', 'z')",),
        ("UPDATE t SET a = 99999999999, b = REPEAT('w', 90), f = 1e200, e = 'z' WHERE id % 4 = 0",),
    ),
    "truncate": Change(("TRUNCATE t",), ("INSERT INTO t VALUES (5, 5, 'five', 5, 'x')",)),
    "two in a row": Change(
        ("ALTER TABLE t ADD c INT DEFAULT 4", "ALTER TABLE t ADD g INT DEFAULT 5, DROP b"),
        ("UPDATE t SET c = 1, g = 2 WHERE id % 9 = 0",), kept=("b",),
    ),
    "another type": Change(("ALTER TABLE t MODIFY a VARCHAR(12)",), ("UPDATE t SET a = 'text' WHERE id = 4",), copies=2),
    "another key": Change(("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)",), copies=2),
    "swap": Change(
        ("CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho ADD c INT", "INSERT INTO _t_gho SELECT t.*, 1 FROM t",
         "RENAME TABLE t TO _t_del, _t_gho TO t"),
        ("UPDATE t SET c = 5 WHERE id < 100",), copies=2,
    ),
}  # fmt: skip
