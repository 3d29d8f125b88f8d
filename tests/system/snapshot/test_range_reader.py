"""A range read from a real server is what the table holds, or an error; never less, and never another value."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pymysql
import pytest

from consume_upstream.mysql.connection import SourceAddress, TlsMode, TlsOptions, connect
from consume_upstream.mysql.rows.range_reader import SnapshotReader
from consume_upstream.mysql.rows.session import MySqlSession
from consume_upstream.mysql.server import ask
from consume_upstream.mysql.table import MySqlTable
from devkit.mysql import MySqlServer, SqlServer
from vnode_backfill.words.errors import SchemaChangedError, SourceError, SourceLostError
from vnode_backfill.words.key import Key, keys_of
from vnode_backfill.words.key_range import KeyRange

EVERYTHING = KeyRange(None, None)
PLAIN = TlsOptions(TlsMode.DISABLED)
Row = tuple[object, ...]


def address_of(server: SqlServer, tls: TlsOptions = PLAIN) -> SourceAddress:
    return SourceAddress(server.host, server.port, server.user, server.password, tls, read_timeout=30.0)


def run(server: SqlServer, database: str, *statements: str) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        # Zero dates and strange values are what these tests are about.
        cursor.execute("SET SESSION sql_mode = ''")
        for statement in statements:
            cursor.execute(statement)


def fill_wide(server: SqlServer, database: str, rows: int) -> None:
    """A table whose result does not fit into the sockets' buffers, so that the server is still sending when it is hit."""
    run(server, database, "CREATE TABLE wide (id INT PRIMARY KEY, v MEDIUMTEXT)")
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO wide VALUES (%s, REPEAT('x', 40000))", [(i,) for i in range(rows)])


def open_table(server: SqlServer, database: str, table: str = "t") -> MySqlTable:
    return MySqlTable.open(address_of(server), database, table)


def rows_of(session: MySqlSession, key_range: KeyRange = EVERYTHING) -> list[Row]:
    return [row for batch in session.read_range(key_range) for row in zip(*batch.to_pydict().values(), strict=True)]


def read_all(server: SqlServer, database: str, table: str = "t") -> list[Row]:
    with open_table(server, database, table).session() as session:
        return rows_of(session)


Text = str | bytes
Expected = Callable[[str], object]


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# (declaration, values to insert as SQL, how the server's text of a value becomes the canonical value)
TYPES: Sequence[tuple[str, Sequence[str], Expected]] = [
    ("TINYINT", ["-128", "127", "0"], int),
    ("TINYINT UNSIGNED", ["0", "255"], int),
    ("TINYINT(1)", ["1", "2"], int),
    ("SMALLINT", ["-32768", "32767"], int),
    ("SMALLINT UNSIGNED", ["65535"], int),
    ("MEDIUMINT", ["-8388608", "8388607"], int),
    ("MEDIUMINT UNSIGNED", ["16777215"], int),
    ("INT", ["-2147483648", "2147483647"], int),
    ("INT UNSIGNED ZEROFILL", ["4294967295", "42"], int),
    ("BIGINT", ["-9223372036854775808", "9223372036854775807"], int),
    ("BIGINT UNSIGNED", ["18446744073709551615", "9223372036854775808"], Decimal),
    ("DECIMAL(10,2)", ["-99999999.99", "0", "1.5"], Decimal),
    ("DECIMAL(10,2) ZEROFILL", ["12.5"], Decimal),
    ("DECIMAL(38,20)", ["999999999999999999.99999999999999999999", "-0.00000000000000000001"], Decimal),
    ("DECIMAL(65,30)", ["-12345678901234567890123456789012345.123456789012345678901234567890"], str),
    ("DOUBLE", ["1.7976931348623157e308", "-2.2250738585072014e-308", "0.1"], float),
    ("DATE", ["'1000-01-01'", "'9999-12-31'", "'1970-01-01'", "'2024-02-29'"], date.fromisoformat),
    ("DATETIME", ["'1000-01-01'", "'9999-12-31 23:59:59'"], datetime.fromisoformat),
    ("DATETIME(3)", ["'2024-01-02 03:04:05.678'"], datetime.fromisoformat),
    ("DATETIME(6)", ["'9999-12-31 23:59:59.999999'", "'1969-12-31 23:59:59.000001'"], datetime.fromisoformat),
    ("TIMESTAMP NULL", ["'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"], instant),
    ("TIMESTAMP(6) NULL", ["'2038-01-19 03:14:07.999999'"], instant),
    ("TIME", ["'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:01'"], str),
    ("TIME(3)", ["'-838:59:58.999'", "'01:02:03.5'"], str),
    ("TIME(6)", ["'00:00:00.000001'", "'-00:00:00.000001'"], str),
    ("YEAR", ["1901", "2155", "0"], int),
    ("CHAR(5)", ["'ab  '", "''", "'é😀'"], str),
    ("VARCHAR(50)", ["'trailing  '", "''", "'Grüße, 日本, 😀'"], str),
    ("VARCHAR(50) CHARACTER SET latin1", ["'Grüße'", "'€'"], str),
    ("VARCHAR(50) CHARACTER SET utf16", ["'日本'", "'😀'"], str),
    ("VARCHAR(50) CHARACTER SET cp1251", ["'Привет'"], str),
    ("VARCHAR(50) CHARACTER SET gbk", ["'中文'"], str),
    ("VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", ["'bin'"], str),
    ("TINYTEXT", ["REPEAT('x', 250)", "REPEAT('x', 251)", "REPEAT('x', 255)"], str),
    ("LONGTEXT", ["REPEAT('é', 40000)"], str),
    ("ENUM('a','b c','é','it''s')", ["'é'", "'it''s'", "'b c'"], str),
    ("SET('x','y','z')", ["'x,z'", "''"], str),
]
BINARY_TYPES: Sequence[tuple[str, Sequence[str]]] = [
    ("BINARY(4)", ["0x01", "0x00000000", "0xffffffff"]),
    ("VARBINARY(300)", ["''", "0x00ff80", "REPEAT(0xfe, 300)"]),
    ("BLOB", ["REPEAT(0xff, 65535)", "''"]),
    ("BIT(10)", ["b'1000000001'", "b'0'"]),
    ("BIT(64)", ["b'1111111111111111111111111111111111111111111111111111111111111111'"]),
    ("POINT", ["ST_GeomFromText('POINT(1 2)')"]),
    ("GEOMETRY", ["ST_GeomFromText('LINESTRING(0 0,1 1)')"]),
]


def create_one_column_tables(server: SqlServer, database: str, types: Sequence[tuple[str, Sequence[str]]]) -> None:
    for number, (declaration, values) in enumerate(types):
        every = [*values, "NULL"]
        run(
            server,
            database,
            f"CREATE TABLE t{number} (id INT PRIMARY KEY, c {declaration})",
            f"INSERT INTO t{number} VALUES " + ", ".join(f"({i}, {value})" for i, value in enumerate(every)),
        )


def raw_cells(server: SqlServer, database: str, query: str) -> list[Text | None]:
    """What plain pymysql gets over the text protocol without converting it."""
    raw = pymysql.connect(
        host=server.host,
        port=server.port,
        user=server.user,
        database=database,
        charset="utf8mb4",
        conv={},
        autocommit=None,
    )
    with raw, raw.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+00:00'")
        cursor.execute(query)
        return [row[0] for row in cursor.fetchall()]


def test_values_are_those_the_server_prints(source_server: SqlServer, database: str) -> None:
    create_one_column_tables(source_server, database, [(declaration, values) for declaration, values, _ in TYPES])
    for number, (declaration, values, expected) in enumerate(TYPES):
        cells = raw_cells(source_server, database, f"SELECT c FROM t{number} ORDER BY id")
        canonical = [None if cell is None else expected(str(cell)) for cell in cells]
        found = [row[1] for row in read_all(source_server, database, f"t{number}")]
        assert found == canonical, declaration
        assert [type(value) for value in found] == [type(value) for value in canonical], declaration
        assert len(found) == len(values) + 1


def test_bytes_are_those_the_server_stores(source_server: SqlServer, database: str) -> None:
    create_one_column_tables(source_server, database, BINARY_TYPES)
    for number, (declaration, _) in enumerate(BINARY_TYPES):
        cells = raw_cells(source_server, database, f"SELECT c FROM t{number} ORDER BY id")
        assert [row[1] for row in read_all(source_server, database, f"t{number}")] == cells, declaration


def test_float_is_exact(source_server: SqlServer, database: str) -> None:
    """The text protocol prints six digits of a FLOAT; a cast shows its bits."""
    values = ["0.1", "3.4028234e38", "-1.1754944e-38", "16777217", "1e-45"]
    create_one_column_tables(source_server, database, [("FLOAT", values), ("FLOAT(7,3)", ["1.1"])])
    for number in (0, 1):
        cells = raw_cells(source_server, database, f"SELECT CAST(c AS DOUBLE) FROM t{number} ORDER BY id")
        found = [row[1] for row in read_all(source_server, database, f"t{number}")]
        assert found == [None if cell is None else float(str(cell)) for cell in cells]


def test_bit_1_is_boolean_and_tinyint_1_a_number(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY, b BIT(1), n TINYINT(1))")
    run(source_server, database, "INSERT INTO t VALUES (1, b'1', 1), (2, b'0', 0), (3, NULL, NULL)")
    assert read_all(source_server, database) == [(1, True, 1), (2, False, 0), (3, None, None)]


def test_json_is_the_servers_own_text(source_server: SqlServer, database: str) -> None:
    documents = ['{"b": [1, 2.50, null, true], "a": "é\\n\\"q\\"", "long key": {"x": 1e3}}', "[]", "null", '"\\u0001"']
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY, c JSON)")
    with source_server.connect(database) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, %s)", list(enumerate(documents)))
    cells = raw_cells(source_server, database, "SELECT c FROM t ORDER BY id")
    assert [row[1] for row in read_all(source_server, database)] == cells


def test_mariadb_uuid_and_inet_are_text(mariadb_server: SqlServer) -> None:
    run(mariadb_server, "mysql", "CREATE DATABASE net")
    run(mariadb_server, "net", "CREATE TABLE t (id INT PRIMARY KEY, u UUID, a INET6, b INET4)")
    run(mariadb_server, "net", "INSERT INTO t VALUES (1, '123E4567-e89b-12d3-a456-426655440000', '::1', '10.0.0.1')")
    assert read_all(mariadb_server, "net") == [(1, "123e4567-e89b-12d3-a456-426655440000", "::1", "10.0.0.1")]
    run(mariadb_server, "mysql", "DROP DATABASE net")


def test_unknown_enum_is_the_empty_text(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY, e ENUM('a'))", "INSERT INTO t VALUES (1, 'nope')")
    assert read_all(source_server, database) == [(1, "")]


def test_zero_dates_become_null_or_stop_by_configuration(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY, d DATE, m DATETIME(3), s TIMESTAMP NULL)")
    run(source_server, database, "INSERT INTO t VALUES (1, '0000-00-00', '2024-00-15', '0000-00-00')")
    table = open_table(source_server, database)
    assert read_all(source_server, database) == [(1, None, None, None)]
    with replace(table, zero_dates="error").session() as session, pytest.raises(SourceError, match="column d holds"):
        rows_of(session)


def test_strange_names_are_quoted(source_server: SqlServer, database: str) -> None:
    name = "a`b. $ select ÄÖ"
    quoted = "`" + name.replace("`", "``") + "`"
    run(source_server, database, f"CREATE TABLE {quoted} ({quoted} INT, `group` INT, PRIMARY KEY ({quoted}, `group`))")
    run(source_server, database, f"INSERT INTO {quoted} VALUES (1, 2)")
    assert read_all(source_server, database, name) == [(1, 2)]


KEYS: Sequence[tuple[str, str, Sequence[str]]] = [
    ("a INT", "a", [f"({i})" for i in (-2147483648, -5, 0, 7, 8, 2147483647)]),
    ("a BIGINT UNSIGNED", "a", ["(0)", "(9223372036854775807)", "(9223372036854775808)", "(18446744073709551615)"]),
    ("a DECIMAL(30,10)", "a", ["(-1.5)", "(0)", "(0.0000000001)", "(12345678901234567890.1)"]),
    ("a DATE", "a", ["('1000-01-01')", "('1970-01-01')", "('9999-12-31')"]),
    ("a DATETIME(6)", "a", ["('1969-12-31 23:59:59.999999')", "('1970-01-01')", "('2024-01-01 00:00:00.000001')"]),
    ("a TIMESTAMP(3)", "a", ["('1970-01-01 00:00:01')", "('2024-03-31 02:30:00.5')", "('2038-01-19 03:14:07')"]),
    ("a VARBINARY(8)", "a", ["('')", "(0x00)", "(0x0000)", "(0x61)", "(0x80)", "(0xffff)"]),
    ("a VARCHAR(20) CHARACTER SET latin1", "a", ["('')", "('a')", "('É')", "('Grüße')", "('z')", "('ß')"]),
    ("a VARCHAR(20) CHARACTER SET utf8mb4", "a", ["('')", "('a')", "('É')", "('日本')", "('😀')", "('_%')", "('\\\\')"]),
    ("a INT, b VARCHAR(9), c DATE", "a, b, c", [
        f"({a}, '{b}', '{c}')" for a in (-1, 2) for b in ("x", "É") for c in ("2024-01-01", "2024-02-01")
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "key", "rows"), KEYS, ids=[columns for columns, _, _ in KEYS])
def test_ranges_between_any_keys_hold_each_row_once(
    source_server: SqlServer, database: str, columns: str, key: str, rows: Sequence[str]
) -> None:
    run(source_server, database, f"CREATE TABLE t ({columns}, PRIMARY KEY ({key}))")
    run(source_server, database, "INSERT INTO t VALUES " + ", ".join(rows))
    with open_table(source_server, database).session() as session:
        every = rows_of(session)
        bounds = session.order_bounds(all_keys(session))
        assert bounds == sorted(bounds)
        for low in range(len(bounds)):
            for high in range(low, len(bounds)):
                assert rows_of(session, KeyRange(bounds[low], bounds[high])) == every[low:high]
                assert rows_of(session, KeyRange(bounds[low], bounds[high], closed=True)) == every[low : high + 1]


def all_keys(session: MySqlSession) -> list[Key]:
    definition = session.definition
    return [
        key
        for batch in session.read_range(EVERYTHING)
        for key in keys_of(definition.key_parts, [batch.column(name) for name in definition.key])
    ]


def test_slow_reader_continues_behind_its_last_key(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (a INT, b VARCHAR(9), v INT, PRIMARY KEY (b, a))")
    rows = ", ".join(f"({i % 7}, 'é{i // 7}', {i})" for i in range(100))
    run(source_server, database, f"INSERT INTO t VALUES {rows}")
    with open_table(source_server, database).session() as session:
        parts = session.definition.key_parts
        found: list[Row] = []
        after: Key | None = None
        while batches := list(session.read_range(EVERYTHING, after=after, limit=9)):
            assert sum(len(batch) for batch in batches) <= 9
            found += [row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)]
            after = keys_of(parts, [batches[-1].column(name) for name in ("b", "a")])[-1]
        assert found == rows_of(session)
        assert len(found) == 100


def test_range_of_a_composite_key_is_read_by_index_alone(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (a INT, b VARCHAR(9) CHARACTER SET latin1, c DATE, UNIQUE KEY (a, b),"
        " v INT NOT NULL, PRIMARY KEY (a, b, c))")  # fmt: skip
    with source_server.connect(database) as connection, connection.cursor() as cursor:
        rows = [(i // 100, f"é{i % 100:02d}", "2024-01-01", i) for i in range(3000)]
        cursor.executemany("INSERT INTO t VALUES (%s, %s, %s, %s)", rows)
    table = open_table(source_server, database)
    with closing(connect(table.address)) as connection, table.session() as session:
        low, high = session.order_bounds([(5, "É50", date(2024, 1, 1)), (7, "é10", date(2024, 1, 1))])
        before = handler_reads(connection)
        reader = SnapshotReader(connection, table.definition)
        assert sum(len(batch) for batch in reader.read_range(KeyRange(low, high))) == 160
        assert handler_reads(connection) - before <= 200
        assert session.next_bound(low, 160) == high


def handler_reads(connection: pymysql.connections.Connection) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read_%'")
        return sum(int(value) for name, value in cursor.fetchall() if not name.endswith(("_rnd_next", "_rnd")))


@pytest.mark.parametrize("extra", [-1, 0, 1, 1_000_000, 0xFFFFFF])
def test_row_of_16_mb_and_more_is_whole(source_server: SqlServer, database: str, extra: int) -> None:
    """A row packet of exactly 16 MB - 1 is followed by an empty one; longer rows come in several."""
    header = 1 + 1 + 4 + 4
    size = 0xFFFFFF - header + extra
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY, v LONGBLOB)")
    run(
        source_server,
        database,
        "INSERT INTO t VALUES (1, 'a'), (3, 'c')",
        f"INSERT INTO t VALUES (2, REPEAT('b', {size}))",
    )
    rows = read_all(source_server, database)
    assert [row[0] for row in rows] == [1, 2, 3]
    assert rows[1][1] == b"b" * size


def test_column_changed_after_planning_stops_the_read(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 2)")
    table = open_table(source_server, database)
    run(source_server, database, "ALTER TABLE t MODIFY v BIGINT")
    with table.session() as session, pytest.raises(SchemaChangedError, match="column v is no longer int"):
        rows_of(session)


def test_iterator_given_up_uses_the_session_up(source_server: SqlServer, database: str) -> None:
    fill_wide(source_server, database, 300)
    with open_table(source_server, database, "wide").session() as session:
        batches = session.read_range(EVERYTHING)
        next(batches)
        assert isinstance(batches, Iterator)
        batches.close()  # type: ignore[attr-defined]
        with pytest.raises(SourceLostError):
            rows_of(session)


@pytest.mark.parametrize("what", ["QUERY", "CONNECTION"])
def test_killed_read_never_looks_finished(source_server: SqlServer, database: str, what: str) -> None:
    fill_wide(source_server, database, 600)
    table = open_table(source_server, database, "wide")
    with closing(connect(table.address)) as connection:
        own_id = int(ask(connection, "SELECT CONNECTION_ID() AS id")[0]["id"] or 0)
        batches = SnapshotReader(connection, table.definition).read_range(EVERYTHING)
        next(batches)
        run(source_server, database, f"KILL {what} {own_id}")
        with pytest.raises(SourceLostError):
            list(batches)


def test_server_stopped_in_mid_result_never_looks_finished(source_server: SqlServer, database: str) -> None:
    fill_wide(source_server, database, 600)
    with open_table(source_server, database, "wide").session() as session:
        batches = session.read_range(EVERYTHING)
        next(batches)
        source_server.kill()
        try:
            with pytest.raises(SourceLostError):
                list(batches)
        finally:
            source_server.start()


def test_servers_time_limit_is_no_lost_connection(source_server: SqlServer, database: str) -> None:
    fill_wide(source_server, database, 600)
    table = open_table(source_server, database, "wide")
    limit = "max_execution_time = 1" if table.identity.flavour == "mysql" else "max_statement_time = 0.001"
    with closing(connect(table.address)) as connection:
        reader = SnapshotReader(connection, table.definition)
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION {limit}")
        with pytest.raises(SourceError, match="time limit") as raised:
            list(reader.read_range(EVERYTHING))
        assert not raised.value.retryable


class CuttingProxy:
    """Passes bytes on to a server; closes the connection after `allowed` bytes of the server's answers."""

    def __init__(self, server: SqlServer) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.allowed = 1 << 40
        self.passed = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._pass_on(client)

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection((self._server.host, self._server.port)) as server:
            questions = threading.Thread(target=self._copy_questions, args=(client, server), daemon=True)
            questions.start()
            self.passed = 0
            with suppress(OSError):
                while self.passed < self.allowed and (data := server.recv(min(65536, self.allowed - self.passed))):
                    client.sendall(data)
                    self.passed += len(data)
            for end in (client, server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            questions.join()

    @staticmethod
    def _copy_questions(client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)


def test_stream_cut_at_any_byte_raises(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    run(source_server, database, "INSERT INTO t VALUES " + ", ".join(f"({i}, 'value {i}')" for i in range(40)))
    table = open_table(source_server, database)
    with closing(CuttingProxy(source_server)) as proxy:
        behind = replace(table, address=replace(table.address, port=proxy.port))
        with closing(connect(behind.address)) as connection:
            reader = SnapshotReader(connection, table.definition)
            start = proxy.passed
            assert sum(len(batch) for batch in reader.read_range(EVERYTHING)) == 40
            total = proxy.passed
        for cut in [*range(1, start, 41), *range(start, total, 5), *range(total - 20, total)]:
            proxy.allowed = cut
            with pytest.raises(SourceLostError), behind.session() as session:
                rows_of(session)
        proxy.allowed = 1 << 40
        with behind.session() as session:
            assert len(rows_of(session)) == 40


@pytest.mark.parametrize("mode", [TlsMode.REQUIRED, TlsMode.VERIFY_CA])
def test_rows_come_through_tls(mysql_server: MySqlServer, mode: TlsMode) -> None:
    run(mysql_server, "mysql", "DROP DATABASE IF EXISTS over_tls", "CREATE DATABASE over_tls")
    fill_wide(mysql_server, "over_tls", 300)
    tls = TlsOptions.from_files(mode, ca=str(mysql_server.datadir / "ca.pem") if mode is TlsMode.VERIFY_CA else None)
    table = MySqlTable.open(address_of(mysql_server, tls), "over_tls", "wide")
    with closing(connect(table.address)) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        assert dict(cursor.fetchall())["Ssl_cipher"]
    with table.session() as session:
        rows = rows_of(session)
    assert [row[0] for row in rows] == list(range(300))
    assert {row[1] for row in rows} == {"x" * 40000}


def test_server_of_another_authority_is_not_trusted(mysql_server: MySqlServer) -> None:
    with pytest.raises(SourceError, match=r"certificate of .* is not accepted") as raised:
        connect(address_of(mysql_server, TlsOptions(TlsMode.VERIFY_IDENTITY)))
    assert not raised.value.retryable


def test_wrong_password_is_no_lost_connection(source_server: SqlServer) -> None:
    stranger = SourceAddress(source_server.host, source_server.port, "nobody-here", "secret-word")
    with pytest.raises(SourceError, match="denied connecting") as raised:
        connect(stranger)
    assert not raised.value.retryable
    assert "secret-word" not in f"{raised.value}{stranger!r}{stranger}"


def test_session_cannot_write(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    with (
        closing(connect(address_of(source_server))) as connection,
        connection.cursor() as cursor,
        pytest.raises(pymysql.err.Error, match="READ ONLY"),
    ):
        cursor.execute(f"INSERT INTO `{database}`.t VALUES (1)")
