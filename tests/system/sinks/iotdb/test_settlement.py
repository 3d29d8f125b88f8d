"""Slots that several keys, attempts or writers want end as the source has them, or are reported."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from devkit.iotdb import IotdbServer
from tests.system.sinks.iotdb.iotdb_case import READINGS, SLOTTED, Change, IotdbCase, TableCase, reading
from tests.tables import Row, batch
from vnode_backfill.config.iotdb import Duplicates
from vnode_backfill.sinks.iotdb.compare import compare_points
from vnode_backfill.sinks.iotdb.sink import IotdbOptions, IotdbSink
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import FencedError, SinkError, SinkUnavailableError
from vnode_backfill.words.key import Key

pytestmark = pytest.mark.long

INSERT, UPDATE, DELETE = ChangeOp


@pytest.fixture(params=[IotdbCase, TableCase], ids=["tree", "table"])
def case(request: pytest.FixtureRequest, iotdb_server: IotdbServer, tmp_path: Path) -> IotdbCase:
    """Both of the server's models."""
    made: IotdbCase = request.param(iotdb_server, tmp_path)
    return made


def source_of(definition: TableDefinition, *rows: Row) -> Callable[[Sequence[Key]], pa.Table]:
    """The source as it is now."""

    def ask(keys: Sequence[Key]) -> pa.Table:
        wanted = [row for row in rows if row[: len(definition.key)] in set(keys)]
        return pa.Table.from_batches([batch(definition, wanted)])

    return ask


def test_two_keys_of_one_read_on_one_slot_stop_the_job(case: IotdbCase) -> None:
    sink = case.sink()
    with pytest.raises(SinkError, match=r"1 \(device, time\) of IoTDB belong to two or more keys") as raised:
        case.append(sink, reading(1, 5), reading(2, 5), reading(3, 6))
    assert '[["int", "1"]] and [["int", "2"]]' in raised.value.detail


def test_two_keys_of_different_ranges_on_one_slot_stop_the_job(case: IotdbCase) -> None:
    sink = case.sink()
    receipts = [case.read(sink, 0, reading(1, 5)), case.read(sink, 1, reading(11, 5))]
    with pytest.raises(SinkError, match="two or more keys"):
        sink.commit_reads(Epoch(1), receipts, [], case.plan())
    assert sink.landed_reads(Epoch(1)) == (None, None)


def test_two_readers_that_did_not_see_each_other_are_found(case: IotdbCase) -> None:
    sink = case.sink()
    first = case.read(sink, 0, reading(1, 5))
    # The second reader looked before the first had written.
    case.lose(5)
    second = case.read(sink, 1, reading(11, 5))
    with pytest.raises(SinkError, match="two or more keys"):
        sink.commit_reads(Epoch(1), [first, second], [], case.plan())


def test_a_key_of_a_later_epoch_on_a_taken_slot_stops_the_job(case: IotdbCase) -> None:
    sink = case.sink()
    case.append(sink, reading(1, 5))
    with pytest.raises(SinkError, match="two or more keys"):
        case.append(sink, reading(11, 5), epoch=2, ordinal=1)
    with pytest.raises(SinkError, match="two or more keys"):
        case.apply(sink, (INSERT, None, reading(99, 5)), epoch=3)
    assert case.rows() == [reading(1, 5)]


def test_the_last_key_wins_where_that_is_wanted_and_it_is_reported(
    case: IotdbCase, caplog: pytest.LogCaptureFixture
) -> None:
    sink = case.sink(duplicates="last")
    with caplog.at_level(logging.WARNING):
        case.append(sink, reading(1, 5, 1.0, "old"), reading(2, 5, 2.0), reading(3, 6))
        case.append(sink, reading(11, 5, 11.0, None), epoch=2, ordinal=1)
    assert case.rows() == [reading(11, 5, 11.0, None), reading(3, 6)]
    assert sink.duplicates.count == 2
    assert "the last one wins count=1" in caplog.text
    assert '[["int", "11"]]' in caplog.text


@pytest.mark.parametrize("excluded", [[], ["id"]], ids=["measured", "beside"])
def test_a_row_that_lost_its_slot_to_another_key_is_distinguished_from_a_wrong_one(
    case: IotdbCase, excluded: list[str]
) -> None:
    sink = case.sink(duplicates="last", exclude=excluded)
    loser, winner, alone = reading(1, 5, 1.0, "old"), reading(11, 5, 11.0, None), reading(2, 6)
    case.append(sink, loser, alone)
    case.append(sink, winner, epoch=2, ordinal=1)

    def found(*rows: Row, duplicates: Duplicates = Duplicates.LAST) -> tuple[int, int, int, int]:
        pieces = [batch(READINGS, [row]) for row in rows]
        result = compare_points(sink.writer()._settings, pieces, duplicates=duplicates)
        return result.shared, result.different, result.missing, result.extra

    assert found(loser, alone, winner) == (1, 0, 0, 0)
    assert found(loser, alone, winner, duplicates=Duplicates.ERROR) == (0, 1, 0, 0)
    assert found(loser, alone, reading(11, 5, 12.0, None)) == (1, 1, 0, 0)
    assert found(loser, alone, reading(11, 7, 11.0, None)) == (0, 1, 1, 0)
    assert found(loser, alone) == (0, 1, 0, 0)


def test_a_key_that_is_left_out_of_the_points_is_kept_beside_them(case: IotdbCase) -> None:
    sink = case.sink(exclude=["id"])
    case.append(sink, reading(1, 5), reading(2, 6))
    assert [points["_key"] for _, _, points in case.slots()] == ['[["int", "1"]]', '[["int", "2"]]']
    assert sorted(sink.key_extremes()) == [(1,), (2,)]
    with pytest.raises(SinkError, match="two or more keys"):
        case.apply(sink, (INSERT, None, reading(3, 5)))
    case.apply(sink, (DELETE, reading(1, 5), None), (INSERT, None, reading(3, 5)))
    assert [points["_key"] for _, _, points in case.slots()] == ['[["int", "3"]]', '[["int", "2"]]']


def test_a_slot_that_passed_to_a_new_key_before_the_departure_is_merged_is_given_to_it(case: IotdbCase) -> None:
    """REPLACE at the source: key 1 is gone, its vnode has not merged; key 99, outside the plan, has its slot."""
    case.source_rows = source_of(READINGS, reading(99, 5, 9.0, None))
    sink = case.sink()
    case.append(sink, reading(1, 5, 1.0, "old"))
    case.apply(sink, (INSERT, None, reading(99, 5, 9.0, None)), epoch=2)
    assert case.rows() == [reading(99, 5, 9.0, None)]
    case.apply(sink, (DELETE, reading(1, 5, 1.0, "old"), None), epoch=3)
    assert case.rows() == [reading(99, 5, 9.0, None)]


def test_an_older_change_does_not_take_a_slot_from_a_newer_read(case: IotdbCase) -> None:
    """Key 1 had the slot for a while; key 30 has it since. The read of 30 came before the merge of 1."""
    case.source_rows = source_of(READINGS, reading(1, 7), reading(30, 5))
    sink = case.sink()
    case.append(sink, reading(30, 5), ordinal=2)
    case.apply(sink, (INSERT, None, reading(1, 5)), epoch=2)
    case.apply(sink, (UPDATE, reading(1, 5), reading(1, 7)), epoch=3)
    assert case.rows() == [reading(1, 7), reading(30, 5)]


def test_a_row_that_a_merge_deleted_while_it_was_read_is_written_again(case: IotdbCase) -> None:
    """The merge saw key 1 on the slot, the read wrote key 11 there, the merge deleted the slot."""
    case.source_rows = source_of(READINGS, reading(11, 5, 11.0))
    sink = case.sink()
    case.append(sink, reading(1, 5))
    case.apply(sink, (DELETE, reading(1, 5), None), epoch=2)
    receipt = case.read(sink, 1, reading(11, 5, 11.0), epoch=2)
    case.lose(5)
    sink.commit_reads(Epoch(2), [receipt], [], case.plan())
    assert case.rows() == [reading(11, 5, 11.0)]


def test_without_a_source_to_ask_such_a_row_is_read_again(case: IotdbCase) -> None:
    sink = case.sink()
    case.append(sink, reading(1, 5))
    case.apply(sink, (DELETE, reading(1, 5), None), epoch=2)
    receipt = case.read(sink, 1, reading(11, 5), epoch=2)
    case.lose(5)
    with pytest.raises(SinkUnavailableError, match="must be read again"):
        sink.commit_reads(Epoch(2), [receipt], [], case.plan())
    case.append(sink, reading(11, 5), epoch=2, ordinal=1)
    assert case.rows() == [reading(11, 5)]


def _replaced() -> None:
    raise FencedError("another driver took over")


def test_a_driver_that_lost_its_lease_writes_nothing(case: IotdbCase, tmp_path: Path) -> None:
    case.append(case.sink(), reading(1, 1))
    options = IotdbOptions(str(tmp_path / "receipts-job"), case.server.password, lease=_replaced)
    old = IotdbSink(case.config(), READINGS, "job", options)
    with pytest.raises(FencedError):
        case.read(old, 0, reading(2, 2))
    with pytest.raises(FencedError):
        case.apply(old, (DELETE, reading(1, 1), None), epoch=2)
    assert case.rows() == [reading(1, 1)]


@dataclass
class World:
    """A source whose rows move between slots, and what its log says since the first offset."""

    definition: TableDefinition
    random: random.Random
    rows: dict[int, Row] = field(default_factory=dict)
    log: list[tuple[int, Change]] = field(default_factory=list)

    def step(self) -> None:
        """One transaction: a row comes, changes, moves or goes. There are fewer slots than keys, one row per slot."""
        number, old = self.random.randrange(30), None
        if self.rows and self.random.random() < 0.6:
            number = self.random.choice(sorted(self.rows))
            old = self.rows[number]
        taken = {row[1:4] for row in self.rows.values() if row is not old}
        new = reading(
            number, self.random.randrange(4), self.random.choice([None, 1.0, 2.0]),
            self.random.choice([None, "x", "y"]), self.random.choice(["eu", "us"]),
        )  # fmt: skip
        if new[1:4] in taken or (old is not None and self.random.random() < 0.3):
            self._log(number, None)
        else:
            self._log(number, new)

    def _log(self, number: int, new: Row | None) -> None:
        old = self.rows.pop(number, None)
        if new is not None:
            self.rows[number] = new
            self.log.append((number, (UPDATE if old else INSERT, old, new)))
        elif old is not None:
            self.log.append((number, (DELETE, old, None)))

    def ask(self, keys: Sequence[Key]) -> pa.Table:
        return source_of(self.definition, *self.rows.values())(keys)

    def range(self, ordinal: int) -> list[Row]:
        return [row for number, row in sorted(self.rows.items()) if number // 10 == ordinal]


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_with_lost_attempts_end_as_the_source_is(case: IotdbCase, seed: int) -> None:
    world = World(READINGS, random.Random(seed))
    case.source_rows = world.ask
    sink, merged, read_at = case.sink(), [0, 0, 0], [0, 0, 0]
    for _ in range(20):
        world.step()
    for epoch in range(1, 7):
        ordinal, seen = world.random.randrange(3), len(world.log)
        for _ in range(world.random.randrange(8)):
            world.step()
        if world.random.random() < 0.5:
            lost = world.random.randrange(3)
            if not read_at[lost]:
                case.read(sink, lost, *world.range(lost), epoch=epoch)
                sink = case.sink()
            for _ in range(world.random.randrange(8)):
                world.step()
        changes = [c for n, (key, c) in enumerate(world.log) if read_at[key // 10] and n >= merged[key // 10]]
        receipts = [] if read_at[ordinal] else [case.read(sink, ordinal, *world.range(ordinal), epoch=epoch, attempt=1)]
        case.apply(sink, *changes, epoch=epoch)
        merged = [len(world.log) if at else 0 for at in read_at]
        if receipts:
            merged[ordinal], read_at[ordinal] = seen, 1
        sink.commit_reads(Epoch(epoch), receipts, [], case.plan())
    for ordinal in range(3):
        if not read_at[ordinal]:
            merged[ordinal] = len(world.log)
            case.append(sink, *world.range(ordinal), epoch=10 + ordinal, ordinal=ordinal)
    case.apply(sink, *(c for n, (key, c) in enumerate(world.log) if n >= merged[key // 10]), epoch=20)
    # A slot whose row has no measurement but its key is a row too.
    assert case.rows() == sorted(world.rows.values(), key=repr)


def test_a_slot_that_shows_its_key_needs_no_look_at_the_server(iotdb_server: IotdbServer, tmp_path: Path) -> None:
    case = IotdbCase(iotdb_server, tmp_path, SLOTTED)
    sink = case.sink()
    assert sink.mapping.owner == ()
    case.append(sink, reading(1, 5)[1:], reading(1, 6)[1:])
    case.apply(sink, (DELETE, reading(1, 5)[1:], None), (INSERT, None, reading(2, 5, 7.0)[1:]), epoch=2)
    assert case.rows() == [reading(2, 5, 7.0)[1:], reading(1, 6)[1:]]
    assert sorted(sink.key_extremes(), key=repr) == [("eu", 1, 5), ("eu", 1, 6)]
