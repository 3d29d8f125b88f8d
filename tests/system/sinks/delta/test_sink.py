"""The Delta sink promises more than every sink does (`test_sink_contract`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from pyspark.sql import SparkSession

from devkit.lake import count_lake, read_lake
from devkit.object_store import ObjectStore
from tests.system.sinks.delta.overtaking import Meanwhile, staged
from tests.tables import ORDERS, Change, Row, batch, change_table, in_order, order, plan, stored, table_of
from vnode_backfill.config.job import MergeMode
from vnode_backfill.delta.files import FileReceipt
from vnode_backfill.sinks import ReadReceipt, Sink, receipts_from_json, receipts_to_json
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.delta import rewrite
from vnode_backfill.sinks.delta.compaction import Compacted, CompactionPolicy
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.change import OFFSET_COLUMNS, ChangeOp
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import FencedError, SinkError, SinkUnavailableError
from vnode_backfill.words.key import Key

FIRST, SECOND, THIRD = Epoch(1), Epoch(2), Epoch(3)
PLAN = plan(ORDERS, (0,), (10,), (20,), (30,))
INSERT, UPDATE, DELETE = ChangeOp
MakeSink = Callable[..., DeltaSink]
Item = TypeVar("Item")


@pytest.fixture(params=MergeMode)
def make_sink(request: pytest.FixtureRequest, tmp_path: Path) -> MakeSink:
    """Sinks of one target, as different drivers and jobs would make them."""

    def make(
        definition: TableDefinition = ORDERS, job: str = "job", *, replace: bool = False, **options: int
    ) -> DeltaSink:
        path = str(tmp_path / "target")
        return DeltaSink(path, definition, job, replace=replace, **{"creates": request.param, **options})

    return make


@pytest.fixture
def sink(make_sink: MakeSink) -> DeltaSink:
    made = make_sink()
    made.prepare()
    return made


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[], list[Row]]:
    """What a reader of the target sees now."""
    return lambda: stored(tmp_path / "target")


def read(
    sink: Sink, ordinal: int, *rows: Row, definition: TableDefinition = ORDERS, epoch: Epoch = FIRST
) -> ReadReceipt:
    return sink.writer().write(epoch, ordinal, 0, [batch(definition, rows)])


def append(sink: Sink, *rows: Row, definition: TableDefinition = ORDERS, epoch: Epoch = FIRST) -> None:
    sink.commit_reads(epoch, [read(sink, 0, *rows, definition=definition, epoch=epoch)], [], PLAN)


def changes(*wanted: Change, definition: TableDefinition = ORDERS) -> MemoryChanges:
    table = change_table(definition, wanted).drop_columns(list(OFFSET_COLUMNS))
    return MemoryChanges(table, definition.key)


def test_a_new_target_is_empty_and_has_the_columns_of_the_source(
    sink: DeltaSink, rows: Callable[[], list[Row]], tmp_path: Path
) -> None:
    assert rows() == []
    schema = pa.schema(DeltaTable(tmp_path / "target").schema().to_arrow())
    assert schema.names == ["id", "name", "amount", "at"]
    assert schema.types == ORDERS.arrow_schema.types


def test_preparing_again_changes_nothing(make_sink: MakeSink, sink: DeltaSink, tmp_path: Path) -> None:
    append(sink, order(1))
    before = DeltaTable(tmp_path / "target").version()
    make_sink().prepare()
    make_sink(replace=True).prepare()
    assert DeltaTable(tmp_path / "target").version() == before
    assert stored(tmp_path / "target") == [order(1)]


def test_rows_of_another_job_are_refused(make_sink: MakeSink, sink: DeltaSink) -> None:
    append(sink, order(1))
    with pytest.raises(SinkError, match="did not write") as raised:
        make_sink(job="other").prepare()
    assert "sink.delta.replace: true" in raised.value.hint


def test_an_empty_table_of_the_same_shape_is_taken(
    make_sink: MakeSink, tmp_path: Path, rows: Callable[[], list[Row]]
) -> None:
    write_deltalake(tmp_path / "target", batch(ORDERS, []))
    sink = make_sink()
    sink.prepare()
    append(sink, order(1))
    assert rows() == [order(1)]


def test_a_table_of_another_shape_is_refused_or_replaced(make_sink: MakeSink, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "target", pa.table({"id": pa.array([], pa.int32()), "other": pa.array([], pa.string())}))
    with pytest.raises(SinkError, match="cannot take") as raised:
        make_sink().prepare()
    assert "column id is int32 there and int64 here" in raised.value.detail
    make_sink(replace=True).prepare()
    assert stored(tmp_path / "target") == []


def test_a_partitioned_table_is_refused(make_sink: MakeSink, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "target", batch(ORDERS, []), partition_by=["name"])
    with pytest.raises(SinkError, match="cannot take") as raised:
        make_sink().prepare()
    assert "partitioned by name" in raised.value.detail


def test_a_table_with_deletion_vectors_is_made_again_without_them(make_sink: MakeSink, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "target", batch(ORDERS, []))
    table = DeltaTable(tmp_path / "target")
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(SinkError, match="cannot take") as raised:
        make_sink().prepare()
    assert "delta.enableDeletionVectors is not true" in raised.value.detail
    make_sink(replace=True, creates=MergeMode.REWRITE).prepare()
    assert DeltaTable(tmp_path / "target").protocol().writer_features == ["timestampNtz"]


def test_column_names_delta_cannot_hold_are_refused(make_sink: MakeSink) -> None:
    with pytest.raises(SinkError, match="'unit price'"):
        make_sink(table_of({"id": "int", "unit price": "int"}, "id")).prepare()


def test_a_written_range_is_invisible_until_it_is_committed(sink: DeltaSink, rows: Callable[[], list[Row]]) -> None:
    receipt = read(sink, 0, order(1), order(2))
    assert rows() == []
    assert (receipt.ordinal, receipt.rows) == (0, 2)
    assert sink.commit_reads(FIRST, [receipt], [], PLAN) == (receipt,)
    assert rows() == [order(1), order(2)]


def test_a_recovery_learns_what_an_epoch_has_landed(sink: DeltaSink) -> None:
    assert sink.landed_reads(FIRST) == (None, None)
    sink.commit_reads(FIRST, [read(sink, 0, order(1)), read(sink, 2, order(21), order(22))], [], PLAN)
    appended, replaced = sink.landed_reads(FIRST)
    assert appended is not None
    assert [(r.ordinal, r.rows, len(r.files)) for r in appended] == [(0, 1, 1), (2, 2, 1)]
    assert replaced is None
    assert sink.landed_reads(SECOND) == (None, None)


def test_what_landed_is_known_after_a_log_checkpoint_and_many_other_commits(sink: DeltaSink, tmp_path: Path) -> None:
    append(sink, order(1), epoch=FIRST)
    for _ in range(20):
        DeltaTable(tmp_path / "target").alter.set_table_properties({"delta.checkpointInterval": "5"})
    DeltaTable(tmp_path / "target").create_checkpoint()
    appended, _ = sink.landed_reads(FIRST)
    assert appended is not None
    assert appended[0].rows == 1


def test_ranges_without_rows_leave_nothing_behind(sink: DeltaSink, tmp_path: Path) -> None:
    before = DeltaTable(tmp_path / "target").version()
    landed = sink.commit_reads(FIRST, [read(sink, 0), read(sink, 1)], [], PLAN)
    assert [(r.ordinal, r.rows) for r in landed] == [(0, 0), (1, 0)]
    assert DeltaTable(tmp_path / "target").version() == before


def test_a_large_range_becomes_several_files(make_sink: MakeSink, tmp_path: Path) -> None:
    numbers = table_of({"id": "bigint"}, "id")
    sink = make_sink(numbers, target_file_size=1)
    sink.prepare()
    batches = [pa.record_batch({"id": pa.array(range(start, start + 200_000))}) for start in (0, 200_000)]
    receipt = sink.writer().write(FIRST, 0, 0, batches)
    assert [file.rows for file in receipt.files] == [200_000, 200_000]
    sink.commit_reads(FIRST, [receipt], [], PLAN)
    assert count_lake(tmp_path / "target") == 400_000


def test_a_replaced_range_holds_exactly_the_rows_read(
    sink: DeltaSink, rows: Callable[[], list[Row]], tmp_path: Path
) -> None:
    old = [read(sink, 0, order(3), order(9)), read(sink, 1, order(12), order(15), order(18)), read(sink, 2, order(21))]
    sink.commit_reads(FIRST, old, [], PLAN)
    before = DeltaTable(tmp_path / "target").version()
    new = read(sink, 1, order(12, "new"), order(13), epoch=SECOND)
    assert sink.commit_reads(SECOND, [], [new], PLAN) == (new,)
    assert rows() == in_order([order(3), order(9), order(12, "new"), order(13), order(21)])
    assert DeltaTable(tmp_path / "target").version() == before + 1


def test_a_replaced_range_takes_its_rows_out_of_files_it_shares(sink: DeltaSink, rows: Callable[[], list[Row]]) -> None:
    append(sink, *(order(n) for n in range(31)))
    sink.commit_reads(SECOND, [], [read(sink, 1, epoch=SECOND), read(sink, 2, order(30, "new"), epoch=SECOND)], PLAN)
    assert rows() == in_order([*(order(n) for n in range(10)), order(30, "new")])


def test_text_ranges_are_replaced_by_the_order_of_the_server(
    make_sink: MakeSink, rows: Callable[[], list[Row]]
) -> None:
    words = table_of({"word": "varchar(20)"}, "word")
    sink = make_sink(words)
    sink.prepare()

    def upper(columns: Sequence[pa.Array]) -> list[pa.Array | None]:
        return [pa.array([value.upper().encode() for value in columns[0].to_pylist()], pa.binary())]

    ranges = plan(words, ("A",), ("C",), ("E",))
    append(sink, ("a",), ("B",), ("c",), ("D",), definition=words)
    sink.commit_reads(SECOND, [], [read(sink, 1, ("d",), definition=words, epoch=SECOND)], ranges, upper)
    assert rows() == [("B",), ("a",), ("d",)]


def test_changes_without_an_effect_make_no_commit(sink: DeltaSink, tmp_path: Path) -> None:
    append(sink, order(1))
    before = DeltaTable(tmp_path / "target").version()
    sink.apply(FIRST, changes())
    sink.apply(FIRST, changes((DELETE, 1, order(2))))
    assert DeltaTable(tmp_path / "target").version() == before


def test_only_files_with_changed_keys_are_rewritten_and_keep_their_bounds(make_sink: MakeSink, tmp_path: Path) -> None:
    sink = make_sink(creates=MergeMode.REWRITE)
    sink.prepare()
    receipts = [read(sink, n, *(order(10 * n + k) for k in range(10))) for n in range(3)]
    sink.commit_reads(FIRST, receipts, [], PLAN)
    sink.apply(FIRST, changes((UPDATE, 1, order(14, "new"))))
    actions = pa.table(DeltaTable(tmp_path / "target").get_add_actions(flatten=True))
    assert sorted(zip(actions["min.id"].to_pylist(), actions["max.id"].to_pylist(), strict=True)) == [
        (0, 9),
        (10, 19),
        (20, 29),
    ]
    kept = {file.path for n in (0, 2) for file in receipts[n].files}
    assert kept < set(actions["path"].to_pylist())


KEYS: dict[str, tuple[TableDefinition, list[Row]]] = {
    "tinyint": (table_of({"k": "tinyint", "v": "int"}, "k"), [(-128,), (0,), (127,)]),
    "bigint unsigned": (
        table_of({"k": "bigint unsigned", "v": "int"}, "k"), [(Decimal(0),), (Decimal(2**63),), (Decimal(2**64 - 1),)],
    ),
    "decimal": (
        table_of({"k": "decimal(38,10)", "v": "int"}, "k"),
        [(Decimal("-1.5"),), (Decimal("0.0000000001"),), (Decimal("9" * 28),)],
    ),
    "text": (table_of({"k": "varchar(200)", "v": "int"}, "k"), [("",), ("ä" * 60,), ("a ",), ("\U0010ffff" * 40,)]),
    "binary": (table_of({"k": "varbinary(16)", "v": "int"}, "k"), [(b"",), (b"\x00\xff",), (b"\xff" * 16,)]),
    "date": (
        table_of({"k": "date", "v": "int"}, "k"), [(date(1000, 1, 1),), (date(2024, 2, 29),), (date(9999, 12, 31),)],
    ),
    "datetime": (
        table_of({"k": "datetime(6)", "v": "int"}, "k"),
        [(datetime(1000, 1, 1),), (datetime(2024, 1, 1, 0, 0, 0, 999_999),),
         (datetime(9999, 12, 31, 23, 59, 59, 999_999),)],
    ),
    "timestamp": (
        table_of({"k": "timestamp(6)", "v": "int"}, "k"),
        [(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),), (datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC),)],
    ),
    "composite": (
        table_of({"k": "varchar(20)", "v": "int", "n": "int"}, "k", "n"),
        [("a", 1), ("a", 2), ("b", 1), ("b,1", -5)],
    ),
    "dotted name": (table_of({"a.b": "int", "v": "int"}, "a.b"), [(1,), (2,), (3,)]),
}  # fmt: skip


def with_value(key: Row, value: int) -> Row:
    return (key[0], value, *key[1:])


@pytest.mark.parametrize("kind", list(KEYS))
def test_rows_are_found_by_keys_of_every_kind(kind: str, make_sink: MakeSink, rows: Callable[[], list[Row]]) -> None:
    definition, keys = KEYS[kind]
    sink = make_sink(definition)
    sink.prepare()
    for number, key in enumerate(keys):
        sink.commit_reads(Epoch(number + 1), [read(sink, number, with_value(key, 0), definition=definition)], [], PLAN)
    for number, key in enumerate(keys):
        sink.apply(Epoch(number + 1), changes((UPDATE, 1, with_value(key, number + 1)), definition=definition))
    assert rows() == in_order(with_value(key, number + 1) for number, key in enumerate(keys))
    sink.apply(Epoch(50), changes(*((DELETE, 1, with_value(key, 0)) for key in keys[1:]), definition=definition))
    assert rows() == [with_value(keys[0], 1)]


def test_the_extremes_of_composite_and_unsigned_keys_are_keys(make_sink: MakeSink, tmp_path: Path) -> None:
    definition = table_of({"a": "bigint unsigned", "b": "int"}, "a", "b")
    sink = make_sink(definition)
    sink.prepare()
    append(sink, (Decimal(7), 9), (Decimal(7), -9), (Decimal(2**63), 0), definition=definition)
    found: list[Key] = [(7, -9), (2**63, 0)]
    assert sink.key_extremes() == found


def test_a_driver_that_was_replaced_cannot_commit(make_sink: MakeSink, rows: Callable[[], list[Row]]) -> None:
    old = make_sink(generation=1)
    old.prepare()
    receipt = read(old, 0, order(1))
    make_sink(generation=2).prepare()
    with pytest.raises(FencedError, match="generation 2"):
        old.commit_reads(FIRST, [receipt], [], PLAN)
    with pytest.raises(FencedError):
        old.prepare()
    assert rows() == []


def test_a_merge_that_was_overtaken_is_found_again_in_the_files_that_are_there_now(
    sink: DeltaSink, make_sink: MakeSink, rows: Callable[[], list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    append(sink, order(1))
    append(sink, order(11), epoch=SECOND)
    monkeypatch.setattr(rewrite, "REWRITE_IN_TASKS_BYTES", -1)
    joined: list[Compacted | None] = []
    join = Meanwhile(lambda: joined.append(make_sink().compact(CompactionPolicy.on_request(1 << 20))))
    sink.apply(THIRD, staged(sink, (UPDATE, 1, order(1, "new"))), join)
    assert rows() == [order(1, "new"), order(11)]
    assert [each.removed for each in joined if each is not None] == [2]
    assert sink.merged(THIRD)


def test_an_append_that_was_overtaken_is_tried_again(
    sink: DeltaSink, make_sink: MakeSink, rows: Callable[[], list[Row]]
) -> None:
    receipts = [read(sink, 0, order(1))]
    log = sink._log
    handle = log.open()
    append(make_sink(job="job"), order(11), epoch=FIRST)
    with pytest.raises(Exception, match="commit"):
        log.commit(handle, "append", FIRST, receipts[0].files)
    assert rows() == [order(11)]


def test_rows_go_through_the_file_system_of_an_object_store_as_well() -> None:
    with ObjectStore("bucket") as store:
        sink = DeltaSink(f"{store.url}/lake/target", ORDERS, "job", storage_options=store.options)
        sink.prepare()
        append(sink, order(1), order(2), order(3))
        sink.apply(FIRST, changes((UPDATE, 1, order(1, "new")), (DELETE, 2, order(2)), (INSERT, 3, order(4))))
        assert sink.sweep() == []
        found = DeltaTable(f"{store.url}/lake/target", storage_options=store.options).to_pyarrow_table()
    assert in_order(tuple(row.values()) for row in found.to_pylist()) == [order(1, "new"), order(3), order(4)]


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SinkError, match="cannot be"):
        DeltaSink(str(tmp_path / "file" / "target"), ORDERS, "job").prepare()


def test_a_file_that_vanished_is_an_error_that_names_it(sink: DeltaSink, tmp_path: Path) -> None:
    receipt = read(sink, 0, order(1))
    sink.commit_reads(FIRST, [receipt], [], PLAN)
    (tmp_path / "target" / receipt.files[0].path).unlink()
    with pytest.raises(SinkUnavailableError, match=r"e1-r0-a0-\w+-0.parquet cannot be read"):
        sink.apply(FIRST, changes((UPDATE, 1, order(1, "new"))))


def test_files_that_were_never_committed_are_swept_after_a_day(make_sink: MakeSink, tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "target"), ORDERS, "job", retention=timedelta(hours=1))
    sink.prepare()
    append(sink, order(1))
    (orphan,) = read(sink, 1, order(11)).files
    assert sink.sweep() == []
    _make_older(tmp_path / "target" / orphan.path, timedelta(hours=2))
    assert sink.sweep() == []  # whatever the retention: a slow epoch may still commit it
    _make_older(tmp_path / "target" / orphan.path, timedelta(hours=23))
    assert sink.sweep() == []  # its epoch is the newest one that has landed something, and may land more
    append(sink, order(2), epoch=SECOND)
    assert [Path(path).name for path in sink.sweep()] == [orphan.path]
    assert stored(tmp_path / "target") == [order(1), order(2)]


def _make_older(path: Path, by: timedelta) -> None:
    before = path.stat().st_mtime - by.total_seconds()
    os.utime(path, (before, before))


EVERYTHING = table_of(
    {
        "id": "int unsigned", "tiny": "tinyint", "small": "smallint unsigned", "big": "bigint unsigned",
        "dec": "decimal(38,10)",
        "huge": "decimal(50,2)", "flo": "float", "dou": "double", "bit1": "bit(1)", "bits": "bit(12)",
        "txt": "varchar(300)",
        "enu": "enum('a','b')", "js": "json", "bin": "varbinary(10)", "day": "date", "yr": "year", "dt": "datetime(6)",
        "ts": "timestamp(6)", "tm": "time(3)",
    },
    "id",
)  # fmt: skip
HIGH: Row = (
    2**32 - 1, 127, 65535, Decimal(2**64 - 1), Decimal("9" * 28 + ".0000000001"), "9" * 48 + ".99", 1.5, 1e300, True,
    b"\x0f\xff",
    "ß€😀" * 40, "b", '{"a": [1, null]}', b"\x00\xff", date(9999, 12, 31), 2155,
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
    datetime(2038, 1, 19, 3, 14, 7, 999_999, tzinfo=UTC), "-838:59:59.000",
)  # fmt: skip
LOW: Row = (
    0, -128, 0, Decimal(0), Decimal("-0.0000000001"), "-0.01", -1.5, -1e300, False, b"\x00\x00", "", "a", "{}", b"",
    date(1000, 1, 1), 1901, datetime(1000, 1, 1), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "00:00:00.000",
)  # fmt: skip
NOTHING: Row = (1, *[None] * 18)


def test_every_type_keeps_its_value_for_every_reader(make_sink: MakeSink, spark: SparkSession, tmp_path: Path) -> None:
    sink = make_sink(EVERYTHING)
    sink.prepare()
    append(sink, LOW, NOTHING, definition=EVERYTHING)
    sink.apply(FIRST, changes((INSERT, 1, HIGH), (UPDATE, 2, NOTHING), definition=EVERYTHING))
    assert stored(tmp_path / "target") == in_order([LOW, NOTHING, HIGH])
    frame = spark.read.format("delta").load(str(tmp_path / "target"))
    by_spark = pa.Table.from_batches(frame.toArrow().to_batches()).cast(EVERYTHING.arrow_schema)
    by_delta = read_lake(tmp_path / "target").cast(EVERYTHING.arrow_schema)
    assert by_spark.sort_by("id").to_pylist() == by_delta.sort_by("id").to_pylist()
    types = {field.name: field.dataType.simpleString() for field in frame.schema}
    assert (types["tiny"], types["big"], types["dt"], types["ts"]) == (
        "tinyint",
        "decimal(20,0)",
        "timestamp_ntz",
        "timestamp",
    )


def test_statistics_never_hide_a_row_from_spark(make_sink: MakeSink, spark: SparkSession, tmp_path: Path) -> None:
    sink = make_sink(EVERYTHING)
    sink.prepare()
    receipts = [read(sink, number, row, definition=EVERYTHING) for number, row in enumerate((LOW, HIGH, NOTHING))]
    sink.commit_reads(FIRST, receipts, [], PLAN)
    frame = spark.read.format("delta").load(str(tmp_path / "target"))
    values = frame.filter("id = 4294967295").select("txt", "dt", "ts", "dec", "big", "day").first()
    assert values is not None
    frame.createOrReplaceTempView("everything")
    for name in ("txt", "dt", "ts", "dec", "big", "day"):
        found = spark.sql(f"SELECT id FROM everything WHERE {name} = (SELECT max({name}) FROM everything)").collect()
        exact = frame.filter(frame[name] == values[name]).select("id").collect()
        assert [row.id for row in found] == [row.id for row in exact] == [2**32 - 1], name


def test_statistics_bound_what_is_in_the_file(sink: DeltaSink) -> None:
    receipt = read(sink, 0, order(1, "x" * 100), order(7, None), order(3, "\U0010ffff" * 50))
    stats = json.loads(receipt.files[0].stats)
    assert stats["numRecords"] == 3
    assert stats["nullCount"] == {"id": 0, "name": 1, "amount": 0, "at": 0}
    assert (stats["minValues"]["id"], stats["maxValues"]["id"]) == (1, 7)
    assert stats["minValues"]["name"] == "x" * 32
    assert stats["maxValues"]["name"] >= "\U0010ffff" * 50
    assert (stats["minValues"]["at"], stats["maxValues"]["at"]) == (
        "2024-05-01T12:00:00.000",
        "2024-05-01T12:00:00.001",
    )


def test_receipts_keep_their_files() -> None:
    receipts = (ReadReceipt(3, 5, (FileReceipt("a", 1, 2), FileReceipt("b", 3, 3))), ReadReceipt(4, 0))
    assert receipts_from_json(receipts_to_json(receipts)) == receipts
