"""Holds an order of one table that is carried out together with those of others."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from vnode_backfill.decide.protocol import Action
from vnode_backfill.job.run.services import Committed
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.words.epoch import Actor

__all__ = ["DONE", "Order", "Ordered", "all_done", "follow", "in_place_of_earlier"]

Ordered = TypeVar("Ordered", bound=Action)


@dataclass(frozen=True, slots=True)
class Order(Generic[Ordered]):
    """An order of one table, with what was committed when it was given."""

    table: RunningTable
    action: Ordered
    committed: Committed
    done: Future[None] = field(default_factory=Future)
    """Is done when the table was told of its outcome."""

    @property
    def attempt(self) -> int:
        return self.committed.attempt

    def failed(self, actor: Actor, error: BaseException) -> None:
        self.table.barriers.notify_failure(actor, self.attempt, error)


DONE: Future[None] = Future()
DONE.set_result(None)


def in_place_of_earlier(waiting: list[Order[Ordered]], order: Order[Ordered]) -> list[Order[Ordered]]:
    """What waits, with this order in place of an earlier one of its table: that one's attempt is over."""
    return [*(each for each in waiting if each.table is not order.table), order]


def follow(orders: Sequence[Order[Ordered]], future: Future[None]) -> None:
    """Each table counts the work as one of its own orders, until it was told, or the work has ended."""
    for order in orders:
        order.table.performer.orders.follow(order.done)
    future.add_done_callback(lambda _: all_done(orders))


def all_done(orders: Sequence[Order[Ordered]]) -> None:
    """Every table was told: what waits for one of them need not wait for the rest."""
    for order in orders:
        if not order.done.done():
            order.done.set_result(None)
