"""Rows that are there already have what the server shows for them, statement by statement, on real servers.

Each statement has a table of its own, and all of a list share a session: a test names the statements that are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import pymysql
import pytest

from devkit.mysql import SqlServer
from tests.system.consume_upstream.mysql.schema.followed_table import Followed
from vnode_backfill.words.schema_change import Carried, Emptied, Ended, NewCopy, NoEffect, SetAside, StatementEffect

COLUMNS = """
    id INT PRIMARY KEY, i8 TINYINT, i INT, iu INT UNSIGNED, f FLOAT, d DECIMAL(9,2), v VARCHAR(20),
    l VARCHAR(20) CHARACTER SET latin1, tt TINYTEXT, vb VARBINARY(20), b TINYBLOB, e ENUM('a','b'), s SET('a','b'),
    c CHAR(5), n VARCHAR(5) NOT NULL, dt DATETIME, tm TIME, m MEDIUMINT UNSIGNED, UNIQUE KEY u (i8), KEY k (i)"""
ROWS = (
    """(1, -128, -2147483648, 0, 1.23456789, -1234567.89, 'a  ', 'é', 'x', 'a\\0', '\\0', 'a', 'a,b', 'a ', 'n',
        '2020-01-02 03:04:05', '-838:59:59', 16777215)""",
    """(2, 127, 2147483647, 4294967295, 16777217, 0.10, '名😀', '', '', '', '', 'b', '', '', '',
        '1000-01-01', '00:00:00', 0)""",
    "(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'x', NULL, NULL, NULL)",
    "(4, 0, 0, 1, 0.1, 5, '', 'ÿ', 'tiny', X'FF00', X'FFFE', 'a', 'b', 'ab', 'n', '9999-12-31', '838:59:59', 7)",
)

NONE = (
    "ALTER TABLE t ADD INDEX (v)", "CREATE INDEX x ON t (v)", "ALTER TABLE t DROP INDEX k", "ALTER TABLE t COMMENT 'x'",
    "ALTER TABLE t AUTO_INCREMENT = 100", "ALTER TABLE t ALTER i SET DEFAULT 5", "ALTER TABLE t ENGINE=InnoDB",
    "ALTER TABLE t FORCE", "ALTER TABLE t ROW_FORMAT=DYNAMIC", "OPTIMIZE TABLE t", "ANALYZE TABLE t",
    "ALTER TABLE t ADD UNIQUE (iu)", "DROP INDEX u ON t", "ALTER TABLE t RENAME INDEX k TO kk",
    "ALTER TABLE t ADD CONSTRAINT positive CHECK (id > 0)", "ALTER TABLE t ORDER BY v, i DESC",
    "ALTER TABLE t DEFAULT CHARACTER SET latin1", "ALTER TABLE t MODIFY i INT COMMENT 'x'",
    "ALTER TABLE t STATS_PERSISTENT=1 STATS_SAMPLE_PAGES=20", "CREATE TABLE IF NOT EXISTS t (x INT)",
    "ALTER TABLE t ALTER i SET DEFAULT 3, ALTER v DROP DEFAULT", "ALTER TABLE t MODIFY f FLOAT DEFAULT 5",
)  # fmt: skip
CARRIED = (
    "ADD x INT", "ADD x INT FIRST", "ADD x INT AFTER v, ADD y INT AFTER x", "ADD (x INT, y INT, KEY (x))",
    "ADD x INT DEFAULT 5", "ADD x INT NOT NULL DEFAULT -5", "ADD x INT NOT NULL", "ADD x BIGINT UNSIGNED NOT NULL",
    "ADD x BIGINT UNSIGNED DEFAULT 18446744073709551615", "ADD x INT(8) ZEROFILL DEFAULT 7", "ADD x BOOLEAN DEFAULT TRUE",
    "ADD x DECIMAL(9,3) DEFAULT 1.5", "ADD x DECIMAL(9,3) NOT NULL", "ADD x DECIMAL(38,10) DEFAULT -0.0000000001",
    "ADD x FLOAT DEFAULT 1.23456789", "ADD x FLOAT DEFAULT 16777217", "ADD x FLOAT DEFAULT -0.1", "ADD x FLOAT NOT NULL",
    "ADD x DOUBLE DEFAULT 1.2345678901234567", "ADD x DOUBLE DEFAULT 1e300", "ADD x DOUBLE NOT NULL",
    "ADD x VARCHAR(20) DEFAULT 'it''s'", "ADD x VARCHAR(20) DEFAULT ''", "ADD x VARCHAR(20) DEFAULT 'NULL'",
    "ADD x VARCHAR(20) DEFAULT 'a 😀 b'", "ADD x VARCHAR(20) DEFAULT 'a  '", "ADD x CHAR(9) DEFAULT 'a  '",
    "ADD x VARCHAR(20) CHARACTER SET latin1 DEFAULT 'é'", 'ADD x VARCHAR(20) DEFAULT "current_timestamp()"',
    "ADD x VARCHAR(20) NOT NULL", "ADD x TEXT NOT NULL", "ADD x BLOB NOT NULL", "ADD x VARBINARY(5) NOT NULL",
    "ADD x BINARY(5) NOT NULL", "ADD x BINARY(5)", "ADD x CHAR(5) NOT NULL", "ADD x BIT(1) NOT NULL", "ADD x BIT(10) NOT NULL",
    "ADD x BIT(1) DEFAULT 1", "ADD x BIT(10) DEFAULT b'101'", "ADD x DATE DEFAULT '2020-01-02'", "ADD x DATE",
    "ADD x DATETIME(3) DEFAULT '2020-01-02 03:04:05.678'", "ADD x DATETIME(6) DEFAULT '2020-01-02 03:04:05'",
    "ADD x DATETIME NULL ON UPDATE CURRENT_TIMESTAMP", "ADD x TIMESTAMP NULL", "ADD x TIME(2) DEFAULT '-10:11:12.13'",
    "ADD x TIME DEFAULT '100:00:00'", "ADD x TIME NOT NULL", "ADD x TIME(3) NOT NULL", "ADD x YEAR DEFAULT 2020", "ADD x YEAR NOT NULL",
    "ADD x ENUM('x','y') DEFAULT 'y'", "ADD x ENUM('x','y') NOT NULL", "ADD x SET('x','y') DEFAULT 'x,y'",
    "ADD x SET('x','y') NOT NULL", "ADD x JSON", "ADD x POINT", "ADD x INT UNIQUE",
    "DROP v", "DROP v, DROP COLUMN f", "DROP v, ADD v INT DEFAULT 3", "DROP i, RENAME COLUMN v TO i", "RENAME COLUMN v TO w",
    "RENAME COLUMN v TO V", "RENAME COLUMN v TO i, RENAME COLUMN i TO v", "CHANGE v w VARCHAR(20)", "CHANGE v w VARCHAR(40) FIRST",
    "CHANGE v i VARCHAR(20), CHANGE i v INT", "RENAME COLUMN id TO k", "CHANGE id k BIGINT", "MODIFY v VARCHAR(20) FIRST",
    "MODIFY v VARCHAR(20) AFTER id, MODIFY i INT AFTER v, ADD x INT AFTER i", "MODIFY id BIGINT", "MODIFY id INT AFTER v",
    "MODIFY i8 INT", "MODIFY i8 BIGINT", "MODIFY i BIGINT", "MODIFY iu BIGINT UNSIGNED", "MODIFY m INT UNSIGNED",
    "MODIFY m BIGINT UNSIGNED", "MODIFY f DOUBLE", "MODIFY d DECIMAL(12,5)", "MODIFY d DECIMAL(38,2)", "MODIFY v VARCHAR(300)",
    "MODIFY v TEXT", "MODIFY l VARCHAR(300) CHARACTER SET latin1", "MODIFY tt LONGTEXT", "MODIFY vb VARBINARY(300)",
    "MODIFY vb BLOB", "MODIFY b LONGBLOB", "MODIFY e ENUM('a','b','c')", "MODIFY s SET('a','b','c','d','e','f','g','h','i')",
    "MODIFY c CHAR(9)", "MODIFY n VARCHAR(5) NULL", "MODIFY n VARCHAR(50) NULL",
)  # fmt: skip
MARIADB_CARRIED = (
    "ADD x TEXT DEFAULT 'abc'", "ADD COLUMN IF NOT EXISTS x INT, ADD COLUMN IF NOT EXISTS v INT", "DROP COLUMN IF EXISTS v",
    "WAIT 5 ADD x INT", "ADD x INT INVISIBLE DEFAULT 3", "ADD x UUID NOT NULL", "ADD x UUID",
    "ADD x INET4 NOT NULL", "ADD x INET6 NOT NULL", "ADD x INET6 DEFAULT '::1'",
    "ADD x UUID DEFAULT '6CCD780C-BABA-1026-9564-5B8C656024DB'", "MODIFY IF EXISTS nothing INT, DROP v",
)  # fmt: skip
MYSQL_CARRIED = (
    "ADD x JSON NOT NULL",
    "ADD x INT DEFAULT 3 INVISIBLE",
    "ADD x INT DEFAULT 3, ALGORITHM=INSTANT",
    "ADD x INT FIRST, ALGORITHM=INSTANT",
)
NEW_COPY = (
    "ADD x INT DEFAULT (1 + 1)", "ADD x DATETIME DEFAULT CURRENT_TIMESTAMP", "ADD x VARCHAR(40) DEFAULT (CONCAT('a', 'b'))",
    "ADD x INT AS (i + 1)", "ADD x INT AS (id + 1) STORED", "ADD x TIMESTAMP NULL DEFAULT '2020-01-02 03:04:05'",
    "ADD x VARBINARY(9) DEFAULT X'FF00'", "ADD x VARCHAR(9) DEFAULT 'a\\0b'",
    "ADD x DATE NOT NULL", "MODIFY i SMALLINT UNSIGNED", "MODIFY v VARCHAR(5)", "MODIFY v VARCHAR(20) CHARACTER SET utf16",
    "MODIFY v VARCHAR(20) COLLATE utf8mb4_bin", "MODIFY tm TIME(3)", "MODIFY dt DATE", "MODIFY f FLOAT(9,1)",
    "MODIFY i INT NOT NULL", "MODIFY e ENUM('b','a')", "CONVERT TO CHARACTER SET utf16", "MODIFY c VARCHAR(5)",
    "DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)", "ADD x INT AUTO_INCREMENT UNIQUE",
)  # fmt: skip


in_turns = pytest.mark.parametrize(
    ("source_server", "turn"),
    [
        pytest.param(server, turn, marks=() if first == turn else pytest.mark.long)
        for first, server in enumerate(("mysql", "mariadb"))
        for turn in (0, 1)
    ],
    indirect=["source_server"],
)
"""Every other statement on one server and the rest on the other; what is left is left to the long tests."""


@pytest.fixture
def followed(source_server: SqlServer, database: str) -> Followed:
    found = Followed(source_server, database)
    begin(found)
    return found


def begin(followed: Followed) -> None:
    """Make the table again, with its rows."""
    followed.run("SET SESSION sql_mode = ''", "DROP TABLE IF EXISTS t")
    followed.run(f"CREATE TABLE t ({COLUMNS}) DEFAULT CHARACTER SET utf8mb4")
    followed.run(f"INSERT INTO t VALUES {', '.join(ROWS)}")
    followed.begin()


def wrong_ones(followed: Followed, statements: Sequence[str], effect: type[StatementEffect]) -> dict[str, object]:
    """The statements that have another effect, or after which the rows are not what the server shows."""
    wrong: dict[str, object] = {}
    for statement in statements:
        begin(followed)
        refused: list[str] = []
        effects = followed.follow(statement, refused=refused)
        if not all(isinstance(each, effect) for each in effects) or (effect is not NoEffect and len(effects) != 1):
            wrong[statement] = refused or effects
        elif effect is not NewCopy and (found := refused or followed.differences()):
            wrong[statement] = found
    return wrong


def altered(clauses: Sequence[str]) -> list[str]:
    return [f"ALTER TABLE t {each}" for each in clauses]


@in_turns
def test_statement_has_no_effect(followed: Followed, turn: int) -> None:
    assert wrong_ones(followed, NONE[turn::2], NoEffect) == {}


@in_turns
def test_rows_that_are_there_have_what_the_server_shows(followed: Followed, turn: int) -> None:
    assert wrong_ones(followed, altered(CARRIED[turn::2]), Carried) == {}


@pytest.mark.parametrize(
    ("source_server", "clauses"), [("mysql", MYSQL_CARRIED), ("mariadb", MARIADB_CARRIED)], indirect=["source_server"]
)
def test_rows_have_what_this_server_alone_shows(followed: Followed, clauses: Sequence[str]) -> None:
    assert wrong_ones(followed, altered(clauses), Carried) == {}


@in_turns
def test_what_the_server_computes_or_converts_is_a_new_copy(followed: Followed, turn: int) -> None:
    assert wrong_ones(followed, altered(NEW_COPY[turn::2]), NewCopy) == {}


@pytest.mark.parametrize(
    ("clauses", "effect"), [("MODIFY i INT NOT NULL", Carried), ("MODIFY ts TIMESTAMP NOT NULL", NewCopy)]
)
def test_column_that_a_strict_session_makes_not_null_held_no_null(
    followed: Followed, clauses: str, effect: type[StatementEffect]
) -> None:
    followed.run("ALTER TABLE t ADD ts TIMESTAMP NULL", "SET SESSION sql_mode = 'STRICT_TRANS_TABLES'")
    with pytest.raises(pymysql.Error):
        followed.run("ALTER TABLE t MODIFY i INT NOT NULL")
    followed.run("UPDATE t SET i = COALESCE(i, 0), ts = '2024-01-01'")
    followed.begin()
    (found,) = followed.follow(f"ALTER TABLE t {clauses}")
    assert isinstance(found, effect)
    assert effect is NewCopy or followed.differences() == []


def test_truncated_table_is_empty(followed: Followed) -> None:
    assert followed.follow("TRUNCATE t") == [Emptied(followed.definition)]
    assert followed.differences() == []


def test_table_that_is_gone_ends_and_one_that_comes_is_a_new_copy(followed: Followed) -> None:
    swap = "RENAME TABLE t TO _t_del, _t_gho TO t"
    followed.run("CREATE TABLE _t_gho LIKE t")
    (effect,) = followed.follow(swap)
    assert isinstance(effect, NewCopy)
    assert followed.follow("RENAME TABLE t TO away") == [Ended("renamed")]
    (created,) = followed.follow("CREATE TABLE t LIKE away")
    assert isinstance(created, NewCopy)
    assert followed.follow("DROP TABLE t") == [Ended("dropped")]


def test_partitions_keep_or_lose_rows(followed: Followed) -> None:
    parts = "(PARTITION p0 VALUES LESS THAN (2), PARTITION p1 VALUES LESS THAN MAXVALUE)"
    followed.run("ALTER TABLE t DROP INDEX u")
    followed.begin()
    assert followed.follow(f"ALTER TABLE t PARTITION BY RANGE (id) {parts}") == [NoEffect()]
    reorganised = "(PARTITION p1 VALUES LESS THAN (4), PARTITION p2 VALUES LESS THAN MAXVALUE)"
    assert followed.follow(f"ALTER TABLE t REORGANIZE PARTITION p1 INTO {reorganised}") == [NoEffect()]
    assert followed.differences() == []
    assert followed.follow("ALTER TABLE t DROP PARTITION p0, p2") == [NewCopy("DROP PARTITION p0, p2")]


@pytest.mark.parametrize(
    "clauses", ["ENGINE=MyISAM", "ADD FOREIGN KEY (iu) REFERENCES parent (id) ON DELETE CASCADE", "ADD _op INT"]
)
def test_table_that_cannot_be_copied_any_more_is_set_aside(followed: Followed, clauses: str) -> None:
    followed.run(
        "CREATE TABLE parent (id INT UNSIGNED PRIMARY KEY)", "INSERT INTO parent VALUES (0), (1), (4294967295)"
    )
    (effect,) = followed.follow(f"ALTER TABLE t {clauses}")
    assert isinstance(effect, SetAside)


def test_default_that_a_later_statement_changes_is_a_new_copy(followed: Followed) -> None:
    (effect,) = followed.follow("ALTER TABLE t ADD x INT DEFAULT 5", "ALTER TABLE t ALTER x SET DEFAULT 6")
    assert isinstance(effect, NewCopy)


def test_chain_of_statements_is_followed_from_both_ends(followed: Followed) -> None:
    effects = followed.follow(
        "ALTER TABLE t ADD x INT DEFAULT 5 AFTER id", "ALTER TABLE t MODIFY i BIGINT, RENAME COLUMN v TO w", "CREATE INDEX n ON t (x)",
        "ALTER TABLE t RENAME COLUMN x TO y, DROP l", "ALTER TABLE t RENAME COLUMN i TO w, RENAME COLUMN w TO i",
    )  # fmt: skip
    assert [type(effect) for effect in effects] == [Carried, Carried, NoEffect, Carried, Carried]
    assert followed.differences() == []
