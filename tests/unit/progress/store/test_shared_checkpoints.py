"""The tables of a job share one commit point: one commit for all of them, by one driver only, each exactly once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from progress.state.backfill_state import BackfillState
from progress.state.parked import ParkedDocument, moved_on
from progress.store.state_table import StateTable
from progress.store.store import StateStore
from progress.store.tables_store import TablesStore
from tests.unit.progress.state.test_migration import SAMPLES, sample
from tests.unit.progress.state.test_parked import FAR, live
from tests.unit.progress.store.state_folder import create, following, stored_state
from tests.unit.progress.store.tables_folder import stored
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import (
    FencedError,
    LawBrokenError,
    PlanRefusedError,
    StateError,
    StateUnavailableError,
)

MINUTE = timedelta(minutes=1)
NAMES = ("shop.items", "shop.orders")


def states_of(store: TablesStore) -> dict[str, BackfillState]:
    found = {name: store.table(name).load() for name in store.names()}
    return {name: loaded.state for name, loaded in found.items() if loaded is not None}


def next_of(store: TablesStore, *names: str) -> list[tuple[StateStore, BackfillState]]:
    before = states_of(store)
    return [(store.table(name), following(before[name])) for name in names]


def version(store: TablesStore) -> int:
    return DeltaTable(f"{store.folder}/checkpoints").version()


def test_states_of_several_tables_are_one_commit_and_are_read_back_exactly(tmp_path: Path) -> None:
    store = stored(tmp_path, "items", "orders")
    commits, before = next_of(store, *NAMES), version(store)
    store.commit_together(commits)
    assert version(store) == before + 1
    assert states_of(TablesStore(str(tmp_path), "shop")) == dict(
        zip(NAMES, (state for _, state in commits), strict=True)
    )


def test_a_commit_that_is_repeated_writes_only_what_has_not_landed(tmp_path: Path) -> None:
    store = stored(tmp_path, "items", "orders")
    commits = next_of(store, *NAMES)
    store.commit_together(commits[:1])
    before = version(store)
    store.commit_together(commits)
    store.commit_together(commits)
    assert version(store) == before + 1
    assert states_of(store)["shop.orders"] == commits[1][1]


def test_what_this_driver_has_written_it_does_not_ask_the_log_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table asked it twice a commit, which took longer than to make the table's rows."""
    store, asked, ask = stored(tmp_path, "items", "orders"), list[str](), StateTable.transaction_version

    def counted(table: StateTable, handle: DeltaTable, app_id: str) -> int | None:
        asked.append(app_id)
        return ask(table, handle, app_id)

    monkeypatch.setattr(StateTable, "transaction_version", counted)
    for _ in range(3):
        store.commit_together(next_of(store, *NAMES))
    assert len(asked) == len(set(asked)) <= len(NAMES)
    monkeypatch.undo()
    again = TablesStore(str(tmp_path), "shop")
    assert states_of(again) == states_of(store)


def test_a_commit_whose_answer_was_lost_is_not_taken_back_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library moves the handle that is held to the version it has written, also if opening that fails then."""
    store, opened, reopen = stored(tmp_path, "items", "orders"), list[str](), StateTable.open
    commits = next_of(store, *NAMES)

    def fails_once(table: StateTable) -> DeltaTable | None:
        opened.append(table.uri)
        if [uri.endswith("checkpoints") for uri in opened].count(True) == 1:
            raise StateUnavailableError("nobody answers")
        return reopen(table)

    monkeypatch.setattr(StateTable, "open", fails_once)
    with pytest.raises(StateUnavailableError):
        store.commit_together(commits)
    monkeypatch.undo()
    store.commit_together(commits[:1])
    assert states_of(TablesStore(str(tmp_path), "shop")) == dict(zip(NAMES, (s for _, s in commits), strict=True))


def test_the_numbers_of_an_earlier_version_are_its_own(tmp_path: Path) -> None:
    """Who still holds an earlier version asks what had landed there, not what has landed since."""
    store = stored(tmp_path, "items")
    shared = store._shared
    earlier, ids = shared.commits.open(), tuple(shared._numbers)
    assert earlier is not None
    before = [shared.landed(earlier, each) for each in ids]
    store.commit_together(next_of(store, "shop.items"))
    newest = shared.current()
    assert newest is not None
    assert newest.handle is not None
    assert [shared.landed(earlier, each) for each in ids] == before
    assert [shared.landed(newest.handle, each) for each in ids] != before


def test_another_content_under_the_same_revision_is_a_broken_law(tmp_path: Path) -> None:
    store = stored(tmp_path, "items")
    ((own, state),) = next_of(store, "shop.items")
    store.commit_together([(own, state)])
    refused = store.commit_together([(own, replace(state, epoch=Epoch(9)))])
    assert isinstance(refused["shop.items"], LawBrokenError)
    assert "another content" in refused["shop.items"].message


def test_a_table_whose_state_cannot_be_written_is_left_out_and_the_others_are_committed(tmp_path: Path) -> None:
    store = stored(tmp_path, "items", "orders")
    (items, state), orders = next_of(store, *NAMES)
    before = states_of(store)
    refused = store.commit_together([(items, replace(state, plan_generation=7)), orders], cut="{}")
    assert list(refused) == ["shop.items"]
    assert "plan generation 7" in refused["shop.items"].message
    assert states_of(TablesStore(str(tmp_path), "shop")) == {**before, "shop.orders": orders[1]}
    assert store.cut() is None
    assert store.commit_together([(items, state)]) == {}


def test_what_is_wrong_with_the_values_of_one_state_is_about_that_table_alone(tmp_path: Path) -> None:
    store = stored(tmp_path, "items", "orders")
    (items, state), orders = next_of(store, *NAMES)
    broken = replace(state, vnodes=(*state.vnodes[:3], replace(state.vnodes[3], rows=1 << 80)))
    assert list(store.commit_together([(items, broken), orders])) == ["shop.items"]
    assert states_of(store)["shop.orders"] == orders[1]


def test_a_driver_that_was_replaced_commits_for_no_table(tmp_path: Path) -> None:
    store = stored(tmp_path, "items", "orders", duration=timedelta(microseconds=1))
    commits = next_of(store, *NAMES)
    other = TablesStore(str(tmp_path), "shop")
    other.acquire_lease("boris", MINUTE)
    with pytest.raises(FencedError, match="another driver took over job 'shop'"):
        store.commit_together(commits)
    assert store.lease is None
    with pytest.raises(FencedError):
        commits[0][0].commit(commits[0][1])
    assert states_of(other) == states_of(TablesStore(str(tmp_path), "shop"))


def test_a_second_driver_is_refused_while_the_first_one_runs(tmp_path: Path) -> None:
    stored(tmp_path, "items")
    with pytest.raises(StateError, match="is driven by anna"):
        TablesStore(str(tmp_path), "shop").acquire_lease("boris", MINUTE)


def test_a_table_gives_the_lease_of_its_job_not_back(tmp_path: Path) -> None:
    store = stored(tmp_path, "items", "orders")
    store.table("shop.items").release()
    assert store.lease is not None
    store.commit_together(next_of(store, "shop.orders"))


def test_a_forgotten_table_is_gone_and_the_others_stay(tmp_path: Path) -> None:
    store = stored(tmp_path, "items", "orders")
    before = states_of(store)
    store.forget("shop.items")
    assert states_of(TablesStore(str(tmp_path), "shop")) == {"shop.orders": before["shop.orders"]}


def test_a_cut_is_stored_with_the_commit_that_makes_it_and_stays(tmp_path: Path) -> None:
    store = stored(tmp_path, "items")
    assert store.cut() is None
    store.commit_together(next_of(store, "shop.items"), cut="{}")
    store.commit_together(next_of(store, "shop.items"))
    assert TablesStore(str(tmp_path), "shop").cut() == "{}"


def test_jobs_of_one_and_of_many_tables_do_not_take_each_other_for_their_own(tmp_path: Path) -> None:
    stored(tmp_path, "items").release()
    with pytest.raises(PlanRefusedError, match="is a job of many tables"):
        StateStore(str(tmp_path), "shop").exists()
    create(StateStore(str(tmp_path), "orders"))
    with pytest.raises(PlanRefusedError, match="'orders' is a job of one table"):
        TablesStore(str(tmp_path), "orders").exists()


def test_the_name_of_a_job_that_was_dropped_is_free_for_the_other_kind(tmp_path: Path) -> None:
    many = stored(tmp_path, "items")
    many.commit_together(next_of(many, "shop.items"), cut="{}")
    many.drop("anna")
    one = StateStore(str(tmp_path), "shop")
    assert not one.exists()
    made = create(one)
    assert stored_state(StateStore(str(tmp_path), "shop")) == made
    with pytest.raises(PlanRefusedError, match="is a job of one table"):
        many.exists()
    one.drop("anna")
    assert not TablesStore(str(tmp_path), "shop").exists()
    again = stored(tmp_path, "orders")
    assert (again.names(), again.cut()) == (("shop.orders",), None)
    with pytest.raises(PlanRefusedError, match="is a job of many tables"):
        one.exists()


@pytest.mark.parametrize("name", ["half_done", "live"])
def test_a_job_of_many_tables_is_not_made_beside_a_walk(tmp_path: Path, name: str) -> None:
    walk = sample(name, tmp_path)
    with pytest.raises(PlanRefusedError, match="'orders' is a job of one table"):
        TablesStore(str(tmp_path), "orders").acquire_lease("anna", MINUTE)
    assert not (tmp_path / "orders" / "checkpoints").exists()
    walk.drop("anna")
    assert not TablesStore(str(tmp_path), "orders").exists()


def test_a_walk_is_found_also_where_a_job_of_many_tables_was_dropped(tmp_path: Path) -> None:
    stored(tmp_path, "items").drop("anna")
    shutil.copytree(SAMPLES / "half_done", tmp_path / "shop", dirs_exist_ok=True)
    with pytest.raises(PlanRefusedError, match="'shop' is a job of one table"):
        TablesStore(str(tmp_path), "shop").exists()


def test_a_table_that_rests_is_loaded_as_far_as_the_log_was_read_for_it(tmp_path: Path) -> None:
    store = stored(tmp_path, "items", "orders")
    store.commit_together([(store.table(name), replace(live(), revision=1)) for name in NAMES])
    ids = {name: _copy(store, name) for name in NAMES}
    store.note_parked(ParkedDocument.of([(ids["shop.items"], 1, FAR), (ids["shop.orders"], 0, FAR)]))
    again = TablesStore(str(tmp_path), "shop")
    assert states_of(again)["shop.items"] == moved_on(replace(live(), revision=1), FAR)
    assert states_of(again)["shop.orders"] == replace(live(), revision=1)


def test_what_is_stored_for_tables_that_rest_stays_until_a_table_commits_itself(tmp_path: Path) -> None:
    store = stored(tmp_path, "items", "orders")
    store.commit_together([(store.table(name), replace(live(), revision=1)) for name in NAMES])
    parked = ParkedDocument.of([(_copy(store, name), 1, FAR) for name in NAMES])
    store.commit_together([(store.table("shop.items"), replace(live(), revision=2))], parked=parked)
    store.commit_together([(store.table("shop.items"), replace(live(), revision=3))], cut="{}")
    store.release()
    again = TablesStore(str(tmp_path), "shop")
    assert states_of(again)["shop.items"] == replace(live(), revision=3)
    assert states_of(again)["shop.orders"] == moved_on(replace(live(), revision=1), FAR)


def test_the_same_again_of_tables_that_rest_is_not_written(tmp_path: Path) -> None:
    store = stored(tmp_path, "items")
    store.note_parked(ParkedDocument.of([("a", 1, FAR)]))
    before = version(store)
    store.note_parked(ParkedDocument.of([("a", 1, FAR)]))
    assert version(store) == before


def _copy(store: TablesStore, name: str) -> str:
    loaded = store.table(name).load()
    assert loaded is not None
    return loaded.record.id
