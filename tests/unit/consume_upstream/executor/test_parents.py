"""A table is consumed with its parents: a change of one that may have changed its rows is in the note of the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from consume_upstream.buffer import BufferNote
from consume_upstream.executor import consume_together
from consume_upstream.log.batch import LogBatch
from consume_upstream.log.cascade import CascadingParent
from consume_upstream.log.offset import CdcOffset
from consume_upstream.log.statement import MetStatements
from tests.unit.consume_upstream.executor.test_consume_together import WRONG, OneOfMany, order
from tests.unit.consume_upstream.executor.test_executor import CUT, END, LOG
from tests.unit.progress.state.state_examples import DEFINITION
from vnode_backfill.words.change import ChangeOp

PARENT = replace(DEFINITION, table="parent")
DELETES, UPDATES = CascadingParent(PARENT, on_delete=True), CascadingParent(PARENT, on_delete=False, on_update=("id",))


@dataclass(frozen=True)
class DeletesInMemory(OneOfMany):
    """A log in which every row is deleted."""

    def read_log(self, after: CdcOffset, upto: CdcOffset, reader: int, met: MetStatements) -> Iterator[LogBatch]:
        for batch in super().read_log(after, upto, reader, met):
            yield replace(batch, op=np.array([ChangeOp.DELETE], np.int8), before=batch.after, after=batch.before)


def child_of(parent: CascadingParent, log: OneOfMany) -> OneOfMany:
    return OneOfMany(LOG, parents=(parent,), of_parents=(log,))


def notes(folder: Path, *tables: OneOfMany) -> list[BufferNote]:
    found = consume_together(None, [order(folder, number, table) for number, table in enumerate(tables)])
    assert all(isinstance(each, BufferNote) for each in found)
    return [each for each in found if isinstance(each, BufferNote)]


def test_last_delete_of_a_parent_is_noted_for_its_child_alone(tmp_path: Path) -> None:
    child, other = notes(tmp_path, child_of(DELETES, DeletesInMemory(LOG, PARENT)), OneOfMany(LOG))
    start = LOG[-1].start
    assert child.cascaded == replace(start, pos=start.pos + 10)
    assert other.cascaded is None
    assert child.kept == other.kept
    assert BufferNote.from_json(child.to_json()) == child


def test_changes_that_the_rule_does_not_name_are_not_noted(tmp_path: Path) -> None:
    inserts, deletes = OneOfMany(LOG, PARENT), DeletesInMemory(LOG, PARENT)
    assert [each.cascaded for each in notes(tmp_path, child_of(DELETES, inserts))] == [None]
    assert [each.cascaded for each in notes(tmp_path / "b", child_of(UPDATES, deletes))] == [None]


def test_parent_that_cannot_be_read_counts_as_changed(tmp_path: Path) -> None:
    (child,) = notes(tmp_path, child_of(DELETES, OneOfMany((), PARENT, wrong=(0, WRONG))))
    assert child.cascaded == END


def test_parent_among_the_tables_is_read_once_for_both(tmp_path: Path) -> None:
    begun: list[CdcOffset] = []
    parent = DeletesInMemory(LOG, PARENT)
    child = child_of(DELETES, OneOfMany((), PARENT, reads=(begun,)))
    orders = [order(tmp_path, number, table) for number, table in enumerate((parent, child))]
    found = consume_together(None, orders)
    assert [isinstance(each, BufferNote) and each.cascaded is not None for each in found] == [False, True]
    assert begun == []


def test_table_may_be_its_own_parent(tmp_path: Path) -> None:
    own = CascadingParent(DEFINITION, on_delete=True)
    (note,) = notes(tmp_path, DeletesInMemory(LOG, parents=(own,)))
    assert note.cascaded is not None


def test_a_statement_about_a_parent_is_noted_for_its_child_without_a_cut(tmp_path: Path) -> None:
    place = END.order
    child = replace(child_of(DELETES, OneOfMany((), PARENT)), parent_changed=place)
    (note,) = notes(tmp_path, child)
    assert (note.cut, note.kept) == (None, len(LOG))
    assert note.cascaded is not None
    assert note.cascaded.order == place


def test_a_statement_about_a_table_that_is_no_parent_any_more_is_not_noted(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, replace(OneOfMany(LOG), parent_changed=END.order))
    assert note.cascaded is None


def test_parents_are_not_read_for_a_copy_that_another_has_to_follow(tmp_path: Path) -> None:
    begun: list[CdcOffset] = []
    child = child_of(DELETES, DeletesInMemory(LOG, PARENT, reads=(begun,)))
    asked = order(tmp_path, 0, child)
    overtaken = replace(asked.state, schema=asked.state.schema.with_cascade(asked.state.written))
    (note,) = consume_together(None, [replace(asked, state=overtaken)])
    assert isinstance(note, BufferNote)
    assert (note.cascaded, begun) == (None, [])


def test_a_look_for_a_child_that_rests_counts_the_changes_of_its_parent(tmp_path: Path) -> None:
    child = OneOfMany((), parents=(DELETES,), of_parents=(DeletesInMemory(LOG, PARENT),))
    looks = [replace(order(tmp_path, number, table), peeks=True) for number, table in enumerate((child, OneOfMany(())))]
    found = consume_together(None, looks)
    assert [each.read > 0 for each in found if isinstance(each, BufferNote)] == [True, False]


def test_parent_that_is_read_less_far_than_its_child_counts_as_changed(tmp_path: Path) -> None:
    cut = OneOfMany((), PARENT, cut=CUT)
    assert [each.cascaded is None for each in notes(tmp_path, child_of(DELETES, cut))] == [False]
    both = replace(child_of(DELETES, cut), cut=CUT)
    assert [each.cascaded for each in notes(tmp_path / "b", both)] == [None]
