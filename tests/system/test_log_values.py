"""Every type, with NULL and its limits: the log yields the value that a SELECT yields, in both images of a change."""

from __future__ import annotations

import pytest

from consume_upstream.mysql.snapshot import SnapshotReader
from devkit.mysql import SqlServer
from tests.system.log_source import LogSource
from vnode_backfill.errors import LogFormatError
from vnode_backfill.keys import KeyRange

NUMBERS = (
    ("TINYINT", "-128", "127", "0"),
    ("TINYINT UNSIGNED", "0", "255", "128"),
    ("SMALLINT", "-32768", "32767"),
    ("SMALLINT UNSIGNED", "0", "65535"),
    ("MEDIUMINT", "-8388608", "8388607", "-1"),
    ("MEDIUMINT UNSIGNED", "0", "16777215"),
    ("INT", "-2147483648", "2147483647"),
    ("INT UNSIGNED ZEROFILL", "0", "4294967295"),
    ("BIGINT", "-9223372036854775808", "9223372036854775807"),
    ("BIGINT UNSIGNED", "0", "18446744073709551615", "9223372036854775808"),
    ("DECIMAL(1,0)", "-9", "9", "0"),
    ("DECIMAL(4,4)", "-0.9999", "0.0001"),
    ("DECIMAL(9,2)", "-9999999.99", "0.01"),
    ("DECIMAL(18,0)", "-999999999999999999", "999999999999999999"),
    ("DECIMAL(19,9)", "-9999999999.999999999", "0.000000001"),
    ("DECIMAL(38,0)", "-" + "9" * 38, "9" * 38, "1"),
    ("DECIMAL(38,30)", "-99999999." + "9" * 30, "0." + "0" * 29 + "1"),
    ("DECIMAL(39,5)", "-" + "9" * 34 + ".99999", "0.00001", "0"),
    ("DECIMAL(65,30)", "-" + "9" * 35 + "." + "9" * 30, "1.5"),
    ("DECIMAL(65,0)", "9" * 65, "-1"),
    ("FLOAT", "-3.4028235e38", "1.1754944e-38", "0.1", "16777217"),
    ("DOUBLE", "-1.7976931348623157e308", "5e-324", "0.1", "-0.0"),
    ("BIT(1)", "b'0'", "b'1'"),
    ("BIT(8)", "b'0'", "b'11111111'"),
    ("BIT(13)", "b'1'", "b'1000000000001'"),
    ("BIT(64)", "b'0'", "b'1" + "0" * 62 + "1'"),
)
TIMES = (
    ("DATE", "'0001-01-01'", "'9999-12-31'", "'1970-01-01'", "'2000-02-29'", "'1900-03-01'"),
    ("DATETIME", "'0001-01-01 00:00:00'", "'9999-12-31 23:59:59'"),
    ("DATETIME(1)", "'1969-12-31 23:59:59.9'", "'2024-02-29 12:00:00.1'"),
    ("DATETIME(3)", "'1969-12-31 23:59:59.999'", "'2024-02-29 12:00:00.001'"),
    ("DATETIME(6)", "'1000-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.499999'"),
    ("TIMESTAMP NULL", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"),
    ("TIMESTAMP(2) NULL", "'1970-01-01 00:00:01.01'", "'2038-01-19 03:14:07.99'"),
    ("TIMESTAMP(6) NULL", "'1970-01-01 00:00:01.000001'", "'2038-01-19 03:14:07.999999'"),
    ("TIME", "'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'"),
    ("TIME(1)", "'-00:00:00.1'", "'12:34:56.7'"),
    ("TIME(3)", "'-838:59:58.999'", "'838:59:58.001'"),
    ("TIME(4)", "'-00:00:00.0001'", "'00:00:00.9999'"),
    ("TIME(6)", "'-00:00:00.000001'", "'838:59:58.999999'", "'-12:00:00'"),
    ("YEAR", "1901", "2155", "0"),
)
TEXTS = (
    ("CHAR(5)", "''", "'ab  '", "'ä€😀xy'", "'  x'"),
    ("CHAR(0)", "''"),
    ("CHAR(255)", "REPEAT('€', 255)", "''"),
    ("VARCHAR(10)", "''", "'ab  '", "REPEAT('😀', 10)"),
    ("VARCHAR(1000)", "REPEAT('x', 1000)", "'é'"),
    ("CHAR(20) CHARACTER SET latin1", "'aé€ '", "_latin1 x'8081FF'"),
    ("VARCHAR(40) CHARACTER SET latin1", "'Grüße'", "_latin1 x'818D8F909DA0'", "''"),
    ("VARCHAR(20) CHARACTER SET utf8mb3", "'äöü€'", "''"),
    ("VARCHAR(20) CHARACTER SET ascii", "'plain'", "''"),
    ("VARCHAR(20) CHARACTER SET ucs2", "'aä€'", "''"),
    ("CHAR(20) CHARACTER SET utf16", "'aä€😀'", "''"),
    ("VARCHAR(20) CHARACTER SET utf32", "'aä€😀'", "''"),
    ("VARCHAR(20) CHARACTER SET sjis", "'日本語ｱ'", "_sjis x'815F'"),
    ("VARCHAR(20) CHARACTER SET gbk", "'中文'", "''"),
    ("VARCHAR(20) CHARACTER SET koi8r", "'Привет'", "''"),
    ("VARCHAR(20) CHARACTER SET greek", "'αβγ'", "_greek x'A1A2A4'"),
    ("TINYTEXT", "''", "REPEAT('t', 255)"),
    ("TEXT", "''", "REPEAT('ä', 30000)"),
    ("MEDIUMTEXT", "'m'", "REPEAT('m', 70000)"),
    ("LONGTEXT", "'l'", "REPEAT('l', 100000)"),
    ("BINARY(4)", "x'00000000'", "x'01020000'", "x'FFFFFFFF'", "''"),
    ("BINARY(255)", "x'01'", "REPEAT(x'00', 255)"),
    ("VARBINARY(300)", "''", "x'000100'", "REPEAT(x'FE', 300)"),
    ("TINYBLOB", "''", "x'00'"),
    ("BLOB", "''", "REPEAT(x'00FF', 20000)"),
    ("LONGBLOB", "x'FF'", "REPEAT(x'01', 70000)"),
    ("ENUM('a','b''c','€','')", "'a'", "'b''c'", "'€'", "4"),
    ("ENUM(" + ",".join(f"'l{i}'" for i in range(300)) + ")", "'l0'", "'l299'"),
    ("SET('a','b','c d')", "''", "'a,c d'", "'a,b,c d'"),
    ("SET(" + ",".join(f"'s{i}'" for i in range(64)) + ")", "'s0,s63'", "'s31,s32'"),
    ("GEOMETRY", "ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0, 1 1)', 4326)"),
    ("POINT", "ST_GeomFromText('POINT(-1 2.5)')"),
)  # fmt: skip
DOCUMENTS = (
    "'null'", "'true'", "'[]'", "'{}'", "'1'", "'-32769'", "'65536'", "'-2147483649'", "'4294967296'",
    "'18446744073709551615'", "'1.5'", "'1e300'", "'0.1'", "'\"ä\\\\u0001 \\\\\"😀\\\\\\\\/\"'",
    "'{\"b\": 1, \"a\": [1, 2, {\"c\": null}], \"aa\": -1.25}'",
    "CONCAT('[', REPEAT('12345678,', 30000), '1]')", "CONCAT('{\"k\": \"', REPEAT('x', 70000), '\"}')",
)  # fmt: skip
MYSQL_DOCUMENTS = (
    "JSON_ARRAY(CAST(1.50 AS DECIMAL(10,2)), CAST('-0.001' AS DECIMAL(30,10)), 1.0)",
    "JSON_ARRAY(CAST('2024-02-29' AS DATE), CAST('-838:59:59' AS TIME(6)), CAST('2024-02-29 01:02:03.000004' AS DATETIME(6)))",
    "JSON_ARRAY(x'CAFE', b'101', CAST(18446744073709551615 AS UNSIGNED), 1e0, -0e0, 1e16, 123456789012345e0)",
)  # fmt: skip
MARIADB_ONLY = (
    ("UUID", "'00112233-4455-1677-8899-aabbccddeeff'", "'00112233-4455-7677-8899-aabbccddee00'",
     "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-4fff-bfff-ffffffffffff'", "'123e4567-e89b-12d3-a456-426614174000'"),
    ("INET6", "'::'", "'::1'", "'2001:db8::ff00:42:8329'", "'::ffff:192.0.2.1'", "'::1.2.3.4'", "'1:0:0:2:0:0:0:3'", "'fe80::'",
     "'1:2:3:4:5:6:7:8'", "'0:1:2:3:4:5:6:7'", "'::2:3'", "'::ffff:0:1.2.3.4'", "'0:0:0:0:0:fffe:1:1'", "'1:2:0:4:5:6:7:8'", "'1:0:3:0:5:6:7:0'", "'0:0:1:0:0:1:0:0'", "'0:0:0:0:1:2:3:4'", "'::ffff:0:0'"),
    ("INET4", "'0.0.0.0'", "'255.255.255.255'", "'192.168.0.0'"),
)  # fmt: skip


def table_of(types: tuple[tuple[str, ...], ...]) -> str:
    return "id INT PRIMARY KEY, " + ", ".join(f"c{i} {kind[0]}" for i, kind in enumerate(types))


def fill(source: LogSource, types: tuple[tuple[str, ...], ...]) -> None:
    """A row per value, a row of NULLs, then updates to the next row's values and two deletes."""
    rows = max(len(kind) for kind in types)
    for i in range(1, rows):
        source.run(f"INSERT INTO t VALUES ({i}, {', '.join(kind[min(i, len(kind) - 1)] for kind in types)})")
    source.run(f"INSERT INTO t (id) VALUES ({rows})", "INSERT INTO t SELECT id + 100 AS id, " + ", ".join(
        f"c{i}" for i in range(len(types))) + " FROM t WHERE id <> 2")  # fmt: skip
    source.run(
        "UPDATE t a JOIN t b ON b.id = 1 SET "
        + ", ".join(f"a.c{i} = b.c{i}" for i in range(len(types)))
        + f" WHERE a.id = {rows}"
    )
    source.run("UPDATE t SET id = 1000 WHERE id = 101", "DELETE FROM t WHERE id = 102 + 1")


def check_all_ways(source: LogSource) -> None:
    """Log against plain SELECT, log against the snapshot reader, and both images of every change against each other."""
    changes = source.read()
    assert source.differences(changes) == []
    latest = {row[0]: row for row in changes.rows(changes.column_names())}
    reader = SnapshotReader(source.connection, source.definition)
    read = [tuple(row.values()) for batch in reader.read_range(KeyRange(None, None)) for row in batch.to_pylist()]
    assert {row[0]: row for row in read} == latest
    known: dict[object, dict[str, object]] = {}
    for op, before, after in changes:
        if op:
            assert known.pop(before["id"]) == before
        if op != 2:
            known[after["id"]] = dict(after)


@pytest.mark.parametrize("types", [NUMBERS, TIMES, TEXTS], ids=["numbers", "times", "texts"])
def test_log_yields_what_select_yields(
    source_server: SqlServer, database: str, types: tuple[tuple[str, ...], ...]
) -> None:
    source = LogSource(source_server, database)
    source.run("SET NAMES utf8mb4", "SET sql_mode = 'NO_ENGINE_SUBSTITUTION'")
    source.create(table_of(types))
    fill(source, types)
    check_all_ways(source)


def test_json_of_the_log_is_the_servers_own_text(source_server: SqlServer, database: str) -> None:
    source = LogSource(source_server, database).create("id INT PRIMARY KEY AUTO_INCREMENT, doc JSON")
    documents = DOCUMENTS + (MYSQL_DOCUMENTS if source.flavour == "mysql" else ())
    for document in (*documents, "NULL"):
        source.run(f"INSERT INTO t (doc) VALUES ({document})")
    source.run("UPDATE t SET doc = '[1, \"two\", 3.5]' WHERE id % 2")
    check_all_ways(source)


def test_addresses_and_uuids_of_mariadb_are_text(mariadb_server: SqlServer) -> None:
    with mariadb_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE DATABASE addresses")
    source = LogSource(mariadb_server, "addresses").create(table_of(MARIADB_ONLY))
    fill(source, MARIADB_ONLY)
    check_all_ways(source)


def test_generated_and_invisible_columns_are_in_the_image(source_server: SqlServer, database: str) -> None:
    source = LogSource(source_server, database).create(
        "id INT PRIMARY KEY, a INT, v INT AS (a + 1) VIRTUAL, s INT AS (a * 2) STORED, i INT INVISIBLE DEFAULT 7, z INT"
    )
    source.run(
        "INSERT INTO t (id, a, z) VALUES (1, 10, 3), (2, NULL, 4)",
        "UPDATE t SET z = 5",
        "UPDATE t SET a = 20 WHERE id = 1",
    )
    assert source.differences(source.read()) == []
    assert [after["v"] for _, _, after in source.read()][-1] == 21


@pytest.mark.parametrize(
    ("kind", "value"),
    [("DATE", "0000-00-00"), ("DATE", "2024-00-15"), ("DATETIME(3)", "0000-00-00"), ("TIMESTAMP NULL", "0")],
)
def test_zero_date_becomes_null_or_an_error(source_server: SqlServer, database: str, kind: str, value: str) -> None:
    source = LogSource(source_server, database)
    source.run("SET sql_mode = ''")
    source.create(f"id INT PRIMARY KEY, d {kind}")
    source.run(f"INSERT INTO t VALUES (1, '{value}'), (2, '2024-05-05')")
    assert [after["d"] is None for _, _, after in source.read()] == [True, False]
    with pytest.raises(LogFormatError, match="column d holds a date"):
        list(source.batches(zero_dates="error"))


def test_three_hundred_columns_are_decoded(source_server: SqlServer, database: str) -> None:
    source = LogSource(source_server, database)
    source.create("id INT PRIMARY KEY, " + ", ".join(f"c{i} SMALLINT" for i in range(300)))
    source.run(
        f"INSERT INTO t VALUES (1, {', '.join(str(i) for i in range(300))})", "INSERT INTO t (id, c299) VALUES (2, 5)"
    )
    assert source.differences(source.read()) == []


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL", "NO_LOG"])
def test_definition_alone_decides_signs_and_labels(source_server: SqlServer, database: str, metadata: str) -> None:
    source = LogSource(source_server, database)
    if source.flavour == "mysql" and metadata == "NO_LOG":
        metadata = "MINIMAL"
    source.create(
        "id INT UNSIGNED PRIMARY KEY, e ENUM('x','ü') CHARACTER SET latin1, s SET('p','q'), y YEAR, d DOUBLE UNSIGNED"
    )
    before = str(source.query("SELECT @@global.binlog_row_metadata")[0][0])
    source.run(f"SET GLOBAL binlog_row_metadata = '{metadata}'")
    try:
        source.run("INSERT INTO t VALUES (4294967295, 'ü', 'p,q', 1999, 1.5)")
    finally:
        source.run(f"SET GLOBAL binlog_row_metadata = '{before}'")
    assert source.differences(source.read()) == []
