"""Decides when a table that has failed, or could not be opened, is opened again: once for each request that takes it up.

A request stays open until the table has committed an epoch. So a table that fails again before that would be opened
again and again; the number of the request that was tried last says that it has had its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from progress.state.backfill_state import BackfillState, Request, RequestKind

__all__ = ["TAKES_UP", "NotOpened", "TakeUps"]

TAKES_UP = (RequestKind.RESUME, RequestKind.RESNAPSHOT)


class TakeUps:
    """The requests to tables that have failed. `ask` and `take` may be called from different threads."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._tried: dict[str, int] = {}

    def ask(self, table: str, requests: Iterable[Request]) -> bool:
        """These requests to a table that has failed are open; whether one of them takes it up and was not tried."""
        newest = max((each.id for each in requests if each.kind in TAKES_UP), default=0)
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

    def give_back(self, table: str) -> None:
        """The table could not even be tried: its requests count again."""
        self._tried.pop(table, None)


class NotOpened:
    """The states of tables that could not be opened, which say what was asked of them and is still open.

    Nobody commits to such a table, so each state is read once. `load` returns None where it cannot be read.
    """

    def __init__(self, load: Callable[[str], BackfillState | None]) -> None:
        self._load = load
        self._held: dict[str, BackfillState] = {}

    def states(self, tables: Iterable[str]) -> dict[str, BackfillState]:
        """Those of these tables; what was read of others is forgotten."""
        found = {name: self._held.get(name) or self._load(name) for name in tables}
        self._held = {name: state for name, state in found.items() if state is not None}
        return dict(self._held)
