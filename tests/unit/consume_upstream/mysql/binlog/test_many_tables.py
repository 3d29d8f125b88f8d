"""Several tables of one log, read together, give what each gives when it is read alone."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from consume_upstream.log.statement import LogCut, MetStatements, PassedStatement
from consume_upstream.mysql.binlog.reader import WantedTable
from tests.unit.consume_upstream.mysql.binlog.log_bytes import block_of
from tests.unit.consume_upstream.mysql.binlog.made_log import (
    DELETE,
    INSERT,
    UPDATE,
    MadeLog,
    MadeTable,
    event,
    query,
)
from vnode_backfill.words.errors import LawBrokenError, SchemaChangedError

A = MadeTable("shop", "orders", 71)
B = MadeTable("shop", "items", 72, width=8)
C = MadeTable("crm", "orders", 73)
OTHER = MadeTable("shop", "order", 74)
TABLES = (A, B, C)


def write(table: MadeTable, *keys: int, last: bool = True) -> bytes:
    return table.rows(INSERT, [(key, f"{table.name} {key}") for key in keys], last=last)


def keys(log: MadeLog, *tables: MadeTable) -> list[list[object]]:
    return [[after["id"] for *_, after in found.changes] for found in log.together(tables)]


def test_rows_go_to_the_table_whose_name_was_mapped() -> None:
    log = MadeLog()
    log.change(A.map(), write(A, 1), C.map(), write(C, 2), OTHER.map(), write(OTHER, 3))
    log.change(B.map(), write(B, 4))
    assert keys(log, A, B, C) == [[1], [4], [2]]
    assert keys(log, C, A) == [[2], [1]]


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("kind", [INSERT, UPDATE, DELETE, 39, 166])
def test_rows_of_a_table_that_is_not_read_are_not_decoded(kind: int, pack: bool) -> None:
    """What follows the table's id and the flags is no row of anything: only who reads that table finds out."""
    log = MadeLog()
    head = OTHER.rows(INSERT, [], last=True)[19:27]
    log.change(OTHER.map(), event(kind, head + b"\xff" * 40), A.map(), write(A, 1), pack=pack)
    assert keys(log, A, B) == [[1], []]
    assert log.alone(OTHER).met.error is not None


def test_columns_of_a_table_that_is_not_read_may_be_of_any_type() -> None:
    log = MadeLog()
    unknown = OTHER.map().replace(b"\2\3\x0f\2", b"\2\3\xee\2")
    assert unknown != OTHER.map()
    log.change(unknown, write(OTHER, 2), A.map(), write(A, 1))
    assert keys(log, A, B) == [[1], []]
    assert log.alone(OTHER).met.error is not None


def test_table_that_is_asked_for_twice_is_refused_because_one_of_the_two_would_find_nothing() -> None:
    log = MadeLog()
    log.change(A.map(), write(A, 1))
    with pytest.raises(LawBrokenError, match=r"shop\.orders is asked for twice"):
        log.together([A, B, A])


@pytest.mark.parametrize("pack", [False, True])
def test_maps_hold_until_the_last_rows_of_their_statement(pack: bool) -> None:
    """As a multi-table UPDATE and triggers write it: all maps, then the rows in any order."""
    log = MadeLog()
    rows = (write(B, 1, last=False), write(A, 2, last=False), write(OTHER, 3, last=False), write(B, 4, last=False))
    for _ in range(2):
        # The first maps are checked against the definitions, later ones are known.
        log.change(A.map(), OTHER.map(), B.map(), *rows, write(A, 5), pack=pack)
    assert keys(log, A, B, C) == [[2, 5, 2, 5], [1, 4, 1, 4], []]


def test_id_means_nothing_after_its_statement() -> None:
    """The id of a table may be another one's later."""
    log = MadeLog()
    same = MadeTable("shop", "order", A.table_id)
    log.change(A.map(), write(A, 1), same.map(), write(same, 2))
    log.change(same.map(), write(same, 3))
    assert keys(log, A, B) == [[1], []]


def test_id_means_nothing_in_the_next_transaction() -> None:
    """Also if the statement before did not say that it ended."""
    log = MadeLog()
    same = MadeTable("shop", "order", A.table_id)
    log.change(A.map(), write(A, 1, last=False))
    log.change(same.map(), write(same, 2))
    assert keys(log, A, B) == [[1], []]


def test_table_read_alone_raises_what_is_wrong_with_it() -> None:
    log = MadeLog()
    log.change(A.map(columns=3), write(A, 2))
    met = MetStatements()
    with pytest.raises(SchemaChangedError, match="has 3 columns"):
        list(log.slice([WantedTable(A.definition, met=met)], isolates=False).take(block_of(log.events)))
    assert met.error is None


def test_map_that_was_accepted_is_compared_again_under_another_definition() -> None:
    """A map is known by its bytes. A definition that has changed outside the log has to be noticed all the same."""
    log = MadeLog()
    log.change(A.map(), write(A, 1))
    assert keys(log, A) == [[1]]
    fewer = replace(A.definition, columns=A.definition.columns[:1])
    with pytest.raises(SchemaChangedError, match="has 2 columns"):
        list(log.slice([WantedTable(fewer)], isolates=False).take(block_of(log.events)))


def test_statement_ends_what_is_read_of_its_tables_alone() -> None:
    log = MadeLog()
    log.change(A.map(), write(A, 1), B.map(), write(B, 1))
    log.statement("RENAME TABLE shop.orders TO shop.x, crm.orders TO shop.orders")
    log.change(A.map(columns=3), A.rows(INSERT, [], last=True), B.map(), write(B, 2), C.map(), write(C, 2))
    first, second, third = log.together(TABLES)
    assert [len(each.changes) for each in (first, second, third)] == [1, 2, 0]
    assert first.met.cut is not None
    assert first.met.cut == third.met.cut
    assert second.met.cut is None
    assert [found.met.error for found in (first, second, third)] == [None, None, None]


def test_reader_ends_when_no_table_is_left() -> None:
    """What comes after is not even looked at."""
    log = MadeLog()
    log.change(A.map(), write(A, 1))
    log.statement("DROP DATABASE shop")
    log.events.append(event(26, b"lost"))
    assert [found.met.cut is not None for found in log.together((A, B))] == [True, True]


def test_rows_of_the_open_transaction_of_a_statement_come_after_it() -> None:
    log = MadeLog()
    log.change(A.map(), write(A, 1), B.map(), write(B, 1))
    log.add(
        query("BEGIN"),
        A.map(),
        write(A, 2),
        B.map(),
        write(B, 2),
        query("ALTER TABLE shop.orders ADD c INT"),
        event(16, bytes(8)),
    )
    first, second = log.together((A, B))
    assert [len(found.changes) for found in (first, second)] == [1, 2]
    assert first.met.cut is not None
    assert first.met.cut.start == first.ended[0].end


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((A.map(columns=3), write(A, 2)), "has 3 columns in the log"),
        ((A.map(), A.rows(INSERT, [(2, "x")], last=True, partial=True)), "does not hold every column"),
        ((A.map(), event(39, A.rows(UPDATE, [(1, "x"), (2, "y")], last=True)[19:])), "a part of a JSON value"),
    ],
)
def test_what_is_wrong_with_one_table_does_not_stop_the_others(bad: tuple[bytes, ...], message: str) -> None:
    log = MadeLog()
    log.change(A.map(), write(A, 1), B.map(), write(B, 1))
    log.change(*bad, B.map(), write(B, 2))
    first, second, third = log.together(TABLES)
    assert message in str(first.met.error)
    assert first.met.failed_at in (first.ended[0].start, first.ended[0].end)
    assert (len(second.changes), second.met.error, third.met.error) == (2, None, None)


def test_transaction_that_is_taken_back_or_prepared_fails_the_tables_it_touches() -> None:
    log = MadeLog()
    log.change(B.map(), write(B, 0))
    log.add(query("BEGIN"), A.map(), write(A, 1), query("ROLLBACK"))
    log.add(query("XA START 'x'"), C.map(), write(C, 1), query("XA END 'x'"), event(38, b"\0" + bytes(12)))
    log.change(B.map(), write(B, 1))
    first, second, third = log.together(TABLES)
    assert "takes back changes" in str(first.met.error)
    assert (len(second.changes), second.met.error) == (2, None)
    assert "XA PREPARE touches" in str(third.met.error)


def test_where_a_table_failed_is_the_boundary_before() -> None:
    log = MadeLog()
    log.change(A.map(), write(A, 1))
    boundary = 4 + sum(map(len, log.events))
    log.change(A.map(columns=3), write(A, 2))
    log.change(B.map(), write(B, 1))
    first, _ = log.together((A, B))
    assert first.met.failed_at == (1, boundary)


def test_many_tables_with_like_names_are_told_apart() -> None:
    """Names that share slots of the hash, or differ in their last letter, or move a letter to the database."""
    names = [("d", f"t{number}") for number in range(150)] + [("dt", f"{number}") for number in range(50)]
    tables = [MadeTable(database, name, 500 + number) for number, (database, name) in enumerate(names)]
    log = MadeLog()
    for number, table in enumerate(tables):
        log.change(table.map(), write(table, number), OTHER.map(), write(OTHER, number))
    wanted = tables[::2]
    assert keys(log, *wanted) == [[number] for number in range(0, 200, 2)]


def test_what_was_met_moves_with_its_log() -> None:
    met = MetStatements(LogCut((3, 10), (3, 20), "x"), [PassedStatement((2, 1), (2, 5), "y")], failed_at=(4, 4))
    met.shift(100)
    assert met.cut == LogCut((103, 10), (103, 20), "x")
    assert met.passed == [PassedStatement((102, 1), (102, 5), "y")]
    assert met.failed_at == (104, 4)


@pytest.mark.parametrize("seed", range(60))
def test_random_log_gives_each_table_what_it_gives_alone(seed: int) -> None:
    random = Random(seed)
    log = random_log(random)
    found = log.together(TABLES, blocks=random.randint(1, 5), limits=(random.choice([1, 3, 65_536]), 1 << 20))
    everything = found[0].ended
    starts = [transaction.start for transaction in everything]
    assert starts == sorted(set(starts))
    for table, mine in zip(TABLES, found, strict=True):
        alone = log.alone(table)
        assert mine.outcome == alone.outcome
        if alone.met.error is None:
            assert alone.ended == everything[: len(alone.ended)]


def random_log(random: Random) -> MadeLog:
    log = MadeLog()
    for _ in range(random.randint(5, 40)):
        kind = random.random()
        if kind < 0.04:
            log.statement(random.choice(STATEMENTS), random.choice(["shop", "crm", ""]))
        elif kind < 0.06:
            log.add(query("BEGIN"), *random_statement(random), query(random.choice(["ROLLBACK", "COMMIT"])))
        else:
            count = random.randint(1, 3)
            log.change(*(e for _ in range(count) for e in random_statement(random)), pack=random.random() < 0.3)
    return log


STATEMENTS = (
    "ALTER TABLE orders ADD c INT", "DROP TABLE shop.orders, crm.orders", "CREATE INDEX i ON items (v)",
    "RENAME TABLE items TO old, old TO items", "TRUNCATE shop.items", "DROP DATABASE crm", "CREATE TABLE other (a INT)",
    "ANALYZE TABLE orders", "INSERT INTO shop.order VALUES (1)",
)  # fmt: skip


def random_statement(random: Random) -> list[bytes]:
    """Maps of some tables, then row events of them in any order; now and then one that cannot be read."""
    tables = random.sample((*TABLES, OTHER), random.randint(1, 4))
    wrong = random.random() < 0.01
    maps = [table.map(columns=3 if wrong and table is not OTHER else 2) for table in tables]
    chosen = [random.choice(tables) for _ in range(random.randint(1, 4))]
    return maps + [random_rows(random, table, last=at == len(chosen) - 1) for at, table in enumerate(chosen)]


def random_rows(random: Random, table: MadeTable, *, last: bool) -> bytes:
    kind = random.choice([INSERT, UPDATE, DELETE])
    count = random.randint(1, 3) * (2 if kind == UPDATE else 1)
    images = [(random.randrange(-5, 100), random.choice([None, "", "täxt", "x" * 19])) for _ in range(count)]
    return table.rows(kind, images, last=last, partial=random.random() < 0.01)
