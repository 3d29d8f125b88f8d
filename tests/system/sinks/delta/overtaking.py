"""Lets something else happen to a table while the sink works on an epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.tables import ORDERS, Change, change_table
from vnode_backfill.sinks.changes import StagedChanges, stage
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.change import OFFSET_COLUMNS

Item = TypeVar("Item")
Result = TypeVar("Result")


class Meanwhile:
    """A task runner during whose work something else happens to the table, once. `asked` counts the items of a call."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work: Callable[[], object] | None = work
        self.asked: list[int] = []

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        self.asked.append(len(items))
        done = [function(item) for item in items]
        work, self._work = self._work, None
        if work is not None:
            work()
        return done


def staged(sink: DeltaSink, *wanted: Change) -> StagedChanges:
    """Changes in a file of the target's folder. Unlike those in memory they are found by tasks, whatever the mode."""
    table = change_table(ORDERS, wanted).drop_columns(list(OFFSET_COLUMNS))
    file = stage(sink.staging, 0, table, ORDERS.key)
    assert file is not None
    return StagedChanges(sink.staging, ORDERS.key[0], (file,))
