"""A table that has failed is opened again once for each request."""

from __future__ import annotations

from progress.state.backfill_state import Request, RequestKind
from vnode_backfill.job.tables.take_ups import TakeUps

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
