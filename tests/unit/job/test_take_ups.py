"""A table that has failed is opened again once for each request."""

from __future__ import annotations

from progress.state.backfill_state import BackfillState, Request, RequestKind
from tests.unit.decide.coordinated_job import PLAN
from tests.unit.progress.state.state_examples import beginning
from vnode_backfill.job.tables.take_ups import NotOpened, TakeUps

RESUME, AGAIN = Request(4, RequestKind.RESUME), Request(6, RequestKind.RESNAPSHOT)


def test_request_that_stays_open_takes_a_table_up_once() -> None:
    taken = TakeUps()
    assert taken.ask("shop.orders", [RESUME])
    assert taken.take("shop.orders")
    assert not taken.ask("shop.orders", [RESUME])
    assert not taken.take("shop.orders")
    assert taken.ask("shop.orders", [RESUME, AGAIN])
    assert taken.take("shop.orders")


def test_other_requests_and_other_tables_take_nothing_up() -> None:
    taken = TakeUps()
    assert not taken.ask("shop.orders", [Request(1, RequestKind.PAUSE), Request(2, RequestKind.STOP)])
    taken.ask("shop.items", [RESUME])
    assert [taken.take(name) for name in ("shop.orders", "shop.items")] == [False, True]


def test_requests_of_a_table_that_could_not_be_tried_count_again() -> None:
    taken = TakeUps()
    taken.ask("shop.orders", [RESUME])
    assert taken.take("shop.orders")
    taken.give_back("shop.orders")
    assert taken.ask("shop.orders", [RESUME])
    assert taken.take("shop.orders")


def test_state_of_a_table_that_could_not_be_opened_is_read_once_while_that_is_so() -> None:
    stored, read = {"shop.orders": beginning(PLAN)}, []

    def load(name: str) -> BackfillState | None:
        read.append(name)
        return stored.get(name)

    unopened = NotOpened(load)
    for _ in range(2):
        assert unopened.states(["shop.orders"]) == stored
    assert read == ["shop.orders"]
    assert unopened.states(["shop.gone"]) == {}
    assert unopened.states(["shop.orders"]) == stored
    assert read == ["shop.orders", "shop.gone", "shop.orders"]
