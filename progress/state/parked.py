"""Moves a live table on over a stretch of the log that does not concern it, without an epoch.

Of many tables most have no change for a long time, while the log moves on. An epoch of such a table would do nothing
but store two offsets. So a table *rests*: it is live, has nothing to do and no intent. The driver reads the log for it
all the same, without any effect (a *peek*). Where the stretch holds neither a change nor a statement of the table, its
state is what it was, and only reaches further (`Reached`).

Why nothing is lost: a peek has no effect, so nothing needs an intent. A table that is met in a stretch begins an epoch
before that stretch, as if nobody had looked. And `Reached` may be forgotten at any moment: the table is then read from
where its own state is, and the log there does not concern it. It is stored (`ParkedDocument`) so that a driver that
begins again need not read that far back, where the log may be gone.

    stored state of the table       live at 100, revision 7
    stored for all that rest        {table: revision 7} reached 900
    as it is loaded                 live at 900, revision 7
    the table's next commit         revision 8, to which what is stored for all does not apply
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from consume_upstream.log.offset import CdcOffset, LoggedTransaction
from progress.state.backfill_state import FORGOTTEN, BackfillState
from vnode_backfill.words.errors import LawBrokenError

__all__ = ["Parked", "ParkedDocument", "Reached", "may_rest", "moved_on"]


@dataclass(frozen=True, slots=True)
class Reached:
    """How far the log was read for a table that nothing in it concerned; `missing` are not visible yet."""

    written: CdcOffset
    missing: tuple[LoggedTransaction, ...] = ()


def may_rest(state: BackfillState) -> bool:
    """Whether the table has nothing to do but to follow the log: all that was captured is in the target."""
    if state.intent is not None or state.failure is not None or state.stopped or not state.is_live:
        return False
    applied, changed = state.vnodes[0].applied, state.changed
    if changed is not None and changed > applied:
        return False
    return all(epoch == FORGOTTEN for vnode in state.vnodes for _, epoch in vnode.reads)


def moved_on(state: BackfillState, reached: Reached) -> BackfillState:
    """The state of a table that has nothing of the log up to there.

    What is visible stays as it is: reads of ranges count by it, and too little of it loses nothing.
    """
    if reached.written < state.written:
        raise LawBrokenError(f"the written offset would fall from {state.written} to {reached.written}")
    vnodes = tuple(replace(vnode, applied=reached.written) for vnode in state.vnodes)
    return replace(state, written=reached.written, missing=reached.missing, vnodes=vnodes)


Parked = tuple[str, int, Reached]
"""A copy of a table that rests, the revision of its stored state, and how far it is."""


@dataclass(frozen=True)
class ParkedDocument:
    """What is stored for all tables that rest, as JSON: by the id of a table's copy the revision that it applies to."""

    text: str

    @classmethod
    def of(cls, tables: Iterable[Parked]) -> ParkedDocument:
        """Tables that have the same value are written together: most have."""
        groups: dict[int, tuple[Reached, dict[str, int]]] = {}
        for table, revision, reached in tables:
            groups.setdefault(id(reached), (reached, {}))[1][table] = revision
        return cls(json.dumps([_group(reached, held) for reached, held in groups.values()]))

    def without(self, tables: Collection[str]) -> list[Parked]:
        """What is said of all other tables."""
        return [(table, *found) for table, found in self._tables.items() if table not in tables]

    def of_table(self, table: str, revision: int) -> Reached | None:
        """How far a table is whose stored state has this revision; None if that is all that is known of it."""
        found = self._tables.get(table)
        return found[1] if found is not None and found[0] == revision else None

    @cached_property
    def _tables(self) -> Mapping[str, tuple[int, Reached]]:
        found: dict[str, tuple[int, Reached]] = {}
        for group in json.loads(self.text):
            missing = tuple(LoggedTransaction(gtid, CdcOffset.from_json(start)) for gtid, start in group["missing"])
            reached = Reached(CdcOffset.from_json(group["written"]), missing)
            found.update({table: (int(revision), reached) for table, revision in group["tables"].items()})
        return found


def _group(reached: Reached, tables: Mapping[str, int]) -> dict[str, object]:
    return {
        "written": reached.written.to_json(),
        "missing": [[transaction.gtid, transaction.start.to_json()] for transaction in reached.missing],
        "tables": tables,
    }
