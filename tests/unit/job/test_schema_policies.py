"""An operator who must decide about a statement reads what following it does."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from tests.unit.decide.coordinated_job import PLAN, live_job
from tests.unit.progress.state.state_examples import DEFINITION, at, beginning
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.job.run.table_versions import TableVersions, effect_text
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.errors import BackfillError, PlanRefusedError, SchemaChangedError
from vnode_backfill.words.schema_change import (
    AddColumn,
    Carried,
    ColumnStep,
    DeleteRows,
    DropColumn,
    Emptied,
    Ended,
    NewCopy,
    RenameColumn,
    RetypeColumn,
    SetAside,
    StatementEffect,
)

NEW = Column.parse("c", "bigint(20)", nullable=True)


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        (Emptied(DEFINITION), "the target is emptied"),
        (NewCopy("the primary key changes"), "a new copy of the table, because the primary key changes"),
        (Ended("dropped"), "the table was dropped, and the job ends"),
        (SetAside("nobody knows"), "the table is set aside, because nobody knows"),
        (Carried(DEFINITION, ()), "the target stays as it is"),
    ],
)
def test_effect_on_the_whole_is_said(effect: StatementEffect, text: str) -> None:
    assert effect_text(effect) == text


def test_each_step_is_said() -> None:
    steps: tuple[ColumnStep, ...] = (
        DropColumn("a"), RenameColumn("b", "d"), RetypeColumn(NEW), AddColumn(NEW), AddColumn(NEW, "5"),
    )  # fmt: skip
    assert effect_text(Carried(DEFINITION, steps)) == (
        "column a is dropped, column b is renamed to d, column c is widened to bigint, column c is added, "
        "column c is added with '5' in existing rows"
    )


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (DeleteRows("id", ((None, "5"), ("9", None))),
         "rows are deleted whose id is from the lowest to below 5 or from 9 to below the highest"),
        (DeleteRows("day", (("2024-01-01", "2024-02-01"),)),
         "rows are deleted whose day is from 2024-01-01 to below 2024-02-01"),
        (DeleteRows("name", values=("a", "b")), "rows are deleted whose name is a or b"),
    ],
)  # fmt: skip
def test_rows_that_go_are_said(step: DeleteRows, text: str) -> None:
    assert effect_text(Carried(DEFINITION, (step,))) == text


def versions_of(now: TableDefinition | BackfillError) -> TableVersions:
    """Of a table that has this definition now, or refuses to be looked at."""

    def current_definition() -> TableDefinition:
        if isinstance(now, BackfillError):
            raise now
        return now

    table = SimpleNamespace(definition=DEFINITION, current_definition=current_definition)
    return TableVersions(cast(Services, SimpleNamespace(table=table)))


@pytest.mark.parametrize("refusal", [PlanRefusedError("no key"), SchemaChangedError("not there any more")])
def test_no_range_is_read_of_a_table_that_is_gone_and_nothing_fails(refusal: BackfillError) -> None:
    versions = versions_of(refusal)
    assert versions.are_behind(Committed(beginning(PLAN), PLAN, 0), at(200))
    assert not versions.are_behind(Committed(live_job().state, PLAN, 0), at(200))


def test_definition_that_no_statement_explains_ends_the_wait() -> None:
    versions, state = versions_of(replace(DEFINITION, columns=(*DEFINITION.columns, NEW))), beginning(PLAN)
    behind = Committed(replace(state, written=at(199)), PLAN, 0)
    assert [versions.are_behind(behind, at(pos)) for pos in (150, 200, 250)] == [True] * 3
    with pytest.raises(SchemaChangedError, match="another definition") as raised:
        versions.are_behind(Committed(replace(state, written=at(200)), PLAN, 0), at(300))
    assert "resnapshot --all" in raised.value.hint
    assert not versions_of(DEFINITION).are_behind(behind, at(300))
