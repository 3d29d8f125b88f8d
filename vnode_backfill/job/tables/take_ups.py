"""Decides when a table that has failed is opened again: once for each request that takes it up.

A request stays open until the table has committed an epoch. So a table that fails again before that would be opened
again and again; the number of the request that was tried last says that it has had its turn.
"""

from __future__ import annotations

from collections.abc import Iterable

from progress.state.backfill_state import Request, RequestKind

__all__ = ["TakeUps"]

_TAKES_UP = (RequestKind.RESUME, RequestKind.RESNAPSHOT)


class TakeUps:
    """The requests to tables that have failed. `ask` and `take` may be called from different threads."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._tried: dict[str, int] = {}

    def ask(self, table: str, requests: Iterable[Request]) -> bool:
        """These requests to a table that has failed are open; whether one of them takes it up and was not tried."""
        newest = max((each.id for each in requests if each.kind in _TAKES_UP), default=0)
        is_new = newest > self._tried.get(table, 0)
        if is_new:
            self._asked[table] = newest
        return is_new

    def take(self, table: str) -> bool:
        """Whether the table is to be opened again now; its requests count as tried then."""
        newest = self._asked.pop(table, 0)
        if newest <= self._tried.get(table, 0):
            return False
        self._tried[table] = newest
        return True
