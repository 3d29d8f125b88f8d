"""The text and bytes sent to the server, and its grants, are what they should be."""

from __future__ import annotations

from datetime import date

import pytest

from consume_upstream.log.gtid import GtidSet
from consume_upstream.mysql import sql
from consume_upstream.mysql.positions.first_missing import encode_gtid_set
from consume_upstream.mysql.preflight.grants import parse_grants
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.key_range import Bound, KeyRange

TABLE = TableDefinition(
    "shop",
    "or`ders",
    (
        Column.parse("a", "int", nullable=False),
        Column.parse("b", "varchar(9)", nullable=False, charset="latin1", collation="latin1_bin"),
        Column.parse("t", "time(3)", nullable=True),
        Column.parse("c", "date", nullable=False),
    ),
    ("a", "b", "c"),
)


def test_range_of_a_composite_key_is_spelled_out_column_by_column() -> None:
    low, high = Bound((1, "x", date(2024, 1, 1)), b""), Bound((2, "y", date(2024, 1, 2)), b"")
    query = sql.select_range(TABLE, "PRIMARY", KeyRange(low, high), limit=10)
    text = "CONVERT(? USING latin1) COLLATE latin1_bin"
    assert query.text == (
        "SELECT `a`, `b`, CAST(`t` AS CHAR) AS `t`, `c` FROM `shop`.`or``ders` FORCE INDEX (`PRIMARY`) WHERE "
        f"((`a` > ?) OR (`a` = ? AND `b` > {text}) OR (`a` = ? AND `b` = {text} AND `c` >= ?)) AND "
        f"((`a` < ?) OR (`a` = ? AND `b` < {text}) OR (`a` = ? AND `b` = {text} AND `c` < ?)) "
        "ORDER BY `a`, `b`, `c` LIMIT 10"
    )
    assert query.parameters == (1, 1, "x", 1, "x", date(2024, 1, 1), 2, 2, "y", 2, "y", date(2024, 1, 2))


def test_read_continues_behind_the_last_key_instead_of_at_the_low_bound() -> None:
    one = TableDefinition("d", "t", (Column.parse("a", "int", nullable=False),), ("a",))
    query = sql.select_range(one, "PRIMARY", KeyRange(Bound((1,), b""), Bound((9,), b""), closed=True), after=(5,))
    assert query.text.endswith("WHERE ((`a` > ?)) AND ((`a` <= ?)) ORDER BY `a`")
    assert query.parameters == (5, 9)


def test_gtid_set_is_sent_with_open_ended_intervals() -> None:
    known = GtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7")
    assert encode_gtid_set(known).hex() == (
        "0100000000000000" "3e11fa4771ca11e19e33c80aa9429562" "0200000000000000"
        "01000000000000000600000000000000" "07000000000000000800000000000000"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "selects"),
    [
        ("GRANT ALL PRIVILEGES ON *.* TO `u`@`%` WITH GRANT OPTION", True),
        ("GRANT SELECT, INSERT ON `shop`.* TO `u`@`%`", True),
        ("GRANT SELECT ON `sh\\_p`.* TO `u`@`%`", False),
        ("GRANT SELECT ON `sh_p`.* TO `u`@`%`", True),
        ("GRANT SELECT ON `sh%`.* TO `u`@`%`", True),
        ("GRANT SELECT ON `shop`.`or``ders` TO `u`@`%`", True),
        ("GRANT SELECT ON `shop`.`or ders` TO `u`@`%`", False),
        ("GRANT SELECT (`a`, `b`), INSERT (`a`) ON `shop`.`or``ders` TO `u`@`%`", False),
        ("GRANT `reader`@`%` TO `u`@`%`", False),
        ("GRANT USAGE ON *.* TO `u`@`%`", False),
    ],
)
def test_select_counts_where_it_covers_the_whole_table(line: str, selects: bool) -> None:
    assert parse_grants([line], "shop", "or`ders").may_select is selects


def test_reading_the_log_counts_only_for_the_whole_server() -> None:
    held = parse_grants(["GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `u`@`%`"], "shop", "t")
    assert (held.may_read_log, held.may_ask_position, held.may_see_transactions) == (True, True, False)
    assert not parse_grants(["GRANT ALL PRIVILEGES ON `shop`.* TO `u`@`%`"], "shop", "t").may_read_log
