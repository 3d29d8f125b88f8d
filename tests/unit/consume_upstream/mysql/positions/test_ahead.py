"""What is found behind the offset at which a job would begin, in logs that are made event by event."""

from __future__ import annotations

import pytest

from consume_upstream.log.ahead import LogAhead
from consume_upstream.log.offset import CdcOffset
from consume_upstream.mysql.binlog.events import LogPosition
from consume_upstream.mysql.binlog.reader import LogSlice
from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.positions.ahead import ahead_of
from consume_upstream.mysql.positions.logged_statements import open_look
from consume_upstream.mysql.server import ServerIdentity
from tests.unit.consume_upstream.mysql.binlog.log_bytes import block_of
from tests.unit.consume_upstream.mysql.binlog.made_log import INSERT, MadeLog, MadeTable, event, query

ORDERS, ITEMS = MadeTable("shop", "orders", 71), MadeTable("shop", "items", 72)
INDEX, MODIFY = "CREATE INDEX i ON orders (v)", "ALTER TABLE orders MODIFY v VARCHAR(20) CHARACTER SET cp1251"
CREATE = "CREATE TABLE orders (id INT PRIMARY KEY, v VARCHAR(20))"
INCIDENT = 26


class Log(MadeLog):
    def offset(self) -> CdcOffset:
        return CdcOffset.at("s", "log.000001", 4 + sum(map(len, self.events)), gtids="g", era=0)

    def write(self, table: MadeTable, *, pack: bool = False) -> None:
        self.change(table.map(), table.rows(INSERT, [(1, "x")], last=True), pack=pack)

    def say(self, text: str) -> CdcOffset:
        """Log a statement; the point after it."""
        self.statement(text, "shop")
        return self.offset()

    def ahead(self, *begun: tuple[MadeTable, CdcOffset]) -> list[LogAhead]:
        tables = [
            (KnownTable(SourceAddress("h", 1, "u", "p"), made.definition, ServerIdentity("mysql", (8, 0, 33), "s")), at)
            for made, at in begun
        ]
        judges, judge = open_look(tables, folds=False)
        first = min(at.pos for _, at in begun)
        part = LogSlice(judge, LogPosition("log.000001", self.offset().pos))
        for _ in part.take(block_of([self.events[0], *self._after(first)])):
            pass
        return [ahead_of(at, found, primary=True) for (_, at), found in zip(begun, judges, strict=True)]

    def _after(self, pos: int) -> list[bytes]:
        """The events from a position on; the description comes first in every dump."""
        at, found = 4, []
        for each in self.events:
            if at >= pos and each is not self.events[0]:
                found.append(each)
            at += len(each)
        return found


def test_statement_behind_rows_is_found_with_the_points_around_it() -> None:
    log = Log()
    first = log.offset()
    log.write(ORDERS)
    before, after = log.offset(), log.say(MODIFY)
    log.write(ORDERS)
    (found,) = log.ahead((ORDERS, first))
    assert found.begin == first
    (statement,) = found.changing
    assert (statement.before, statement.after, statement.text) == (before, after, MODIFY)
    assert log.ahead((ORDERS, after)) == [LogAhead(after)]


@pytest.mark.parametrize("pack", [False, True])
def test_statements_before_the_first_rows_are_passed_over(pack: bool) -> None:
    log = Log()
    first = log.offset()
    log.write(ITEMS)
    log.say(CREATE)
    after = log.say(MODIFY)
    log.write(ORDERS, pack=pack)
    log.say(INDEX)
    assert log.ahead((ORDERS, first)) == [LogAhead(after)]
    log.say(MODIFY)
    (found,) = log.ahead((ORDERS, first))
    assert found.begin == after
    assert len(found.changing) == 1


def test_point_of_a_table_has_the_identity_of_its_file_and_no_transactions() -> None:
    log = Log()
    first = log.offset()
    log.say(CREATE)
    (found,) = log.ahead((ORDERS, CdcOffset("s", "log", 1, first.pos, "gtids", "identity")))
    assert (found.begin.gtids, found.begin.log) == ("", "identity")


def test_each_table_counts_from_its_own_offset_in_one_reading() -> None:
    log = Log()
    first = log.offset()
    log.write(ORDERS)
    middle = log.say(MODIFY)
    log.write(ITEMS)
    log.say("ALTER TABLE items ADD c INT")
    orders, items = log.ahead((ORDERS, middle), (ITEMS, first))
    assert orders == LogAhead(middle)
    assert [each.text for each in items.changing] == ["ALTER TABLE items ADD c INT"]


def test_rows_of_before_the_offset_do_not_count() -> None:
    log = Log()
    first = log.offset()
    log.write(ORDERS)
    middle = log.offset()
    after = log.say(MODIFY)
    log.write(ORDERS)
    assert log.ahead((ORDERS, middle), (ITEMS, first))[0] == LogAhead(after)


def test_job_cannot_begin_after_a_create_whose_rows_follow() -> None:
    log = Log()
    first = log.offset()
    log.change(query(CREATE, "shop"), ORDERS.map(), ORDERS.rows(INSERT, [(1, "x")], last=True))
    (found,) = log.ahead((ORDERS, first))
    assert found.begin == first
    (statement,) = found.changing
    assert statement.after is None


@pytest.mark.parametrize("changes", ["INSERT INTO orders VALUES (1, 'x')", ""])
def test_what_may_have_been_rows_counts_as_rows(changes: str) -> None:
    """Changes that were logged as a statement, and an event that says that the server lost some."""
    log = Log()
    first = log.offset()
    if changes:
        log.change(query(changes, "shop"))
    else:
        log.events.append(event(INCIDENT, b""))
    log.say(MODIFY)
    (found,) = log.ahead((ORDERS, first))
    assert found.begin == first
    assert len(found.changing) == 1


def test_event_that_may_be_passed_over_is_not_taken_for_rows() -> None:
    log = Log()
    first = log.offset()
    ignorable = bytearray(event(199, b""))
    ignorable[17:19] = (0x80).to_bytes(2, "little")
    log.events.append(bytes(ignorable))
    log.say(CREATE)
    log.write(ORDERS)
    (found,) = log.ahead((ORDERS, first))
    assert found.changing == ()
