"""Reading slices of a real server's log: order, boundaries, transactions, files, and every way a stream can break."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pymysql
import pytest
from pymysql.connections import Connection
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from consume_upstream.mysql.binlog.events import LogPosition
from consume_upstream.mysql.binlog.reader import read_log
from devkit.mysql import MySqlServer, SqlServer
from tests.system.consume_upstream.mysql.binlog.log_source import Changes, LogSource
from vnode_backfill.words.errors import BinlogPurgedError, LogFormatError, OffsetError, SourceError, SourceLostError

ORDERS = "id INT PRIMARY KEY, name VARCHAR(40), amount DECIMAL(18,4), at DATETIME(6)"


@pytest.fixture
def source(source_server: SqlServer, database: str) -> LogSource:
    return LogSource(source_server, database).create(ORDERS)


def insert(source: LogSource, first: int, last: int) -> None:
    rows = ", ".join(
        f"({i}, 'name {i}', {i}.25, '2024-01-01 00:00:00.{i % 1_000_000:06d}')" for i in range(first, last)
    )
    source.run(f"INSERT INTO t VALUES {rows}")


def test_inserts_updates_and_deletes_come_with_both_images(source: LogSource) -> None:
    insert(source, 1, 4)
    source.run("UPDATE t SET name = CONCAT(name, '!'), id = id + 10 WHERE id >= 2", "DELETE FROM t WHERE id = 1")
    changes = list(source.read())
    assert [op for op, _, _ in changes] == [0, 0, 0, 1, 1, 2]
    assert [(before["id"], after["id"]) for _, before, after in changes[2:]] == [(None, 3), (2, 12), (3, 13), (1, None)]
    assert source.differences(source.read()) == []


def test_offsets_rise_and_lie_inside_the_slice(source: LogSource) -> None:
    insert(source, 0, 500)
    source.run("UPDATE t SET amount = 1", "DELETE FROM t WHERE id < 400")
    offsets = source.read().offsets
    assert offsets == sorted(set(offsets))
    assert source.start.order < offsets[0][:2]
    assert offsets[-1][:2] < source.position().order


def test_every_position_is_the_end_of_an_event_of_the_server(source: LogSource) -> None:
    insert(source, 0, 300)
    source.run("UPDATE t SET amount = 1")
    shown = source.query(f"SHOW BINLOG EVENTS IN '{source.start.file}' FROM {source.start.pos}")
    ends = {int(str(row[4])) for row in shown if "rows" in str(row[2])}
    assert {pos for _, pos, _ in source.read().offsets} == ends


def test_every_transaction_is_reported_once_and_they_follow_each_other(source: LogSource) -> None:
    source.run("CREATE TABLE other (a INT)")
    for i in range(20):
        source.run(f"INSERT INTO other VALUES ({i})")
        insert(source, i, i + 1)
    changes = Changes(list(source.batches(batch_rows=3)), source.definition)
    transactions = changes.transactions
    assert len(transactions) == len({t.gtid for t in transactions}) == 41
    assert transactions[0].start == source.start.order
    assert [t.end for t in transactions[:-1]] == [t.start for t in transactions[1:]]
    assert transactions[-1].end == source.position().order


def test_gtids_are_those_of_the_server(source: LogSource) -> None:
    insert(source, 1, 2)
    (transaction,) = source.read().transactions
    if source.flavour == "mysql":
        assert transaction.gtid in str(source.query("SELECT @@gtid_executed")[0][0]).replace(":1-", ":")
    else:
        assert transaction.gtid == source.query("SELECT @@gtid_binlog_pos")[0][0]


def test_every_row_is_inside_a_transaction_of_its_batch(source: LogSource) -> None:
    for i in range(10):
        insert(source, i * 10, i * 10 + 10)
    for batch in source.batches(batch_rows=7):
        for pos in batch.pos.tolist():
            around = [each for each in batch.transactions if each.start < (batch.file, pos)]
            assert around[-1].end is None or (batch.file, pos) < around[-1].end


def test_batch_size_does_not_change_what_is_read(source: LogSource) -> None:
    insert(source, 0, 1000)
    source.run("UPDATE t SET name = 'x' WHERE id % 3 = 0", "DELETE FROM t WHERE id % 5 = 0")
    whole = source.read()
    for rows, size in ((1, 64 << 20), (7, 64 << 20), (65_536, 1), (65_536, 1000)):
        cut = Changes(list(source.batches(batch_rows=rows, batch_bytes=size)), source.definition)
        assert (cut.offsets, list(cut), cut.transactions) == (whole.offsets, list(whole), whole.transactions)


def test_slices_at_transaction_ends_join_without_gap(source: LogSource) -> None:
    stops = []
    for i in range(12):
        insert(source, i * 5, i * 5 + 5)
        stops.append(source.position())
    starts = [source.start, *stops[:-1]]
    parts = [
        change
        for a, b in zip(starts, stops, strict=True)
        for batch in source.batches(a, b)
        for change in batch.pos.tolist()
    ]
    assert parts == [pos for _, pos, _ in source.read().offsets]
    assert list(source.batches(stops[-1], stops[-1])) == []


def test_tables_of_one_transaction_are_told_apart(source: LogSource) -> None:
    source.run("CREATE TABLE t2 (id INT PRIMARY KEY, name VARCHAR(40))")
    insert(source, 1, 4)
    source.run("INSERT INTO t2 SELECT id, name FROM t", "BEGIN")
    insert(source, 10, 12)
    source.run(
        "UPDATE t JOIN t2 USING (id) SET t.name = 'a', t2.name = 'b'",
        "DELETE t, t2 FROM t JOIN t2 USING (id) WHERE id = 1",
        "COMMIT",
    )
    changes = source.read()
    assert sorted(changes.operations) == [0] * 5 + [1] * 3 + [2]
    assert source.differences(changes) == []


def test_rolled_back_changes_are_not_read(source: LogSource) -> None:
    source.run("BEGIN")
    insert(source, 1, 3)
    source.run(
        "SAVEPOINT s", "UPDATE t SET name = 'gone'", "ROLLBACK TO s", "DELETE FROM t WHERE id = 1", "COMMIT", "BEGIN"
    )
    insert(source, 7, 9)
    source.run("ROLLBACK")
    changes = source.read()
    assert changes.operations == [0, 0, 2]
    assert source.differences(changes) == []


def test_slice_goes_through_many_files(source: LogSource) -> None:
    for i in range(8):
        insert(source, i * 100, i * 100 + 100)
        if i % 2:
            source.run("FLUSH BINARY LOGS")
    changes = source.read()
    assert len({batch.file for batch in changes.batches if len(batch)}) == 4
    assert changes.offsets == sorted(set(changes.offsets))
    assert source.differences(changes) == []


def test_one_slice_per_file_yields_the_same(source: LogSource) -> None:
    insert(source, 0, 10)
    source.run("FLUSH BINARY LOGS")
    insert(source, 10, 20)
    source.run("FLUSH BINARY LOGS")
    insert(source, 20, 30)
    end = source.position()
    files = [str(row[0]) for row in source.query("SHOW BINARY LOGS")]
    files = files[files.index(source.start.file) :]
    starts = [source.start, *(LogPosition(name, 4) for name in files[1:])]
    batches = [b for a, z in zip(starts, [*starts[1:], end], strict=True) for b in source.batches(a, z)]
    assert Changes(batches, source.definition).offsets == source.read().offsets


def test_slice_may_stop_at_the_very_end_of_a_file(source: LogSource) -> None:
    insert(source, 0, 10)
    source.run("FLUSH BINARY LOGS")
    sizes = {str(row[0]): int(str(row[1])) for row in source.query("SHOW BINARY LOGS")}
    stop = LogPosition(source.start.file, sizes[source.start.file])
    assert sum(len(batch) for batch in source.batches(source.start, stop)) == 10


def test_files_go_on_after_a_restart() -> None:
    with MySqlServer() as server:
        source = _fresh(server)
        insert(source, 1, 3)
        server.restart()
        source.connection = server.connect("fresh")
        insert(source, 3, 5)
        server.kill()
        server.start()
        source.connection = server.connect("fresh")
        insert(source, 5, 7)
        assert source.differences(source.read()) == []


def test_small_files_rotate_under_traffic() -> None:
    with MySqlServer({"max-binlog-size": "30000"}) as server:
        source = _fresh(server)
        for i in range(300):
            insert(source, i * 20, i * 20 + 20)
        changes = source.read()
        assert len({batch.file for batch in changes.batches}) > 3
        assert source.differences(changes) == []


def _fresh(server: SqlServer) -> LogSource:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE fresh")
    return LogSource(server, "fresh").create(ORDERS)


def test_large_transaction_is_cut_into_batches(source: LogSource) -> None:
    source.run("BEGIN")
    for i in range(20):
        insert(source, i * 1000, i * 1000 + 1000)
    source.run("COMMIT")
    batches = list(source.batches(batch_rows=4096))
    assert [len(batch) for batch in batches] == [4096, 4096, 4096, 4096, 3616]
    assert [[t.end is None for t in batch.transactions] for batch in batches] == [[True]] * 4 + [[False]]
    assert source.differences(Changes(batches, source.definition)) == []


def test_event_above_sixteen_megabytes_is_read(source_server: SqlServer, database: str) -> None:
    source = LogSource(source_server, database).create("id INT PRIMARY KEY, b LONGBLOB")
    source.run("SET GLOBAL max_allowed_packet = 1 << 30")
    source.connection = source_server.connect(database)
    source.run("INSERT INTO t VALUES (1, REPEAT(x'AB', 20000000))", "INSERT INTO t VALUES (2, 'small')")
    source.run("UPDATE t SET b = REPEAT(x'CD', 16777215) WHERE id = 1")
    lengths = [(op, len(after["b"])) for op, _, after in source.read() if isinstance(after["b"], bytes)]
    assert lengths == [(0, 20_000_000), (0, 5), (1, 16_777_215)]


def test_thousands_of_one_row_transactions_are_read(source: LogSource) -> None:
    source.run(
        "CREATE PROCEDURE p() BEGIN DECLARE i INT DEFAULT 0; WHILE i < 5000 DO"
        " INSERT INTO t VALUES (i, 'x', i, NULL); SET i = i + 1; END WHILE; END"
    )
    source.start = source.position()
    source.run("CALL p()")
    changes = source.read()
    assert len(changes.transactions) == 5000
    assert source.differences(changes) == []


def test_skipped_transactions_yield_no_rows(source: LogSource) -> None:
    for i in range(5):
        insert(source, i, i + 1)
    gtids = [t.gtid for t in source.read().transactions]
    batches = list(source.batches(skip_gtids=lambda gtid: gtid in gtids[1:3]))
    assert [after["id"] for _, _, after in Changes(batches, source.definition)] == [0, 3, 4]
    assert [t.skipped for batch in batches for t in batch.transactions] == [False, True, True, False, False]


def test_log_without_checksums_is_read(source_server: SqlServer, database: str) -> None:
    source = LogSource(source_server, database)
    source.run("SET GLOBAL binlog_checksum = NONE")
    try:
        source.create(ORDERS)
        insert(source, 0, 10)
        assert source.differences(source.read()) == []
    finally:
        source.run("SET GLOBAL binlog_checksum = CRC32")
    insert(source, 10, 20)
    assert source.differences(source.read()) == []


def test_annotations_do_not_disturb_positions(source: LogSource) -> None:
    source.run(
        "SET binlog_rows_query_log_events = ON" if source.flavour == "mysql" else "SET binlog_annotate_row_events = ON"
    )
    insert(source, 0, 10)
    source.run("UPDATE t SET name = 'x'")
    assert source.differences(source.read()) == []


def test_oracle_reads_the_same_changes(source: LogSource) -> None:
    insert(source, 0, 50)
    source.run("UPDATE t SET amount = amount * -3, id = id + 1000 WHERE id < 20", "DELETE FROM t WHERE id > 1010")
    assert [(op, before or None, after or None) for op, before, after in _oracle(source)] == [
        (op, before if op else None, after if op != 2 else None) for op, before, after in source.read()
    ]


def _oracle(source: LogSource) -> Iterator[tuple[int, dict[str, object], dict[str, object]]]:
    """The same slice by python-mysql-replication."""
    settings = {"host": source.server.host, "port": source.server.port, "user": source.server.user, "passwd": ""}
    stop = source.position()
    stream = BinLogStreamReader(
        settings, server_id=899_999, log_file=source.start.file, log_pos=source.start.pos, resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent], only_schemas=[source.database],
        only_tables=["t"],
    )  # fmt: skip
    try:
        for event in stream:
            for row in event.rows:
                if isinstance(event, UpdateRowsEvent):
                    yield 1, row["before_values"], row["after_values"]
                elif isinstance(event, WriteRowsEvent):
                    yield 0, {}, row["values"]
                else:
                    yield 2, row["values"], {}
            if LogPosition(stream.log_file, stream.log_pos).order >= stop.order:
                break
    finally:
        stream.close()


def test_log_that_ends_too_early_is_an_error(source: LogSource) -> None:
    insert(source, 0, 3)
    end = source.position()
    with pytest.raises(SourceLostError, match=r"the binlog ended at .*, before"):
        list(source.batches(stop=LogPosition(end.file, end.pos + 1000)))


def test_stop_inside_a_transaction_is_an_error(source: LogSource) -> None:
    insert(source, 0, 3)
    inside = source.read().offsets[0][1]
    with pytest.raises(LogFormatError, match="not the end of a transaction"):
        list(source.batches(stop=LogPosition(source.start.file, inside)))


def test_slice_backwards_is_an_error(source: LogSource) -> None:
    insert(source, 0, 3)
    with pytest.raises(OffsetError):
        list(source.batches(source.position(), source.start))


def test_purged_file_is_told_apart(source: LogSource) -> None:
    gone = LogPosition(source.start.file.rsplit(".", 1)[0] + ".999998", 4)
    with pytest.raises(BinlogPurgedError, match="not available upstream"):
        list(source.batches(gone, LogPosition(gone.file, 5000)))


def test_user_without_the_privilege_is_told(source: LogSource) -> None:
    source.run("CREATE USER IF NOT EXISTS weak@'%' IDENTIFIED BY 'w'")
    insert(source, 0, 3)
    log = read_log(
        lambda: source.server.connect(user="weak", password="w"), 898_000, source.definition, source.flavour,
        source.start, source.position(),
    )  # fmt: skip
    with pytest.raises(SourceError) as raised:
        list(log)
    assert not raised.value.retryable


def test_stream_cut_at_any_byte_is_never_an_end(source: LogSource) -> None:
    insert(source, 0, 200)
    stop = source.position()
    size = stop.pos - source.start.pos
    for cut in (*range(0, 400, 23), *range(400, size, 451), size):
        with _proxy(source.server.port, cut) as port:
            connect = partial(_connect_plainly, port)
            log = read_log(connect, 897_000, source.definition, source.flavour, source.start, stop)
            with pytest.raises(SourceLostError):
                list(log)


def _connect_plainly(port: int) -> Connection:
    return pymysql.connect(host="127.0.0.1", port=port, user="root", read_timeout=30, ssl_disabled=True)


@contextmanager
def _proxy(target: int, cut: int) -> Iterator[int]:
    """Passes one connection on, and closes it `cut` bytes of the server's after the request for the dump."""
    listener = socket.create_server(("127.0.0.1", 0))
    upstream = socket.create_connection(("127.0.0.1", target))
    dumping = threading.Event()

    def upwards(client: socket.socket) -> None:
        while data := client.recv(65_536):
            if data[4:5] == b"\x12":
                dumping.set()
            upstream.sendall(data)

    def serve() -> None:
        client, _ = listener.accept()
        threading.Thread(target=_quietly, args=(upwards, client), daemon=True).start()
        left = cut
        while (not dumping.is_set() or left > 0) and (data := upstream.recv(left if dumping.is_set() else 65_536)):
            data = data[:left] if dumping.is_set() else data
            left -= len(data) if dumping.is_set() else 0
            client.sendall(data)
        client.shutdown(socket.SHUT_RDWR)
        client.close()
        upstream.close()

    threading.Thread(target=_quietly, args=(serve,), daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()
    upstream.close()


def _quietly(function: Callable[..., None], *arguments: socket.socket) -> None:
    with suppress(OSError):
        function(*arguments)


def test_killed_connection_is_never_an_end(source_server: SqlServer, database: str) -> None:
    source = LogSource(source_server, database).create("id INT PRIMARY KEY, b MEDIUMBLOB")
    for i in range(40):
        source.run(f"INSERT INTO t VALUES ({i}, REPEAT('x', 1000000))")
    threads: list[object] = []

    def connect() -> Connection:
        connection = source.connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT CONNECTION_ID()")
            threads.extend(cursor.fetchall()[0])
        return connection

    log = read_log(connect, 896_000, source.definition, source.flavour, source.start, source.position(), batch_bytes=1)
    next(log)
    source.run(f"KILL {threads[0]}")
    with pytest.raises(SourceLostError):
        list(log)
