"""Runs histories in which a parent's changes change rows of the table, and the log says only that the parent changed.

In production the reader of the log finds such changes (`consume_upstream.log.cascade`). What the protocol does about them
is run here: the copy that is made, or kept, is completed, and a new one follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.simulator import Simulation


@dataclass
class Cascading(Simulation):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.source.cascades = self.random.choice((0.01, 0.05))
