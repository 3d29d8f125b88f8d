"""Lists every kind of statement that docs/schema-changes.md names, each with a table of its own and what it does there.

In a statement `t` is the table, also inside names such as `_t_gho`, and `T` is its name in upper case. The database
`matrix_other` belongs to no job, and neither do tables whose names are those of helpers (`_t_old`). Every table has a
first key column of numbers and a column `a` that can be written before and after the statements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

ROWS = 300
DATABASE, OTHER, GONE = "matrix", "matrix_other", "matrix_gone"
NUMBERS = f"(WITH RECURSIVE k AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM k WHERE n < {ROWS}) SELECT n FROM k) k"

PLAIN = (
    "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(20), f FLOAT, e ENUM('x', 'y')) CHARACTER SET utf8mb4",
    f"INSERT INTO t SELECT n, n * 2, CONCAT('row ', n), n / 3, IF(n % 2, 'x', 'y') FROM {NUMBERS}",
)
PAIRS = (
    "CREATE TABLE t (id INT, nr INT, a INT, PRIMARY KEY (id, nr))",
    f"INSERT INTO t SELECT n, n, n FROM {NUMBERS}",
)
TEXTS = (
    "CREATE TABLE t (id VARCHAR(9) PRIMARY KEY, a INT)",
    f"INSERT INTO t SELECT n, n FROM {NUMBERS}",
)
UNIQUE = (
    "CREATE TABLE t (id INT NOT NULL, nr INT NOT NULL, a INT, UNIQUE KEY u (id))",
    f"INSERT INTO t SELECT n, n, n FROM {NUMBERS}",
)
COMPUTED = (
    "CREATE TABLE t (id INT PRIMARY KEY, a INT, f FLOAT, g INT AS (id + 1) STORED)",
    f"INSERT INTO t (id, a, f) SELECT n, n, n / 3 FROM {NUMBERS}",
)
NARROW = (
    (
        "CREATE TABLE t (id SMALLINT PRIMARY KEY, a INT, u SMALLINT UNSIGNED, d DECIMAL(9,2), c CHAR(5), v VARCHAR(20), "
        "tt TINYTEXT, vb VARBINARY(20), bl TINYBLOB, s SET('x', 'y'))"
    ),
    f"INSERT INTO t SELECT n, n, n, n + 0.25, 'c', 'v', 'text', 'bytes', 'blob', 'x' FROM {NUMBERS}",
)
TIMES = (
    "CREATE TABLE t (id INT PRIMARY KEY, a INT, h TIME, s DATE NOT NULL, z DATE NOT NULL)",
    f"INSERT INTO t SELECT n, n, '10:11:12', '2024-01-01', '2024-01-02' FROM {NUMBERS}",
)
PLACES = (
    "CREATE TABLE t (id INT PRIMARY KEY, a INT, g GEOMETRY NOT NULL)",
    f"INSERT INTO t SELECT n, n, POINT(n, n) FROM {NUMBERS}",
)
RANGES = (
    (
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(20)) PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN "
        "(100), PARTITION mid VALUES LESS THAN (200), PARTITION high VALUES LESS THAN (1000))"
    ),
    f"INSERT INTO t SELECT n, n, 'x' FROM {NUMBERS}",
)
HASHES = (
    "CREATE TABLE t (id INT PRIMARY KEY, a INT) PARTITION BY HASH (id) PARTITIONS 3",
    f"INSERT INTO t SELECT n, n FROM {NUMBERS}",
)
DAYS = (
    (
        "CREATE TABLE t (id INT, day DATE, a INT, PRIMARY KEY (id, day)) PARTITION BY RANGE (TO_DAYS(day)) ("
        "PARTITION p1 VALUES LESS THAN (TO_DAYS('2024-01-02')), PARTITION p2 VALUES LESS THAN (TO_DAYS('2024-01-03')), "
        "PARTITION p3 VALUES LESS THAN (TO_DAYS('2024-01-04')), PARTITION p4 VALUES LESS THAN (TO_DAYS('2024-01-05')))"
    ),
    f"INSERT INTO t SELECT n, DATE_ADD('2024-01-01', INTERVAL n % 4 DAY), n FROM {NUMBERS}",
)
LISTS = (
    "CREATE TABLE t (id INT, day DATE, a INT, PRIMARY KEY (id, day)) PARTITION BY LIST (id) (" + ", ".join(
        f"PARTITION p{rest + 1} VALUES IN ({','.join(str(n) for n in range(1, 500) if n % 3 == rest)})"
        for rest in range(3)
    ) + ")",
    f"INSERT INTO t SELECT n, '2024-01-01', n FROM {NUMBERS}",
)  # fmt: skip

NONE, FOLLOWED, EMPTIED, DELETED = (
    frozenset((said,))
    for said in ("none", "the columns follow", "the table is empty", "rows of the partition are deleted")
)


@dataclass(frozen=True)
class Change:
    """Statements on a table, what is written by the new columns, and what is expected of the job."""

    statements: tuple[str, ...]
    writes: tuple[str, ...] = ()
    create: tuple[str, ...] = PLAIN
    kept: tuple[str, ...] = ()
    """Columns that only the target has in the end."""
    stays: range | None = None
    """Keys of rows that only the target has in the end."""
    copies: int | None = 1
    """How many are begun; None if that depends on how far the job was when it met the statements."""
    by_log: bool = False
    """Whether the new copy reads nothing."""
    effects: frozenset[str] | None = None
    """What is noted of the statements; None of a new copy, and of what only one server logs."""
    meanwhile: bool = False
    """Whether rows can be written by `id` and `a` all the while."""
    policy: Mapping[str, str] = field(default_factory=dict)
    """What the entry of the table in the job's file says."""
    ended: str = ""
    """How the table ends; `_t_old` has its last rows."""
    aside: str = ""
    """A word of the reason for which the table is set aside, until it was copied again after `fix`."""
    refused: str = ""
    """A word of the reason for which the new copy that the statement needs cannot be made, until `fix`."""
    fix: tuple[str, ...] = ()
    only: str = ""
    """The server that knows such statements."""
    database: str = DATABASE


def of_table(statement: str, name: str) -> str:
    """The statement about the table of this name."""
    return re.sub(
        r"(?<![A-Za-z0-9])[tT](?![A-Za-z0-9])", lambda found: name.upper() if found[0] == "T" else name, statement
    )


def cases_on(flavour: str, *, folds: bool) -> dict[str, Change]:
    """Per table of the job what happens to it on such a server; `folds` says that upper and lower case are one."""
    found = {f"t_{re.sub(r'[^a-z0-9]+', '_', kind.lower())}": change for kind, change in CHANGES.items()}
    return {
        name: change
        for name, change in found.items()
        if change.only in ("", flavour) and (folds or name != "t_add_by_a_folded_name")
    }


LONG_AGO = "SET timestamp = UNIX_TIMESTAMP() - 120"
"""The log says that it was two minutes ago: nobody has to wait for a table to come back."""
SAVED = ("CREATE TABLE matrix._t_old LIKE t", "INSERT INTO matrix._t_old SELECT * FROM t")
EMPTY_BESIDE = ("CREATE TABLE _t_old LIKE t", "ALTER TABLE _t_old REMOVE PARTITIONING")
AGAIN = (
    "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, z VARCHAR(9))",
    "INSERT INTO t VALUES (1, 1, 'one'), (7, 7, 'seven'), (9, 9, 'nine')", "DELETE FROM t WHERE id = 9",
)  # fmt: skip

NO_EFFECT = {
    "index": Change(
        ("CREATE INDEX by_a ON t (a)", "ALTER TABLE t ADD UNIQUE u (id, a), ADD FULLTEXT words (b)",
         "ALTER TABLE t RENAME INDEX by_a TO a_by", "DROP INDEX a_by ON t", "CREATE UNIQUE INDEX w ON t (id, b)"),
        ("UPDATE t SET a = a + 1 WHERE id % 7 = 0",), effects=NONE,
    ),
    "spatial index": Change(("ALTER TABLE t ADD SPATIAL INDEX place (g)",), create=PLACES, effects=NONE),
    "comment": Change(
        ("ALTER TABLE t COMMENT = 'x'", "ALTER TABLE t AUTO_INCREMENT = 5000", "ALTER TABLE t STATS_PERSISTENT = 1",
         "ALTER TABLE t ALTER a SET DEFAULT 3", "ALTER TABLE t ALTER a DROP DEFAULT",
         "ALTER TABLE t DEFAULT CHARACTER SET latin1"),
        effects=NONE,
    ),
    "same type": Change(
        ("ALTER TABLE t MODIFY a INT COMMENT 'y'", "ALTER TABLE t MODIFY b VARCHAR(20) FIRST"), effects=NONE | FOLLOWED
    ),
    "rebuild": Change(
        ("ALTER TABLE t ENGINE = InnoDB", "ALTER TABLE t FORCE", "ALTER TABLE t ROW_FORMAT = DYNAMIC", "ANALYZE TABLE t",
         "OPTIMIZE TABLE t", "CHECK TABLE t", "REPAIR TABLE t"),
        effects=NONE,
    ),
    "visibility": Change(
        ("ALTER TABLE t ALTER COLUMN f SET INVISIBLE", "CREATE INDEX by_a ON t (a)", "ALTER TABLE t ALTER INDEX by_a INVISIBLE"),
        effects=NONE, only="mysql",
    ),
    "ignored index": Change(
        ("CREATE INDEX by_a ON t (a)", "ALTER TABLE t ALTER INDEX by_a IGNORED"), effects=NONE, only="mariadb"
    ),
    "constraints": Change(
        ("CREATE TABLE matrix_other.t_parent (id INT PRIMARY KEY)",
         "INSERT INTO matrix_other.t_parent SELECT a FROM t UNION SELECT 5", "ALTER TABLE t ADD CONSTRAINT t_pos CHECK (id > 0)",
         "ALTER TABLE t ADD CONSTRAINT t_fk FOREIGN KEY (a) REFERENCES matrix_other.t_parent (id) ON DELETE RESTRICT",
         "ALTER TABLE t DROP FOREIGN KEY t_fk"),
        effects=NONE,
    ),
    "unique index beside the key": Change(("CREATE UNIQUE INDEX w ON t (a, nr, id)",), create=UNIQUE, effects=NONE),
    "partitions": Change(
        ("ALTER TABLE t PARTITION BY HASH (id) PARTITIONS 3", "ALTER TABLE t ADD PARTITION PARTITIONS 1",
         "ALTER TABLE t COALESCE PARTITION 1", "ALTER TABLE t REBUILD PARTITION p0", "ALTER TABLE t ANALYZE PARTITION p0",
         "ALTER TABLE t PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN (99), PARTITION rest VALUES LESS THAN MAXVALUE)",
         ("ALTER TABLE t REORGANIZE PARTITION rest INTO (PARTITION mid VALUES LESS THAN (150), PARTITION rest VALUES LESS "
         "THAN MAXVALUE)"), "ALTER TABLE t REMOVE PARTITIONING"),
        effects=NONE,
    ),
    "create if it does not exist": Change(("CREATE TABLE IF NOT EXISTS t (x INT)",)),
    "tables of the same name elsewhere": Change(
        ("CREATE TABLE matrix_other.t (id INT PRIMARY KEY)", "ALTER TABLE matrix_other.t ADD c INT", "USE matrix_other",
         "TRUNCATE t", "RENAME TABLE t TO t_away", "DROP TABLE t_away"),
        effects=frozenset(),
    ),
}  # fmt: skip

_COLUMNS = {
    "add": Change(("ALTER TABLE t ADD c INT",), ("UPDATE t SET c = id WHERE id % 5 = 0",)),
    "add first with a default": Change(
        ("ALTER TABLE t ADD c VARCHAR(9) NOT NULL DEFAULT 'new' FIRST",), ("UPDATE t SET c = b WHERE id < 9",)
    ),
    "add without a default": Change(("ALTER TABLE t ADD c INT NOT NULL AFTER id",), ("UPDATE t SET c = 3 WHERE id < 90",)),
    "add at once": Change(
        ("ALTER TABLE t ADD c INT DEFAULT 3, ALGORITHM=INSTANT",), ("UPDATE t SET c = 1 WHERE id % 9 = 0",)
    ),
    "add among comments": Change(
        ("ALTER /* t */ TABLE t /*!50000 ADD COLUMN */ c INT DEFAULT 4 -- , DROP b", "/*!50000 ALTER TABLE t ADD g INT */"),
        ("UPDATE t SET c = 1, g = 2 WHERE id % 9 = 0",),
    ),
    "add from another database": Change(
        ("USE matrix_other", "ALTER TABLE `matrix` . `t` ADD `c` INT DEFAULT 2"), ("UPDATE t SET c = 1 WHERE id % 9 = 0",)
    ),
    "add by a folded name": Change(
        ("ALTER TABLE MATRIX.T ADD c INT DEFAULT 2",), ("UPDATE t SET c = 1 WHERE id % 9 = 0",), only="mariadb"
    ),
    "two in a row": Change(
        ("ALTER TABLE t ADD c INT DEFAULT 4", "ALTER TABLE t ADD g INT DEFAULT 5, DROP b"),
        ("UPDATE t SET c = 1, g = 2 WHERE id % 9 = 0",), kept=("b",),
    ),
    "drop": Change(("ALTER TABLE t DROP b",), ("UPDATE t SET a = 1 WHERE id % 3 = 0",), kept=("b",)),
    "drop in the target too": Change(("ALTER TABLE t DROP b",), policy={"dropped_columns": "drop"}),
    "drop and add again": Change(
        ("ALTER TABLE t DROP b", "ALTER TABLE t ADD b INT DEFAULT 9"), ("UPDATE t SET b = 1 WHERE id % 9 = 0",)
    ),
    "drop before a new copy": Change(("ALTER TABLE t DROP b", "ALTER TABLE t MODIFY a VARCHAR(12)"), copies=2),
    "rename": Change(("ALTER TABLE t RENAME COLUMN b TO d",), ("UPDATE t SET d = 'renamed' WHERE id % 11 = 0",)),
    "change to another name": Change(
        ("ALTER TABLE t CHANGE b d VARCHAR(60) FIRST",), ("UPDATE t SET d = REPEAT('d', 60) WHERE id % 11 = 0",)
    ),
    "rename the key": Change(("ALTER TABLE t RENAME COLUMN id TO nr",), ("UPDATE t SET a = 7 WHERE nr % 11 = 0",)),
    "exchange": Change(
        ("ALTER TABLE t CHANGE a f INT, CHANGE f a FLOAT",), ("UPDATE t SET f = 8, a = 0.5 WHERE id % 6 = 0",)
    ),
    "widen": Change(
        ("ALTER TABLE t MODIFY a BIGINT, MODIFY b VARCHAR(90) NOT NULL, MODIFY f DOUBLE, MODIFY e ENUM('x', 'y', 'z')",),
        ("UPDATE t SET a = 99999999999, b = REPEAT('w', 90), f = 1e200, e = 'z' WHERE id % 4 = 0",),
    ),
    "widen every kind": Change(
        (("ALTER TABLE t MODIFY id BIGINT, MODIFY u BIGINT UNSIGNED, MODIFY d DECIMAL(38,5), MODIFY c CHAR(9), MODIFY v TEXT, "
         "MODIFY tt LONGTEXT, MODIFY vb BLOB, MODIFY bl LONGBLOB, MODIFY s SET('x', 'y', 'z')"),),
        (("UPDATE t SET u = 18446744073709551615, d = 123456789012345678901234567890123.12345, c = 'nine long', v = "
         "REPEAT('v', 400), tt = REPEAT('x', 400), vb = REPEAT('b', 400), bl = REPEAT('b', 400), s = 'x,z' WHERE id % 4 = 0"),
         "INSERT INTO t (id, a) VALUES (9000000000, 1)"),
        create=NARROW,
    ),
    "truncate": Change(("TRUNCATE t",), ("INSERT INTO t VALUES (5, 5, 'five', 5, 'x')",), effects=EMPTIED),
}  # fmt: skip
COLUMNS = {
    kind: replace(
        change, meanwhile=kind != "rename the key", effects=change.effects or (FOLLOWED if change.copies == 1 else None)
    )
    for kind, change in _COLUMNS.items()
}

NEW_COPY = {
    "another type": Change(("ALTER TABLE t MODIFY a VARCHAR(12)",), ("UPDATE t SET a = 'text' WHERE id = 4",), copies=2),
    "another character set": Change(("ALTER TABLE t MODIFY b VARCHAR(20) CHARACTER SET latin1",), copies=2),
    "another collation": Change(("ALTER TABLE t MODIFY b VARCHAR(20) COLLATE utf8mb4_bin",), copies=2),
    "convert": Change(("ALTER TABLE t CONVERT TO CHARACTER SET latin1",), copies=2),
    "fraction of a time": Change(
        ("ALTER TABLE t MODIFY h TIME(3)",), ("UPDATE t SET h = '1:2:3.456' WHERE id < 9",), create=TIMES, copies=2
    ),
    "add a computed column": Change(("ALTER TABLE t ADD g INT AS (a + 1) STORED",), copies=2),
    "change a computed column": Change(("ALTER TABLE t DROP g, ADD g INT AS (id + 2) STORED",), create=COMPUTED, copies=2),
    "widen beside a computed column": Change(("ALTER TABLE t MODIFY f DOUBLE",), create=COMPUTED, copies=2),
    "add with an expression": Change(("ALTER TABLE t ADD c INT DEFAULT (1 + 1)",), copies=2),
    "null becomes zero": Change(
        ("UPDATE t SET a = NULL WHERE id % 19 = 0", "SET SESSION sql_mode = ''", "ALTER TABLE t MODIFY a INT NOT NULL"),
        copies=2,
    ),
    "ignore": Change(
        ("UPDATE t SET b = 'same' WHERE id % 10 = 0", "ALTER IGNORE TABLE t ADD UNIQUE u (b)"), copies=2, only="mariadb"
    ),
    "text of the key grows": Change(
        ("ALTER TABLE t MODIFY id VARCHAR(20)",), ("INSERT INTO t VALUES ('longer than it was', 1)",), create=TEXTS, copies=2
    ),
    "another key": Change(("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)",), copies=2),
    "another key of text": Change(
        ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (a, id)",), create=TEXTS, copies=2
    ),
    "add a primary key": Change(("ALTER TABLE t ADD PRIMARY KEY (nr)",), create=UNIQUE, copies=2),
    "drop a column of the key": Change(
        ("ALTER TABLE t DROP PRIMARY KEY, DROP nr, ADD PRIMARY KEY (id)",), create=PAIRS, copies=2
    ),
    "another unique key": Change(("ALTER TABLE t DROP INDEX u, ADD UNIQUE v (nr)",), create=UNIQUE, copies=2),
    "tablespace": Change(
        ("FLUSH TABLES t FOR EXPORT", "!save", "UNLOCK TABLES", "DELETE FROM t WHERE id % 5 = 0",
         "ALTER TABLE t DISCARD TABLESPACE", "!restore", "ALTER TABLE t IMPORT TABLESPACE"),
        copies=2,
    ),
    "period": Change(("ALTER TABLE t ADD PERIOD FOR p (s, z)",), create=TIMES, copies=2, only="mariadb"),
    "gh-ost": Change(
        ("CREATE /* gh-ost */ TABLE _t_gho LIKE t", "ALTER /* gh-ost */ TABLE _t_gho ADD c INT",
         "INSERT /* gh-ost */ INTO _t_gho SELECT t.*, 1 FROM t", "RENAME /* gh-ost */ TABLE t TO _t_del, _t_gho TO t",
         "DROP TABLE _t_del"),
        ("UPDATE t SET c = 5 WHERE id < 100",), copies=2,
    ),
    "pt-online-schema-change": Change(
        ("CREATE TABLE _t_new LIKE t", "ALTER TABLE _t_new ADD c INT NOT NULL DEFAULT 7",
         "CREATE TRIGGER pt_osc_t_del AFTER DELETE ON t FOR EACH ROW DELETE IGNORE FROM _t_new WHERE _t_new.id <=> OLD.id",
         ("CREATE TRIGGER pt_osc_t_upd AFTER UPDATE ON t FOR EACH ROW REPLACE INTO _t_new (id, a, b, f, e) VALUES "
         "(NEW.id, NEW.a, NEW.b, NEW.f, NEW.e)"),
         "INSERT LOW_PRIORITY IGNORE INTO _t_new (id, a, b, f, e) SELECT id, a, b, f, e FROM t LOCK IN SHARE MODE",
         "UPDATE t SET a = 11 WHERE id % 23 = 0", "DELETE FROM t WHERE id % 29 = 0", "ANALYZE TABLE _t_new",
         "RENAME TABLE t TO _t_old, _t_new TO t", "DROP TABLE IF EXISTS _t_old", "DROP TRIGGER IF EXISTS pt_osc_t_del",
         "DROP TRIGGER IF EXISTS pt_osc_t_upd"),
        ("UPDATE t SET c = 5 WHERE id < 100",), copies=2,
    ),
    "created again": Change(("DROP TABLE t", *AGAIN), copies=2, by_log=True),
    "created again and again": Change(("DROP TABLE t", *AGAIN, "DROP TABLE t", *AGAIN), copies=None, by_log=True),
    "created like another": Change(
        (*SAVED, "DROP TABLE t", "CREATE TABLE t LIKE _t_old", "INSERT INTO t SELECT * FROM _t_old"), copies=2, by_log=True
    ),
    "created with rows": Change(
        (*SAVED, "DROP TABLE t", "CREATE TABLE t (PRIMARY KEY (id)) SELECT id, a, b FROM _t_old"), copies=2
    ),
    "replaced": Change((f"CREATE OR REPLACE{AGAIN[0][6:]}", *AGAIN[1:]), copies=2, by_log=True, only="mariadb"),
}  # fmt: skip


def _of_partitions() -> dict[str, Change]:
    """Each way in which the rows of a partition go, under each policy."""
    ways: dict[str, tuple[str, ...]] = {
        "drop": ("ALTER TABLE t DROP PARTITION low",),
        "truncate": ("ALTER TABLE t TRUNCATE PARTITION low",),
        "exchange": (*EMPTY_BESIDE, "ALTER TABLE t EXCHANGE PARTITION low WITH TABLE _t_old"),
        "convert": ("ALTER TABLE t CONVERT PARTITION low TO TABLE _t_old",),
    }
    return {
        f"{way} partition {policy}": Change(
            statements, ("INSERT INTO t VALUES (500, 5, 'later')",), create=RANGES,
            policy={"dropped_partitions": policy}, copies=2 if policy == "reread" else 1,
            stays=range(1, 100) if policy == "keep" else None, only="mariadb" if way == "convert" else "",
            effects={"delete": DELETED, "keep": NONE}.get(policy),
        )
        for way, statements in ways.items()
        for policy in ("delete", "keep", "reread")
    }  # fmt: skip


PARTITIONS = {
    **_of_partitions(),
    "exchange partition with rows": Change(
        (*EMPTY_BESIDE, "INSERT INTO _t_old VALUES (5, 5, 'came')", "ALTER TABLE t EXCHANGE PARTITION low WITH TABLE _t_old"),
        create=RANGES, copies=2,
    ),
    "table becomes a partition": Change(
        (*EMPTY_BESIDE, "INSERT INTO _t_old VALUES (1500, 5, 'came')",
         "ALTER TABLE t CONVERT TABLE _t_old TO PARTITION more VALUES LESS THAN (2000)"),
        create=RANGES, copies=2, only="mariadb",
    ),
    "truncate partition all": Change(
        ("ALTER TABLE t TRUNCATE PARTITION ALL",), ("INSERT INTO t VALUES (5, 5, 'x')",), create=RANGES,
        effects=EMPTIED,
    ),
    "truncate partition by hash": Change(("ALTER TABLE t TRUNCATE PARTITION p0",), create=HASHES, copies=2),
    "partition that was never seen": Change(
        ("ALTER TABLE t REORGANIZE PARTITION low, mid INTO (PARTITION most VALUES LESS THAN (200))",
         "ALTER TABLE t DROP PARTITION most"),
        create=RANGES, copies=None,
    ),
    "days": Change(
        ("UPDATE t SET a = a + 1 WHERE id % 5 = 0", "ALTER TABLE t DROP PARTITION p1",
         "UPDATE t SET day = '2024-01-03' WHERE day = '2024-01-02' AND id % 10 = 1",
         "ALTER TABLE t ADD PARTITION (PARTITION p5 VALUES LESS THAN (TO_DAYS('2024-01-06')))",
         "INSERT INTO t VALUES (2000, '2024-01-05', 1), (2001, '2024-01-01', 2)", "ALTER TABLE t TRUNCATE PARTITION p2",
         "ALTER TABLE t REORGANIZE PARTITION p3, p4 INTO (PARTITION pz VALUES LESS THAN (TO_DAYS('2024-01-05')))",
         "REPLACE INTO t VALUES (7, '2024-01-02', -7), (150, '2024-01-02', -150)", "DELETE FROM t WHERE day < '2024-01-03'",
         "REPLACE INTO t SELECT id, '2024-01-02', a FROM t WHERE id % 7 = 0", *EMPTY_BESIDE,
         "ALTER TABLE t EXCHANGE PARTITION p2 WITH TABLE _t_old"),
        ("UPDATE t SET a = a + 1 WHERE id % 11 = 0",), create=DAYS, effects=NONE | DELETED,
    ),
    "numbers": Change(
        ("UPDATE t SET a = a + 1 WHERE id % 5 = 0", "ALTER TABLE t DROP PARTITION p1", "ALTER TABLE t TRUNCATE PARTITION p2",
         "INSERT INTO t VALUES (1, '2024-01-01', -1), (4, '2025-01-01', -4), (400, '2025-01-01', 0)"),
        ("UPDATE t SET a = a + 1 WHERE id % 11 = 0",), create=LISTS, effects=DELETED,
    ),
}  # fmt: skip

ENDED = {
    "dropped": Change((*SAVED, LONG_AGO, "DROP TABLE t"), ended="dropped"),
    "renamed": Change((LONG_AGO, "RENAME TABLE t TO _t_old"), ended="renamed"),
    "dropped among others": Change(
        (*SAVED, "CREATE TABLE matrix_other.t_x (id INT)", "CREATE TABLE matrix_other.t_y (id INT)", LONG_AGO,
         "DROP TABLE matrix_other.t_x, t, matrix_other.t_y"),
        ended="dropped",
    ),
    "renamed among others": Change(
        ("CREATE TABLE matrix_other.t_x (id INT)", LONG_AGO,
         "RENAME TABLE matrix_other.t_x TO matrix_other.t_y, t TO _t_old"),
        ended="renamed",
    ),
    "dropped with its database": Change(
        (*SAVED, LONG_AGO, "DROP DATABASE matrix_gone"), ended="dropped", database=GONE
    ),
}  # fmt: skip

SET_ASIDE = {
    "another engine": Change(
        ("ALTER TABLE t ENGINE = MyISAM",), aside="engine", fix=("ALTER TABLE t ENGINE = InnoDB",)
    ),
    "column of a refused character set": Change(
        ("ALTER TABLE t ADD c VARCHAR(9) CHARACTER SET armscii8",), aside="armscii8", fix=("ALTER TABLE t DROP c",)
    ),
    "column of a refused type": Change(
        ("ALTER TABLE t ADD c BLOB COMPRESSED",), aside="COMPRESSED", fix=("ALTER TABLE t DROP c",), only="mariadb"
    ),
    "column of a reserved name": Change(("ALTER TABLE t ADD _op INT",), aside="_op", fix=("ALTER TABLE t DROP _op",)),
    "not understood": Change(("ALTER TABLE t ADD c INT /*M! , ADD g INT */",), aside="several ways"),
    "versions": Change(
        ("ALTER TABLE t ADD SYSTEM VERSIONING",), aside="system-versioned",
        fix=("ALTER TABLE t DROP SYSTEM VERSIONING",), only="mariadb",
    ),
    "no key left": Change(
        ("ALTER TABLE t DROP PRIMARY KEY",), aside="key", fix=("ALTER TABLE t ADD PRIMARY KEY (id)",)
    ),
    "cascade from elsewhere": Change(
        ("CREATE TABLE matrix_other.t_parent (id INT PRIMARY KEY)",
         "INSERT INTO matrix_other.t_parent SELECT a FROM t UNION SELECT 5",
         "ALTER TABLE t ADD CONSTRAINT t_fk FOREIGN KEY (a) REFERENCES matrix_other.t_parent (id) ON DELETE CASCADE",
         "DELETE FROM matrix_other.t_parent WHERE id < 9"),
        refused="_parent is not a table of this job", fix=("ALTER TABLE t DROP FOREIGN KEY t_fk",),
    ),
}  # fmt: skip

CHANGES: Mapping[str, Change] = {**NO_EFFECT, **COLUMNS, **NEW_COPY, **PARTITIONS, **ENDED, **SET_ASIDE}
