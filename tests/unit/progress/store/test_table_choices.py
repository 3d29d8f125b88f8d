"""Choices of tables are kept until another one is made, also where two make one at once."""

from __future__ import annotations

from pathlib import Path

from progress.store.table_choices import TableChoice
from progress.store.tables_store import TablesStore
from tests.unit.progress.store.state_folder import START
from tests.unit.progress.store.tables_folder import stored


def choice(table: str, *, wanted: bool, priority: int | None = None) -> TableChoice:
    return TableChoice(table, wanted, "anna", "host", START, priority)


def test_the_last_choice_for_a_table_counts_and_can_be_forgotten(tmp_path: Path) -> None:
    choices = TablesStore(str(tmp_path), "shop").choices
    assert (choices.all(), choices.since(-1)) == ((), (-1, None))
    choices.choose([choice("shop.a", wanted=False), choice("shop.b", wanted=True, priority=5)])
    choices.choose([choice("shop.a", wanted=True)])
    seen, found = choices.since(-1)
    assert found == (choice("shop.a", wanted=True), choice("shop.b", wanted=True, priority=5))
    assert choices.since(seen) == (seen, None)
    choices.choose([], forget=["shop.b"])
    assert TablesStore(str(tmp_path), "shop").choices.all() == (choice("shop.a", wanted=True),)


def test_a_dropped_job_leaves_no_choice_behind(tmp_path: Path) -> None:
    store = stored(tmp_path, "a", "b")
    store.choices.choose([choice("shop.a", wanted=False)])
    store.drop("anna")
    assert TablesStore(str(tmp_path), "shop").choices.all() == ()
