"""Random histories of the Delta sink alone, against a dictionary: merges, re-reads, folds, joins, sweeps, crashes,
changes of columns, and new copies beside the table.

A crash is a sink that is thrown away before or after its commit. Its files stay, and the next sink repeats the epoch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest

from devkit.lake import read_lake
from tests.tables import ORDERS, Cell, batch, order, plan, table_of
from vnode_backfill.config.job import MergeMode
from vnode_backfill.delta.storage import Storage
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.delta import due, mask
from vnode_backfill.sinks.delta.compaction import CompactionPolicy
from vnode_backfill.sinks.delta.place import is_beside
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.change import OP, ChangeOp
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.schema_change import (
    AddColumn,
    Carried,
    ColumnStep,
    DropColumn,
    RenameColumn,
    RetypeColumn,
    TableShape,
)

KEYS = 60
NAMES = table_of({"code": "varchar(20)", "note": "varchar(20)"}, "code")
PAIRS = table_of({"shop": "int", "code": "varchar(20)", "note": "varchar(20)"}, "shop", "code")


Cells: TypeAlias = dict[str, Cell]


def row_of(definition: TableDefinition, number: int, version: int) -> Cells:
    """The row of a key; text keys differ in case and trailing spaces only, which no collation may take for equal."""
    text = ("key", "Key", "KEY", "key ")[number % 4] + str(number // 4)
    match definition.key:
        case ("id",):
            row = order(number, f"v{version}")
        case ("code",):
            row = (text, f"v{version}")
        case _:
            row = (number % 3, text, f"v{version}")
    return dict(zip(definition.arrow_schema.names, row, strict=True))


@dataclass
class History:
    """One run: the sink, what its table must hold, and the chance."""

    folder: Path
    definition: TableDefinition
    mode: MergeMode
    chance: random.Random
    plan: SplitPlan
    model: dict[int, Cells] = field(default_factory=dict)
    epoch: int = 0
    version: int = 0
    job: str = "job"
    generation: int = 0
    changes: int = 0
    copies: int = 0
    shown: list[Cells] | None = None
    """What the table shows while a new copy is made beside it."""
    names: dict[str, str] = field(default_factory=dict)
    """What the columns of the definition are called by now."""
    extras: dict[str, str] = field(default_factory=dict)
    """Columns that were added, with their types."""

    def __post_init__(self) -> None:
        self.keeps = self.chance.random() < 0.5
        self.names = {name: name for name in self.definition.arrow_schema.names}
        self.shape = TableShape(self.definition)
        self.sink = self.make(beside=False)
        self.sink.prepare()

    @property
    def target(self) -> str:
        return str(self.folder / "target")

    def make(self, *, beside: bool) -> DeltaSink:
        cache = self.chance.choice((0, 10_000_000))
        made = DeltaSink(
            self.target, self.definition, self.job, target_file_size=20_000, creates=self.mode,
            key_cache=cache, retention=timedelta(hours=1), generation=self.generation, beside=beside,
        )  # fmt: skip
        made.use(self.shape)
        return made

    def opened(self) -> DeltaSink:
        """As whoever opens the job finds it."""
        return self.make(beside=is_beside(Storage.of(self.target), self.job))

    def crash(self) -> None:
        """The driver dies; another one takes over."""
        self.generation += 1
        self.sink = self.opened()
        self.sink.prepare()

    def row(self, number: int) -> Cells:
        """The row of a key as it is now: each column by its present name, every value of an added one a new number."""
        named = {self.names[name]: cell for name, cell in row_of(self.definition, number, self.version).items()}
        return named | dict.fromkeys(self.extras, self.version)

    def keep(self, rows: Mapping[int, Cells]) -> None:
        """Written rows have nothing in columns that the source has dropped."""
        kept = dict.fromkeys((column.name for column in self.shape.kept), None)
        self.model.update({number: {**row, **kept} for number, row in rows.items()})

    def batch(self, rows: Sequence[Cells]) -> pa.RecordBatch:
        names = self.shape.definition.arrow_schema.names
        return batch(self.shape.definition, [tuple(row[name] for name in names) for row in rows])

    def copy(self) -> None:
        numbers = self.chance.sample(range(KEYS), KEYS // 2)
        self.write({number: self.row(number) for number in numbers})

    def write(self, rows: Mapping[int, Cells]) -> None:
        self.epoch += 1
        self.keep(rows)
        receipts = [
            self.sink.writer().write(Epoch(self.epoch), part, 0, [self.batch(list(rows.values())[part::3])])
            for part in range(3)
        ]
        self.sink.commit_reads(Epoch(self.epoch), receipts, [], self.plan)

    def merge(self) -> None:
        self.epoch += 1
        rows, ops = list[Cells](), list[ChangeOp]()
        for number in self.chance.sample(range(KEYS), self.chance.randint(1, KEYS // 2)):
            self.version += 1
            rows.append(self.row(number))
            if self.chance.random() < 0.3:
                ops.append(ChangeOp.DELETE)
                self.model.pop(number, None)
            else:
                ops.append(ChangeOp.UPDATE if number in self.model else ChangeOp.INSERT)
                self.keep({number: rows[-1]})
        table = pa.Table.from_batches([self.batch(rows)]).append_column(OP, pa.array(ops, pa.int8()))
        self.apply(table)
        if self.chance.random() < 0.3:
            self.crash()
            self.apply(table)

    def apply(self, table: pa.Table) -> None:
        self.sink.apply(Epoch(self.epoch), MemoryChanges(table, self.shape.definition.key))

    def read_again(self) -> None:
        """Ranges of an integer key are read again: what is there now replaces what was there."""
        if self.definition is not ORDERS:
            return
        self.epoch += 1
        ordinal = self.chance.randrange(len(self.plan.ranges))
        low, high = ordinal * 20, ordinal * 20 + 20
        for number in range(low, high):
            self.model.pop(number, None)
        kept = sorted(self.chance.sample(range(low, high), self.chance.randint(0, 10)))
        self.version += 1
        rows = {number: self.row(number) for number in kept}
        self.keep(rows)
        receipt = self.sink.writer().write(
            Epoch(self.epoch), ordinal, 0, [self.batch(list(rows.values()))] if rows else []
        )
        self.sink.commit_reads(Epoch(self.epoch), [], [receipt], self.plan)
        if self.chance.random() < 0.3:
            self.crash()
            self.sink.commit_reads(Epoch(self.epoch), [], [receipt], self.plan)

    def compact(self) -> None:
        everything = self.chance.random() < 0.5
        policy = CompactionPolicy.on_request(20_000, folds_all=True) if everything else CompactionPolicy(20_000, 3)
        other = self.opened() if self.chance.random() < 0.5 else self.sink
        other.compact(policy)

    def sweep(self) -> None:
        self.sink.sweep()

    def change(self) -> None:
        """One statement on the table's columns."""
        self.changes += 1
        doing = [self.add, self.rename, self.empty]
        if self.extras:
            doing += [self.drop, self.widen]
        self.chance.choice(doing)()

    def add(self) -> None:
        kept = [column.name for column in self.shape.kept]
        name = self.chance.choice(kept) if kept and self.chance.random() < 0.5 else f"x{self.changes}"
        value = self.chance.choice((None, self.changes))
        self.extras[name] = "int"
        self.model = {number: {**row, name: value} for number, row in self.model.items()}
        self.follow(AddColumn(Column.parse(name, "int", nullable=True), None if value is None else str(value)))

    def drop(self) -> None:
        name = self.chance.choice(list(self.extras))
        del self.extras[name]
        if not self.keeps:
            self.model = {n: {c: v for c, v in row.items() if c != name} for n, row in self.model.items()}
        self.follow(DropColumn(name))

    def widen(self) -> None:
        name = self.chance.choice(list(self.extras))
        self.extras[name] = "bigint"
        self.follow(RetypeColumn(Column.parse(name, "bigint", nullable=True)))

    def rename(self) -> None:
        """Any column of the definition, a part of the key among them."""
        column = self.chance.choice(list(self.names))
        old, new = self.names[column], f"{column}{self.changes}"
        self.names[column] = new
        self.model = {n: {new if c == old else c: v for c, v in row.items()} for n, row in self.model.items()}
        self.follow(RenameColumn(old, new))

    def empty(self) -> None:
        if self.chance.random() < 0.7:
            return
        self.model.clear()
        self.sink.empty(self.changes, self.shape)

    def follow(self, step: ColumnStep) -> None:
        definition = self.defined()
        after = self.shape.after(Carried(definition, (step,)), keep_dropped=self.keeps)
        self.sink.change(self.changes, after, [step])
        if self.chance.random() < 0.3:
            self.crash()
            self.sink.change(self.changes, after, [step])
        self.shape = after

    def defined(self) -> TableDefinition:
        base = tuple(replace(column, name=self.names[column.name]) for column in self.definition.columns)
        more = tuple(Column.parse(name, kind, nullable=True) for name, kind in self.extras.items())
        return replace(
            self.definition, columns=(*base, *more), key=tuple(self.names[name] for name in self.definition.key)
        )

    def copy_again(self) -> None:
        """Begin a new copy beside the table, or put the one that was begun in place. Kept columns are lost by it."""
        if self.shown is not None:
            self.put_in_place()
            return
        self.shown = [dict(row) for row in self.model.values()]
        kept = {column.name for column in self.shape.kept}
        self.shape = TableShape(self.shape.definition)
        self.model = {n: {c: v for c, v in row.items() if c not in kept} for n, row in self.model.items()}
        self.copies += 1
        self.job, self.epoch = f"job{self.copies}", 0
        self.sink = self.make(beside=True)
        self.sink.prepare()
        self.write(dict(self.model))

    def put_in_place(self) -> None:
        if self.chance.random() < 0.3:
            self.crash()
        self.sink.put_in_place()
        self.shown = None
        if self.chance.random() < 0.3:
            self.crash()

    def check(self) -> None:
        expected = list(self.model.values()) if self.shown is None else self.shown
        found = read_lake(self.target).to_pylist()
        assert _in_order(found) == _in_order(expected), f"after epoch {self.epoch}"


def _in_order(rows: Sequence[Cells]) -> list[list[tuple[str, Cell]]]:
    return sorted((sorted(row.items()) for row in rows), key=repr)


def run(
    folder: Path, definition: TableDefinition, mode: MergeMode, seed: int, steps: int, *, changes: bool = False
) -> None:
    chance = random.Random(seed)
    cut = plan(ORDERS, (0,), (20,), (40,), (60,)) if definition is ORDERS else plan(definition)
    history = History(folder, definition, mode, chance, cut)
    history.copy()
    doing = (history.merge, history.merge, history.merge, history.compact, history.compact, history.read_again,
             history.sweep, history.crash, *([history.change] * 4 if changes else []),
             *([history.copy_again] * 2 if changes else []))  # fmt: skip
    for _ in range(steps):
        chance.choice(doing)()
        history.check()


@pytest.fixture
def small_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of these histories are tiny: every rule that spares small files is off."""
    monkeypatch.setattr(due, "WORTH_BYTES", 1)
    monkeypatch.setattr(due, "JOINED", 3)
    monkeypatch.setattr(mask, "SMALL_BYTES", 0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("mode", MergeMode)
@pytest.mark.parametrize("definition", [ORDERS, NAMES, PAIRS], ids=["int", "text", "pair"])
def test_the_table_is_the_dictionary(
    tmp_path: Path, small_is_worth_it: None, definition: TableDefinition, mode: MergeMode, seed: int
) -> None:
    run(tmp_path, definition, mode, seed, steps=12)


@pytest.mark.parametrize("seed", range(100, 108))
@pytest.mark.parametrize("mode", MergeMode)
@pytest.mark.parametrize("definition", [ORDERS, NAMES, PAIRS], ids=["int", "text", "pair"])
def test_the_table_is_the_dictionary_while_its_columns_change(
    tmp_path: Path, small_is_worth_it: None, definition: TableDefinition, mode: MergeMode, seed: int
) -> None:
    run(tmp_path, definition, mode, seed, steps=16, changes=True)


@pytest.mark.long
@pytest.mark.parametrize("mode", MergeMode)
@pytest.mark.parametrize("definition", [ORDERS, NAMES, PAIRS], ids=["int", "text", "pair"])
@pytest.mark.timeout(3600)
def test_the_table_is_the_dictionary_while_its_columns_change_many_times(
    tmp_path: Path, small_is_worth_it: None, definition: TableDefinition, mode: MergeMode
) -> None:
    for seed in range(2000, 2100):
        run(tmp_path / str(seed), definition, mode, seed, steps=20, changes=True)


@pytest.mark.long
@pytest.mark.parametrize("definition", [ORDERS, NAMES, PAIRS], ids=["int", "text", "pair"])
@pytest.mark.timeout(3600)
def test_the_table_is_the_dictionary_a_thousand_times(
    tmp_path: Path, small_is_worth_it: None, definition: TableDefinition
) -> None:
    for seed in range(1000, 1340):
        run(tmp_path / str(seed), definition, MergeMode.VECTORS, seed, steps=12)
