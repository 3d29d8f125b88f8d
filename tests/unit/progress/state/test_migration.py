"""A job that began under the single executor continues under the parallel one, also from stored states of v1.

The samples under `tests/data/state_v1` are state folders as the release that introduced the schema wrote them:
`half_done` was killed with the cursor at key 25 and an epoch in progress, `live` had finished its walk and was live,
`newer` claims a version that does not exist.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from consume_upstream.log.offset import VisibleAt
from progress.state.backfill_state import FORGOTTEN, BackfillState, Intent, Phase, check_laws
from progress.state.migration import migrated_plan, migrated_state
from progress.state.walk_state import Walk
from progress.store.rows.walk_rows import StoredWalk
from progress.store.store import StateStore
from progress.store.walk_store import SingleStore
from tests.histories.walk_simulation import MigratedSimulation
from tests.simulation.world import WrongError
from tests.unit.progress.state.state_examples import PARTS, at, plan_with
from tests.unit.progress.store.state_folder import MINUTE
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.errors import LawBrokenError, StateError
from vnode_backfill.words.key_range import Bound, SplitPlan, bound_of

SAMPLES = Path(__file__).parents[3] / "data" / "state_v1"


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_migrated_job_equals_its_source_wherever_the_walk_was_killed(first: int) -> None:
    for seed in range(first, first + 20):
        MigratedSimulation(seed).run()


def test_simulation_catches_a_migration_that_forgets_a_landed_stretch() -> None:
    assert any(_fails(MigratedSimulation(seed, skip_settling=True)) for seed in range(80))


def _fails(simulation: MigratedSimulation) -> bool:
    try:
        simulation.run()
    except WrongError:
        return True
    return False


@pytest.fixture
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> StoredWalk:
    found = sample(request.param, tmp_path).stored()
    assert found is not None
    return found


def sample(name: str, folder: Path) -> SingleStore:
    """A sample as a store; copied, because opening may write."""
    shutil.copytree(SAMPLES / name, folder / "orders")
    return SingleStore(str(folder), "orders")


def cursor_at(walk: Walk) -> Bound | None:
    return None if walk.last_key is None else bound_of(PARTS, walk.last_key)


def migrate(stored: StoredWalk, *bounds: int) -> tuple[BackfillState, SplitPlan]:
    cursor = cursor_at(stored.walk)
    plan = migrated_plan(plan_with(*bounds, vnode_count=4), cursor)
    answered = sorted(stored.books.requests)
    return migrated_state(stored.state, stored.walk, cursor, plan, split_evenly(4, 2), answered), plan


@pytest.mark.parametrize("stored", ["half_done"], indirect=True)
def test_ranges_below_the_cursor_count_as_read_and_the_cursors_own_is_replaced(stored: StoredWalk) -> None:
    state, plan = migrate(stored, 10, 20, 30, 40)
    fates = {}
    for planned in plan.ranges:
        vnode = state.vnodes[planned.vnode]
        fates[planned.ordinal] = dict(vnode.reads).get(planned.ordinal), planned.ordinal in vnode.replaces
    assert fates == {0: (FORGOTTEN, False), 1: (None, True), 2: (None, False)}


@pytest.mark.parametrize("stored", ["half_done"], indirect=True)
def test_offsets_controls_and_answers_are_kept(stored: StoredWalk) -> None:
    state, _ = migrate(stored, 10, 20, 30, 40)
    assert {vnode.applied for vnode in state.vnodes} == {at(100)}
    assert (state.written, state.changed, state.controls) == (at(700), at(650), stored.state.controls)
    assert [answer.request for answer in state.acknowledged] == [1, 2]
    assert state.newest_visible == stored.state.newest_visible


@pytest.mark.parametrize("stored", ["half_done"], indirect=True)
def test_epoch_that_was_begun_is_never_used_again(stored: StoredWalk) -> None:
    state, _ = migrate(stored, 10, 20, 30, 40)
    assert stored.state.intent is not None
    assert (state.epoch, state.intent) == (stored.state.intent.epoch, None)


@pytest.mark.parametrize(("stored", "phases"), [
    ("half_done", {Phase.CATCH_UP, Phase.SNAPSHOT, Phase.PENDING}), ("live", {Phase.LIVE}),
], indirect=["stored"])  # fmt: skip
def test_migrated_state_keeps_the_laws(stored: StoredWalk, phases: set[Phase]) -> None:
    state, plan = migrate(stored, 10, 20, 30, 40)
    following = replace(state, revision=1)
    check_laws(state, following, plan, frozenset())
    assert {vnode.phase for vnode in state.vnodes} <= phases


@pytest.mark.parametrize("stored", ["half_done"], indirect=True)
def test_table_that_is_empty_now_is_planned_as_the_cursor_alone(stored: StoredWalk) -> None:
    state, plan = migrate(stored)
    (only,) = plan.ranges
    assert (only.range.low, only.range.high, only.range.closed) == (
        bound_of(PARTS, (25,)),
        bound_of(PARTS, (25,)),
        True,
    )
    assert plan.generation == state.plan_generation == 1


def test_empty_table_of_which_nothing_was_read_has_nothing_to_migrate() -> None:
    with pytest.raises(StateError, match="table is empty"):
        migrated_plan(plan_with(), None)


@pytest.mark.parametrize("stored", ["half_done"], indirect=True)
def test_cursor_must_be_the_walks_own(stored: StoredWalk) -> None:
    plan = migrated_plan(plan_with(10, 20), None)
    with pytest.raises(LawBrokenError, match="do not belong"):
        migrated_state(stored.state, stored.walk, None, plan, split_evenly(4, 1), ())


@pytest.mark.parametrize("stored", ["half_done"], indirect=True)
def test_migrated_job_is_stored_and_loaded_under_its_own_id(stored: StoredWalk, tmp_path: Path) -> None:
    state, plan = migrate(stored, 10, 20, 30, 40)
    store = StateStore(str(tmp_path), "orders")
    record = replace(stored.record, executor="parallel", vnode_count=4, format_version=2)
    store.create(record, plan, state, store.acquire_lease("anna", MINUTE))
    loaded = StateStore(str(tmp_path), "orders").load()
    assert loaded is not None
    assert (loaded.state, loaded.plan, loaded.record.id) == (state, plan, stored.record.id)


def test_retired_walk_is_gone_and_its_requests_stay(tmp_path: Path) -> None:
    store = sample("half_done", tmp_path)
    store.acquire_lease("anna", MINUTE)
    store.retire()
    assert not SingleStore(str(tmp_path), "orders").exists()
    assert store.lease is None


def test_sample_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="has version 7, this program reads versions 1, 3 and 4"):
        sample("newer", tmp_path).exists()


@pytest.mark.parametrize("stored", ["live"], indirect=True)
def test_finished_walk_counts_every_range_as_read(stored: StoredWalk) -> None:
    state, plan = migrate(stored, 10, 20, 30, 40)
    assert sum(len(vnode.reads) for vnode in state.vnodes) == len(plan.ranges)
    assert {vnode.complete for vnode in state.vnodes} == {Epoch(stored.state.epoch + 1)}
    assert state.is_live


@pytest.mark.parametrize("stored", ["live"], indirect=True)
def test_live_walk_that_was_killed_in_an_epoch_is_not_live_before_its_next_merge(stored: StoredWalk) -> None:
    """The epoch's merge may have landed: the sink holds more than the applied offset says."""
    begun = Intent(Epoch(stored.state.epoch + 1), BarrierKind.CHECKPOINT, at(900), VisibleAt(at(900)), ((),), 0)
    state, _ = migrate(replace(stored, state=replace(stored.state, intent=begun)), 10, 20, 30, 40)
    assert {vnode.phase for vnode in state.vnodes} == {Phase.CATCH_UP}
