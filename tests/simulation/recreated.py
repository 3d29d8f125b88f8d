"""Runs histories in which the table is dropped and created again: its new copy reads nothing.

The copy begins right after the CREATE, which may not be visible yet, with a plan without ranges. The definition there
is known: in production a CREATE that is followed by another change of the columns is read instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from consume_upstream.log.offset import CdcOffset, VisibleAt
from progress.state.backfill_state import new_state
from tests.simulation.actors import PARTS
from tests.simulation.simulator import Simulation
from vnode_backfill.decide.protocol import Ending
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.plan import make_plan
from vnode_backfill.words.schema_change import CreatedTable, NewCopy


@dataclass
class Recreating(Simulation):
    """`created` counts the copies that were begun by the log alone."""

    created: int = 0

    recreates = 6

    def _copy_again(self, job: str, ending: Ending) -> None:
        if isinstance(ending, NewCopy) and ending.created is not None:
            self._create_by_the_log(job, ending.created)
        else:
            super()._copy_again(job, ending)

    def _create_by_the_log(self, job: str, created: CreatedTable) -> None:
        self.job, self.columns = job, len(created.definition.columns)
        self.sink.columns, self.sink.followed = self.columns, []
        plan, first = make_plan(PARTS, (), self.vnode_count), self._begins(created)
        state = new_state(VisibleAt(first), plan, split_evenly(self.vnode_count, 1))
        self.store.plans[0] = plan
        self.store.commit(replace(state, visible=((Epoch(0), VisibleAt(self.source.oldest)),)))
        self.created += 1
        self._say(f"created {job} by the log alone from {first}")
        self._recover()

    def _begins(self, created: CreatedTable) -> CdcOffset:
        return CdcOffset.from_json(created.offset)
