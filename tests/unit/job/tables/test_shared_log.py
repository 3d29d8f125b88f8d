"""Which tables are read in one dump of the log: a long stretch behind the others is read beside them, and no table is
in a dump twice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import pytest

from consume_upstream.executor import ConsumeOrder, UpstreamTableExecutor
from consume_upstream.log.offset import SHORT_STRETCH_BYTES, CdcOffset, VisibleAt
from progress.state.backfill_state import Intent
from tests.unit.progress.state.state_examples import beginning, plan_with
from vnode_backfill.decide.protocol import BufferChanges
from vnode_backfill.job.run.services import Committed
from vnode_backfill.job.tables.order import Order
from vnode_backfill.job.tables.parked_tables import Peek
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.job.tables.shared_log import is_late, stretches_of
from vnode_backfill.words.epoch import Barrier, BarrierKind, Epoch

FAR = 100 + SHORT_STRETCH_BYTES + 1


def at(pos: int, number: int = 7, era: int = 0) -> CdcOffset:
    return CdcOffset.at("server", f"binlog.{number:06d}", pos, era=era)


@pytest.mark.parametrize(
    ("after", "upto", "others", "late"),
    [
        (at(100), at(FAR), [at(200)], True),
        (at(100), at(200), [at(200)], False),
        (at(100), at(FAR), [at(100)], False),
        (at(100), at(FAR), [], False),
        (at(100, 7), at(4, 8), [at(100, 7), at(4, 8)], True),
        (at(100, era=3), at(FAR, era=3), [at(50, era=1), at(99)], False),
    ],
    ids=["behind and long", "behind and short", "all at one offset", "alone", "over two files", "ahead in a later era"],
)
def test_only_a_long_stretch_behind_another_table_is_late(
    after: CdcOffset, upto: CdcOffset, others: list[CdcOffset], late: bool
) -> None:
    assert is_late(after, upto, [other.in_era(0).order for other in others]) is late


@dataclass(frozen=True)
class Named:
    """What is asked of a table here."""

    name: str


PLAN = plan_with(0, 10)


def intent(upto: CdcOffset) -> Intent:
    return Intent(Epoch(2), BarrierKind.CHECKPOINT, upto, VisibleAt(upto), (), 0)


def ordered(name: str, after: CdcOffset, upto: CdcOffset) -> Order[BufferChanges]:
    action = BufferChanges(Barrier(Epoch(2), BarrierKind.CHECKPOINT), after, intent(upto))
    return Order(cast(RunningTable, Named(name)), action, Committed(beginning(PLAN), PLAN))


def looked_at(name: str, after: CdcOffset, upto: CdcOffset) -> Peek:
    state, executor = replace(beginning(PLAN), written=after), cast(UpstreamTableExecutor, None)
    return Peek(cast(RunningTable, Named(name)), ConsumeOrder(executor, state, PLAN, intent(upto), peeks=True))


def test_table_that_orders_the_log_is_not_looked_at_in_the_same_dump() -> None:
    """It was woken after somebody had decided to look; its rows would go to the look, and be lost."""
    orders = [ordered("a", at(100), at(200)), ordered("b", at(100), at(200))]
    found = stretches_of(orders, [looked_at("a", at(100), at(200)), looked_at("c", at(100), at(200))])
    assert [sorted(stretch.names) for stretch in found] == [["a", "b", "c"]]
    assert [peek.table.name for peek in found[0].peeks] == ["c"]


def test_table_that_orders_the_log_is_not_looked_at_in_another_dump() -> None:
    found = stretches_of([ordered("a", at(100), at(300))], [looked_at("a", at(100), at(200))])
    assert [(stretch.after.pos, stretch.upto.pos, len(stretch.peeks)) for stretch in found] == [(100, 300, 0)]


def test_tables_that_know_different_files_of_one_name_are_not_read_in_one_dump() -> None:
    """The reader compares the file with the identity that one of them knows, and would believe it for all."""
    old, new = replace(at(100), log="old"), replace(at(100), log="new")
    orders = [ordered("a", old, at(200)), ordered("b", new, at(200)), ordered("c", old, at(200))]
    found = stretches_of(orders, [looked_at("d", new, at(200)), looked_at("e", old, replace(at(200), log="other"))])
    assert [sorted(stretch.names) for stretch in found] == [["a", "c"], ["b", "d"], ["e"]]
    assert [stretch.after.log for stretch in found] == ["old", "new", "old"]


def test_looks_that_differ_in_one_end_are_not_one_stretch() -> None:
    looks = [looked_at("a", at(100), at(200)), looked_at("b", at(100), at(300)), looked_at("c", at(100), at(200))]
    found = stretches_of([], looks)
    assert [sorted(stretch.names) for stretch in found] == [["a", "c"], ["b"]]
