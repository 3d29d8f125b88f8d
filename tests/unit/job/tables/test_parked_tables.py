"""What is stored of tables that rest: how far they are, for as long as it is true of the state that is stored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from progress.state.backfill_state import BackfillState
from progress.state.parked import ParkedDocument, Reached
from tests.unit.decide.coordinated_job import PLAN
from tests.unit.progress.state.state_examples import at
from tests.unit.progress.state.test_parked import live
from vnode_backfill.decide.protocol import SampleSource
from vnode_backfill.job.run.services import Committed
from vnode_backfill.job.tables.order import Order
from vnode_backfill.job.tables.parked_tables import ParkedTables
from vnode_backfill.job.tables.running_table import RunningTable

FAR = Reached(at(900))


class Table:
    """What is asked of a running table here."""

    def __init__(self, copy: str, revision: int) -> None:
        self.name, self.revision, self.reached, self.waiting = f"shop.{copy}", revision, None, 0
        self.table = SimpleNamespace(opened=SimpleNamespace(record=SimpleNamespace(id=copy)))
        self.performer = SimpleNamespace(peek_order=lambda _: SimpleNamespace(state=live()))


def states(table: RunningTable) -> BackfillState:
    return cast(BackfillState, SimpleNamespace(revision=vars(table)["revision"]))


def rest(parked: ParkedTables, table: Table) -> None:
    asks = Order(cast(RunningTable, table), SampleSource(idle=True, ticket=1), Committed(live(), PLAN))
    assert parked.park(asks)


def stored(parked: ParkedTables, *tables: Table) -> ParkedDocument:
    made = parked.document([cast(RunningTable, table) for table in tables], states)
    assert made is not None
    return made


def test_what_was_stored_of_a_table_stays_until_it_has_committed() -> None:
    """It was loaded from there. A driver that is killed before the first commit would begin at the older offset."""
    before = ParkedDocument.of([("loaded", 7, FAR), ("committed", 7, FAR), ("gone", 3, FAR)])
    parked, resting = ParkedTables(before=before), Table("resting", 7)
    rest(parked, resting)
    made = stored(parked, resting, Table("loaded", 7), Table("committed", 8))
    assert made.of_table("loaded", 7) == FAR
    assert made.of_table("gone", 3) == FAR
    assert made.of_table("committed", 7) is None
    assert made.of_table("resting", 7) == Reached(live().written)


def test_a_table_that_rests_again_is_where_it_is_now_not_where_the_last_driver_left_it() -> None:
    parked, table = ParkedTables(before=ParkedDocument.of([("a", 7, Reached(at(100)))])), Table("a", 7)
    rest(parked, table)
    assert stored(parked, table).of_table("a", 7) == Reached(live().written)


def test_the_same_is_not_stored_again() -> None:
    parked, table = ParkedTables(), Table("a", 7)
    rest(parked, table)
    parked.stored(stored(parked, table))
    assert parked.document([cast(RunningTable, table)], states) is None
