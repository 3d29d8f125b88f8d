"""The rows of a partition are named by a condition that holds for exactly these rows, or not at all."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from consume_upstream.mysql.schema.column_steps import Unknown
from consume_upstream.mysql.schema.partition_bounds import rows_of
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.partitioning import NOT_KNOWN, Partition, Partitioning

PARTS = ("a", "b", "c")


def table(kind: str, method: str, expression: str, *values: str | None, collation: str = "") -> TableDefinition:
    """A table whose key has the column `k` of this type; its partitions are a, b and c."""
    column = Column.parse("k", kind, nullable=False, charset="utf8mb4" if collation else "", collation=collation)
    other = Column.parse("v", "int", nullable=True)
    partitions = tuple(Partition(name, each) for name, each in zip(PARTS, values, strict=False))
    return TableDefinition("d", "t", (column, other), ("k",), Partitioning(method, expression, partitions))


DATES = [date(2023, 12, 31), date(2024, 1, 1), date(2024, 1, 31), date(2024, 2, 1)]
MOMENTS = [datetime(2024, 1, 1), datetime(2024, 1, 1, 9, 59, 59, 999999), datetime(2024, 1, 1, 10)]
INSTANTS = [datetime(2023, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC)]
CERTAIN = [
    (table("int", "RANGE", "`k`", "10", "20", "MAXVALUE"), "a", [-5, 9, 10, 19, 20], [-5, 9]),
    (table("int", "RANGE", "`k`", "10", "20", "MAXVALUE"), "b", [-5, 9, 10, 19, 20], [10, 19]),
    (table("int", "RANGE", "`k`", "10", "20", "MAXVALUE"), "C", [-5, 9, 10, 19, 20], [20]),
    (table("tinyint", "RANGE COLUMNS", "`k`", "-3", "99999"), "b", [-128, -3, 127], [-3, 127]),
    (table("bigint unsigned", "RANGE", "k", "18446744073709551615", "MAXVALUE"), "b",
     [Decimal(0), Decimal(2**64 - 2), Decimal(2**64 - 1)], [Decimal(2**64 - 1)]),
    (table("int", "LIST", "`k`", "1,2,-3", "4"), "a", [1, 2, 3, -3, 4], [1, 2, -3]),
    (table("date", "RANGE", "to_days(`k`)", "739251", "739282"), "b", DATES, DATES[1:3]),
    (table("datetime(6)", "RANGE", "TO_DAYS(k)", "739251", "739282"), "b", [*MOMENTS, datetime(2024, 2, 1)], MOMENTS),
    (table("date", "RANGE", "year(`k`)", "2024", "MAXVALUE"), "a", DATES, DATES[:1]),
    (table("date", "LIST", "year(`k`)", "2022,2023", "2024"), "b", DATES, DATES[1:]),
    (table("timestamp", "RANGE", "unix_timestamp(`k`)", "1704067200", "MAXVALUE"), "a", INSTANTS, INSTANTS[:1]),
    (table("date", "RANGE COLUMNS", "`k`", "'2024-01-01'", "'2024-02-01'"), "b", DATES, DATES[1:3]),
    (table("date", "LIST COLUMNS", "`k`", "'2024-01-31','2024-01-01'"), "a", DATES, DATES[1:3]),
    (table("datetime(6)", "RANGE COLUMNS", "`k`", "'2024-01-01 10:00:00'"), "a", MOMENTS, MOMENTS[:2]),
    (table("datetime(6)", "LIST COLUMNS", "`k`", "'2024-01-01 09:59:59.999999'"), "a", MOMENTS, MOMENTS[1:2]),
    (table("varchar(9)", "LIST COLUMNS", "`k`", "'a','b''c'", "'d'", collation="utf8mb4_bin"), "a",
     ["a", "A", "a ", "b'c", "d"], ["a", "a ", "b'c"]),
]  # fmt: skip


@pytest.mark.parametrize(("definition", "name", "values", "gone"), CERTAIN)
def test_rows_in_a_partition(definition: TableDefinition, name: str, values: list[object], gone: list[object]) -> None:
    found = rows_of(definition, [name])
    matching = found.matching(pa.array(values, definition.column("k").arrow_type)).to_pylist()
    assert [value for value, goes in zip(values, matching, strict=True) if goes] == gone


def test_rows_of_several_partitions() -> None:
    found = rows_of(table("int", "RANGE", "`k`", "10", "20", "30"), ["a", "c"])
    assert found.matching(pa.array([0, 10, 20, 30])).to_pylist() == [True, False, True, False]


UNCERTAIN = [
    (table("int", "HASH", "`k`", None), "by HASH"),
    (table("int", "RANGE", "`k` + 1", "10"), "by `k`"),
    (table("int", "RANGE", "`v`", "10"), "not in the key"),
    (table("int", "RANGE COLUMNS", "`k`,`v`", "10,20"), "by `k`,`v`"),
    (table("int", "RANGE", "`k`", None, "20"), "partition a are not known"),
    (table("int", "RANGE", "`k`"), "are not known"),
    (table("int", "LIST", "`k`", "DEFAULT"), "holds DEFAULT"),
    (table("timestamp(6)", "RANGE", "unix_timestamp(`k`)", "5"), "unix_timestamp of column k"),
    (table("date", "RANGE COLUMNS", "`k`", "'0000-00-00'"), "the bound '0000-00-00'"),
    (table("date", "RANGE COLUMNS", "`k`", "'2024-01-01 10:00:00'"), "the bound"),
    (table("datetime", "RANGE COLUMNS", "`k`", "'2024-01-01 10:00:00.5'"), "the bound"),
    (table("date", "LIST COLUMNS", "`k`", "'9999-12-31'"), "later than"),
    (table("varchar(9)", "LIST COLUMNS", "`k`", "'a'", collation="utf8mb4_0900_ai_ci"), "decides which texts"),
    (table("varchar(9)", "LIST COLUMNS", "`k`", "'a'", collation="utf8mb4_0900_bin"), "decides which texts"),
    (table("varchar(9)", "RANGE COLUMNS", "`k`", "'a'", collation="utf8mb4_bin"), "values of column k"),
]  # fmt: skip


@pytest.mark.parametrize(("definition", "reason"), UNCERTAIN)
def test_what_is_not_certain_is_not_known(definition: TableDefinition, reason: str) -> None:
    with pytest.raises(Unknown, match=reason):
        rows_of(definition, ["a"])


@pytest.mark.parametrize("partitioning", [None, NOT_KNOWN])
def test_partitions_that_nobody_has_seen_are_not_known(partitioning: Partitioning | None) -> None:
    definition = TableDefinition("d", "t", (Column.parse("k", "int", nullable=False),), ("k",), partitioning)
    with pytest.raises(Unknown, match="bounds of the partition are not known"):
        rows_of(definition, ["a"])
