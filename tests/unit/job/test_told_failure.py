"""The reason of a table of many is stored, and shown, with the hint for that table; that of a job of one as it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from progress.state.barriers import LocalBarrierManager
from tests.unit.decide.coordinated_job import PLAN, live_job
from vnode_backfill.decide.protocol import Action, ActorFailed, CommitEpoch, Event, StateCommitted, Stop
from vnode_backfill.job.run.observations import Pace, Seen
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.job.run.table_run import TableRun
from vnode_backfill.words.errors import LogFormatError
from vnode_backfill.words.hints import READ_AGAIN, for_table


def run_of(table: str) -> tuple[TableRun, list[Action]]:
    """A live table that nothing carries orders out for; they are kept."""
    orders: list[Action] = []

    def keep(action: Action, _: Committed) -> None:
        orders.append(action)

    config = SimpleNamespace(limits=SimpleNamespace(retries=0), table_of_many=table, sink=Mock(), ui=Mock())
    services = cast(Services, SimpleNamespace(config=config, sink=Mock(), metrics=Mock()))
    barriers: LocalBarrierManager[Event] = LocalBarrierManager()
    watched = cast(tuple[Seen, Pace], (Mock(), SimpleNamespace(epoch_began=0.0)))
    return TableRun(services, live_job().state, PLAN, barriers, keep, watched), orders


@pytest.mark.parametrize("table", ["", "shop.orders"])
def test_failure_is_stored_and_reported_with_the_same_hint(table: str) -> None:
    run, orders = run_of(table)
    run.happen(ActorFailed(LogFormatError("damaged", detail="at 7", hint=READ_AGAIN), run.coordinator.attempt))
    (commit,) = (order for order in orders if isinstance(order, CommitEpoch))
    run.happen(StateCommitted(commit.state.revision))
    stop = orders[-1]
    assert isinstance(stop, Stop)
    for failure in (commit.state.failure, run.coordinator.saved.failure, stop.failure, run.failure):
        assert failure is not None
        assert (failure.message, failure.detail) == ("damaged", "at 7")
        assert failure.hint == for_table(READ_AGAIN, table)
    assert ("--table shop.orders" in for_table(READ_AGAIN, table)) == bool(table)
