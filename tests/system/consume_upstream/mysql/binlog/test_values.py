"""Every type, with NULL and its limits: the log yields the value that a SELECT yields, in both images of a change."""

from __future__ import annotations

import pytest

from consume_upstream.mysql.rows.range_reader import SnapshotReader
from devkit.mysql import SqlServer
from tests.system.consume_upstream.mysql.binlog.log_source import LogSource
from tests.system.consume_upstream.mysql.value_types import (
    DOCUMENTS,
    MARIADB_ONLY,
    MYSQL_DOCUMENTS,
    NUMBERS,
    TEXTS,
    TIMES,
    Types,
)
from vnode_backfill.words.errors import LogFormatError
from vnode_backfill.words.key_range import KeyRange


def table_of(types: Types) -> str:
    return "id INT PRIMARY KEY, " + ", ".join(f"c{i} {kind[0]}" for i, kind in enumerate(types))


def fill(source: LogSource, types: Types) -> None:
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
def test_log_yields_what_select_yields(source_server: SqlServer, database: str, types: Types) -> None:
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
