"""Writes the byte fixtures of the decoder's unit tests: `python -m tests.system.consume_upstream.mysql.binlog.capture_log`.

Each fixture is a log file of a real server with a few transactions on a table of many types, and what it holds. The
values are written only after they were compared with a SELECT.
"""

from __future__ import annotations

import json
from pathlib import Path

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from tests.system.consume_upstream.mysql.binlog.log_source import LogSource

DATA = Path(__file__).parents[4] / "data"
COLUMNS = (
    ("TINYINT", "-128", "127"), ("SMALLINT UNSIGNED", "65535", "0"), ("MEDIUMINT", "-8388608", "1"),
    ("INT UNSIGNED", "4294967295", "7"), ("BIGINT", "-9223372036854775808", "1"),
    ("BIGINT UNSIGNED", "18446744073709551615", "0"),
    ("DECIMAL(18,4)", "-99999999999999.9999", "0.0001"),
    ("DECIMAL(38,10)", "-9999999999999999999999999999.9999999999", "1"),
    ("DECIMAL(60,20)", "-1234567890123456789012345678901234567890.5", "0"), ("FLOAT", "1.5", "-0.1"),
    ("DOUBLE", "1e300", "-0.1"),
    ("BIT(1)", "b'1'", "b'0'"), ("BIT(12)", "b'100000000001'", "b'1'"), ("DATE", "'1999-12-31'", "'0001-01-01'"),
    ("DATETIME(6)", "'2024-02-29 12:34:56.000007'", "'9999-12-31 23:59:59'"),
    ("DATETIME", "'1969-12-31 23:59:59'", "'2000-01-01'"),
    ("TIMESTAMP(3) NULL", "'2038-01-19 03:14:07.999'", "'1970-01-01 00:00:01'"),
    ("TIME(2)", "'-838:59:58.99'", "'00:00:00.5'"),
    ("YEAR", "2155", "0"), ("CHAR(10)", "'ä€😀  '", "''"), ("VARCHAR(20)", "'Grüße'", "''"),
    ("VARCHAR(300)", "REPEAT('x', 260)", "'y'"),
    ("VARCHAR(20) CHARACTER SET latin1", "'Grüße €'", "''"), ("VARCHAR(20) CHARACTER SET utf16", "'a😀'", "''"),
    ("TEXT", "'text'", "''"),
    ("BINARY(6)", "x'01020000'", "x'FFFFFFFFFFFF'"), ("VARBINARY(8)", "x'0001'", "''"), ("BLOB", "x'00FF'", "''"),
    ("ENUM('a','b''c','€')", "'€'", "'a'"), ("SET('p','q','r')", "'p,r'", "''"),
    ("JSON", "'{\"k\": [1, -2.5, \"ä\", null, true], \"z\": {}}'", "'[]'"),
    ("POINT", "ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('POINT(0 0)')"),
)  # fmt: skip


def capture(server: SqlServer, name: str) -> None:
    """A fresh file with inserts, updates and deletes, also of another table, and DDL of a third."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE captured")
    source = LogSource(server, "captured")
    columns = ", ".join(f"c{i} {kind}" for i, (kind, _, _) in enumerate(COLUMNS))
    source.create(f"id INT PRIMARY KEY, {columns}")
    source.run("CREATE TABLE other (a INT)", "SET timestamp = 1700000000", "FLUSH BINARY LOGS")
    source.start = source.position()
    _fill(source)
    stop = source.position()
    assert source.differences(source.read()) == []
    changes = [
        [op, *([repr(v) for v in image.values()] for image in (before, after))] for op, before, after in source.read()
    ]
    (DATA / f"log_{name}.bin").write_bytes((server.datadir / stop.file).read_bytes()[: stop.pos])
    facts = {
        "definition": source.definition.to_json(), "file": stop.file, "start": source.start.pos, "stop": stop.pos,
        "gtids": [t.gtid for t in source.read().transactions], "changes": changes,
    }  # fmt: skip
    (DATA / f"log_{name}.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


def _fill(source: LogSource) -> None:
    for row, values in enumerate(zip(*COLUMNS, strict=True)):
        if row:
            source.run(f"INSERT INTO t VALUES ({row}, {', '.join(values)})")
    source.run(
        "INSERT INTO t (id) VALUES (3), (4)", "CREATE TABLE third (t INT)", "BEGIN", "INSERT INTO other VALUES (1), (2)"
    )
    source.run(
        "UPDATE t SET c1 = 9, c20 = 'new' WHERE id < 3",
        "DELETE FROM t WHERE id = 4",
        "COMMIT",
        "UPDATE t SET id = 30 WHERE id = 3",
    )


if __name__ == "__main__":
    for kind, name in ((MySqlServer, "mysql"), (MariaDbServer, "mariadb")):
        with kind() as server:
            capture(server, name)
