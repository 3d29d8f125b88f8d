"""Labels of ENUM and SET in every character set that matters: the log yields what SELECT yields, or the job stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MySqlServer, SqlServer
from tests.system.consume_upstream.mysql.binlog.log_source import LogSource
from tests.system.consume_upstream.mysql.binlog.test_values import check_all_ways
from tests.system.job_case import JobCase, execute, fetch, reached_live
from vnode_backfill.words.errors import LogFormatError

PLAIN = ("x", "it''s", "c\\\\d", "", ' le"ad', "i\\nj", "k\\0l", "q\\rz", "`m`", "\\%n", "trail  ", "unsigned (3)")
"""As they stand between quotes in a statement."""
OF_SET = {
    "utf8mb4": ("ä€", "名"), "utf8mb3": ("ä€",), "latin1": ("é€",), "gbk": ("中文",), "sjis": ("日本", "表"), "ucs2": ("ä€",),
    "utf16": ("ä€",), "utf32": ("ä€",), "gb18030": ("中",), "koi8r": ("Привет",),
}  # fmt: skip
BEYOND = ("utf8mb4", "utf16", "utf32", "gb18030")
DOUBTFUL = ("😀", "?", "a😀b𝔘", "??")


@contextmanager
def metadata_of(server: SqlServer, metadata: str) -> Iterator[None]:
    ((before,),) = fetch(server, None, "SELECT @@global.binlog_row_metadata")
    execute(server, None, f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        yield
    finally:
        execute(server, None, f"SET GLOBAL binlog_row_metadata = {before}")


def labels_of(charset: str, flavour: str, metadata: str) -> tuple[str, ...]:
    beyond = DOUBTFUL if charset in BEYOND and (flavour, metadata) != ("mysql", "MINIMAL") else ()
    return (*PLAIN, *OF_SET[charset], *beyond)


def quoted_labels(labels: tuple[str, ...]) -> str:
    return ", ".join(f"'{label}'" for label in labels)


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_labels_of_the_log_are_those_of_select(source_server: SqlServer, database: str, metadata: str) -> None:
    source = LogSource(source_server, database)
    absent = {"mysql": "", "mariadb": "gb18030"}[source.flavour]
    charsets = {name: labels_of(name, source.flavour, metadata) for name in OF_SET if name != absent}
    columns = [
        f"e_{charset} ENUM({quoted_labels(labels)}) CHARACTER SET {charset}, "
        f"s_{charset} SET({quoted_labels(tuple(label for label in labels if label))}) CHARACTER SET {charset}"
        for charset, labels in charsets.items()
    ]
    source.create(f"id INT PRIMARY KEY, {', '.join(columns)}")
    with metadata_of(source_server, metadata):
        for number in range(1, 2 + max(map(len, charsets.values()))):
            cells = [
                f"{min(number, len(labels))}, {(1 << min(number, len(labels) - 1)) - 1}" for labels in charsets.values()
            ]
            source.run(f"INSERT INTO t VALUES ({number}, {', '.join(cells)})")
        source.run("UPDATE t SET e_latin1 = NULL, s_latin1 = 0 WHERE id % 2", "DELETE FROM t WHERE id = 3")
    check_all_ways(source)


def test_label_that_nothing_shows_stops_the_reader(mysql_server: MySqlServer) -> None:
    execute(mysql_server, None, "CREATE DATABASE lost_labels")
    try:
        source = LogSource(mysql_server, "lost_labels").create("id INT PRIMARY KEY, e ENUM('a','😀'), s SET('a','😀')")
        with metadata_of(mysql_server, "MINIMAL"):
            source.run("INSERT INTO t VALUES (1, 'a', 'a'), (2, NULL, '')")
            assert source.differences(source.read()) == []
            for statement in ("INSERT INTO t VALUES (3, '😀', 'a')", "INSERT INTO t VALUES (4, 'a', 'a,😀')"):
                source.start = source.position()
                source.run(statement)
                with pytest.raises(LogFormatError, match="holds a label in the log that the server does not show"):
                    source.read()
    finally:
        execute(mysql_server, None, "DROP DATABASE lost_labels")


def test_key_of_labels_beyond_the_bmp_is_walked(
    source_server: SqlServer, database: str, tmp_path: Path, spark: SparkSession
) -> None:
    labels = "'b', '😀', 'c\\\\d', 'a😀b', 'it''s'"
    execute(
        source_server, database, f"CREATE TABLE t (k ENUM({labels}), s SET({labels}), v INT, PRIMARY KEY (k, s))",
        *(f"INSERT INTO t VALUES ({k}, {s}, {s})" for k in range(1, 6) for s in (0, 1, 2, 7, 31)),
    )  # fmt: skip
    settings: dict[str, object] = {"executor": "single", "limits": {"range_rows": 3}}
    case = JobCase(source_server, tmp_path, database, "t", ("k", "s"), settings=settings)
    assert reached_live(case, spark) == []
    execute(
        source_server, database, "UPDATE t SET v = -v WHERE k = '😀'", "UPDATE t SET s = 3 WHERE k = 4 AND s = 2",
        "DELETE FROM t WHERE k = 3 AND s = 31",
    )  # fmt: skip
    assert reached_live(case, spark) == []
