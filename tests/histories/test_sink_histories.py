"""Random histories of the Delta sink alone: merges, re-reads, folds, joins, sweeps and crashes, against a dictionary.

A crash is a sink that is thrown away before or after its commit. Its files stay, and the next sink repeats the epoch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from tests.tables import ORDERS, Change, Row, batch, change_table, in_order, order, plan, stored, table_of
from vnode_backfill.config.job import MergeMode
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.delta import due, mask
from vnode_backfill.sinks.delta.compaction import CompactionPolicy
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.change import OFFSET_COLUMNS, ChangeOp
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key_range import SplitPlan

KEYS = 60
NAMES = table_of({"code": "varchar(20)", "note": "varchar(20)"}, "code")
PAIRS = table_of({"shop": "int", "code": "varchar(20)", "note": "varchar(20)"}, "shop", "code")


def row_of(definition: TableDefinition, number: int, version: int) -> Row:
    """The row of a key; text keys differ in case and trailing spaces only, which no collation may take for equal."""
    text = ("key", "Key", "KEY", "key ")[number % 4] + str(number // 4)
    match definition.key:
        case ("id",):
            return order(number, f"v{version}")
        case ("code",):
            return (text, f"v{version}")
        case _:
            return (number % 3, text, f"v{version}")


@dataclass
class History:
    """One run: the sink, what its table must hold, and the chance."""

    folder: Path
    definition: TableDefinition
    mode: MergeMode
    chance: random.Random
    plan: SplitPlan
    model: dict[int, Row] = field(default_factory=dict)
    epoch: int = 0
    version: int = 0

    def __post_init__(self) -> None:
        self.sink = self.make()
        self.sink.prepare()

    def make(self) -> DeltaSink:
        cache = self.chance.choice((0, 10_000_000))
        return DeltaSink(
            str(self.folder / "target"), self.definition, "job", target_file_size=20_000, creates=self.mode,
            key_cache=cache, retention=timedelta(hours=1),
        )  # fmt: skip

    def crash(self) -> None:
        """The driver dies; another one takes over."""
        self.sink = self.make()
        self.sink.prepare()

    def copy(self) -> None:
        self.epoch += 1
        numbers = self.chance.sample(range(KEYS), KEYS // 2)
        rows = {number: row_of(self.definition, number, 0) for number in numbers}
        self.model.update(rows)
        receipts = [
            self.sink.writer().write(Epoch(self.epoch), part, 0, [batch(self.definition, list(rows.values())[part::3])])
            for part in range(3)
        ]
        self.sink.commit_reads(Epoch(self.epoch), receipts, [], self.plan)

    def merge(self) -> None:
        self.epoch += 1
        changes: list[Change] = []
        for number in self.chance.sample(range(KEYS), self.chance.randint(1, KEYS // 2)):
            self.version += 1
            row = row_of(self.definition, number, self.version)
            if self.chance.random() < 0.3:
                changes.append((ChangeOp.DELETE, len(changes), row))
                self.model.pop(number, None)
            else:
                op = ChangeOp.UPDATE if number in self.model else ChangeOp.INSERT
                changes.append((op, len(changes), row))
                self.model[number] = row
        self.apply(changes)
        if self.chance.random() < 0.3:
            self.crash()
            self.apply(changes)

    def apply(self, changes: Sequence[Change]) -> None:
        table = change_table(self.definition, changes).drop_columns(list(OFFSET_COLUMNS))
        self.sink.apply(Epoch(self.epoch), MemoryChanges(table, self.definition.key))

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
        rows = {number: row_of(self.definition, number, self.version) for number in kept}
        self.model.update(rows)
        receipt = self.sink.writer().write(
            Epoch(self.epoch), ordinal, 0, [batch(self.definition, list(rows.values()))] if rows else []
        )
        self.sink.commit_reads(Epoch(self.epoch), [], [receipt], self.plan)
        if self.chance.random() < 0.3:
            self.crash()
            self.sink.commit_reads(Epoch(self.epoch), [], [receipt], self.plan)

    def compact(self) -> None:
        everything = self.chance.random() < 0.5
        policy = CompactionPolicy.on_request(20_000, folds_all=True) if everything else CompactionPolicy(20_000, 3)
        other = self.make() if self.chance.random() < 0.5 else self.sink
        other.compact(policy)

    def sweep(self) -> None:
        self.sink.sweep()

    def check(self) -> None:
        assert stored(self.folder / "target") == in_order(self.model.values()), f"after epoch {self.epoch}"


def run(folder: Path, definition: TableDefinition, mode: MergeMode, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    cut = plan(ORDERS, (0,), (20,), (40,), (60,)) if definition is ORDERS else plan(definition)
    history = History(folder, definition, mode, chance, cut)
    history.copy()
    doing = (history.merge, history.merge, history.merge, history.compact, history.compact, history.read_again,
             history.sweep, history.crash)  # fmt: skip
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


@pytest.mark.long
@pytest.mark.parametrize("definition", [ORDERS, NAMES, PAIRS], ids=["int", "text", "pair"])
@pytest.mark.timeout(3600)
def test_the_table_is_the_dictionary_a_thousand_times(
    tmp_path: Path, small_is_worth_it: None, definition: TableDefinition
) -> None:
    for seed in range(1000, 1340):
        run(tmp_path / str(seed), definition, MergeMode.VECTORS, seed, steps=12)
