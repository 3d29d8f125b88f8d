"""A whole merge, from the buffer to the sink: in the driver, by workers in Spark tasks, and as Spark's own MERGE would
do it; by written files and by deletion vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from consume_upstream.buffer import BufferNote, ChangeBuffer
from consume_upstream.log.offset import CdcOffset, VisibleAt
from consume_upstream.mark import merge_view
from consume_upstream.upstream_table import UpstreamTable, Weights
from progress.state.backfill_state import BackfillState, Phase, new_state
from tests.tables import Change, Row, batch, change_table, in_order, plan, stored, table_of
from vnode_backfill.config.job import MergeMode
from vnode_backfill.decide.protocol import MergeEpoch
from vnode_backfill.merge.last_changes import MergeWindow, last_changes
from vnode_backfill.merge.merge_epoch import MergeRoute, merge_epoch
from vnode_backfill.sinks.changes import STAGED_FOLDER, MemoryChanges
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.change import OFFSET_COLUMNS, VNODE, ChangeOp
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Barrier, BarrierKind, Epoch
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import SplitPlan

INSERT, UPDATE, DELETE = ChangeOp
PAIRS = table_of({"id": "int", "value": "varchar(20)"}, "id")


def at(pos: int) -> CdcOffset:
    return CdcOffset("server", "binlog", 1, pos)


@dataclass(frozen=True, slots=True)
class UpperCaseTable:
    """A source whose collation ignores case; it is asked for nothing but sort keys."""

    definition: TableDefinition

    @contextmanager
    def session(self) -> Iterator[UpperCaseTable]:
        yield self

    def collation_keys(self, keys: Sequence[Key], *_: TableDefinition) -> list[Weights]:
        return [tuple(part.upper().encode() if isinstance(part, str) else None for part in key) for key in keys]


@dataclass
class Target:
    """A sink, a buffer and the state that merges the one into the other."""

    path: Path
    definition: TableDefinition
    split: SplitPlan
    mode: MergeMode
    job: str = "job"
    epoch: int = 0
    applied: int = 0

    def __post_init__(self) -> None:
        self.sink = DeltaSink(str(self.path / "target"), self.definition, self.job, creates=self.mode)
        self.buffer = ChangeBuffer(str(self.path / "buffer"), self.definition, self.job)
        self.sink.prepare()
        self.buffer.prepare()

    def snapshot(self, *ranges: Sequence[Row]) -> None:
        """Each range of rows as a file of its own."""
        writer = self.sink.writer()
        read = [writer.write(Epoch(1), number, 0, [batch(self.definition, rows)]) for number, rows in enumerate(ranges)]
        self.sink.commit_reads(Epoch(1), read, [], self.split)

    def buffered(self, changes: Sequence[Change]) -> None:
        """Buffer the changes as the next epoch's, with the vnodes the plan gives them."""
        self.epoch += 1
        table = change_table(self.definition, changes, epoch=self.epoch)
        keys = [table.column(name).combine_chunks() for name in self.definition.key]
        weights = (
            cast("UpstreamTable", UpperCaseTable(self.definition))
            .session()
            .__enter__()
            .collation_keys([tuple(c[n].as_py() for c in keys) for n in range(len(table))])
        )
        columns = [pa.array(column, pa.binary()) for column in zip(*weights, strict=True)]
        _, vnodes = self.split.vnodes_of(keys, columns)
        table = table.set_column(0, VNODE, pa.array(vnodes, pa.int32()))
        halves = [table.slice(0, len(table) // 2), table.slice(len(table) // 2)]
        receipts = [
            self.buffer.writer().write(Epoch(self.epoch), n, half) for n, half in enumerate(halves) if len(half)
        ]
        self.buffer.commit(Epoch(self.epoch), receipts, BufferNote(VisibleAt(at(0)), (), len(changes)))

    def merge(self, upto: int, spark: SparkSession | None = None, *, again: bool = False) -> int:
        """Merge everything above what is applied up to `upto`; `again` is a crash after it, and a recovery."""
        action = MergeEpoch(Barrier(Epoch(self.epoch), BarrierKind.CHECKPOINT), self.state.vnodes, at(upto))
        route = MergeRoute(cast("UpstreamTable", UpperCaseTable(self.definition)), self.buffer, self.sink)
        count = merge_epoch(spark, route, self.state, self.split, action)
        if again:
            merge_epoch(spark, route, self.state, self.split, action)
        self.applied = upto
        return count

    @property
    def state(self) -> BackfillState:
        state = new_state(VisibleAt(at(0)), self.split, split_evenly(self.split.vnode_count, 3))
        vnodes = tuple(replace(v, phase=Phase.LIVE, complete=Epoch(0), applied=at(self.applied)) for v in state.vnodes)
        return replace(state, vnodes=vnodes)

    @property
    def rows(self) -> list[Row]:
        """As a reader sees them, through deletion vectors."""
        return stored(self.path / "target")

    @property
    def masked(self) -> int:
        """How many rows vectors take away."""
        return 0 if (health := self.sink.health().vectors) is None else health.gone_rows


@pytest.fixture
def in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is large."""
    monkeypatch.setattr("vnode_backfill.merge.merge_epoch.IN_DRIVER_CHANGES", 0)
    for module in ("rewrite", "mask"):
        monkeypatch.setattr(f"vnode_backfill.sinks.delta.{module}.REWRITE_IN_TASKS_BYTES", -1)


@pytest.fixture(params=[*MergeMode, "vectors, worn files written again"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MergeMode:
    """Each way of merging; vectors once more where no file is too small to be written again."""
    if isinstance(request.param, MergeMode):
        return request.param
    monkeypatch.setattr("vnode_backfill.sinks.delta.mask.SMALL_BYTES", 0)
    return MergeMode.VECTORS


def pairs(tmp_path: Path, mode: MergeMode, name: str = "one") -> Target:
    target = Target(tmp_path / name, PAIRS, plan(PAIRS, (0,), (10,), (20,), (30,), vnodes=16), mode)
    target.snapshot([(n, "old") for n in range(10)], [(n, "old") for n in range(10, 20)])
    return target


def test_merged_changes_reach_the_sink_and_a_repeat_changes_nothing(tmp_path: Path, mode: MergeMode) -> None:
    target = pairs(tmp_path, mode)
    target.buffered(
        [
            (UPDATE, 1, (3, "a")),
            (UPDATE, 2, (3, "b")),
            (DELETE, 3, (12, "")),
            (INSERT, 4, (25, "c")),
            (INSERT, 5, (99, "d")),
        ]
    )
    assert target.merge(5, again=True) == 4
    expected = {n: "old" for n in range(20) if n != 12} | {3: "b", 25: "c", 99: "d"}
    assert target.rows == in_order(expected.items())


def test_what_lies_above_the_bound_waits_for_the_next_merge(tmp_path: Path, mode: MergeMode) -> None:
    target = pairs(tmp_path, mode)
    target.buffered([(UPDATE, 1, (3, "a")), (DELETE, 9, (3, ""))])
    target.merge(5)
    assert (3, "a") in target.rows
    target.epoch += 1
    target.merge(9)
    assert len(target.rows) == 19


def test_a_merge_without_changes_makes_no_commit(tmp_path: Path, mode: MergeMode) -> None:
    target = pairs(tmp_path, mode)
    target.epoch = 1
    before = DeltaTable(target.path / "target").version()
    assert target.merge(5) == 0
    assert DeltaTable(target.path / "target").version() == before


Step = tuple[list[tuple[ChangeOp, int]], int, bool]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from([INSERT, UPDATE, DELETE]), st.integers(0, 40)), max_size=12),
            st.integers(0, 5),
            st.booleans(),
        ),
        max_size=4,
    )
)
def test_any_history_of_epochs_gives_the_rows_of_a_dict(
    tmp_path_factory: pytest.TempPathFactory, mode: MergeMode, steps: list[Step]
) -> None:
    target = pairs(tmp_path_factory.mktemp("history"), mode)
    model: dict[int, str] = dict.fromkeys(range(20), "old")
    log: list[tuple[int, ChangeOp, int]] = []
    for changes, lag, again in steps:
        first = len(log) + 1
        log += [(first + n, op, key) for n, (op, key) in enumerate(changes)]
        target.buffered([(op, pos, (key, f"v{pos}")) for pos, op, key in log[first - 1 :]])
        upto = max(len(log) - lag, target.applied)
        for pos, op, key in log[target.applied : upto]:
            model.pop(key, None)
            if op is not DELETE:
                model[key] = f"v{pos}"
        target.merge(upto, again=again)
        target.buffer.trim(at(upto))
        assert target.rows == in_order(model.items())


WIDE = table_of(
    {
        "name": "varchar(40)", "n": "bigint unsigned", "dec": "decimal(20,4)", "bin": "varbinary(8)", "dt": "datetime(6)",
        "ts": "timestamp(3)", "txt": "text",
    },
    "name", "n",
)  # fmt: skip
NAMES = ("", "a", "A", "ä", "ß", "zz", "ZZ top", "\U0001f600")


def wide_row(key: int, version: int) -> Row:
    random = Random(key * 1000 + version)
    null = random.random() < 0.2
    moment = datetime(2000 + version % 30, 1 + key % 12, 5, 1, 2, 3, key % 1_000_000)
    return (
        NAMES[key % len(NAMES)], Decimal(2**63 + key), None if null else Decimal(key * version) / 16,
        None if null else bytes([key % 256, version % 256]), moment,
        moment.replace(microsecond=version % 1000 * 1000, tzinfo=UTC), None if null else f"text {version} ü" * (version % 3),
    )  # fmt: skip


def wide_changes(count: int, seed: int) -> list[Change]:
    random = Random(seed)
    return [
        (random.choice([INSERT, UPDATE, DELETE]), pos, wide_row(random.randrange(600), pos))
        for pos in range(1, count + 1)
    ]


def wide(tmp_path: Path, name: str, mode: MergeMode) -> Target:
    low, high = ("", 0), ("ZZZZ", 0)
    target = Target(tmp_path / name, WIDE, plan(WIDE, low, ("M", 0), high, vnodes=16), mode)
    target.snapshot(*([wide_row(key, 0) for key in range(start, start + 100)] for start in range(0, 400, 100)))
    return target


def test_driver_workers_and_sparks_own_merge_give_the_same_rows(
    tmp_path: Path, spark: SparkSession, mode: MergeMode, request: pytest.FixtureRequest
) -> None:
    changes = wide_changes(800, seed=5)
    driver, workers, oracle = (wide(tmp_path, name, mode) for name in ("driver", "workers", "oracle"))
    driver.buffered(changes)
    counted = driver.merge(800)
    request.getfixturevalue("in_tasks")
    workers.buffered(changes)
    assert workers.merge(800, spark, again=True) == counted
    sparks_merge(spark, oracle, changes)
    assert driver.rows == workers.rows == oracle.rows
    assert driver.masked == workers.masked
    assert not (tmp_path / "workers" / "target" / STAGED_FOLDER).exists()


CODES = table_of({"code": "varchar(20)", "value": "varchar(20)"}, "code")


def code(number: int, value: str) -> Row:
    """Keys that differ in case and trailing spaces only, which the collation takes for equal and the sink must not."""
    return (("key", "Key", "KEY", "key ")[number % 4] + f"{number // 4:02d}", value)


@pytest.mark.parametrize("definition", [PAIRS, CODES], ids=["int", "text"])
def test_large_merges_that_follow_each_other_give_the_rows_of_a_dict(
    tmp_path: Path, spark: SparkSession, in_tasks: None, mode: MergeMode, definition: TableDefinition
) -> None:
    row = code if definition is CODES else lambda number, value: (number, value)
    bounds = [("KEY00",), ("KEY10",), ("KEY30",)] if definition is CODES else [(0,), (40,), (120,)]
    target = Target(tmp_path / "one", definition, plan(definition, *bounds, vnodes=16), mode)
    model = {number: row(number, "old") for number in range(100)}
    target.snapshot(*([model[number] for number in range(start, start + 25)] for start in range(0, 100, 25)))
    chance, pos, masked = Random(3), 0, 0
    for merge in range(3):
        # The first merge takes a few rows of each file, the others more and more: vectors grow, and files go.
        changes: list[Change] = []
        for number in chance.sample(range(140), 8 + 40 * merge):
            pos += 1
            op = chance.choice([INSERT, UPDATE, DELETE])
            changes.append((op, pos, row(number, f"v{pos}")))
            model.pop(number, None)
            if op is not DELETE:
                model[number] = row(number, f"v{pos}")
        target.buffered(changes)
        assert target.merge(pos, spark, again=merge == 1) == len(changes)
        assert target.rows == in_order(model.values()), f"after merge {merge}"
        masked += target.masked
    assert bool(masked) == (mode is MergeMode.VECTORS)


def sparks_merge(spark: SparkSession, target: Target, changes: list[Change]) -> None:
    """The last change per key by a dict, applied by SQL."""
    last = {row[:2]: (op, row) for op, _, row in changes}
    table = change_table(WIDE, [(op, 1, row) for op, row in last.values()])
    names = [column.name for column in WIDE.columns]
    spark.createDataFrame(table.select([*names, "_op"])).createOrReplaceTempView("changes")
    spark.sql(
        f"""MERGE INTO delta.`{target.path}/target` t USING changes s ON t.name = s.name AND t.n = s.n
            WHEN MATCHED AND s._op = {DELETE:d} THEN DELETE
            WHEN MATCHED THEN UPDATE SET {", ".join(f"t.{name} = s.{name}" for name in names)}
            WHEN NOT MATCHED AND s._op <> {DELETE:d} THEN INSERT ({", ".join(names)})
            VALUES ({", ".join(f"s.{name}" for name in names)})"""
    )


def test_rows_spark_has_written_are_found_and_changed(tmp_path: Path, spark: SparkSession, mode: MergeMode) -> None:
    target = wide(tmp_path, "compacted", mode)
    spark.sql(f"OPTIMIZE delta.`{target.path}/target` ZORDER BY (n)")
    changes = wide_changes(300, seed=9)
    target.buffered(changes)
    target.merge(300)
    model = {(row[0], row[1]): row for row in (wide_row(key, 0) for key in range(400))}
    for op, _, row in changes:
        model.pop((row[0], row[1]), None)
        if op is not DELETE:
            model[row[0], row[1]] = row
    assert target.rows == in_order(model.values())


def test_staged_changes_of_a_driver_that_died_are_not_merged(
    tmp_path: Path, spark: SparkSession, in_tasks: None, mode: MergeMode
) -> None:
    target = pairs(tmp_path, mode)
    (target.path / "target" / STAGED_FOLDER).mkdir()
    (target.path / "target" / STAGED_FOLDER / "0-dead-0.parquet").write_bytes(b"half a file")
    target.buffered([(UPDATE, 1, (3, "a")), (DELETE, 2, (4, ""))])
    assert target.merge(2, spark) == 2
    assert len(target.rows) == 19


def test_changes_for_the_sink_carry_no_offsets(tmp_path: Path) -> None:
    target = pairs(tmp_path, MergeMode.REWRITE)
    target.buffered([(UPDATE, 1, (3, "a"))])
    applied = {v.vnode: v.applied for v in target.state.vnodes}
    files = target.buffer.files(applied, at(9), 16, trusted_since=Epoch(0))
    reader = target.buffer.reader()
    window = MergeWindow(target.split, merge_view(target.state, target.split), applied, at(9))
    found = last_changes((each for file in files for each in reader.read(file)), reader.schema, window)
    assert not set(OFFSET_COLUMNS) & set(found.column_names)
    assert MemoryChanges(found, PAIRS.key).rows == 1
