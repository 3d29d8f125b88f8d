"""A job's record says which releases may touch the job, and changes only by the driver that holds the lease."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from consume_upstream.log.cascade import CascadingParent
from progress.store.checkpoint_form import CheckpointForm
from progress.store.rows.job_rows import COPIED_VERSION, PARENTS_VERSION, VECTORS_VERSION, JobRecord
from progress.store.state_form import StateFolder
from progress.store.state_table import DEFAULT_RETENTION
from progress.store.store import StateStore
from progress.store.walk_store import SingleStore
from tests.unit.progress.state.test_migration import SAMPLES
from tests.unit.progress.store.state_folder import MINUTE, Clock, create, following
from vnode_backfill.words.errors import FencedError, OvertakenError, StateError


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> StateStore:
    made = StateStore(str(tmp_path), "orders", now=clock)
    create(made)
    return made


def record_of(store: StateStore) -> JobRecord:
    loaded = store.load()
    assert loaded is not None
    return loaded.record


def other(store: StateStore, tmp_path: Path, clock: Clock) -> StateStore:
    """A second driver, which takes the job over from the first, whose lease has run out."""
    clock.wait(2 * MINUTE)
    second = StateStore(str(tmp_path), "orders", now=clock)
    second.acquire_lease("bert", timedelta(minutes=1))
    return second


def test_a_record_changes_and_nothing_else_does(store: StateStore) -> None:
    before = store.load()
    assert before is not None
    changed = before.record.fit_for(vectors=True)
    assert (changed.format_version, before.record.format_version) == (VECTORS_VERSION, 2)
    store.change_record(changed)
    assert store.load() == replace(before, record=changed)
    store.commit(following(before.state))
    assert record_of(store) == changed
    store.change_record(changed.fit_for(vectors=False))
    assert record_of(store) == before.record


def test_parents_are_stored_with_the_record_and_unknown_to_earlier_releases(store: StateStore) -> None:
    before = record_of(store)
    assert before.with_parents(()) == before
    parents = (CascadingParent(replace(before.definition, table="parent"), on_delete=True, on_update=("id",)),)
    changed = before.with_parents(parents)
    assert changed.format_version == changed.fit_for(vectors=False).format_version == PARENTS_VERSION
    store.change_record(changed)
    assert record_of(store) == changed
    assert record_of(store).parents == parents


@pytest.mark.parametrize("version", [1, PARENTS_VERSION + 1])
def test_a_record_of_an_unknown_format_is_refused(store: StateStore, version: int) -> None:
    jobs = f"{store.folder}/jobs"
    rows = DeltaTable(jobs).to_pyarrow_table()
    column = pa.array([version], pa.int32())
    write_deltalake(
        jobs, rows.set_column(rows.schema.get_field_index("format_version"), "format_version", column), mode="overwrite"
    )
    told = f"format version {version}, this program reads versions 2 to {PARENTS_VERSION}"
    for read in (store.load, store.status_snapshot):
        with pytest.raises(StateError, match=told):
            read()


def test_a_driver_that_lost_its_lease_changes_no_record(store: StateStore, tmp_path: Path, clock: Clock) -> None:
    before = record_of(store)
    other(store, tmp_path, clock)
    with pytest.raises(FencedError):
        store.change_record(before.fit_for(vectors=True))
    assert record_of(store) == before


def test_a_write_that_was_begun_before_a_takeover_is_refused(store: StateStore, tmp_path: Path, clock: Clock) -> None:
    """The second driver writes the record although nothing differs, so that what the first one meant cannot land."""
    vectors = record_of(store).fit_for(vectors=True)
    store.change_record(vectors)
    form = CheckpointForm(StateFolder(store.folder, "orders", {}, DEFAULT_RETENTION))

    def renewed_and_then_overtaken() -> None:
        store.renew()
        other(store, tmp_path, clock).change_record(vectors)

    with pytest.raises(OvertakenError):
        form.change_record(vectors.fit_for(vectors=False), renewed_and_then_overtaken)
    assert record_of(store) == vectors


def test_the_record_of_a_walk_is_its_row_with_another_version(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "live", tmp_path / "orders")
    store = SingleStore(str(tmp_path), "orders")
    held = store.stored()
    assert held is not None
    assert _version(store) == 1
    store.acquire_lease("anna", MINUTE)
    changed = held.record.fit_for(vectors=True)
    store.change_record(changed)
    assert (_version(store), store.stored()) == (VECTORS_VERSION, replace(held, record=changed))
    store.commit(following(held.state))
    assert (_version(store), record_of(store)) == (VECTORS_VERSION, changed)
    store.change_record(held.record)
    assert (_version(store), record_of(store)) == (1, held.record)


def _version(store: SingleStore) -> object:
    (row,) = DeltaTable(f"{store.folder}/walk").to_pyarrow_table().to_pylist()
    return row["version"]


@pytest.mark.parametrize("vectors", [True, False])
def test_record_of_a_job_that_has_begun_a_new_copy_stays_unknown_to_earlier_releases(
    store: StateStore, vectors: bool
) -> None:
    copied = replace(record_of(store), format_version=COPIED_VERSION)
    assert copied.fit_for(vectors=vectors).format_version == COPIED_VERSION
