"""Several tables of a real server, read from its log together: each gives what it gives when it is read alone.

Reading alone is the oracle. `test_reader` and `test_values` compare it with the server's own answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pymysql
import pytest
from pymysql.connections import Connection
from pyspark.sql import SparkSession

from consume_upstream.buffer import BufferNote, ChangeBuffer
from consume_upstream.executor import ConsumeOrder, UpstreamTableExecutor, consume_together
from consume_upstream.log.batch import LogBatch, Transaction
from consume_upstream.log.offset import CdcOffset, VisibleAt
from consume_upstream.log.statement import MetStatements
from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.table import MySqlTable
from devkit.mysql import SqlServer
from progress.state.backfill_state import Intent, new_state
from tests.system.consume_upstream.mysql.binlog.test_compressed_log import compression
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.change import HALF, POS, ROW, ChangeOp
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.errors import BackfillError, SchemaChangedError
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import SplitPlan, plan_of

SHAPES = {
    "orders": "id INT PRIMARY KEY, name VARCHAR(40), amount DECIMAL(18,4), at DATETIME(6)",
    "items": "o INT, n SMALLINT UNSIGNED, what TEXT, kind ENUM('a','b'), PRIMARY KEY (o, n)",
    "people": "name VARCHAR(30) PRIMARY KEY, data JSON, blob_ BLOB, day DATE",
    "audit": "id BIGINT AUTO_INCREMENT PRIMARY KEY, said VARCHAR(60)",
}
TRIGGERS = (
    "CREATE TRIGGER a AFTER INSERT ON orders FOR EACH ROW INSERT INTO audit (said) VALUES (CONCAT('new ', NEW.id))",
    "CREATE TRIGGER b AFTER DELETE ON items FOR EACH ROW UPDATE people SET day = NULL WHERE name = CONCAT('P', OLD.o)",
)
Change = tuple[int, int, int, int, dict[str, object], dict[str, object]]


@dataclass
class Read:
    """What a reader found of one table."""

    changes: list[Change] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    met: MetStatements = field(default_factory=MetStatements)

    def take(self, batch: LogBatch) -> None:
        images = batch.before.to_pylist(), batch.after.to_pylist()
        places = batch.pos.tolist(), batch.row.tolist(), batch.op.tolist()
        self.changes += ((batch.file, *row) for row in zip(*places, *images, strict=True))
        self.transactions += [each for each in batch.transactions if each.end]


@dataclass
class Shop:
    """A database with a table of each shape, and where its log began."""

    server: SqlServer
    database: str
    tables: list[MySqlTable] = field(default_factory=list)
    connection: Connection = field(init=False)
    start: CdcOffset = field(init=False)

    def __post_init__(self) -> None:
        self.connection = self.server.connect(self.database)
        self.run(*(f"CREATE TABLE {name} ({columns})" for name, columns in SHAPES.items()), *TRIGGERS)
        self.run("CREATE TABLE other (id INT PRIMARY KEY, v INT)")
        address = SourceAddress(self.server.host, self.server.port, self.server.user, self.server.password)
        self.tables = [MySqlTable.open(address, self.database, name) for name in SHAPES]
        self.start = self.tables[0].written_offset()

    def run(self, *statements: str) -> None:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def write(self, random: Random, transactions: int) -> None:
        """Transactions over several tables; some of their statements change two or more at once."""
        for _ in range(transactions):
            self.run("BEGIN")
            for _ in range(random.randint(1, 6)):
                with suppress(pymysql.err.IntegrityError):
                    self.run(_statement(random))
            self.run(random.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK")))

    def alone(self, upto: CdcOffset) -> list[Read]:
        found = [Read() for _ in self.tables]
        for table, read in zip(self.tables, found, strict=True):
            try:
                for batch in table.read_log(self.start, upto, 0, read.met):
                    read.take(batch)
            except BackfillError as error:
                read.met.error = error
        return found

    def together(self, upto: CdcOffset) -> tuple[list[Read], list[Transaction]]:
        found = [Read() for _ in self.tables]
        met, every = [read.met for read in found], []
        for number, rows in self.tables[0].read_together(self.tables, self.start, upto, 1, met):
            every += [each for each in rows.transactions if each.end]
            found[number].take(replace(rows, transactions=()))
        return found, every

    def assert_same(self) -> list[Read]:
        """Compare the two ways of reading all that was written; returns what was found together."""
        upto = self.tables[0].written_offset()
        together, every = self.together(upto)
        for mine, alone in zip(together, self.alone(upto), strict=True):
            assert str(mine.met.error) == str(alone.met.error)
            if alone.met.error is None:
                assert mine.changes == alone.changes
                assert (mine.met.cut, mine.met.passed) == (alone.met.cut, alone.met.passed)
                assert alone.transactions == every[: len(alone.transactions)]
        return together


def _statement(random: Random) -> str:
    key, other = random.randrange(30), random.randrange(30)
    return random.choice((
        f"REPLACE INTO orders VALUES ({key}, 'n{other}', {other}.5, '2024-01-01 00:00:00.{key:06d}')",
        f"INSERT INTO items VALUES ({key}, {other}, REPEAT('x', {other * 20}), 'b')",
        f"INSERT INTO people VALUES ('P{key}', '{{\"k\": {other}}}', 'b{other}', '2024-02-{other % 28 + 1:02d}')",
        f"UPDATE orders JOIN items ON orders.id = items.o SET orders.name = 'both', items.what = 'both' WHERE id < {key}",
        f"UPDATE people SET name = CONCAT('Q', {other}), day = NULL WHERE name = 'P{key}'",
        f"DELETE orders, items FROM orders JOIN items ON orders.id = items.o WHERE id = {key}",
        f"DELETE FROM items WHERE o = {key}", f"REPLACE INTO other VALUES ({key}, {other})",
        f"UPDATE items, other SET items.kind = 'a', other.v = {other} WHERE items.o = other.id",
    ))  # fmt: skip


@pytest.fixture(params=["plain", "compressed"])
def shop(request: pytest.FixtureRequest, source_server: SqlServer, database: str) -> Iterator[Shop]:
    compression(source_server, on=request.param == "compressed")
    found = Shop(source_server, database)
    yield found
    found.connection.close()
    compression(source_server, on=False)


@pytest.fixture
def plain_shop(source_server: SqlServer, database: str) -> Iterator[Shop]:
    found = Shop(source_server, database)
    yield found
    found.connection.close()


def test_tables_of_every_shape_give_what_they_give_alone(shop: Shop) -> None:
    """Transactions over several tables, multi-table UPDATE and DELETE, and triggers; over three files."""
    for seed in range(3):
        shop.write(Random(seed), 25)
        shop.run("FLUSH BINARY LOGS")
    found = shop.assert_same()
    assert all(read.changes for read in found)
    assert all(read.met.error is None and read.met.cut is None for read in found)


def test_statement_cuts_its_tables_and_no_other(shop: Shop) -> None:
    shop.write(Random(4), 10)
    shop.run("CREATE INDEX i ON people (day)")
    shop.write(Random(5), 10)
    shop.run("DROP TRIGGER a", "RENAME TABLE audit TO old, items TO audit, old TO items")
    shop.run("INSERT INTO orders (id, name) VALUES (1000, 'later')", "TRUNCATE people")
    shop.run("INSERT INTO orders (id, name) VALUES (1001, 'last')")
    orders, items, people, audit = shop.assert_same()
    assert [read.met.cut is not None for read in (orders, items, people, audit)] == [False, True, True, True]
    assert items.met.cut == audit.met.cut
    assert [passed.text for passed in people.met.passed] == ["CREATE INDEX i ON people (day)"]
    assert orders.changes[-1][-1]["name"] == "last"


def test_table_that_cannot_be_read_does_not_stop_the_others(shop: Shop) -> None:
    """One changed behind the log's back, another written with partial images."""
    shop.write(Random(6), 5)
    shop.run("SET sql_log_bin = 0", "ALTER TABLE people ADD c INT", "SET sql_log_bin = 1")
    shop.run("INSERT INTO people (name) VALUES ('new')", "INSERT INTO items VALUES (900, 1, 'x', 'a')")
    shop.run(
        "SET binlog_row_image = MINIMAL", "UPDATE items SET what = 'y' WHERE o = 900", "SET binlog_row_image = FULL"
    )
    shop.run("INSERT INTO orders (id, name) VALUES (1001, 'last')")
    orders, items, people, audit = shop.assert_same()
    assert isinstance(people.met.error, SchemaChangedError)
    assert "does not hold every column" in str(items.met.error)
    assert (orders.met.error, audit.met.error) == (None, None)
    assert orders.changes[-1][-1]["name"] == "last"
    assert people.met.failed_at is not None
    assert shop.start.order < people.met.failed_at < (orders.changes[-1][0], orders.changes[-1][1])


def test_statement_of_a_later_era_is_of_that_era(plain_shop: Shop) -> None:
    """After a failover a job counts its logs; what a reader meets has the number of its log too."""
    shop = plain_shop
    shop.run(
        "CREATE INDEX i ON items (kind)", "ALTER TABLE orders ADD c INT", "INSERT INTO items VALUES (1, 1, 'x', 'a')"
    )
    tables = [table.in_era(2) for table in shop.tables]
    start, upto = shop.start.in_era(2), tables[0].written_offset()
    met = [MetStatements() for _ in tables]
    rows = [batch.rows for batch in tables[0].read_together(tables, start, upto, 0, met)]
    alone = MetStatements()
    assert list(tables[0].read_log(start, upto, 0, alone))
    assert met[0].cut is not None
    assert met[0].cut == alone.cut
    found = tables[0].found_statement(start, upto, met[0].cut)
    assert start < found.before < found.after < upto
    assert {met[0].cut.start[0], met[1].passed[0].start[0], *(batch.file for batch in rows)} == {start.number}


def consume(shop: Shop, folder: Path, spark: SparkSession | None) -> list[BufferNote | BackfillError]:
    """One epoch of all tables, each with a number of its own: the log from the start to its end now."""
    upto, visible = shop.tables[0].written_offset(), shop.tables[0].visible_offset()
    orders = []
    for number, table in enumerate(shop.tables):
        buffer, plan = buffer_of(folder, table), _plan(table)
        buffer.prepare()
        state = new_state(VisibleAt(shop.start), plan, split_evenly(plan.vnode_count, 1))
        intent = Intent(Epoch(number + 1), BarrierKind.CHECKPOINT, upto, visible, ((),), 0)
        executor = UpstreamTableExecutor(table, buffer, readers=2, memory=1 << 16)
        orders.append(ConsumeOrder(executor, state, plan, intent))
    return consume_together(spark.sparkContext if spark else None, orders)


def buffer_of(folder: Path, table: MySqlTable) -> ChangeBuffer:
    return ChangeBuffer(str(folder / table.definition.table), table.definition, "job")


def _plan(table: MySqlTable) -> SplitPlan:
    """No range, so that no change is dropped; but `people` has one, of which every change will be seen by a read."""
    parts = table.definition.key_parts
    if table.definition.table != "people":
        return plan_of(parts, (), 4)
    with table.session() as session:
        low, high = session.order_bounds([("p",), ("p2",)])
    return plan_of(parts, ((low, 10), (high, 0)), 4)


def buffered(folder: Path, shop: Shop, number: int) -> set[tuple[object, ...]]:
    """Place, operation and key of each change in a table's buffer."""
    table = shop.tables[number]
    buffer = buffer_of(folder, table)
    applied = {VnodeId(vnode): shop.start for vnode in range(4)}
    files = buffer.files(applied, table.written_offset(), 4, trusted_since=None)
    rows = [row for file in files for batch in buffer.reader().read(file) for row in batch.to_pylist()]
    return {(row[POS], row[ROW], row[HALF], *(row[name] for name in table.definition.key)) for row in rows}


def expected(read: Read, table: MySqlTable) -> set[tuple[object, ...]]:
    """The same of a table that was read alone."""
    found = set()
    for _, pos, row, op, before, after in read.changes:
        old, new = (tuple(image[name] for name in table.definition.key) for image in (before, after))
        if op == ChangeOp.DELETE or (op == ChangeOp.UPDATE and old != new):
            found.add((pos, row, 0, *old))
        if op != ChangeOp.DELETE:
            found.add((pos, row, 1, *new))
    return found


@pytest.mark.parametrize("where", ["driver", "tasks"])
def test_changes_of_all_tables_are_buffered(
    where: str, plain_shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Text keys are ordered by the server: of `people`, the keys from P to P2 are seen by a read that will come."""
    shop = plain_shop
    shop.write(Random(7), 30)
    if where == "tasks":
        # The driver reads a stretch of two files itself, if it is short.
        shop.run("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        shop.write(Random(8), 10)
    notes = consume(shop, tmp_path, request.getfixturevalue("spark") if where == "tasks" else None)
    alone = shop.alone(shop.tables[0].written_offset())
    for number, (note, table, read) in enumerate(zip(notes, shop.tables, alone, strict=True)):
        assert isinstance(note, BufferNote)
        wanted = expected(read, table)
        if table.definition.table == "people":
            dropped = {each for each in wanted if "p" <= str(each[-1]).lower() <= "p2"}
            assert 0 < len(dropped) < len(wanted)
            wanted -= dropped
        assert buffered(tmp_path, shop, number) == wanted
        assert (note.read, note.kept) == (len(read.changes), len(wanted))
    assert consume(shop, tmp_path, None) == notes


def test_error_and_cut_of_one_table_leave_the_others_buffered(plain_shop: Shop, tmp_path: Path) -> None:
    shop = plain_shop
    shop.write(Random(9), 10)
    shop.run(
        "SET sql_log_bin = 0", "ALTER TABLE people ADD c INT", "SET sql_log_bin = 1", "ALTER TABLE items ADD c INT"
    )
    shop.run("INSERT INTO people (name) VALUES ('new')", "INSERT INTO items (o, n) VALUES (900, 1)")
    shop.run("INSERT INTO orders (id, name) VALUES (1001, 'last')")
    orders, items, people, audit = consume(shop, tmp_path, None)
    alone = shop.alone(shop.tables[0].written_offset())
    assert isinstance(people, SchemaChangedError)
    assert isinstance(items, BufferNote)
    assert items.cut is not None
    assert items.cut.text == "ALTER TABLE items ADD c INT"
    for number, note in ((0, orders), (1, items), (3, audit)):
        assert isinstance(note, BufferNote)
        assert buffered(tmp_path, shop, number) == expected(alone[number], shop.tables[number])
    assert buffered(tmp_path, shop, 2) == set()
