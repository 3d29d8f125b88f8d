"""What the servers answer about their tables, keys and logs is what the protocol relies on."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from consume_upstream.log.gtid import GtidSet
from consume_upstream.log.offset import CdcOffset, VisibleAt, VisibleGtids
from consume_upstream.mysql.connection import SourceAddress, connect
from consume_upstream.mysql.positions.first_missing import first_missing_transaction
from consume_upstream.mysql.preflight.facts import ServerFacts, read_server_facts, read_table_profile
from consume_upstream.mysql.rows.session import MySqlSession
from consume_upstream.mysql.server import ask, identify
from consume_upstream.mysql.table import MySqlTable
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.waiting import wait_for
from vnode_backfill.words.errors import KeyOrderError, PlanRefusedError, SchemaChangedError, SourceError
from vnode_backfill.words.key import keys_of
from vnode_backfill.words.key_range import KeyRange


def run(server: SqlServer, database: str | None, *statements: str) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def address_of(server: SqlServer, user: str | None = None) -> SourceAddress:
    return SourceAddress(server.host, server.port, user or server.user, server.password)


def open_table(server: SqlServer, database: str, table: str = "t") -> MySqlTable:
    return MySqlTable.open(address_of(server), database, table)


@contextmanager
def new_table(server: SqlServer, columns: str = "id INT PRIMARY KEY, v INT", **options: str) -> Iterator[MySqlTable]:
    """A table of its own database on a server that is not the shared one of the fixture."""
    run(server, None, "DROP DATABASE IF EXISTS asked", "CREATE DATABASE asked")
    run(server, "asked", f"CREATE TABLE t ({columns})")
    yield replace(open_table(server, "asked"), **options)  # type: ignore[arg-type]
    run(server, None, "DROP DATABASE asked")


def test_definition_has_columns_in_order_and_the_primary_key_in_index_order(
    source_server: SqlServer, database: str
) -> None:
    run(
        source_server,
        database,
        "CREATE TABLE t (v VARCHAR(9) CHARACTER SET latin1, b INT UNSIGNED, a DECIMAL(9,2), UNIQUE KEY u (v),"
        " PRIMARY KEY (a, b))",
    )
    definition = open_table(source_server, database).definition
    assert [column.name for column in definition.columns] == ["v", "b", "a"]
    assert definition.key == ("a", "b")
    assert (definition.columns[0].charset, definition.columns[0].nullable) == ("latin1", True)


def test_without_primary_key_the_same_not_null_unique_key_is_chosen(source_server: SqlServer, database: str) -> None:
    run(
        source_server,
        database,
        "CREATE TABLE t (a INT NOT NULL, b INT NOT NULL, c INT, d VARCHAR(50) NOT NULL, UNIQUE KEY z (b),"
        " UNIQUE KEY two (a, b), UNIQUE KEY nullable (c), UNIQUE KEY y (a), UNIQUE KEY prefix (d(5)))",
    )
    assert open_table(source_server, database).definition.key == ("a",)
    run(source_server, database, "INSERT INTO t VALUES (2, 1, NULL, 'x'), (1, 2, NULL, 'y')")
    with open_table(source_server, database).session() as session:
        assert [row for batch in session.read_range(KeyRange(None, None)) for row in batch.column(0).to_pylist()] == [
            1,
            2,
        ]


@pytest.mark.parametrize("columns", ["a INT", "a INT, UNIQUE KEY (a)", "a VARCHAR(50) NOT NULL, UNIQUE KEY (a(5))"])
def test_table_without_a_usable_key_is_refused(source_server: SqlServer, database: str, columns: str) -> None:
    run(source_server, database, f"CREATE TABLE t ({columns})")
    with pytest.raises(PlanRefusedError, match="neither a primary key nor a NOT NULL unique key"):
        open_table(source_server, database)


def test_index_over_an_expression_is_no_key(mysql_server: MySqlServer) -> None:
    with new_table(mysql_server) as table:
        run(mysql_server, "asked", "CREATE TABLE e (a INT NOT NULL, UNIQUE KEY ((a + 1)))")
        with pytest.raises(PlanRefusedError, match="neither a primary key"):
            open_table(mysql_server, table.definition.database, "e")


def test_missing_table_is_refused(source_server: SqlServer, database: str) -> None:
    with pytest.raises(PlanRefusedError, match="does not exist or cannot be seen"):
        open_table(source_server, database, "nothing")


def test_dropped_key_is_a_changed_schema(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (a INT, b INT NOT NULL, PRIMARY KEY (a), UNIQUE KEY (b))")
    table = open_table(source_server, database)
    run(source_server, database, "ALTER TABLE t DROP PRIMARY KEY")
    with pytest.raises(SchemaChangedError, match="no longer has the unique key a"), table.session() as session:
        session.min_max()
    assert table.current_definition().key == ("b",)


def test_keys_of_a_table_that_is_gone_are_still_ordered(source_server: SqlServer, database: str) -> None:
    """The log holds changes from before it was dropped."""
    run(source_server, database, "CREATE TABLE t (a VARCHAR(9) PRIMARY KEY)")
    table = open_table(source_server, database)
    run(source_server, database, "DROP TABLE t")
    with table.session() as session:
        b, small, large = (weights for (weights,) in session.collation_keys([("b",), ("a",), ("A",)]))
        assert small == large
        assert small is not None
        assert b is not None
        assert small < b
        with pytest.raises(SchemaChangedError, match="is not there any more"):
            session.min_max()


def test_smallest_and_largest_key_and_skipping(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (a INT, b VARCHAR(9), PRIMARY KEY (a, b))")
    table = open_table(source_server, database)
    with table.session() as session:
        assert session.min_max() == (None, None)
        run(source_server, database, "INSERT INTO t VALUES (1, 'b'), (1, 'É'), (-3, 'z'), (2, '')")
        low, high = session.min_max()
        assert low is not None
        assert high is not None
        assert (low.key, high.key) == ((-3, "z"), (2, ""))
        bounds = [session.next_bound(low, rows) for rows in (1, 2, 3, 4)]
        assert [bound.key if bound else None for bound in bounds] == [(1, "b"), (1, "É"), (2, ""), None]
        assert low < high


def test_estimate_follows_the_rows_of_the_range(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    with source_server.connect(database) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO t VALUES (%s, 0)", [(i,) for i in range(5000)])
        cursor.execute("ANALYZE TABLE t")
    with open_table(source_server, database).session() as session:
        low, some, high, beyond = session.order_bounds([(100,), (200,), (4100,), (90_000,)])
        few, many, none, outside = session.estimate_rows((low, some, high, high, beyond))
        assert 50 <= few <= 200
        assert 2000 <= many <= 6000
        assert none <= 1
        assert 400 <= outside <= 1800
        assert session.estimate_rows((beyond, beyond))[0] <= 1
        facts = session.table_facts()
        assert 2500 <= facts.estimated_rows <= 7500
        assert facts.average_row_bytes > 0


NASTY = [
    "", " ", "a", "A", "a ", "a  ", "á", "à", "ä", "ae", "Æ", "æ", "ß", "ss", "SS", "s", "st", "b", "B", "_", "%", "\\",
    "'",
    '"', "10", "9", "Z", "z", "é", "e", "É", "é1", "aGG", "GbG", "GGc", "_x", "😀", "😁", "a\t", "a\tb", "a\x01", "ab",
    "a b",
    "ﬁ", "fi", "ı", "i", "İ", "I", "ǆ", "dž", "Ａ", "\u0301", "e\u0301", "ñ", "n", "日", "本", "\u200b", "-", "a-b", "ab-",
    "ßßßßßßßß", "ßßßßßßßa", "ßßßßßßßb",
]  # fmt: skip
COLLATIONS = {
    "mysql": [
        "utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs", "utf8mb4_0900_bin", "utf8mb4_de_pb_0900_ai_ci",
        "utf8mb4_general_ci",
        "utf8mb4_unicode_ci", "utf8mb4_bin", "utf8mb3_general_ci", "latin1_swedish_ci", "latin1_german2_ci",
        "gbk_chinese_ci",
    ],
    "mariadb": [
        "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_unicode_520_ci", "utf8mb4_uca1400_ai_ci", "utf8mb4_bin",
        "utf8mb4_nopad_bin", "utf8mb4_unicode_nopad_ci", "utf8mb4_uca1400_nopad_as_cs", "utf8mb3_general_ci",
        "latin1_swedish_ci", "latin1_german2_ci", "gbk_chinese_ci",
    ],
}  # fmt: skip


def encodable(text: str, codec: str) -> bool:
    return bool(text) and text.encode(codec, "ignore").decode(codec) == text


STORABLE: dict[str, Callable[[str], bool]] = {
    "utf8mb3": lambda text: bool(text) and max(text) < "\U00010000",
    "latin1": lambda text: encodable(text, "cp1252"),
    "gbk": lambda text: encodable(text, "gbk"),
}


def test_text_is_ordered_as_the_server_orders_it(source_server: SqlServer, database: str) -> None:
    for collation in COLLATIONS[source_server.flavour]:
        charset = collation.split("_", maxsplit=1)[0]
        declared = f"VARCHAR(8) CHARACTER SET {charset} COLLATE {collation}"
        run(source_server, database, "DROP TABLE IF EXISTS t", f"CREATE TABLE t (k {declared} PRIMARY KEY)")
        with source_server.connect(database) as connection, connection.cursor() as cursor:
            # Values the character set does not have are not part of the question.
            cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES'")
            cursor.executemany("INSERT IGNORE INTO t VALUES (%s)", [(text,) for text in NASTY])
            cursor.execute("DELETE FROM t WHERE k LIKE '%?%'")
        table = open_table(source_server, database)
        with table.session() as session:
            assert_ordered_as_server(session, table, collation)


def assert_ordered_as_server(session: MySqlSession, table: MySqlTable, collation: str) -> None:
    batches = list(session.read_range(KeyRange(None, None)))
    keys = [key for batch in batches for key in keys_of(table.definition.key_parts, batch.columns)]
    bounds = session.order_bounds(keys)
    # The table's own order is the index's; no two keys of a unique index are equal, so neither may their bounds be.
    assert [bound.key for bound in sorted(bounds)] == keys, collation
    assert len({bound.order for bound in bounds}) == len(keys) > 20, collation
    with closing(table.connect()) as connection:
        for text in filter(STORABLE.get(table.definition.columns[0].charset, bool), NASTY):
            found = ask(connection, f"SELECT k FROM `{table.definition.database}`.t WHERE k = %s", (text,))
            same, asked = session.order_bounds([(str(found[0]["k"]),), (text,)])
            assert same == asked, (collation, text, found)


def test_text_that_has_no_exact_sort_key_is_refused(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (k VARCHAR(2) COLLATE utf8mb4_unicode_520_ci PRIMARY KEY)")
    with open_table(source_server, database).session() as session, pytest.raises(KeyOrderError, match="column k"):
        session.order_bounds([("ﷺ",)])


def test_table_description_travels_and_hides_the_password(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    table = open_table(source_server, database)
    secret = replace(table, address=replace(table.address, password="secret-word"))
    assert pickle.loads(pickle.dumps(secret)) == secret
    assert "secret-word" not in repr(secret)


def test_another_server_is_refused_wherever_it_answers(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    table = open_table(source_server, database)
    moved = replace(table, identity=replace(table.identity, server="the one before"))
    for question in (moved.session().__enter__, moved.written_offset, moved.visible_offset, moved.first_offset):
        with pytest.raises(SourceError, match=r"another server answers: .* instead of the one before"):
            question()


def test_log_is_cut_where_files_begin(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    table = open_table(source_server, database)
    after = table.written_offset()
    assert table.log_stretches(after, after) == []
    inserts = [statement for i in range(3) for statement in (f"INSERT INTO t VALUES ({i})", "FLUSH BINARY LOGS")]
    run(source_server, database, *inserts, "INSERT INTO t VALUES (3)")
    stretches = table.log_stretches(after, table.written_offset())
    assert [high.number - low.number for low, high in stretches] == [1, 1, 1, 0]
    assert [low.pos for low, _ in stretches] == [after.pos, 4, 4, 4]
    found = [
        [value for batch in table.read_log(low, high, reader) for value in batch.after.column(0).to_pylist()]
        for reader, (low, high) in enumerate(stretches)
    ]
    assert found == [[0], [1], [2], [3]]


def test_reader_without_a_server_id_of_its_own_is_refused(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    table = replace(open_table(source_server, database), server_ids=(5400, 5401))
    end = table.written_offset()
    with pytest.raises(SourceError, match="reader 2 of the log has no server id"):
        table.read_log(end, end, 2)


def test_written_offset_moves_with_every_commit(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    table = open_table(source_server, database)
    before = table.written_offset()
    run(source_server, database, "INSERT INTO t VALUES (1)")
    after = table.written_offset()
    assert before < after
    assert before.gtids != after.gtids
    assert table.written_offset() == after == table.first_offset()
    assert table.first_offset().gtids == after.gtids


def test_after_a_commit_returned_its_transaction_is_visible(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY)")
    table = open_table(source_server, database)
    run(source_server, database, "INSERT INTO t VALUES (1)")
    written, visible = table.written_offset(), table.visible_offset()
    if isinstance(visible, VisibleGtids):
        assert visible.executed.holds_all(GtidSet.parse(written.gtids))
    else:
        assert written <= visible.position


def test_mariadb_offset_names_exactly_the_transactions_at_or_below_it_also_under_a_writer(
    mariadb_server: MariaDbServer,
) -> None:
    with new_table(mariadb_server) as table:
        ended = threading.Event()

        def write() -> None:
            with mariadb_server.connect("asked") as connection:
                for number in itertools.count(100):
                    ask(connection, f"INSERT INTO t VALUES ({number}, 0)")
                    if ended.wait(0.001):
                        return

        writer = threading.Thread(target=write)
        writer.start()
        try:
            offsets = [table.written_offset() for _ in range(100)]
        finally:
            ended.set()
            writer.join()
        with mariadb_server.connect("asked") as connection:
            exact = [
                ask(connection, "SELECT BINLOG_GTID_POS(%s, %s) AS gtids", (at.file, at.pos))[0]["gtids"]
                for at in offsets
            ]
        assert [at.gtids for at in offsets] == exact
        assert len(set(exact)) > 20


class StalledCommit:
    """Commits one row in a thread; the server has logged it and holds it back from readers."""

    def __init__(self, server: SqlServer, table: MySqlTable) -> None:
        self._server, self._table = server, table
        self.before = table.written_offset()
        self._thread = threading.Thread(target=run, args=(server, "asked", "INSERT INTO t VALUES (7, 7)"))

    def __enter__(self) -> CdcOffset:
        self._thread.start()
        wait_for(lambda: self._table.written_offset() > self.before, seconds=20, what="the row to be logged")
        return self.before

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def row_is_visible(self) -> bool:
        with self._server.connect("asked") as connection:
            return bool(ask(connection, "SELECT 1 FROM t WHERE id = 7"))


def test_mysql_row_that_is_logged_and_not_visible_is_not_covered(mysql_server: MySqlServer) -> None:
    with new_table(mysql_server) as table, slow_group_commit(mysql_server):
        stalled = StalledCommit(mysql_server, table)
        with stalled as before:
            visible, first = table.visible_offset(), table.first_offset()
            assert not stalled.row_is_visible()
            assert isinstance(visible, VisibleGtids)
            assert not visible.executed.holds_all(logged_gtids(mysql_server, before))
            assert first == before
        assert stalled.row_is_visible()
        assert table.first_offset() == table.written_offset() > before


@contextmanager
def slow_group_commit(server: SqlServer) -> Iterator[None]:
    run(server, None, "SET GLOBAL binlog_group_commit_sync_delay = 1000000")
    try:
        yield
    finally:
        run(server, None, "SET GLOBAL binlog_group_commit_sync_delay = 0")


def logged_gtids(server: SqlServer, after: CdcOffset) -> GtidSet:
    with server.connect() as connection:
        events = ask(connection, f"SHOW BINLOG EVENTS IN '{after.file}' FROM {after.pos}")
    texts = [str(event["Info"]) for event in events if event["Event_type"] == "Gtid"]
    return GtidSet.parse(",".join(text.split("'")[1] for text in texts))


def test_mariadb_row_that_is_logged_and_not_visible_is_not_covered() -> None:
    options = {
        "rpl_semi_sync_master_enabled": "ON",
        "rpl_semi_sync_master_wait_point": "AFTER_SYNC",
        "rpl_semi_sync_master_wait_no_slave": "ON",
        "rpl_semi_sync_master_timeout": "1",
    }
    with MariaDbServer(options) as server, new_table(server) as table:
        run(
            server,
            None,
            "SET GLOBAL rpl_semi_sync_master_timeout = 3000",
            "SET GLOBAL rpl_semi_sync_master_enabled = OFF",
        )
        run(server, None, "SET GLOBAL rpl_semi_sync_master_enabled = ON")
        stalled = StalledCommit(server, table)
        with stalled as before:
            visible, first = table.visible_offset(), table.first_offset()
            assert not stalled.row_is_visible()
            assert visible == VisibleAt(before)
            assert first == before
        assert stalled.row_is_visible()
        assert table.visible_offset() == VisibleAt(table.written_offset())


def test_first_transaction_outside_a_set_is_found_in_the_log(mysql_server: MySqlServer) -> None:
    with new_table(mysql_server) as table:
        executed = GtidSet.parse(table.written_offset().gtids)
        before = table.written_offset()
        run(mysql_server, "asked", "INSERT INTO t VALUES (1, 1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 2)")
        missing = first_missing_transaction(table.connect(), executed)
        assert missing is not None
        assert (missing.file, missing.pos) == (before.file, before.pos)
        everything = GtidSet.parse(table.written_offset().gtids)
        assert first_missing_transaction(table.connect(), everything) is None


@pytest.fixture(scope="module")
def plain_mysql() -> Iterator[MySqlServer]:
    with MySqlServer({"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}) as server:
        yield server


def test_without_gtids_everything_logged_is_visible_after_the_wait(plain_mysql: MySqlServer) -> None:
    with new_table(plain_mysql) as table, slow_group_commit(plain_mysql):
        stalled = StalledCommit(plain_mysql, table)
        with stalled as before:
            assert not stalled.row_is_visible()
            visible = table.visible_offset()
            assert isinstance(visible, VisibleAt)
            assert visible.position > before
            assert stalled.row_is_visible()
        assert table.first_offset() == table.written_offset()


def test_without_gtids_an_idle_transaction_that_wrote_ends_the_wait_with_its_reason(plain_mysql: MySqlServer) -> None:
    with new_table(plain_mysql) as table, plain_mysql.connect("asked", autocommit=False) as idle:
        impatient = replace(table, visibility_timeout=0.5)
        ask(idle, "SELECT * FROM t")
        assert isinstance(impatient.visible_offset(), VisibleAt)
        ask(idle, "INSERT INTO t VALUES (1, 1)")
        with pytest.raises(SourceError, match=r"was not known within 0\.5 s"):
            impatient.visible_offset()
        idle.rollback()


def test_without_gtids_a_watermark_answers_in_spite_of_an_idle_transaction(plain_mysql: MySqlServer) -> None:
    with new_table(plain_mysql) as table, plain_mysql.connect("asked", autocommit=False) as idle:
        run(plain_mysql, "asked", "CREATE TABLE w (id TINYINT PRIMARY KEY, sampled BIGINT UNSIGNED NOT NULL)")
        marked = replace(table, watermark_table="asked.w", visibility_timeout=0.5)
        ask(idle, "INSERT INTO t VALUES (1, 1)")
        written = table.written_offset()
        assert marked.visible_offset() == VisibleAt(written)
        assert marked.first_offset() > written
        idle.rollback()


def test_without_gtids_a_watermark_waits_for_what_is_logged_before_it(plain_mysql: MySqlServer) -> None:
    with new_table(plain_mysql) as table, slow_group_commit(plain_mysql):
        run(plain_mysql, "asked", "CREATE TABLE w (id TINYINT PRIMARY KEY, sampled BIGINT UNSIGNED NOT NULL)")
        marked = replace(table, watermark_table="asked.w")
        stalled = StalledCommit(plain_mysql, table)
        with stalled as before:
            assert not stalled.row_is_visible()
            visible = marked.visible_offset()
            assert isinstance(visible, VisibleAt)
            assert visible.position > before
            assert stalled.row_is_visible()


def facts_of(table: MySqlTable) -> ServerFacts:
    with table.connect() as connection:
        return read_server_facts(connection, table.identity, table.definition)


def test_facts_of_the_server_and_the_table(source_server: SqlServer, database: str) -> None:
    run(
        source_server,
        database,
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE t (id INT PRIMARY KEY, p INT, twice INT AS (id * 2) STORED,"
        " CONSTRAINT child FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "CREATE TRIGGER stamp BEFORE INSERT ON t FOR EACH ROW SET NEW.p = NULL",
    )
    table = open_table(source_server, database)
    facts = facts_of(table)
    with table.connect() as connection:
        profile = read_table_profile(connection, table.identity, table.definition)
    assert (facts.flavour, facts.server) == (source_server.flavour, table.identity.server)
    assert facts.server_id == source_server.port
    assert (facts.log_bin, facts.binlog_format, facts.binlog_row_image, facts.gtid_mode) == (True, "ROW", "FULL", "ON")
    assert facts.log_files
    assert (facts.log_retention_seconds, facts.log_compressed, facts.semi_sync, facts.read_only) == (
        None,
        False,
        False,
        False,
    )
    assert facts.replica_server_ids == ()
    assert facts.privileges.may_select
    assert facts.privileges.may_read_log
    assert (profile.engine, profile.triggers, profile.generated_columns) == ("InnoDB", ("stamp",), ("twice",))
    assert [(key.name, key.parent, key.changes_rows) for key in profile.foreign_keys] == [("child", "parent", True)]


@pytest.mark.parametrize(
    ("grants", "expected"),
    [
        (["SELECT ON {database}.*", "REPLICATION SLAVE, REPLICATION CLIENT, PROCESS ON *.*"], (True, True, True, True)),
        (["SELECT ON {database}.t"], (True, False, False, False)),
        (["SELECT (id) ON {database}.t", "REPLICATION CLIENT ON *.*"], (False, False, True, False)),
    ],
    ids=["all that is needed", "select only", "one column"],
)
def test_privileges_of_a_small_user(
    source_server: SqlServer, database: str, grants: Sequence[str], expected: tuple[bool, ...]
) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "CREATE USER 'small'@'127.0.0.1'")
    try:
        for grant in grants:
            run(source_server, None, f"GRANT {grant.format(database=database)} TO 'small'@'127.0.0.1'")
        with closing(connect(address_of(source_server, "small"))) as connection:
            definition = open_table(source_server, database).definition
            table = MySqlTable(address_of(source_server, "small"), definition, identify(connection))
        privileges = facts_of(table).privileges
        held = (
            privileges.may_select,
            privileges.may_read_log,
            privileges.may_ask_position,
            privileges.may_see_transactions,
        )
        assert held == expected
    finally:
        run(source_server, None, "DROP USER 'small'@'127.0.0.1'")


def test_position_without_the_privilege_is_denied_with_a_hint(source_server: SqlServer, database: str) -> None:
    run(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY)", "CREATE USER 'blind'@'127.0.0.1'")
    try:
        run(source_server, None, f"GRANT SELECT ON {database}.* TO 'blind'@'127.0.0.1'")
        table = MySqlTable.open(address_of(source_server, "blind"), database, "t")
        with pytest.raises(SourceError, match="denied") as raised:
            table.written_offset()
        assert "privileges" in raised.value.hint
    finally:
        run(source_server, None, "DROP USER 'blind'@'127.0.0.1'")
