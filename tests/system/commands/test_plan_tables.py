"""`plan` of many tables, on both servers: every table with its rows, ranges and key, or with the reason against it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from devkit.mysql import SqlServer
from tests.system.job_case import COPIER, create_copier, execute
from vnode_backfill.commands.cli import execute as command

_numbers = count(1)
TABLES = {
    "orders": "id INT PRIMARY KEY, v VARCHAR(20)",
    "items": "a INT, b INT, v INT, PRIMARY KEY (a, b)",
    "tags": "name VARCHAR(40) PRIMARY KEY",
    "tokens": "id BINARY(16) PRIMARY KEY",
    "prices": "id DECIMAL(10,2) PRIMARY KEY",
    "events": "at DATETIME(3), id INT, PRIMARY KEY (at, id)",
    "big": "id BIGINT UNSIGNED PRIMARY KEY",
    "kinds": "kind ENUM('a','b') PRIMARY KEY",
    "uniques": "code CHAR(4) NOT NULL UNIQUE, v INT",
    "empties": "id INT PRIMARY KEY",
    "doubled": "id INT PRIMARY KEY, twice INT AS (id * 2) STORED",
    "parts": "id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS (4",
    "order items": "id INT PRIMARY KEY",
    "a/b.c": "id INT PRIMARY KEY",
    "child": "id INT PRIMARY KEY, o INT, FOREIGN KEY (o) REFERENCES orders (id) ON DELETE CASCADE",
    "tree": "id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES tree (id) ON UPDATE SET NULL",
    "tmp_1": "id INT PRIMARY KEY",
    "stray": "id INT PRIMARY KEY, t INT, FOREIGN KEY (t) REFERENCES tmp_1 (id) ON DELETE SET NULL",
    "grandchild": "id INT PRIMARY KEY, s INT, FOREIGN KEY (s) REFERENCES stray (id) ON DELETE CASCADE",
    "keyless": "v INT",
    "isam": "id INT PRIMARY KEY) ENGINE=MyISAM COMMENT=('",
    "_orders_gho": "id INT PRIMARY KEY",
}
REFUSED = {
    "stray": "table.foreign_key", "grandchild": "table.foreign_key", "keyless": "table.key", "isam": "table.engine",
}  # fmt: skip
COPIED = set(TABLES) - set(REFUSED) - {"_orders_gho", "tmp_1"}


@pytest.fixture(scope="module")
def shop(source_server: SqlServer) -> Iterator[str]:
    """A database of many tables and a view."""
    name = f"plan_many_{next(_numbers)}"
    creating = [f"CREATE TABLE `{table}` ({columns})" for table, columns in TABLES.items()]
    creating = [
        text.replace("PARTITIONS (4)", "PARTITIONS 4").replace("COMMENT=(')", "COMMENT=''") for text in creating
    ]
    numbers = ", ".join(f"({number}, 'x')" for number in range(1, 501))
    execute(source_server, None, f"CREATE DATABASE {name}", f"CREATE DATABASE {name}_b")
    execute(
        source_server, name, *creating, "CREATE VIEW seen AS SELECT * FROM orders", f"INSERT INTO orders VALUES {numbers}",
        "INSERT INTO tags VALUES ('a'), ('b')", f"CREATE TABLE {name}_b.orders (id INT PRIMARY KEY)", "ANALYZE TABLE orders",
    )  # fmt: skip
    create_copier(source_server)
    yield name
    execute(source_server, None, f"DROP DATABASE {name}", f"DROP DATABASE {name}_b")


class Planned:
    """A file of many tables, and `plan` run on it in this process."""

    def __init__(self, server: SqlServer, folder: Path, capsys: pytest.CaptureFixture[str], **mysql: object) -> None:
        self.folder, self._capsys = folder, capsys
        source = {"host": server.host, "port": server.port, "user": COPIER, **mysql}
        values = {
            "job": "many", "mysql": source, "sink": {"delta": {"path": f"{folder}/lake/{{database}}/{{table}}"}},
            "state": {"path": f"{folder}/state"}, "vnodes": 16, "workers": 2, "ui": {"port": 0},
            "limits": {"range_rows": 100},
        }  # fmt: skip
        self.file = folder / "job.yaml"
        self.file.write_text(json.dumps(values))

    def text(self, *flags: str, code: int = 0, name: str = "plan") -> str:
        return "".join(self._printed(name, *flags, code=code))

    def tables(self, *flags: str, code: int = 0) -> dict[str, dict[str, object]]:
        found = json.loads(self._printed("plan", "--json", *flags, code=code)[0])
        return {table["table"]: table for table in found["tables"]}

    def _printed(self, name: str, *flags: str, code: int) -> tuple[str, str]:
        found = command([name, "--config", str(self.file), *flags])
        printed = self._capsys.readouterr()
        assert found == code, printed.out + printed.err
        assert list(self.folder.iterdir()) == [self.file]
        return printed


@pytest.fixture
def planned(source_server: SqlServer, shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Planned:
    return Planned(source_server, tmp_path, capsys, tables=[f"{shop}.*"], exclude=["*.tmp_*"])


def quoted(shop: str, table: str) -> str:
    return f"{shop}.{table}" if table.replace("_", "").isalnum() else f"{shop}.`{table}`"


def test_every_kind_of_table_is_planned_or_refused_with_the_reason(planned: Planned, shop: str) -> None:
    found = planned.tables()
    assert set(found) == {quoted(shop, table) for table in COPIED | set(REFUSED)}
    for table, check in REFUSED.items():
        refused = found[quoted(shop, table)]
        assert (refused["refused"], refused["plan"]) == (True, None)
        assert [each["check"] for each in refused["findings"] if each["level"] == "refused"] == [check]  # type: ignore[attr-defined]
    for table in COPIED:
        assert found[quoted(shop, table)]["refused"] is False, found[quoted(shop, table)]
    assert "the table is copied as one range" in str(found[f"{shop}.kinds"])
    orders = found[f"{shop}.orders"]
    assert (orders["key"], orders["plan"]["ranges"]) == (["id"], 5)  # type: ignore[index]
    assert orders["target"] == f"delta:{planned.folder}/lake/{shop}/orders"
    assert found[f"{shop}.`a/b.c`"]["target"] == f"delta:{planned.folder}/lake/{shop}/a~2Fb.c"


def test_a_key_that_cascades_from_tables_of_the_job_is_a_warning(planned: Planned, shop: str) -> None:
    found, told = planned.tables(), planned.text()
    for table in ("child", "tree"):
        (key,) = [each for each in found[f"{shop}.{table}"]["findings"] if each["check"] == "table.foreign_key"]  # type: ignore[attr-defined]
        assert (key["level"], "makes a new copy of this table" in key["fact"]) == ("warning", True)
    assert told.count("each change there that may cascade makes a new copy of this table") == 2
    for table in ("stray", "grandchild"):
        (key,) = [each for each in found[f"{shop}.{table}"]["findings"] if each["check"] == "table.foreign_key"]  # type: ignore[attr-defined]
        assert f"{shop}.tmp_1 is not a table of this job" in key["fact"]
        assert key["fix"] == f"mysql.tables: {shop}.tmp_1 as well"


def test_plan_lists_every_table_and_the_server_once(
    planned: Planned, source_server: SqlServer, shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = planned.text()
    assert told.count("server.version") == told.count("binlog.format") == 1
    assert f"{len(REFUSED)} of {len(COPIED) + len(REFUSED)} tables are refused" in told
    assert re.search(r"about (49|50)\d rows in 5 ranges by \(id\) to delta:", told)  # the server estimates the rows
    assert "the log is followed from" in told
    assert "tables that appear later and that a pattern matches are added" in told
    (tmp_path / "reported").mkdir()
    reporting = Planned(source_server, tmp_path / "reported", capsys, tables=[f"{shop}.o*"], new_tables="report")
    assert "are reported, and not copied" in reporting.text()


def test_one_refused_table_refuses_the_job_only_if_asked(planned: Planned, shop: str) -> None:
    planned.text("--strict", code=2)
    planned.text("--strict", "--table", f"{shop}.orders")
    planned.text("--table", f"{shop}.keyless", code=2)


def test_a_table_that_is_asked_for_is_shown_whole(planned: Planned, shop: str) -> None:
    told = planned.text("--table", f"{shop}.orders")
    assert "rows are identified and ordered by (id)" in told
    assert f"{shop}.items" not in told
    assert "--table shop.none: the job has no such table" in planned.text("--table", "shop.none", code=2)
    assert "--table none: must be database.table" in planned.text("--table", "none", code=2)


def test_names_that_do_not_exist_and_patterns_that_match_nothing_are_told_apart(
    source_server: SqlServer, shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [f"{shop}.orders", f"{shop}.gone", f"{shop}.seen", f"{shop}._orders_gho", "nowhere.*", "mysql.user"]
    planned = Planned(source_server, tmp_path, capsys, tables=tables)
    found = planned.tables()
    reasons = {
        name: [each["check"] for each in table["findings"] if each["level"] == "refused"]  # type: ignore[attr-defined]
        for name, table in found.items()
    }
    assert reasons == {
        f"{shop}.orders": [], f"{shop}._orders_gho": [], f"{shop}.gone": ["table.exists"], f"{shop}.seen": ["table.type"],
        "mysql.user": ["table.schema"],
    }  # fmt: skip
    told = planned.text()
    assert "no table that this account may see matches nowhere.*" in told
    assert "fix: mysql.tables: a table that exists" in told


def test_a_job_without_a_table_is_refused(
    source_server: SqlServer, shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Planned(source_server, tmp_path, capsys, tables=["nowhere.*"]).text(code=2)
    assert "the job has no table" in told


def test_tables_are_listed_as_they_are_copied(
    source_server: SqlServer, shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [{"table": f"{shop}.orders", "priority": 1}, f"{shop}.tags", f"{shop}.empties"]
    planned = Planned(source_server, tmp_path, capsys, tables=tables)
    assert list(planned.tables()) == [f"{shop}.orders", f"{shop}.empties", f"{shop}.tags"]


def test_two_tables_with_one_target_are_refused_by_name(
    source_server: SqlServer, shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = Planned(source_server, tmp_path, capsys, tables=[f"{shop}*.orders"])
    planned.file.write_text(planned.file.read_text().replace("/{database}/", "/"))
    assert [name for name, table in planned.tables().items() if table["refused"]] == [f"{shop}_b.orders"]
    told = planned.text()
    assert f"{shop}_b.orders and {shop}.orders have one target" in told
    assert "1 of 2 tables are refused" in told


def test_planning_keeps_to_the_connections_of_the_job(source_server: SqlServer, planned: Planned, shop: str) -> None:
    execute(source_server, None, f"ALTER USER {COPIER}@'127.0.0.1' WITH MAX_USER_CONNECTIONS 6")
    try:
        assert f"of {len(COPIED) + len(REFUSED)} tables are refused" in planned.text()
    finally:
        execute(source_server, None, f"ALTER USER {COPIER}@'127.0.0.1' WITH MAX_USER_CONNECTIONS 0")
