"""Rows are found by their keys, all of them and no others: with an index, without one, and as a join finds them."""

from __future__ import annotations

import tempfile
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.storage import Storage
from vnode_backfill.sinks.delta.keys import index as key_index
from vnode_backfill.sinks.delta.keys.index import BytesKeys, FileKeys, NumberKeys, index_keys
from vnode_backfill.sinks.delta.keys.pruning import find_pruned
from vnode_backfill.sinks.delta.rewrite import _meeting

Pairs = list[tuple[int, int]]
Keys = list[tuple[object, ...]]

TEXTS = (
    st.sampled_from(["", "a", "A", "a ", " a", "á", "a\u0301", "ß", "ss", "a\0", "\uffff", "\U0001f600", "x" * 5000])
    | st.text(max_size=20)
    | st.text(alphabet="ab ", max_size=3)
    | st.text(alphabet="\u00e9z", min_size=60, max_size=70)
)
BINARIES = st.sampled_from([b"", b"\0", b"\0\0", b"a", b"a ", b"\xff" * 40]) | st.binary(max_size=12)
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[object]]] = {
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "int": (pa.int32(), st.integers(-5, 20) | st.integers(-(2**31), 2**31 - 1)),
    "bigint": (pa.int64(), st.sampled_from([-(2**63), 2**63 - 1, 0]) | st.integers(-5, 20)),
    "bigint unsigned": (
        pa.decimal128(20, 0),
        st.sampled_from([Decimal(2**64 - 1), Decimal(2**63), Decimal(2**63 - 1), Decimal(-1)])
        | st.integers(0, 20).map(Decimal),
    ),
    "decimal": (pa.decimal128(12, 3), st.decimals(-20, 20, places=3)),
    "decimal(38)": (
        pa.decimal128(38, 10),
        st.decimals(-9, 9, places=1) | st.sampled_from([Decimal("9" * 28), Decimal("-" + "9" * 28)]),
    ),
    "varchar": (pa.string(), TEXTS),
    "varbinary": (pa.binary(), BINARIES),
    "date": (pa.date32(), st.dates(date(2024, 1, 1), date(2024, 1, 20)) | st.dates()),
    "datetime(6)": (pa.timestamp("us"), st.datetimes()),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    "bit(1)": (pa.bool_(), st.booleans()),
    "double": (
        pa.float64(),
        st.sampled_from([0.0, -0.0, 1.5, -1.5, float("nan"), float("inf")]) | st.floats(allow_nan=False),
    ),
}
KEYS = [(name,) for name in TYPES] + [
    ("int", "varchar"),
    ("varchar", "varchar"),
    ("varchar", "varbinary", "date"),
    ("bigint unsigned", "datetime(6)"),
    ("double", "bit(1)"),
]


def schema_of(kinds: tuple[str, ...]) -> pa.Schema:
    return pa.schema([(f"c{number}", TYPES[kind][0]) for number, kind in enumerate(kinds)])


def table_of(keys: Keys, schema: pa.Schema) -> pa.Table:
    columns = list(zip(*keys, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema.names)


def pairs(found: tuple[np.ndarray, np.ndarray]) -> Pairs:
    return sorted(zip(found[0].tolist(), found[1].tolist(), strict=True))


def joined(rows: pa.Table, changes: pa.Table) -> Pairs:
    return pairs(_meeting(rows, changes, rows.schema.names))


def pruned(rows: pa.Table, changes: pa.Table, row_group: int = 4) -> Pairs:
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(rows, Path(folder) / "f.parquet", row_group_size=row_group)
        file = DataFile("f.parquet", 0, rows.num_rows, (), ())
        return pairs(find_pruned(Storage.of(folder), file, rows.schema, changes))


@st.composite
def cases(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    """A file's keys and keys that are looked for, some of them in the file, some of them often."""
    kinds = draw(st.sampled_from(KEYS))
    schema = schema_of(kinds)
    key = st.tuples(*(TYPES[kind][1] for kind in kinds))
    rows: Keys = draw(st.lists(key, max_size=25))
    rows += draw(st.lists(st.sampled_from(rows), max_size=10)) if rows else []
    changes = draw(st.lists(st.sampled_from(rows) | key if rows else key, max_size=12, unique_by=repr))
    return table_of(rows, schema), table_of(changes, schema)


@settings(max_examples=400, deadline=None)
@given(cases())
@example(
    (table_of([("a",), ("A",), ("a ",), ("a",)], schema_of(("varchar",))), table_of([("a",)], schema_of(("varchar",))))
)
def test_rows_are_found_as_a_join_finds_them(case: tuple[pa.Table, pa.Table]) -> None:
    rows, changes = case
    expected = joined(rows, changes)
    assert pairs(index_keys(rows, rows.schema).find(changes)) == expected
    assert pruned(rows, changes) == expected


@pytest.mark.parametrize(
    ("kind", "values", "form"),
    [
        ("int", [3, 1, 3], NumberKeys),
        ("bigint unsigned", [Decimal(2**63 - 1), Decimal(0)], NumberKeys),
        ("bigint unsigned", [Decimal(2**63), Decimal(0)], BytesKeys),
        ("timestamp", [datetime(2024, 1, 1, tzinfo=UTC)], NumberKeys),
        ("date", [date(2024, 1, 1)], NumberKeys),
        ("varchar", ["a"], BytesKeys),
        ("double", [1.0], BytesKeys),
    ],
)
def test_keys_are_numbers_where_numbers_stand_for_them(kind: str, values: list[object], form: type[FileKeys]) -> None:
    schema = schema_of((kind,))
    assert isinstance(index_keys(table_of([(value,) for value in values], schema), schema), form)


def test_a_file_in_key_order_needs_no_order() -> None:
    schema = schema_of(("int",))
    ascending, other = (
        index_keys(table_of([(n,) for n in numbers], schema), schema) for numbers in ([1, 2, 2], [2, 1])
    )
    assert list(ascending.arrays()) == ["numbers"]
    assert list(other.arrays()) == ["numbers", "order"]


@pytest.mark.parametrize("values", [["aa", "a"], ["", "aaa"]])
def test_the_parts_of_a_key_do_not_run_into_each_other(values: list[str]) -> None:
    schema = schema_of(("varchar", "varchar"))
    rows = table_of([("a", "aa")], schema)
    assert pairs(index_keys(rows, schema).find(table_of([tuple(values)], schema))) == []


@pytest.mark.parametrize(
    ("kind", "held", "asked", "expected"),
    [
        (pa.int8(), [1, 127], pa.array([1, 1000, -129, 127, None], pa.int64()), [(0, 0), (1, 3)]),
        (pa.int32(), [7], pa.array([Decimal(2**40), Decimal(7)], pa.decimal128(20, 0)), [(0, 1)]),
        (pa.decimal128(5, 1), [Decimal("1.5")], pa.array([Decimal("1.50"), Decimal("1.55")], pa.decimal128(9, 2)), [(0, 0)]),
        (pa.decimal128(20, 0), [Decimal(3)], pa.array([3, -3], pa.int64()), [(0, 0)]),
        (pa.string(), ["a"], pa.array([b"\xff", b"a"], pa.binary()), [(0, 1)]),
        (pa.timestamp("ms"), [datetime(2024, 1, 1)], pa.array([1704067200000001, 1704067200000000], pa.timestamp("us")), [(0, 1)]),
    ],
    ids=["int", "decimal as int", "scale", "int as decimal", "not text", "finer instant"],
)  # fmt: skip
def test_a_value_that_does_not_fit_the_key_type_is_in_no_row(
    kind: pa.DataType, held: list[object], asked: pa.Array, expected: Pairs
) -> None:
    rows, changes = pa.table({"c": pa.array(held, kind)}), pa.table({"c": asked})
    assert pairs(index_keys(rows, rows.schema).find(changes)) == expected
    assert pruned(rows, changes) == expected


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_rows_without_a_key_are_never_found(kind: pa.DataType) -> None:
    rows = pa.table({"c": pa.array([None, 5, None, 5, 6], pa.int64()).cast(kind)})
    changes = pa.table({"c": pa.array([None, 6, 5], pa.int64()).cast(kind)})
    expected = [(1, 2), (3, 2), (4, 1)]
    assert pairs(index_keys(rows, rows.schema).find(changes)) == expected
    assert pruned(rows, changes) == expected


def test_slices_and_chunks_of_keys_are_looked_up_as_they_are() -> None:
    for kind in (pa.int32(), pa.decimal128(20, 0), pa.string()):
        whole = pa.table({"c": pa.array(range(100), pa.int32()).cast(kind)})
        rows = pa.concat_tables([whole.slice(10, 30), whole.slice(70, 5)])
        assert pairs(index_keys(rows, rows.schema).find(whole.slice(38, 33))) == [(28, 0), (29, 1), (30, 32)]


def test_keys_of_one_hash_are_told_apart_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "_FIRST_BYTES", np.zeros(9, np.uint64))
    rows = pa.table({"c": [f"{number:05}" for number in range(200)] * 50})
    changes = pa.table({"c": ["00007", "00300", "00199"]})
    index = index_keys(rows, rows.schema)
    assert isinstance(index, BytesKeys)
    assert len(set(index.hashes.tolist())) == 1
    assert pairs(index.find(changes)) == joined(rows, changes)


def test_long_keys_that_begin_alike_are_told_apart() -> None:
    rows = pa.table({"c": [b"x" * 9000 + bytes([number]) for number in range(50)]})
    assert pairs(index_keys(rows, rows.schema).find(rows)) == [(number, number) for number in range(50)]


def test_two_indexes_have_two_secrets() -> None:
    rows = pa.table({"c": ["a", "b"]})
    first, second = index_keys(rows, rows.schema), index_keys(rows, rows.schema)
    assert isinstance(first, BytesKeys)
    assert isinstance(second, BytesKeys)
    assert first.secret != second.secret
    assert first.hashes.tolist() != second.hashes.tolist()


@pytest.mark.parametrize(
    "keys",
    [
        [(number,) for number in range(1000)],
        [(f"{number:04}",) for number in range(1000)],
        [(f"{number:04}é" + "x" * 300,) for number in range(1000)],
        [(date.fromordinal(730_000 + number),) for number in range(1000)],
        [(datetime(2024, 1, 1, 0, number // 60, number % 60, 1),) for number in range(1000)],
        [(Decimal(number) / 4,) for number in range(1000)],
        [(number // 100, f"{number % 100:02}") for number in range(1000)],
    ],
    ids=["int", "text", "long text", "date", "datetime", "decimal", "composite"],
)
def test_only_row_groups_that_may_hold_a_key_are_read(
    keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [pa.array(column) for column in zip(*keys, strict=True)]
    rows = pa.table(columns, [f"c{number}" for number in range(len(columns))])
    pq.write_table(rows, tmp_path / "f.parquet", row_group_size=100)
    read: list[int] = []
    whole = pq.ParquetFile.read_row_group

    def noted(file: pq.ParquetFile, group: int, **options: object) -> pa.Table:
        read.append(group)
        return whole(file, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    changes = rows.take([205, 250, 999])
    found = find_pruned(Storage.of(str(tmp_path)), DataFile("f.parquet", 0, 1000, (), ()), rows.schema, changes)
    assert pairs(found) == [(205, 0), (250, 1), (999, 2)]
    assert read == [2, 9]


def test_a_file_without_statistics_is_read_whole(tmp_path: Path) -> None:
    rows = pa.table({"c": pa.array(range(50), pa.int64())})
    pq.write_table(rows, tmp_path / "f.parquet", row_group_size=7, write_statistics=False)
    found = find_pruned(
        Storage.of(str(tmp_path)), DataFile("f.parquet", 0, 50, (), ()), rows.schema, rows.take([3, 49])
    )
    assert pairs(found) == [(3, 0), (49, 1)]


@pytest.mark.parametrize("unit", ["ns", "ms", "s"])
def test_instants_of_other_units_are_found(unit: str) -> None:
    rows = pa.table({"c": pa.array([1, 2, 3000, 4001], pa.int64()).cast(pa.timestamp(unit))})
    assert pruned(rows, rows.take([3, 0]), row_group=1) == [(0, 1), (3, 0)]


def test_instants_that_python_has_no_form_for_are_found() -> None:
    rows = pa.table({"c": pa.array([-(2**60), 5, 2**60], pa.int64()).cast(pa.timestamp("us"))})
    assert pruned(rows, rows.take([2, 1]), row_group=3) == [(1, 1), (2, 0)]
