"""Whatever happens to rows, attempts and slots, the points end as the source is.

The source here moves rows between a few slots, also from key to key; ranges are read at different times by attempts
that may be lost, merges lag behind each other, and a read and a merge write into each other. `IOTDB_HISTORIES=500` runs
more of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from tests.histories.iotdb_model import ModelServer, ModelTable
from tests.system.sinks.iotdb.iotdb_case import READINGS, Change, reading, window
from tests.tables import Row, batch, plan
from vnode_backfill.config.iotdb import IotdbSinkConfig
from vnode_backfill.sinks import ReadReceipt
from vnode_backfill.sinks.iotdb import sink as sink_module
from vnode_backfill.sinks.iotdb.server import table as table_module
from vnode_backfill.sinks.iotdb.server import tree as tree_module
from vnode_backfill.sinks.iotdb.sink import IotdbOptions, IotdbSink
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import Key

INSERT, UPDATE, DELETE = ChangeOp
PLAN = plan(READINGS, (0,), (10,), (20,), (29,))
OUTSIDE = 3
"""Keys from 30 on have no range: they come by the log alone."""


@dataclass
class World:
    """A source and its log; a slot never has two rows."""

    random: random.Random
    rows: dict[int, Row] = field(default_factory=dict)
    log: list[tuple[int, Change]] = field(default_factory=list)

    def steps(self, most: int) -> None:
        for _ in range(self.random.randrange(most + 1)):
            self.step()

    def step(self) -> None:
        """A row comes, changes where it is, moves or goes."""
        number, old = self.random.randrange(40), None
        if self.rows and self.random.random() < 0.6:
            number = self.random.choice(sorted(self.rows))
        old = self.rows.get(number)
        taken = {row[1:4] for row in self.rows.values() if row is not old}
        new = reading(
            number, self.random.randrange(4), self.random.choice([None, 1.0, 2.0]),
            self.random.choice([None, "x", "y"]), self.random.choice(["eu", "us"]),
        )  # fmt: skip
        if old is not None and self.random.random() < 0.4:
            new = (*old[:4], *new[4:])
        gone = new[1:4] in taken or (old is not None and self.random.random() < 0.3)
        self._log(number, None if gone else new)

    def _log(self, number: int, new: Row | None) -> None:
        old = self.rows.pop(number, None)
        if new is not None:
            self.rows[number] = new
            self.log.append((number, (UPDATE if old else INSERT, old, new)))
        elif old is not None:
            self.log.append((number, (DELETE, old, None)))

    def range(self, ordinal: int) -> list[Row]:
        return [row for number, row in sorted(self.rows.items()) if number // 10 == ordinal]

    def ask(self, keys: Sequence[Key]) -> pa.Table:
        wanted = [row for number, row in self.rows.items() if (number,) in set(keys)]
        return pa.Table.from_batches([batch(READINGS, wanted)])


@dataclass
class History:
    """One job from its first read to its last merge; `applied` counts the log per range, None for an unread one."""

    world: World
    server: ModelServer
    folder: Path
    place: dict[str, object] = field(default_factory=lambda: {"device": "root.d.{region}.s{sensor}"})
    applied: list[int | None] = field(default_factory=lambda: [None, None, None, 0])

    def run(self) -> None:
        world, merged_up_to = self.world, 0
        world.steps(25)
        sink = self.sink()
        for number in range(1, 9):
            epoch, visible = Epoch(number), len(world.log)
            world.steps(4)
            sink = self._lose(sink, epoch)
            unread = [o for o in range(3) if self.applied[o] is None]
            ordinals = [o for o in unread if world.random.random() < 0.4]
            receipts = self._read_and_merge(sink, epoch, ordinals, merged_up_to)
            sink.commit_reads(epoch, receipts, [], PLAN)
            for ordinal in ordinals:
                self.applied[ordinal] = visible
            merged_up_to = visible
            world.steps(4)
        self._finish(sink)

    def sink(self) -> IotdbSink:
        config = IotdbSinkConfig.model_validate(
            {
                "host": "h",
                "time": {"column": "at", "unit": "ms"},
                "tablet_rows": 2,
                **self.place,
            }
        )
        made = IotdbSink(config, READINGS, "job", IotdbOptions(str(self.folder), "", source_rows=self.world.ask))
        made.prepare()
        return made

    def _lose(self, sink: IotdbSink, epoch: Epoch) -> IotdbSink:
        """An attempt that writes some ranges, in whole or in part, and is then heard of no more."""
        if self.world.random.random() < 0.5:
            return sink
        left = self.world.random.randrange(6)
        self.server.before_effect = _ending_after(left)
        for ordinal in range(3):
            if self.applied[ordinal] is None and self.world.random.random() < 0.5:
                try:
                    sink.writer().write(epoch, ordinal, 0, [batch(READINGS, self.world.range(ordinal))])
                except _DriverDiedError:
                    break
        self.server.before_effect = lambda: None
        self.world.steps(4)
        return self.sink()

    def _read_and_merge(self, sink: IotdbSink, epoch: Epoch, ordinals: list[int], upto: int) -> list[ReadReceipt]:
        """The reads write what they saw at some moment of the merge, or the merge comes in the middle of the reads."""
        seen = []
        for ordinal in ordinals:
            seen.append((ordinal, self.world.range(ordinal)))
            self.world.steps(2)
        chosen = [o for o, at in enumerate(self.applied) if at is not None and self.world.random.random() < 0.7]
        changes = self._changes(chosen, upto)
        receipts: list[ReadReceipt] = []

        def read() -> None:
            for ordinal, rows in seen:
                receipts.append(sink.writer().write(epoch, ordinal, 1, [batch(READINGS, rows)]))

        def merge() -> None:
            sink.apply(epoch, window(READINGS, changes))

        first, second = (read, merge) if self.world.random.random() < 0.5 else (merge, read)
        inner = _Once(second, self.world.random.randrange(5))
        self.server.before_effect = inner.at_effect
        first()
        inner.now()
        self.server.before_effect = lambda: None
        for ordinal in chosen:
            self.applied[ordinal] = max(self.applied[ordinal] or 0, upto)
        return receipts

    def _changes(self, ordinals: Sequence[int], upto: int) -> list[Change]:
        wanted = {ordinal: self.applied[ordinal] for ordinal in ordinals}
        return [
            change
            for place, (number, change) in enumerate(self.world.log[:upto])
            if place >= (wanted.get(number // 10, upto) or 0)
        ]

    def _finish(self, sink: IotdbSink) -> None:
        """Everything is read, then everything is merged, range by range and then together."""
        for ordinal in (o for o in range(3) if self.applied[o] is None):
            epoch, visible = Epoch(20 + ordinal), len(self.world.log)
            receipt = sink.writer().write(epoch, ordinal, 0, [batch(READINGS, self.world.range(ordinal))])
            sink.commit_reads(epoch, [receipt], [], PLAN)
            self.applied[ordinal] = visible
        end = len(self.world.log)
        order = self.world.random.sample(range(4), 4)
        for number, ordinal in enumerate(order):
            sink.apply(Epoch(30 + number), window(READINGS, self._changes([ordinal], end)))
            self.applied[ordinal] = end


class _DriverDiedError(Exception):
    pass


def _ending_after(calls: int) -> _Ending:
    return _Ending(calls)


class _Ending:
    def __init__(self, calls: int) -> None:
        self._left = calls

    def __call__(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _DriverDiedError


class _Once:
    """Does something at a certain effect, or at the latest when told to, once."""

    def __init__(self, action: object, effect: int) -> None:
        self._action, self._left, self._done = action, effect, False

    def at_effect(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.now()

    def now(self) -> None:
        if not self._done:
            self._done = True
            assert callable(self._action)
            self._action()


@pytest.mark.parametrize("seed", range(int(os.environ.get("IOTDB_HISTORIES", "12"))))
def test_points_end_as_the_source_is(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ModelServer()
    for module in (sink_module, tree_module):
        monkeypatch.setattr(module, "IotdbSession", lambda _: server)
    world = World(random.Random(seed))
    History(world, server, tmp_path).run()
    assert server.slots == expected(world, "root.`d`.`{}`.`s{}`")


@pytest.mark.parametrize("seed", range(int(os.environ.get("IOTDB_HISTORIES", "12"))))
def test_rows_of_a_table_end_as_the_source_is(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ModelServer()
    monkeypatch.setattr(sink_module, "IotdbSession", lambda _: server)
    monkeypatch.setattr(table_module, "TableSession", lambda _, naming: ModelTable(server, naming))
    world = World(random.Random(seed))
    place: dict[str, object] = {"model": "table", "database": "d", "tags": ["region", "sensor"]}
    History(world, server, tmp_path, place).run()
    assert server.slots == expected(world, "\"region\" = '{}' AND \"sensor\" = '{}'")


def expected(world: World, device: str) -> dict[tuple[str, int], dict[str, object]]:
    return {
        (device.format(row[1], row[2]), int(str(row[3]))): {
            name: value
            for name, value in zip(("id", "temp", "note"), (row[0], row[4], row[5]), strict=True)
            if value is not None
        }
        for row in world.rows.values()
    }
