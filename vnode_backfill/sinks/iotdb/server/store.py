"""Defines what the sink asks of a server, whichever of its two models holds the points.

A slot is a device and a time. In the tree model it is a path, and its points are values of series that can be emptied
one by one. In the table model it is a row, and only rows can be emptied. Everything else, whose a slot is and what
becomes of it, does not depend on the model and is decided above this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vnode_backfill.sinks.iotdb.mapping import Measurement, PointMapping, Points
from vnode_backfill.sinks.iotdb.server.address import IotdbAddress
from vnode_backfill.sinks.iotdb.server.session import StoredPoints
from vnode_backfill.sinks.iotdb.values import Bools, Ints
from vnode_backfill.words.errors import SinkError

_TIMES_PER_QUESTION = 500
LeaseCheck = Callable[[], None]
"""Raises FencedError if another driver has taken over. Can be pickled."""


def no_lease() -> None:
    """For a job that nobody else can run."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """What a task needs to write points. Can be pickled."""

    address: IotdbAddress
    mapping: PointMapping
    aligned: bool
    tablet_rows: int
    dead_letters: bool
    lease: LeaseCheck = no_lease


class PointStore(Protocol):
    """The slots of one mapping. A call that changes something looks at the lease first; every call may be repeated."""

    def check(self) -> str:
        """Refuse what exists in another type than the columns need; else say what exists."""
        ...

    def make(self) -> None:
        """Make what must be there before points are written; nothing if it is."""
        ...

    def held(self) -> list[str]:
        """Where points are, not necessarily everywhere; nothing if there is no point."""
        ...

    def clear(self) -> None:
        """Remove everything that the mapping's devices hold."""
        ...

    def drop(self, measurement: str) -> None:
        """Remove a measurement with all its points; nothing if there is none."""
        ...

    def check_types(self, devices: Sequence[str]) -> None:
        """Like `check`, of these devices: the server would write the rest of a row and not what has another type."""
        ...

    def insert(self, points: Points) -> None:
        """Write points, which are in the order of their slots; NULL leaves what is there."""
        ...

    def empty(self, points: Points) -> None:
        """Empty the slots of the points; those of one device and time once."""
        ...

    def empty_cells(self, points: Points, cells: Sequence[Bools]) -> Points:
        """Empty some measurements of slots: `cells` has, per measurement, for which of the points.

        Returns those whose other points went with them and must be written again.
        """
        ...

    def points(self, devices: Sequence[str], measurements: Sequence[Measurement], times: Ints) -> list[StoredPoints]:
        """What these devices hold of the measurements at these times, and maybe at others; no slot without any."""
        ...

    def scan(self, measurements: Sequence[Measurement]) -> Iterator[StoredPoints]:
        """Everything that the mapping's devices hold of the measurements."""
        ...

    def close(self) -> None: ...


def time_condition(times: Ints) -> str:
    """A condition that these times fulfil, and maybe others."""
    distinct = np.unique(times)
    if len(distinct) <= _TIMES_PER_QUESTION:
        return f"time IN ({', '.join(map(str, distinct.tolist()))})"
    return f"time >= {distinct[0]} AND time <= {distinct[-1]}"


def type_conflict(found: Sequence[tuple[str, str, str]]) -> SinkError:
    """Series or columns, wanted and registered types."""
    shown = "; ".join(
        f"{path} is {there.upper()}, the column needs {wanted.upper()}" for path, wanted, there in found[:20]
    )
    return SinkError(
        f"{len(found)} time series exist with another type than the columns need",
        detail=shown,
        hint="Set `sink.iotdb.types` or `rename` for the column, or remove the series.",
    )
