"""Live traffic does what it records, and the comparer sees what a copy got wrong."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pymysql.cursors import DictCursor

from devkit.comparer import Comparison, DeltaTarget, DifferenceKind, SourceTable, compare, compare_delta
from devkit.mysql import MariaDbServer, SqlServer
from devkit.operations import OpKind, Row, WorkloadMix, replay
from devkit.orders import WorkloadTable, create_orders_table
from devkit.process import GuardedProcess
from devkit.spark import REPOSITORY
from devkit.waiting import wait_for
from devkit.writer import Workload


def _rows(server: SqlServer, table: WorkloadTable) -> dict[int, Row]:
    with server.connect() as connection, connection.cursor(DictCursor) as cursor:
        cursor.execute(f"SELECT * FROM {table.quoted}")
        return {row.pop(table.key): row for row in cursor.fetchall()}


def _comparable(rows: Mapping[int, Row]) -> dict[int, dict[str, object]]:
    """MySQL keeps a JSON value, MariaDB its text: compared is the value."""
    return {
        key: {**row, "doc": None if row["doc"] is None else json.loads(str(row["doc"]))} for key, row in rows.items()
    }


MANY_OF_EVERY_KIND = WorkloadMix(
    insert=30,
    insert_in_gap=20,
    update=30,
    delete=20,
    rekey=20,
    swap=20,
    multi_row=20,
    large=2,
    rollback=20,
    savepoint=20,
)


def _orders(server: SqlServer, database: str, rows: int) -> WorkloadTable:
    with server.connect() as connection:
        return create_orders_table(connection, rows, seed=11, database=database, key_step=3)


def test_recorded_operations_replayed_on_the_old_rows_are_the_table(source_server: SqlServer, database: str) -> None:
    table = _orders(source_server, database, 500)
    before = _rows(source_server, table)
    writer = Workload(source_server.connect, table, seed=5, mix=MANY_OF_EVERY_KIND, large_rows=100)
    report = writer.run(transactions=600)
    assert report.exact
    assert set(report.counts) == set(OpKind)
    assert report.rolled_back > 0
    assert _comparable(replay(before, report.operations)) == _comparable(_rows(source_server, table))


def test_the_same_seed_on_the_same_rows_does_the_same(source_server: SqlServer, database: str) -> None:
    reports = []
    for name in ("first", "second"):
        with source_server.connect() as connection:
            table = create_orders_table(connection, 100, seed=1, database=database, table=name)
        writer = Workload(source_server.connect, table, seed=9, mix=MANY_OF_EVERY_KIND, large_rows=20)
        reports.append(writer.run(transactions=100))
    assert reports[0] == reports[1]


def test_rolled_back_transactions_leave_nothing(source_server: SqlServer, database: str) -> None:
    table = _orders(source_server, database, 50)
    before = _rows(source_server, table)
    only_rollbacks = WorkloadMix(**dict.fromkeys(WorkloadMix().names(), 0) | {"rollback": 1})
    with Workload(source_server.connect, table, seed=3, mix=only_rollbacks) as writer:
        wait_for(lambda: writer.report().rolled_back >= 20, "20 rollbacks")
    report = writer.stop()
    assert (report.transactions, report.operations) == (0, ())
    assert _rows(source_server, table) == before


def test_writer_goes_on_after_the_server_was_killed() -> None:
    with MariaDbServer() as server:
        _run(server, "CREATE DATABASE shop")
        table = _orders(server, "shop", 100)
        with Workload(server.connect, table, seed=3, rate=500) as writer:
            wait_for(lambda: writer.transactions >= 20, "20 transactions")
            server.kill()
            server.start()
            reached = writer.transactions
            wait_for(lambda: writer.transactions >= reached + 20, "20 more transactions")


def test_writer_process_writes_until_it_is_told_to_stop(
    source_server: SqlServer, database: str, tmp_path: Path
) -> None:
    table = _orders(source_server, database, 100)
    before = _rows(source_server, table)
    words = ["-m", "devkit.writer", "--port", str(source_server.port), "--database", database, "--rate", "500"]
    log = tmp_path / "writer.log"
    writer = GuardedProcess([sys.executable, *words], log=log, environment={"PYTHONPATH": str(REPOSITORY)})
    wait_for(lambda: _rows(source_server, table) != before, "the table changes")
    writer.stop()
    assert json.loads(log.read_text())["transactions"] > 0


def _write_delta(server: SqlServer, table: WorkloadTable, path: Path) -> None:
    """A right copy of an orders table, typed by hand."""
    schema = pa.schema(
        [
            ("id", pa.int32()),
            ("big", pa.decimal128(20, 0)),
            ("name", pa.string()),
            ("amount", pa.decimal128(18, 4)),
            ("created", pa.timestamp("us")),
            ("doc", pa.string()),
            ("state", pa.string()),
            ("score", pa.float64()),
            ("flag", pa.int8()),
            ("day", pa.date32()),
        ]
    )
    rows = [{"id": key, **row, "big": Decimal(str(row["big"]))} for key, row in _rows(server, table).items()]
    write_deltalake(str(path), pa.Table.from_pylist(rows, schema=schema))


def test_comparer_finds_no_difference_in_a_right_copy(source_server: SqlServer, database: str, tmp_path: Path) -> None:
    table = _orders(source_server, database, 300)
    _write_delta(source_server, table, tmp_path / "copy")
    with source_server.connect() as connection:
        source = SourceTable(connection, database, table.table, ("id",))
        assert compare(source, DeltaTarget(tmp_path / "copy")) == Comparison(300, 300, ())


def test_comparer_finds_planted_differences(source_server: SqlServer, database: str, tmp_path: Path) -> None:
    table = _orders(source_server, database, 300)
    _write_delta(source_server, table, tmp_path / "copy")
    _run(
        source_server,
        f"DELETE FROM {table.quoted} WHERE id = 4",
        f"UPDATE {table.quoted} SET flag = 7, name = NULL WHERE id = 10",
        f"UPDATE {table.quoted} SET id = 5 WHERE id = 13",
    )
    with source_server.connect() as connection:
        found = compare_delta(connection, database, table.table, ["id"], tmp_path / "copy")
    assert {(difference.kind.value, difference.key, difference.column) for difference in found} == {
        ("extra", (4,), None),
        ("different", (10,), "flag"),
        ("different", (10,), "name"),
        ("missing", (5,), None),
        ("extra", (13,), None),
    }


def test_comparer_finds_a_row_that_is_there_twice(source_server: SqlServer, database: str, tmp_path: Path) -> None:
    table = _orders(source_server, database, 3)
    _write_delta(source_server, table, tmp_path / "copy")
    copy = DeltaTable(str(tmp_path / "copy")).to_pyarrow_table()
    write_deltalake(str(tmp_path / "copy"), copy.slice(0, 1), mode="append")
    with source_server.connect() as connection:
        (found,) = compare_delta(connection, database, table.table, ["id"], tmp_path / "copy")
    assert found.kind is DifferenceKind.EXTRA


def test_comparer_reads_canonical_values(source_server: SqlServer, database: str, tmp_path: Path) -> None:
    columns = (
        "id INT PRIMARY KEY, ts TIMESTAMP(6) NULL, t TIME(6), b1 BIT(1), b12 BIT(12), y YEAR, s SET('a','b'), f FLOAT"
    )
    _run(
        source_server,
        f"CREATE TABLE {database}.kinds ({columns}, wide DECIMAL(40,2), zero DATE)",
        "SET sql_mode = ''",
        "SET time_zone = '+00:00'",
        f"INSERT INTO {database}.kinds VALUES"
        " (1, '2024-02-29 12:00:00.000001', '-838:59:59', 1, b'100000000001', 1999, 'b,a', 0.1, 1.5, '0000-00-00')",
    )
    row = {
        "id": 1,
        "ts": datetime.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=datetime.UTC),
        "t": "-838:59:59.000000",
        "b1": True,
        "b12": b"\x08\x01",
        "y": 1999,
        "s": "a,b",
        "f": float(np.float32(0.1)),
        "wide": "1.50",
        "zero": None,
    }
    schema = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("f", pa.float32()), ("zero", pa.date32())])
    inferred = pa.Table.from_pylist([{name: row[name] for name in row if name not in schema.names}])
    typed = pa.Table.from_pylist([{name: row[name] for name in schema.names}], schema=schema)
    for name in schema.names:
        inferred = inferred.append_column(schema.field(name), typed.column(name))
    write_deltalake(str(tmp_path / "copy"), inferred)
    with source_server.connect() as connection:
        assert compare_delta(connection, database, "kinds", ["id"], tmp_path / "copy") == []


def _run(server: SqlServer, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
