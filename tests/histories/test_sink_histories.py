"""Random histories of the Delta sink alone, against a dictionary: merges, re-reads, folds, joins, sweeps, checkpoints,
crashes, changes of columns, and new copies beside the table.

A crash is a sink that is thrown away in the middle of what it does: before or after any step of
`vnode_backfill.delta.steps`, or when all is done. Its files stay, and the next sink repeats the epoch. Now and then the
table is made hours older. Then a sweep deletes whatever is not needed, also between a crash and the repetition.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from threading import Lock
from typing import Literal, TypeAlias

import pyarrow as pa
import pytest

from devkit.lake import read_lake
from tests.system.sinks.delta.aged_table import age
from tests.tables import ORDERS, Cell, batch, order, plan, table_of
from vnode_backfill.config.job import MergeMode
from vnode_backfill.delta import commits
from vnode_backfill.delta import steps as seams
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.copies import folder_of
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.steps import Step
from vnode_backfill.delta.storage import Storage
from vnode_backfill.delta.vectors import vector_path
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.delta import due, mask
from vnode_backfill.sinks.delta.compaction import CompactionPolicy
from vnode_backfill.sinks.delta.place import is_beside
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.change import OP, ChangeOp
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import Key
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
LARGE = 1024 * 1024
NAMES = table_of({"code": "varchar(20)", "note": "varchar(20)"}, "code")
PAIRS = table_of({"shop": "int", "code": "varchar(20)", "note": "varchar(20)"}, "shop", "code")
BOUNDS: Mapping[tuple[str, ...], tuple[Key, ...]] = {
    ORDERS.key: ((0,), (20,), (40,), (60,)),
    NAMES.key: (("KEY ",), ("KEY1",), ("KEY4",), ("KEY9",)),
    PAIRS.key: ((0, "KEY1"), (1, "KEY "), (1, "KEY5"), (2, "KEY9")),
}
"""Of the ranges of each plan, by the key; some keys of text are outside. The collation ignores case."""

Cells: TypeAlias = dict[str, Cell]


class DiedError(BaseException):
    """The process has ended at a seam. Nothing catches it."""


Seam: TypeAlias = tuple[Literal["before", "after"], Step]
SEAMS: tuple[Seam, ...] = (*(("before", step) for step in Step), *(("after", step) for step in Step))
OF_VECTORS = (Step.WRITE_VECTORS, Step.WRITE_FOLD, Step.COMMIT_FOLD)


@dataclass
class Deaths:
    """The seam of all steps. Somebody dies at an armed one when it was come to so many times, and once only."""

    armed: dict[Seam, int] = field(default_factory=dict)
    died: list[Seam] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, moment: Literal["before", "after"], step: Step, _: str) -> None:
        seam = moment, step
        with self._lock:
            if seam in self.armed:
                self.armed[seam] -= 1
            if self.armed.get(seam) == 0:
                self.armed.clear()
                self.died.append(seam)
                raise DiedError


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


def place_of(key: Sequence[Cell]) -> tuple[int, bytes]:
    """Where the source has a key, as a collation orders it that ignores case."""
    numbers, texts = [cell for cell in key if isinstance(cell, int)], [cell for cell in key if isinstance(cell, str)]
    return sum(numbers), "".join(texts).upper().encode()


def weights(columns: Sequence[pa.Array]) -> list[pa.Array | None]:
    """The same for a batch, as the sink asks for it."""
    return [
        pa.array([text.upper().encode() for text in column.to_pylist()], pa.binary())
        if pa.types.is_string(column.type)
        else None
        for column in columns
    ]


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
    deaths: Deaths = field(default_factory=Deaths)
    aim: Seam | None = None
    """Where the next death is; anywhere if nothing is said."""
    swept: int = 0
    """How many files sweeps have deleted."""

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

    def do(self, doing: Callable[[], object]) -> None:
        """Carry it out. A driver may die in the middle of it or right after it; then the next one repeats it.

        Every file is small: by chance none counts as too small to be written again, or each does and is masked.
        """
        mask.SMALL_BYTES = self.chance.choice((0, LARGE))
        died = self.dies(doing) or self.chance.random() < 0.3
        while died:
            self.crash()
            if self.chance.random() < 0.3:
                self.sweep_aged()
            died = self.dies(doing)

    def dies(self, doing: Callable[[], object]) -> bool:
        """Carry it out, with a chance of a death in the middle of it."""
        self.deaths.armed = self.some_seams()
        try:
            doing()
        except DiedError:
            return True
        finally:
            self.deaths.armed = {}
        return False

    def some_seams(self) -> dict[Seam, int]:
        if self.aim is not None:
            return {} if self.aim in self.deaths.died else {self.aim: 1}
        if self.chance.random() < 0.5:
            return {}
        return {seam: self.chance.randint(1, 2) for seam in self.chance.sample(SEAMS, 4)}

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
        self.do(lambda: self.apply(table))

    def apply(self, table: pa.Table) -> None:
        self.sink.apply(Epoch(self.epoch), MemoryChanges(table, self.shape.definition.key))

    def read_again(self) -> None:
        """A range is read again: what is there now replaces what was there."""
        self.epoch += 1
        ordinal = self.chance.randrange(len(self.plan.ranges))
        numbers = self.of_range(ordinal)
        for number in numbers:
            self.model.pop(number, None)
        kept = set(self.chance.sample(numbers, self.chance.randint(0, len(numbers) // 2)))
        self.version += 1
        rows = {number: self.row(number) for number in numbers if number in kept}
        self.keep(rows)
        receipt = self.sink.writer().write(
            Epoch(self.epoch), ordinal, 0, [self.batch(list(rows.values()))] if rows else []
        )
        self.do(lambda: self.sink.commit_reads(Epoch(self.epoch), [], [receipt], self.plan, weights))

    def of_range(self, ordinal: int) -> list[int]:
        """The numbers of the keys of a range, in the source's order. The last range has its upper bound, too."""
        bounds = [place_of(bound) for bound in BOUNDS[self.definition.key]]
        low, high, is_last = bounds[ordinal], bounds[ordinal + 1], ordinal == len(bounds) - 2
        places = {number: self.place(number) for number in range(KEYS)}
        inside = [n for n, at in places.items() if low <= at < high or (is_last and at == high)]
        return sorted(inside, key=places.__getitem__)

    def place(self, number: int) -> tuple[int, bytes]:
        row = row_of(self.definition, number, 0)
        return place_of([row[name] for name in self.definition.key])

    def compact(self) -> None:
        everything = self.chance.random() < 0.5
        policy = CompactionPolicy.on_request(20_000, folds_all=True) if everything else CompactionPolicy(20_000, 3)
        other = self.opened() if self.chance.random() < 0.5 else self.sink
        if self.dies(lambda: other.compact(policy)) and other is self.sink:
            self.crash()

    def upkeep(self) -> None:
        """Hours pass, then the log is tidied and the table is swept."""
        self.get_older()
        for doing in self.chance.sample([self.sweep, self.sink.tidy], 2):
            if self.dies(doing):
                self.crash()

    def sweep_aged(self) -> None:
        """As `compact` of another process does, before the job is taken up again."""
        self.get_older()
        self.sweep()

    def get_older(self) -> None:
        for path in self.tables:
            age(Path(path))

    def sweep(self) -> None:
        self.swept += len(self.sink.sweep())

    @property
    def tables(self) -> list[str]:
        """The folders of the table and of the copy beside it."""
        return [self.target, *([] if self.shown is None else [f"{self.target}/{folder_of(self.job)}"])]

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
        self.do(lambda: self.sink.change(self.changes, after, [step]))
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
        self.do(self.place_copy)
        self.shown = None

    def place_copy(self) -> None:
        self.sink.put_in_place()

    def check(self) -> None:
        shown = list(self.model.values()) if self.shown is None else self.shown
        for path, expected in zip(self.tables, (shown, list(self.model.values())), strict=False):
            assert _missing(Path(path)) == [], f"after epoch {self.epoch}"
            found = read_lake(path).to_pylist()
            assert _in_order(found) == _in_order(expected), f"after epoch {self.epoch}"


def _missing(table: Path) -> list[str]:
    """Files of data and of vectors that the newest version names and that are not there."""
    files = DeltaLog(Storage.of(str(table)), "", "the table").open().files.values()
    vectors = (vector_path(file.vector) for file in files if file.vector is not None)
    named = [*(file.path for file in files), *(path for path in vectors if path is not None)]
    return [path for path in named if not (table / path).is_file()]


def _in_order(rows: Sequence[Cells]) -> list[list[tuple[str, Cell]]]:
    return sorted((sorted(row.items()) for row in rows), key=repr)


@contextmanager
def begun(folder: Path, definition: TableDefinition, mode: MergeMode, seed: int) -> Iterator[History]:
    """A table of a first copy. Whoever comes to a step in this block may die there."""
    history = History(folder, definition, mode, random.Random(seed), plan(definition, *BOUNDS[definition.key]))
    history.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seams, "seam", history.deaths)
        # Set again by each operation, and set back at the end.
        patch.setattr(mask, "SMALL_BYTES", 0)
        yield history


def run(
    folder: Path, definition: TableDefinition, mode: MergeMode, seed: int, steps: int, *, changes: bool = False
) -> None:
    with begun(folder, definition, mode, seed) as history:
        doing = (history.merge, history.merge, history.merge, history.compact, history.compact, history.read_again,
                 history.upkeep, history.crash, *([history.change] * 4 if changes else []),
                 *([history.copy_again] * 2 if changes else []))  # fmt: skip
        for _ in range(steps):
            history.chance.choice(doing)()
            history.check()


@pytest.fixture
def small_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of these histories are tiny: every rule that spares small files is off, and logs count as long."""
    monkeypatch.setattr(due, "WORTH_BYTES", 1)
    monkeypatch.setattr(due, "JOINED", 3)
    monkeypatch.setattr(commits, "checkpoint_due", _six_commits)


def _six_commits(table: TableVersion) -> bool:
    return table.version - table.checkpoint >= 6


@pytest.mark.parametrize("mode", MergeMode)
def test_the_table_is_the_dictionary_after_a_death_before_and_after_each_step(
    tmp_path: Path, small_is_worth_it: None, mode: MergeMode
) -> None:
    wanted = [seam for seam in SEAMS if mode is MergeMode.VECTORS or seam[1] not in OF_VECTORS]
    with begun(tmp_path, ORDERS, mode, 1) as history:
        for seam in wanted:
            history.aim = seam
            doing = cycle([history.merge, history.compact, history.read_again, history.upkeep])
            while seam not in history.deaths.died:
                assert history.epoch < 1000, f"no {seam} was come to"
                next(doing)()
                history.check()
    assert history.swept > len(wanted)


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
