"""What the reader cannot take exactly stops it with the reason; what it can take, it takes."""

from __future__ import annotations

import pytest

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from tests.system.consume_upstream.mysql.binlog.log_source import LogSource
from vnode_backfill.words.errors import LogFormatError, SchemaChangedError

COLUMNS = "id INT PRIMARY KEY, a INT, b VARCHAR(20)"


@pytest.fixture
def source(source_server: SqlServer, database: str) -> LogSource:
    return LogSource(source_server, database).create(COLUMNS)


@pytest.fixture
def mysql(mysql_server: MySqlServer) -> LogSource:
    return _fresh(mysql_server).create(COLUMNS)


@pytest.fixture
def mariadb(mariadb_server: MariaDbServer) -> LogSource:
    return _fresh(mariadb_server).create(COLUMNS)


def _fresh(server: SqlServer) -> LogSource:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS refusals")
        cursor.execute("CREATE DATABASE refusals")
    return LogSource(server, "refusals")


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD c INT", "/* a */ alter /* b */ table t drop a", "TRUNCATE t",
        "TRUNCATE TABLE t", "DROP TABLE t", "RENAME TABLE t TO u", "DROP TABLE IF EXISTS x, t",
        "ALTER TABLE t RENAME TO u",
    ],
)  # fmt: skip
def test_statement_that_may_change_the_table_stops_the_reader(source: LogSource, statement: str) -> None:
    source.run("INSERT INTO t VALUES (1, 1, 'x')", statement)
    with pytest.raises(SchemaChangedError, match="may change table"):
        source.read()


@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE `t` COMMENT 'x'", "/* a */ alter /* b */ table t engine=InnoDB", "CREATE INDEX i ON t (a)"],
)
def test_statement_that_changes_neither_rows_nor_columns_is_passed_over(source: LogSource, statement: str) -> None:
    source.run("INSERT INTO t VALUES (1, 1, 'x')", statement, "INSERT INTO t VALUES (2, 2, 'y')")
    assert sum(len(batch) for batch in source.batches()) == 2


def test_dropped_database_stops_the_reader(source: LogSource) -> None:
    source.run(f"DROP DATABASE {source.database}")
    with pytest.raises(SchemaChangedError):
        source.read()


def test_statements_about_other_tables_are_passed_over(source: LogSource) -> None:
    source.run(
        "CREATE TABLE t2 LIKE t", "ALTER TABLE t2 ADD t INT", "INSERT INTO t SELECT 1, 1, 'x'",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE TABLE t3 AS SELECT * FROM t", "CREATE TEMPORARY TABLE t (x INT)", "DROP TEMPORARY TABLE t",
        "DROP TABLE t2, t3",
        "DROP VIEW v", "CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET NEW.a = 7",
        "INSERT INTO t VALUES (2, 2, NULL)",
        "CREATE PROCEDURE p() UPDATE t SET a = a + 1", "CALL p()", "ANALYZE TABLE t",
    )  # fmt: skip
    assert source.differences(source.read()) == []


def test_statement_in_a_skipped_transaction_does_not_stop_the_reader(source: LogSource) -> None:
    source.run("ALTER TABLE t ADD c INT")
    assert [len(batch) for batch in source.batches(skip_gtids=lambda _: True)] == [0]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("id INT PRIMARY KEY, a BIGINT, b VARCHAR(20)", "column a"),
        ("id INT PRIMARY KEY, a INT UNSIGNED, b VARCHAR(20)", "column a"),
        ("id INT PRIMARY KEY, a INT, b VARCHAR(21)", "column b"),
        ("id INT PRIMARY KEY, a INT, b VARCHAR(20) CHARACTER SET latin1", "column b"),
        ("id INT PRIMARY KEY, a INT, c VARCHAR(20)", "column c"),
        ("id INT PRIMARY KEY, b INT, a VARCHAR(20)", "column b"),
        ("id INT PRIMARY KEY, a INT", "2 columns"),
    ],
)
def test_other_definition_in_the_log_names_the_column(source: LogSource, columns: str, named: str) -> None:
    source.run("DROP TABLE t", f"CREATE TABLE t ({columns})")
    source.start = source.position()
    source.run("INSERT INTO t (id) VALUES (1)")
    with pytest.raises(SchemaChangedError, match=named):
        source.read()


@pytest.mark.parametrize(
    ("stored", "now", "named"),
    [
        ("DECIMAL(10,2)", "DECIMAL(10,3)", "column c"),
        ("DATETIME(3)", "DATETIME(6)", "column c"),
        ("ENUM('a','b')", "ENUM('b','a')", "labels of column c"),
        ("SET('a','b')", "SET('a','b','c')", "labels of column c"),
        ("BIT(7)", "BIT(8)", "column c"),
        ("CHAR(10)", "CHAR(300)", "column c"),
        ("TEXT", "MEDIUMTEXT", "column c"),
    ],
)
def test_other_type_in_the_log_names_the_column(
    source_server: SqlServer, database: str, stored: str, now: str, named: str
) -> None:
    if now == "CHAR(300)":
        now = "CHAR(11)"
    source = LogSource(source_server, database).create(f"id INT PRIMARY KEY, c {stored}")
    source.run("DROP TABLE t", f"CREATE TABLE t (id INT PRIMARY KEY, c {now})")
    source.start = source.position()
    source.run("INSERT INTO t (id) VALUES (1)")
    with pytest.raises(SchemaChangedError, match=named):
        source.read()


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO t VALUES (2, 1, 'x')", "UPDATE t SET a = 1", "DELETE FROM t", "REPLACE t SELECT 1, 1, 'x'"],
)
def test_changes_logged_as_statements_are_refused(source: LogSource, statement: str) -> None:
    source.run("INSERT INTO t VALUES (1, 5, 'x')")
    source.start = source.position()
    source.run(
        "SET SESSION binlog_format = STATEMENT", "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", statement
    )
    with pytest.raises(LogFormatError, match="as a statement"):
        source.read()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO bait VALUES (2)",
        "SELECT adds(2)",
        "UPDATE seen SET a = 1",
        "INSERT INTO plain SELECT COUNT(*) FROM t",
    ],
)
def test_statements_that_may_reach_the_table_are_refused(source: LogSource, statement: str) -> None:
    """A trigger, a function and a view reach it; the last one does not, which the log does not say."""
    source.run(
        "SET GLOBAL log_bin_trust_function_creators = 1", "INSERT INTO t VALUES (1, 5, 'x')",
        "CREATE TABLE bait (n INT)", "CREATE TABLE plain (n INT)",
        "CREATE TRIGGER springs AFTER INSERT ON bait FOR EACH ROW INSERT INTO t VALUES (NEW.n, 1, 'x')",
        "CREATE VIEW seen AS SELECT * FROM t",
        "CREATE FUNCTION adds(i INT) RETURNS INT BEGIN INSERT INTO t VALUES (i, 1, 'x'); RETURN i; END",
    )  # fmt: skip
    assert len(source.read().operations) == 1
    source.run("SET SESSION binlog_format = STATEMENT", statement)
    with pytest.raises(LogFormatError, match="as a statement"):
        source.read()


def test_statements_on_other_databases_are_taken_where_the_server_names_them(source: LogSource) -> None:
    """MySQL says which databases a statement changes.

    MariaDB does not, but no trigger is possible in its own schema.
    """
    aside = f"{source.database}_aside" if source.flavour == "mysql" else "mysql"
    source.run(f"CREATE DATABASE IF NOT EXISTS {aside}", f"CREATE TABLE {aside}.beats (n INT)")
    try:
        source.run("SET SESSION binlog_format = STATEMENT", f"INSERT INTO {aside}.beats (n) VALUES (1)")
        source.run("SET SESSION binlog_format = ROW", "INSERT INTO t VALUES (1, 5, 'x')")
        assert source.differences(source.read()) == []
    finally:
        source.run(f"DROP TABLE {aside}.beats" if aside == "mysql" else f"DROP DATABASE {aside}")


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_partial_row_image_is_refused(source_server: SqlServer, database: str, image: str) -> None:
    source = LogSource(source_server, database).create("id INT PRIMARY KEY, a INT, b TEXT")
    source.run("INSERT INTO t VALUES (1, 1, 'x')", f"SET SESSION binlog_row_image = {image}", "UPDATE t SET a = 2")
    with pytest.raises(LogFormatError, match="does not hold every column"):
        source.read()


def test_partial_json_update_is_refused(mysql_server: MySqlServer) -> None:
    source = _fresh(mysql_server).create("id INT PRIMARY KEY, d JSON")
    source.run('INSERT INTO t VALUES (1, \'{"a": "long enough to be worth it", "b": 2}\')')
    source.run("SET SESSION binlog_row_value_options = PARTIAL_JSON", "UPDATE t SET d = JSON_SET(d, '$.b', 3)")
    with pytest.raises(LogFormatError, match="part of a JSON value"):
        source.read()


def test_xa_prepare_that_touches_the_table_is_refused(source: LogSource) -> None:
    source.run("XA START 'x1'", "INSERT INTO t VALUES (1, 1, 'x')", "XA END 'x1'", "XA PREPARE 'x1'")
    try:
        with pytest.raises(LogFormatError, match="XA PREPARE touches the table"):
            source.read()
    finally:
        source.run("XA COMMIT 'x1'")


def test_xa_of_other_tables_and_one_phase_is_taken(source: LogSource) -> None:
    source.run(
        "CREATE TABLE other (a INT)", "XA START 'x2'", "INSERT INTO other VALUES (1)", "XA END 'x2'", "XA PREPARE 'x2'"
    )
    source.run(
        "XA COMMIT 'x2'", "XA START 'x3'", "INSERT INTO t VALUES (1, 1, 'x')", "XA END 'x3'", "XA COMMIT 'x3' ONE PHASE"
    )
    source.run("INSERT INTO t VALUES (2, 1, 'x')")
    changes = source.read()
    assert source.differences(changes) == []
    ends = [t.end for t in changes.transactions]
    assert ends[:-1] == [t.start for t in changes.transactions[1:]]


def test_rows_that_the_log_takes_back_are_refused(mariadb: LogSource) -> None:
    """MariaDB logs ROLLBACK TO as a statement when the transaction also wrote to a table without transactions."""
    mariadb.run("CREATE TABLE plain (a INT) ENGINE=MyISAM", "BEGIN", "INSERT INTO t VALUES (1, 1, 'x')", "SAVEPOINT s")
    mariadb.run("INSERT INTO plain VALUES (1)", "UPDATE t SET a = 2", "ROLLBACK TO s", "COMMIT")
    with pytest.raises(LogFormatError, match="takes back changes"):
        mariadb.read()


def test_rollback_beside_a_table_without_transactions_leaves_nothing(mariadb: LogSource) -> None:
    mariadb.run(
        "CREATE TABLE plain (a INT) ENGINE=MyISAM",
        "BEGIN",
        "INSERT INTO t VALUES (2, 1, 'x')",
        "INSERT INTO plain VALUES (2)",
    )
    mariadb.run("ROLLBACK", "INSERT INTO t VALUES (3, 1, 'x')")
    assert mariadb.differences(mariadb.read()) == []


def test_compressed_transactions_are_unpacked(mysql: LogSource) -> None:
    mysql.run("CREATE TABLE other (a INT)", "SET SESSION binlog_transaction_compression = ON", "BEGIN")
    for i in range(50):
        mysql.run(f"INSERT INTO t VALUES ({2 * i}, {i}, REPEAT('x', {i % 20})), ({2 * i + 1}, NULL, NULL)")
        mysql.run(f"INSERT INTO other VALUES ({i})")
    mysql.run(
        "COMMIT",
        "UPDATE t SET a = 5 WHERE id < 10",
        "SET SESSION binlog_transaction_compression = OFF",
        "DELETE FROM t WHERE id = 3",
    )
    changes = mysql.read()
    assert mysql.differences(changes) == []
    assert changes.offsets == sorted(set(changes.offsets))
    assert len({pos for _, pos, _ in changes.offsets[:100]}) == 1


def test_large_compressed_transaction_keeps_its_order(mysql: LogSource) -> None:
    mysql.run("SET SESSION binlog_transaction_compression = ON", "SET SESSION cte_max_recursion_depth = 1000000")
    mysql.run(
        "INSERT INTO t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000) SELECT i, i, REPEAT('y', 20) FROM n"
    )
    changes = mysql.read()
    assert [row for _, _, row in changes.offsets] == list(range(200_000))
    assert [after["id"] for _, _, after in changes] == list(range(1, 200_001))


def test_compressed_events_of_mariadb_are_unpacked() -> None:
    with MariaDbServer({"log-bin-compress": "ON", "log-bin-compress-min-len": "10"}) as server:
        source = _fresh(server).create(COLUMNS)
        source.run("INSERT INTO t VALUES " + ", ".join(f"({i}, {i}, 'abcabcabc')" for i in range(1000)))
        source.run(
            "UPDATE t SET b = 'x' WHERE id % 2",
            "DELETE FROM t WHERE id % 3 = 0",
            "CREATE TABLE a_longer_statement (b INT, c INT)",
        )
        changes = source.read()
        assert sorted(set(changes.operations)) == [0, 1, 2]
        assert source.differences(changes) == []
        source.run("ALTER TABLE t ADD a_rather_long_column_name_here INT")
        with pytest.raises(SchemaChangedError):
            source.read()


def test_compressed_column_of_mariadb_is_refused(mariadb_server: MariaDbServer) -> None:
    source = _fresh(mariadb_server).create("id INT PRIMARY KEY, c TEXT COMPRESSED")
    source.run("INSERT INTO t VALUES (1, REPEAT('x', 1000))")
    with pytest.raises(LogFormatError, match=r"column c .* is COMPRESSED"):
        source.read()


def test_old_temporal_format_is_refused(mariadb_server: MariaDbServer) -> None:
    source = _fresh(mariadb_server)
    source.run("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        source.create("id INT PRIMARY KEY, d DATETIME(3)")
        source.run("INSERT INTO t VALUES (1, '2024-01-01')")
        with pytest.raises(LogFormatError, match="old temporal format"):
            source.read()
    finally:
        source.run("SET GLOBAL mysql56_temporal_format = ON")


def test_log_without_gtids_is_read() -> None:
    with MySqlServer({"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}) as server:
        source = _fresh(server).create(COLUMNS)
        source.run("INSERT INTO t VALUES (1, 1, 'x')", "UPDATE t SET a = 2")
        changes = source.read()
        assert [t.gtid for t in changes.transactions] == ["", ""]
        assert source.differences(changes) == []
