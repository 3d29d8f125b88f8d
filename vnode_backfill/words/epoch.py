"""Names the units of commit: epochs, and the barriers that end them.

An epoch is the stretch between two barriers. Epochs of a job are numbered 1, 2, 3, … without gaps; epoch 0 is the
moment of planning. `Initial` takes no number: it only says that state was loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

Epoch = NewType("Epoch", int)


class BarrierKind(StrEnum):
    """What the end of an epoch does."""

    INITIAL = "initial"
    """First after start or recovery: state is loaded, no data moves, nothing is sampled."""
    BARRIER = "barrier"
    """Nothing changed: progress is reported, nothing is written, the epoch stays open."""
    CHECKPOINT = "checkpoint"
    """The epoch's state is committed."""
    SYNC_CHECKPOINT = "sync_checkpoint"
    """As CHECKPOINT, after the merge was drained to the epoch's own written offset."""

    @property
    def commits(self) -> bool:
        return self in (BarrierKind.CHECKPOINT, BarrierKind.SYNC_CHECKPOINT)


class Actor(StrEnum):
    """The three that work at the same time within an epoch, and the driver that orders them."""

    SNAPSHOT = "snapshot"
    UPSTREAM = "upstream"
    MERGE = "merge"
    DRIVER = "driver"
    """Not one of the three: the driver itself, whose commits and questions can fail too."""


@dataclass(frozen=True, slots=True, order=True)
class Barrier:
    """The end of `epoch`; `attempt` counts repeats of the same epoch after failures."""

    epoch: Epoch
    kind: BarrierKind
    attempt: int = 0
