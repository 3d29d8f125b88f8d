"""Versions of a definition: which one changes of an epoch have, which one is pending, and which may be forgotten."""

from __future__ import annotations

import pytest

from consume_upstream.log.statement import FoundStatement
from progress.state.schema_state import NO_CHANGES, DefinitionVersion, SchemaState
from tests.unit.progress.state.state_examples import DEFINITION, at
from vnode_backfill.words.columns import Column
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.schema_change import AddColumn, ColumnStep, DropColumn, RenameColumn, TableShape

ADD = AddColumn(Column.parse("c", "int", nullable=True), "3")
DROP = DropColumn("note")
RENAME = RenameColumn("c", "d")
STEPS: dict[int, tuple[ColumnStep, ...]] = {1: (ADD,), 2: (DROP,), 3: (RENAME,)}


def version(number: int, pos: int, since: int) -> DefinitionVersion:
    return DefinitionVersion(
        number, at(pos), at(pos + 10), Epoch(since), f"statement {number}", TableShape(DEFINITION), STEPS[number]
    )


ONE, TWO, THREE = version(1, 100, 12), version(2, 180, 15), version(3, 300, 20)


def test_table_that_never_changed_has_version_zero() -> None:
    assert (NO_CHANGES.newest, NO_CHANGES.pending, NO_CHANGES.numbered(0)) == (0, None, None)
    assert NO_CHANGES.lifts().of_epoch(Epoch(1)) == ()


def test_version_is_found_by_its_number() -> None:
    schema = SchemaState((ONE, TWO), in_sink=1)
    assert schema.numbered(2) == TWO
    assert schema.numbered(0) is None
    with pytest.raises(LawBrokenError, match="version 3 of the definition is not known any more"):
        schema.numbered(3)


def test_pending_is_the_first_version_that_the_sink_does_not_hold() -> None:
    assert SchemaState((ONE, TWO, THREE)).pending == ONE
    assert SchemaState((ONE, TWO, THREE), in_sink=1).pending == TWO
    assert SchemaState((ONE, TWO, THREE), in_sink=3).pending is None


@pytest.mark.parametrize(("epoch", "steps"), [(11, (ADD, DROP)), (12, (DROP,)), (14, (DROP,)), (15, ())])
def test_changes_are_lifted_by_the_statements_since_their_epoch(epoch: int, steps: tuple[object, ...]) -> None:
    assert SchemaState((ONE, TWO), in_sink=2).lifts().of_epoch(Epoch(epoch)) == steps


def test_changes_are_not_lifted_beyond_the_version_that_the_sink_holds() -> None:
    assert SchemaState((ONE, TWO, THREE), in_sink=1).lifts().of_epoch(Epoch(1)) == (ADD,)


def test_versions_follow_each_other() -> None:
    schema = NO_CHANGES.with_version(ONE).with_version(TWO)
    assert schema.newest == 2
    with pytest.raises(LawBrokenError, match="version 2 of the definition cannot follow 2"):
        schema.with_version(TWO)
    assert SchemaState(in_sink=2).with_version(THREE).newest == 3, "after all others were forgotten"


def test_version_is_kept_while_an_older_change_may_wait() -> None:
    schema = SchemaState((ONE, TWO, THREE), in_sink=3)
    assert schema.without_old(at(109)).versions == (ONE, TWO, THREE)
    assert schema.without_old(at(189)).versions == (ONE, TWO, THREE)
    assert schema.without_old(at(190)).versions == (TWO, THREE)


def test_version_that_the_sink_holds_is_kept_whatever_was_applied() -> None:
    assert SchemaState((ONE, TWO, THREE), in_sink=3).without_old(at(900)).versions == (THREE,)
    assert SchemaState((ONE,), in_sink=1).without_old(at(900)).versions == (ONE,)


def test_version_that_the_sink_does_not_hold_is_kept() -> None:
    assert SchemaState((ONE, TWO), in_sink=0).without_old(at(900)).versions == (ONE, TWO)
    assert SchemaState((ONE, TWO, THREE), in_sink=2).without_old(at(900)).versions == (TWO, THREE)


def test_last_twenty_notes_are_kept() -> None:
    schema = NO_CHANGES
    for number in range(25):
        schema = schema.noted(FoundStatement(at(number), at(number + 1), f"s{number}"), "none")
    assert [note.statement for note in schema.notes] == [f"s{number}" for number in range(5, 25)]
