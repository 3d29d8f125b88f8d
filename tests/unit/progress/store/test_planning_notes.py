"""A plan is noted whole, by one process at a time, and leaves nothing behind when its note is removed."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from progress.store.lease import Process
from progress.store.planning_notes import PlanningNotes
from progress.store.reader import folder_name
from tests.unit.progress.state.test_planning import PARENTS, at, begun
from tests.unit.progress.store.state_folder import MINUTE, Clock
from vnode_backfill.words.errors import StateError

HERE = Process.current()
ELSEWHERE = Process("other-host", 7, "another machine", "1")
DEAD = replace(HERE, pid=2**22 + 1)
"""No process has this number."""


def notes(folder: Path, process: Process = HERE, clock: Clock | None = None) -> PlanningNotes:
    return PlanningNotes(str(folder), {}, owner="anna", lease=MINUTE, process=process, now=clock or Clock())


def test_what_was_noted_is_read_back(tmp_path: Path) -> None:
    notes(tmp_path).write(begun(1, 3, 4))
    found = notes(tmp_path).of("shop.orders")
    assert found is not None
    assert found.plan == begun(1, 3, 4)
    assert found.plan.bounds[1][0].key == at(3).key
    assert found.plan.definition.primary == begun(1, 3).definition.primary
    assert [note.plan.name for note in notes(tmp_path).all()] == ["shop.orders"]


def test_parents_are_noted_with_the_first_offset(tmp_path: Path) -> None:
    plan = replace(begun(1, 3, 4), parents=PARENTS)
    notes(tmp_path).write(plan)
    found = notes(tmp_path).of("shop.orders")
    assert found is not None
    assert found.plan == plan


def test_a_note_without_parents_is_as_earlier_releases_wrote_it(tmp_path: Path) -> None:
    notes(tmp_path).write(begun(1, 3, 4))
    (file,) = (tmp_path / "planning").iterdir()
    assert "parents" not in file.read_text()


def test_there_is_no_note_of_what_was_not_noted(tmp_path: Path) -> None:
    assert notes(tmp_path / "no" / "folder").all() == ()
    assert notes(tmp_path).of("shop.orders") is None
    notes(tmp_path).remove("shop.orders")


@pytest.mark.parametrize("damage", ["", "{}", '{"version": 1', "version 2", "unsorted", "beyond"])
def test_a_note_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, damage: str) -> None:
    notes(tmp_path).write(begun(1, 3, 4))
    (file,) = (tmp_path / "planning").iterdir()
    if damage == "version 2":
        file.write_text(file.read_text().replace('"version":1', '"version":2', 1))
    elif damage == "unsorted":
        file.write_text(file.read_text().replace(at(3).order.hex(), at(5).order.hex()))
    elif damage == "beyond":
        file.write_text(file.read_text().replace(at(4).order.hex(), at(11).order.hex()))
    else:
        file.write_text(damage)
    assert notes(tmp_path).of("shop.orders") is None
    assert notes(tmp_path).all() == ()
    notes(tmp_path).write(begun(1, 2))
    assert notes(tmp_path).of("shop.orders") is not None


def test_a_second_driver_is_refused_while_the_first_one_plans(tmp_path: Path) -> None:
    clock = Clock()
    notes(tmp_path, ELSEWHERE, clock).write(begun(1, 3))
    second = notes(tmp_path, clock=clock)
    with pytest.raises(StateError, match=r"shop\.orders is being planned by anna on other-host, process 7"):
        second.check_free()
    with pytest.raises(StateError, match="is being planned"):
        second.write(begun(1, 2))
    second.remove_all()
    assert second.of("shop.orders") is not None, "the plan of another is not removed"
    clock.wait(2 * MINUTE)
    second.check_free()
    second.write(begun(1, 2))


def test_the_slower_of_two_drivers_ends_at_its_next_note(tmp_path: Path) -> None:
    clock = Clock()
    slow = notes(tmp_path, ELSEWHERE, clock)
    slow.write(begun(1, 2))
    clock.wait(2 * MINUTE)
    notes(tmp_path, clock=clock).write(begun(1, 2, 3))
    with pytest.raises(StateError, match="is being planned"):
        slow.write(begun(1, 2))


def test_the_plan_of_a_process_that_has_ended_is_taken_over_at_once(tmp_path: Path) -> None:
    notes(tmp_path, DEAD).write(begun(1, 3))
    second = notes(tmp_path)
    second.check_free()
    (note,) = second.all()
    assert not second.is_going(note)
    second.write(begun(1, 3, 4))
    (note,) = second.all()
    assert second.is_going(note)
    assert note.process.pid == os.getpid()


def test_no_folder_is_left_that_was_made_for_a_note(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "job"
    notes(folder, DEAD).write(begun(1, 3))
    # A file that was being written when its process was killed.
    (folder / "planning" / "shop~2eorders#1").write_text("half")
    second = notes(folder)
    second.write(begun(1, 3, 4))
    second.remove_all()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "job"
    folder.mkdir(parents=True)
    first = notes(folder)
    first.write(begun(1, 3))
    first.remove("shop.orders")
    assert list(folder.iterdir()) == []
    first.write(begun(1, 3))
    (folder / "checkpoints").mkdir()
    first.remove_all()
    assert [place.name for place in folder.iterdir()] == ["checkpoints"]


def test_each_table_has_its_own_note(tmp_path: Path) -> None:
    both = notes(tmp_path / "job")
    items = replace(begun(1, 3), definition=replace(begun(1, 3).definition, table="items"))
    both.write(begun(1, 3))
    both.write(items)
    assert [note.plan.name for note in both.all()] == ["shop.items", "shop.orders"]
    both.remove("shop.items")
    assert [note.plan.name for note in both.all()] == ["shop.orders"]
    assert (tmp_path / "job" / "planning" / folder_name("shop.orders")).exists()
    both.remove("shop.orders")
    assert list(tmp_path.iterdir()) == []


def test_a_note_is_held_for_as_long_as_its_lease(tmp_path: Path) -> None:
    clock = Clock()
    notes(tmp_path, ELSEWHERE, clock).write(begun(1, 3))
    (note,) = notes(tmp_path).all()
    assert note.held_at(clock() + timedelta(seconds=59))
    assert not note.held_at(clock() + timedelta(seconds=60))
