"""Runs several tables in one driver: one crash ends all of them, and their states are committed together.

Each table has a protocol and a history of its own, with every kind of event that a single one has. What they share is
what production shares (`job.tables.shared_work`): a table that wants to commit waits, and whoever comes next commits
all that wait. What must be true besides: each table is told of its commit when it is durable, and not before, whoever
made it. What a table had waiting is left out when the table is opened again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from progress.state.backfill_state import BackfillState
from tests.simulation.actors import Driver, Steps
from tests.simulation.simulator import Simulation
from tests.simulation.world import ModelStore
from vnode_backfill.decide.protocol import CommitEpoch, StateCommitted


@dataclass
class SharedCommits:
    """States that wait to be committed, and how often several were committed at once."""

    waiting: list[tuple[ModelStore, BackfillState]] = field(default_factory=list)
    together: int = 0

    def commit(self) -> None:
        """Make all of them durable at once."""
        self.together += len(self.waiting) > 1
        for store, state in self.waiting:
            store.commit(state)
        self.waiting.clear()

    def forget(self, store: ModelStore) -> None:
        """A table is opened again: what its last run had waiting is left out."""
        self.waiting = [each for each in self.waiting if each[0] is not store]


@dataclass
class SharingDriver(Driver):
    """A driver whose commits wait for those of other tables."""

    shared: SharedCommits = field(default_factory=SharedCommits)

    def commit(self, action: CommitEpoch) -> Steps:
        yield None
        waits = (self.store, action.state)
        self.shared.waiting.append(waits)
        yield from self._until_durable(waits)
        yield StateCommitted(action.state.revision)

    def _until_durable(self, waits: tuple[ModelStore, BackfillState]) -> Steps:
        yield None
        while any(each is waits for each in self.shared.waiting):
            if self.random.random() < 0.4:
                self.shared.commit()
            yield None


@dataclass
class OneOfSeveral(Simulation):
    """One table; a crash is everybody's."""

    everybody: Together | None = None

    def _recover(self) -> None:
        shared = self.everybody.shared if self.everybody is not None else SharedCommits()
        shared.forget(self.store)
        super()._recover()
        if isinstance(self.driver, SharingDriver):
            self.driver.shared = shared

    def _crash(self) -> None:
        if self.everybody is not None:
            self.everybody.crash()
        else:
            super()._crash()


class Together:
    """A whole run of several tables from one seed."""

    def __init__(self, seed: int, driver: type[SharingDriver] = SharingDriver, tables: int = 3) -> None:
        self.random, self.shared = Random(seed), SharedCommits()
        self.tables = [OneOfSeveral(1000 * seed + number, driver, everybody=self) for number in range(tables)]
        self.begun: list[OneOfSeveral] = []

    def run(self) -> None:
        """Raises what a single history raises."""
        for table in self.tables:
            table._traffic(self.random.randrange(40))
            self.begun.append(table)
            table._create(f"job-{len(self.begun)}")
        for _ in range(self.random.randrange(200, 700)):
            self.random.choice(self.tables)._live_through(1)
        for table in self.tables:
            table._finish()

    def crash(self) -> None:
        """The driver dies: nothing that waits is committed, and every table begins again from what is durable."""
        self.shared.waiting.clear()
        for table in self.begun:
            Simulation._crash(table)
