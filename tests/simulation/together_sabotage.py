"""Breaks what tables of one driver share, one rule at a time.

Each sabotage is of production's own shared work, but for the store and the source, which are models. Two that were tried
are left out. A table that is looked at in the dump that it has ordered needs a request in the moment between a sample and
the next reading (a test of `shared_log` shows it). A table that is woken without the sample that it has missed asks for
one, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from consume_upstream.log.offset import CdcOffset
from progress.state.backfill_state import BackfillState, Request, RequestKind
from progress.state.cut import Cut
from progress.state.parked import ParkedDocument, Reached, moved_on
from tests.simulation.sabotage import Sabotage
from tests.simulation.simulator import Simulation
from tests.simulation.together import OneOfSeveral
from tests.simulation.together_tables import ModelTablesStore, OneSource
from vnode_backfill.decide.protocol import CommitEpoch
from vnode_backfill.job.tables import shared_log, shared_work
from vnode_backfill.job.tables.order import Order
from vnode_backfill.job.tables.parked_tables import Missed, ParkedTables, _Resting
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.job.tables.shared_work import SharedWork
from vnode_backfill.words.errors import BackfillError
from vnode_backfill.words.key import VnodeId

_tell_committed = shared_work._tell_committed
_cut_of = shared_work.cut_of
_commit = SharedWork._commit
_stretches_of = shared_log.stretches_of
_wake = ParkedTables.wake
_wake_all = ParkedTables.wake_all
_written_offset = OneSource.written_offset
_commit_together = ModelTablesStore.commit_together


def _told_first(shared: SharedWork, orders: Sequence[Order[CommitEpoch]]) -> None:
    """Tells the tables of a commit that is still to be made."""
    commit = _commit_of(shared, orders)
    for order in orders:
        _tell_committed(order)
    _try_until_done(shared, commit)


def _try_until_done(shared: SharedWork, commit: Callable[[], object]) -> None:
    def work() -> None:
        try:
            commit()
        except BackfillError:
            _try_until_done(shared, commit)

    shared._pool.submit(work)


def _commit_of(shared: SharedWork, orders: Sequence[Order[CommitEpoch]]) -> Callable[[], object]:
    """One commit as production makes it, but for the telling."""
    cut = shared._cut({order.table.name: order.action.state for order in orders}) if shared.together else None
    commits = [(order.table.services.store, order.action.state) for order in orders]
    parked = shared._parked.document(shared._tables, shared_work._saved) if shared._says_parked else None
    return partial(shared._store.commit_together, commits, cut.to_json() if cut else None, parked)


def _refuses_nothing(
    store: ModelTablesStore,
    commits: Sequence[tuple[object, BackfillState]],
    cut: str | None = None,
    parked: ParkedDocument | None = None,
) -> dict[str, BackfillError]:
    _commit_together(store, commits, cut, parked)  # type: ignore[arg-type]
    return {}


def _forgets_nothing(_shared: SharedWork, _table: RunningTable) -> None:
    """What a table has ordered and nobody has begun is carried out."""


def _as_before(source: OneSource, last: CdcOffset) -> CdcOffset:
    """Gives the answer to the question before: tables that ask now were at work then."""
    newest = _written_offset(source, last)
    before: CdcOffset = vars(source).get("before", newest)
    vars(source)["before"] = newest
    return max(before, last.in_era(before.era))


def _wakes_where_it_was_looked_at(parked: ParkedTables, name: str, missed: Missed | None = None) -> None:
    resting = parked._resting.get(name)
    if resting is not None:
        resting.reached = resting.looked
    _wake(parked, name, missed)


def _wakes_all_where_they_were_looked_at(parked: ParkedTables) -> None:
    for resting in parked._resting.values():
        resting.reached = resting.looked
    _wake_all(parked)


def _moves_on_in_any_case(parked: ParkedTables, resting: _Resting, missed: Missed) -> None:
    resting.reached = resting.looked
    resting.table.reached, resting.table.waiting = resting.reached.written, 0


def _ended_where_it_was_looked_at(parked: ParkedTables, table: RunningTable, state: BackfillState) -> BackfillState:
    resting = parked._resting.pop(table.name, None)
    return state if resting is None else moved_on(state, resting.looked)


def _of_any_revision(document: ParkedDocument, table: str, revision: int) -> Reached | None:
    found = document._tables.get(table)
    return found[1] if found else None


def _at_several_offsets(
    tables: Sequence[RunningTable],
    states: Mapping[str, BackfillState],
    at: datetime,
    untold: Mapping[RunningTable, BackfillState],
) -> Cut | None:
    """Takes live tables for a cut wherever they are."""
    found = {table: states.get(table.name) or untold.get(table) or shared_work._saved(table) for table in tables}
    live = [table for table, state in found.items() if state.is_live and not (state.failure or table.run.failure)]
    made = [cut for table in live if (cut := _cut_of([table], states, at, untold)) is not None]
    if not made or len(made) < len(live):
        return None
    targets = {name: target for cut in made for name, target in cut.targets.items()}
    return replace(made[0], targets=targets, left_out={table.name: "?" for table in tables if table not in live})


def _always(_: object) -> bool:
    return True


@dataclass
class _ManyStatements(Simulation):
    """Tables of which every fifth thing that happens is a statement."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.source.statements = 0.2


class _ManyReads(Simulation):
    """Tables that are asked to read again, and keys beyond their plan."""

    def _request(self) -> Request:
        if self.random.random() < 0.3:
            return super()._request()
        vnodes = frozenset({VnodeId(self.random.randrange(self.vnode_count))})
        return Request(len(self.requests) + 1, RequestKind.RESNAPSHOT, vnodes=vnodes, extend=self.random.random() < 0.7)

    def _step(self) -> None:
        if not self.quiet and self.random.random() < 0.02:
            self._ask(self._request())
        super()._step()


class _ManyFailures(Simulation):
    """Tables of which something fails all the time, often for good."""

    def _step(self) -> None:
        if not self.quiet and self.random.random() < 0.03:
            self._fail()
        super()._step()


class _FailsAtRest(OneOfSeveral):
    """Tables that fail while they rest, and have met a change that waits."""

    def _step(self) -> None:
        if not self.quiet and self.table.waiting and self.random.random() < 0.5:
            self._fail()
        super()._step()


TOGETHER_SABOTAGES: dict[str, Sabotage] = {
    "a table is told before its commit is durable": Sabotage(patches=((SharedWork, "_commit", _told_first),)),
    "a table's refused commit is taken as done": Sabotage(
        patches=((ModelTablesStore, "commit_together", _refuses_nothing),)
    ),
    "a commit lands after its table was opened again": Sabotage(
        simulation=_ManyFailures,
        patches=((SharedWork, "forget", _forgets_nothing), (SharedWork, "_leave_out", _forgets_nothing)),
    ),
    "a sample is given that was asked for before the reads had ended": Sabotage(
        patches=((OneSource, "written_offset", _as_before),)
    ),
    "a table begins behind the change that woke it": Sabotage(
        patches=((ParkedTables, "wake", _wakes_where_it_was_looked_at),)
    ),
    "what resting tables have met is lost at a stop": Sabotage(
        patches=((ParkedTables, "wake_all", _wakes_all_where_they_were_looked_at),)
    ),
    "a resting table that was met moves on": Sabotage(patches=((ParkedTables, "_move_one_on", _moves_on_in_any_case),)),
    "a resting table that fails is stored beyond what it has met": Sabotage(
        simulation=_FailsAtRest, patches=((ParkedTables, "ended", _ended_where_it_was_looked_at),)
    ),
    "how far a table has rested counts for its later states": Sabotage(
        patches=((ParkedDocument, "of_table", _of_any_revision),)
    ),
    "a cut of tables at several offsets": Sabotage(patches=((shared_work, "cut_of", _at_several_offsets),)),
    "a cut of tables that are at work": Sabotage(patches=((RunningTable, "is_at_rest", property(_always)),)),
}

FOCUSED: dict[str, type[Simulation]] = {
    "statements 3: ranges read near a statement stay read": _ManyStatements,
}
"""Histories in which something happens more often, for rules that few others need."""

LEFT_OUT: dict[str, str] = {
    "slices: the log is cut while ranges are unread": "the performer asks for no end of a slice then, whatever is decided",
    "rule 8: the stored vnode decides": "a plan must be extended, and a change from before it not be merged",
    "rule 9: a range is read again at once": "what is applied must be invisible for as long as a re-read takes",
    "statements 3: ranges read near a statement without effect stay read": "one table needs 3,200 histories",
    "statements 3: a stop at a statement sets nothing back": "a range must be read between a statement and its stop",
    "statements 4: changes from before bring rows of a dropped partition back": "the row must be in the buffer then",
    "failover: a statement that was followed is met again": "one table needs 4,160 histories",
}
"""Rules of one table of which hundreds of histories show nothing here. Histories of one table show each of them."""

CAUGHT_AT: dict[str, int] = {
    "a table's refused commit is taken as done": 6,
    "a sample is given that was asked for before the reads had ended": 5,
    "a table begins behind the change that woke it": 3,
    "what resting tables have met is lost at a stop": 6,
    "a resting table that was met moves on": 3,
    "how far a table has rested counts for its later states": 2,
    "a cut of tables at several offsets": 6,
    "a cut of tables that are at work": 8,
    "rule 1: merge does not mark again": 2,
    "rule 1: one low mark per vnode": 9,
    "rule 1: a range that was read marks as an unread one": 2,
    "rule 2: first offset is the written one": 7,
    "rule 2: first offset sampled after the plan": 6,
    "rule 4: written offset sampled before reads end": 25,
    "rule 5: a vnode merges one epoch too early": 3,
    "rule 5: merge goes past the buffer": 2,
    "own slice: the merge does not wait for the buffer": 2,
    "own slice: merged without it and counted as applied": 2,
    "own slice: decided again by a repeat": 25,
    "slices: cut again by a repeat": 2,
    "rule 6: a visibility with holes": 33,
    "rule 7: changes outside the plan are dropped": 3,
    "rule 9: a range read again is appended": 2,
    "rule 10: ids carry the name, not the job": 8,
    "rule 11: forwarded changes skip the buffer": 2,
    "rule 12: Initial takes an epoch number": 3,
    "a boundary has a row": 3,
    "low watermark from the written offset": 7,
    "a delete dropped for an unfinished vnode": 4,
    "offset committed before the buffer": 2,
    "a vnode's state reset by a rescale": 12,
    "a range read twice": 10,
    "a definite failure while retrying is passed over": 2,
    "a reason stored over a commit in progress": 2,
    "another log: the epoch given up is done": 7,
    "another log: complete vnodes do not wait": 3,
    "another log: begun too late": 5,
    "statements 1: captured up to the sample in spite of a cut": 5,
    "statements 1: changes after the cut count": 6,
    "statements 1: merge goes past a pending statement": 6,
    "statements 1: an own slice is merged past the cut": 5,
    "statements 2: a vnode near a cut does not wait": 14,
    "statements 2: a drain that was cut merges what was read an epoch before": 8,
    "statements 2: visibility is resolved past the cut": 2,
    "statements 3: ranges are planned while the sink follows": 20,
    "statements 4: rows are not lifted": 21,
    "statements 4: rows of the cut epoch count as of the new version": 35,
    "statements 4: rows of the epoch after the cut count as of the old version": 6,
    "statements 4: rows are lifted beyond what the sink holds": 18,
    "statements 5: the sink keeps the rows of a dropped partition": 18,
    "statements 5: applied is not moved when the table is emptied": 6,
    "statements 6: a converted table is followed as if nothing had happened": 12,
    "statements 5: a table that was created begins where the log ends": 4,
    "the sink follows before everything is merged": 21,
    "the sink counts as changed when it is ordered": 6,
    "the sink is changed twice": 6,
    "a sink that could not follow is not asked again": 6,
    "statements 3: ranges read near a statement stay read": 450,
}
"""Where to begin to look: the first history that shows it, if that is not one of the first two."""
