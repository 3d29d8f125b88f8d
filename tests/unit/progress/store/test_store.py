"""A job's state is stored exactly and in one step."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from consume_upstream.log.offset import VisibleAt
from progress.state.backfill_state import (
    MOST_ROWS_PER_SECOND,
    Acknowledgement,
    BackfillState,
    Controls,
    Intent,
    Phase,
    Request,
    RequestKind,
)
from progress.store.lease import Process
from progress.store.reader import folder_name
from progress.store.rows.checkpoint_rows import (
    JOB,
    Bookkeeping,
    document_of,
    from_rows,
    numbers_from_text,
    numbers_to_text,
    to_rows,
)
from progress.store.state_table import DEFAULT_RETENTION
from progress.store.store import Retention, StateReader, StateStore
from tests.unit.progress.state.state_examples import PARTS, at, beginning, plan_with, states
from tests.unit.progress.store.state_folder import (
    MINUTE,
    PLAN,
    START,
    Clock,
    OpenStore,
    checkpoints,
    create,
    following,
    record,
    stored_state,
)
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.errors import LawBrokenError, StateError
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import bound_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_store(tmp_path: Path, clock: Clock) -> OpenStore:
    def open_store(
        job: str = "orders", retention: Retention = DEFAULT_RETENTION, process: Process | None = None
    ) -> StateStore:
        return StateStore(str(tmp_path), job, now=clock, retention=retention, process=process)

    return open_store


@settings(max_examples=40, deadline=None)
@given(states(), st.frozensets(st.integers(1, 60)), st.lists(st.tuples(st.integers(0, 9), st.text(max_size=5))))
def test_any_state_comes_back_from_its_rows_as_it_was(
    state: BackfillState, requests: frozenset[int], plans: list[tuple[int, str]]
) -> None:
    books = Bookkeeping("id", tuple(plans), requests, 12.34)
    rows = to_rows(state, books)
    assert from_rows(rows) == (state, books)
    # GTIDs travel along without taking part in equality, so the rows are compared as well.
    assert to_rows(*from_rows(rows) or (state, books)).equals(rows)


@settings(max_examples=40, deadline=None)
@given(states(), st.booleans())
def test_any_state_of_one_table_among_many_comes_back_as_it_was(state: BackfillState, live: bool) -> None:
    """A live table has one row for all its vnodes, any other one a row for each."""
    if live:
        vnodes = (replace(v, phase=Phase.LIVE, applied=state.written, replaces=frozenset(), floor=None,
                          complete=v.complete or Epoch(0)) for v in state.vnodes)  # fmt: skip
        state = replace(state, vnodes=tuple(vnodes))
    rows = to_rows(state, Bookkeeping("id"), one_of_many=True)
    assert rows.num_rows == 2 or not live
    assert from_rows(rows) == (state, Bookkeeping("id"))
    assert to_rows(*from_rows(rows) or (state, Bookkeeping("id")), one_of_many=True).equals(rows)


@settings(max_examples=8, deadline=None)
@given(state=states())
def test_any_state_comes_back_from_the_table_as_it_was(
    state: BackfillState, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = str(tmp_path_factory.mktemp("state"))
    rows = to_rows(state, Bookkeeping("id"))
    write_deltalake(path, rows)
    read = DeltaTable(path).to_pyarrow_table()
    assert from_rows(read) == (state, Bookkeeping("id"))


@pytest.mark.parametrize("own_slice", [False, True])
def test_earlier_releases_read_every_intent_but_one_that_they_would_carry_out_in_another_way(own_slice: bool) -> None:
    """They refuse a key that they do not know, and so must find it in such an intent and in no other."""
    known = {"epoch", "kind", "written", "visible", "ranges", "plan_generation"}
    intent = Intent(Epoch(1), BarrierKind.CHECKPOINT, at(200), VisibleAt(at(200)), ((),), 0, own_slice)
    document = document_of(to_rows(replace(beginning(PLAN), intent=intent), Bookkeeping("id")), JOB)
    assert document is not None
    assert set(json.loads(document)["intent"]) == known | ({"own_slice"} if own_slice else set())


def test_reason_that_is_no_text_can_be_stored() -> None:
    state = beginning(PLAN)
    failed = replace(state, acknowledged=(Acknowledgement(1, Epoch(0), "bad \udcff byte"),))
    stored = from_rows(to_rows(failed, Bookkeeping("id")))
    assert stored is not None
    assert stored[0].acknowledged[0].refused == "bad ? byte"


@settings(deadline=None)
@given(st.frozensets(st.integers(0, 100)))
def test_numbers_are_written_as_runs(numbers: frozenset[int]) -> None:
    assert numbers_from_text(numbers_to_text(numbers)) == numbers


def test_job_exists_from_its_first_checkpoint_on(open_store: OpenStore) -> None:
    store = open_store()
    assert not store.exists()
    assert store.load() is None
    assert store.status_snapshot() is None
    lease = store.acquire_lease("anna", MINUTE)
    assert not store.exists()
    store.create(record(), PLAN, beginning(PLAN), lease)
    assert store.exists()


def test_another_reader_loads_what_was_created_and_committed(open_store: OpenStore) -> None:
    store = open_store()
    state = following(create(store))
    store.commit(state)
    loaded = open_store().load()
    assert loaded is not None
    assert (loaded.state, loaded.plan) == (state, PLAN)
    assert replace(loaded.record, id="") == replace(record(), id="")


def test_job_that_exists_is_not_created_again(open_store: OpenStore) -> None:
    store = open_store()
    create(store)
    store.release()
    with pytest.raises(StateError, match="'orders' exists already"):
        create(open_store())


def test_repeated_commit_changes_nothing(open_store: OpenStore) -> None:
    store = open_store()
    state = following(create(store))
    store.commit(state)
    version = checkpoints(store).version()
    store.commit(state)
    assert checkpoints(store).version() == version
    assert stored_state(store) == state


def test_revision_is_not_committed_with_two_contents(open_store: OpenStore) -> None:
    store = open_store()
    state = following(create(store))
    store.commit(state)
    with pytest.raises(LawBrokenError, match="revision 1 of job 'orders' is committed with another content"):
        store.commit(replace(state, stopped=True))
    with pytest.raises(LawBrokenError, match="revision 3 of job 'orders' cannot follow revision 1"):
        store.commit(following(following(state)))


def test_table_tidied_up_by_somebody_else_does_not_stop_the_driver(open_store: OpenStore) -> None:
    store = open_store()
    state = following(create(store))
    checkpoints(store).vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
    store.commit(state)
    assert stored_state(store) == state


def test_commit_that_landed_but_failed_afterwards_counts_when_it_is_tried_again(open_store: OpenStore) -> None:
    store = open_store(retention=Retention(log_checkpoint_commits=3))
    state = following(create(store))
    in_the_way = Path(store.folder, "checkpoints/_delta_log/00000000000000000002.checkpoint.parquet")
    in_the_way.mkdir()
    with pytest.raises(StateError, match="checkpoints cannot be written"):
        store.commit(state)
    assert stored_state(store) == state
    in_the_way.rmdir()
    store.commit(state)
    assert checkpoints(store).version() == 2
    store.commit(following(state))
    assert stored_state(store) == following(state)


def test_commit_repeated_after_a_restart_changes_nothing(open_store: OpenStore, clock: Clock) -> None:
    store = open_store()
    state = following(create(store))
    store.commit(state)
    clock.wait(MINUTE)
    again = open_store()
    again.acquire_lease("anna", MINUTE)
    version = checkpoints(store).version()
    again.commit(state)
    assert checkpoints(store).version() == version


@pytest.mark.parametrize("job", ["a b", "../up", ".", "x'; DROP TABLE jobs; --", "größe/日本", "%2F", "~2f", "n" * 300])
def test_job_may_have_any_name(open_store: OpenStore, tmp_path: Path, job: str) -> None:
    state = create(open_store(job))
    assert stored_state(open_store(job)) == state
    assert not open_store("another").exists()
    assert [folder.parent for folder in tmp_path.iterdir()] == [tmp_path]


@settings(deadline=None)
@given(st.text(), st.text())
def test_two_jobs_have_two_folders(one: str, other: str) -> None:
    assert (folder_name(one) == folder_name(other)) == (one == other)
    assert len(folder_name(one)) <= 120


def test_request_is_found_until_it_is_acknowledged(open_store: OpenStore, clock: Clock) -> None:
    store = open_store()
    state = create(store)
    asked = Request(
        0,
        RequestKind.RESNAPSHOT,
        workers=3,
        assignment=split_evenly(4, 3),
        rows_per_second=0,
        vnodes=frozenset({VnodeId(2)}),
        ordinals=frozenset({1, 0}),
        extend=True,
    )
    clock.wait(MINUTE / 2)
    assert open_store().append_request(asked, "ben", "desk") == 1
    assert open_store().append_request(Request(0, RequestKind.STOP), "cleo", "desk") == 2
    assert store.unacknowledged(state) == (replace(asked, id=1), Request(2, RequestKind.STOP))
    state = replace(following(state), acknowledged=(Acknowledgement(1, Epoch(1)),))
    store.commit(state)
    assert [request.id for request in store.unacknowledged(state)] == [2]
    snapshot = store.status_snapshot()
    assert snapshot is not None
    assert [(each.who, each.host, each.asked_at) for each in snapshot.asked] == [
        ("ben", "desk", START + MINUTE / 2),
        ("cleo", "desk", START + MINUTE / 2),
    ]


def test_limit_of_an_earlier_release_that_no_server_takes_is_bounded(open_store: OpenStore) -> None:
    store = open_store()
    state = replace(following(create(store)), controls=Controls(rows_per_second=10**400))
    store.commit(state)
    open_store().append_request(Request(0, RequestKind.RATE_LIMIT, rows_per_second=10**400), "ben", "desk")
    assert stored_state(open_store()).controls == Controls(rows_per_second=MOST_ROWS_PER_SECOND)
    assert [request.rows_per_second for request in store.unacknowledged(state)] == [MOST_ROWS_PER_SECOND]


def test_acknowledged_request_does_not_come_back_when_the_state_forgets_it(open_store: OpenStore) -> None:
    store = open_store()
    state = create(store)
    for _ in range(3):
        store.append_request(Request(0, RequestKind.PAUSE), "ben", "desk")
    state = replace(following(state), acknowledged=tuple(Acknowledgement(n, Epoch(1)) for n in (1, 2)))
    store.commit(state)
    state = replace(following(state), acknowledged=())
    store.commit(state)
    assert [request.id for request in store.unacknowledged(state)] == [3]
    store.release()
    again = open_store()
    again.acquire_lease("ben", MINUTE)
    assert [request.id for request in again.unacknowledged(state)] == [3]


def test_requests_are_the_jobs_whichever_copy_runs(open_store: OpenStore) -> None:
    """A new copy has another id. One that asks meanwhile may have looked before it began."""
    store, reader = open_store(), open_store()
    state = create(store)
    answered = reader.append_request(Request(0, RequestKind.PAUSE), "ben", "host")
    state = replace(following(state), acknowledged=(Acknowledgement(answered, Epoch(1)),))
    store.commit(state)
    waits = reader.append_request(Request(0, RequestKind.STOP), "ben", "host")
    begun = replace(beginning(PLAN, workers=2), acknowledged=state.acknowledged)
    for _ in range(2):
        store.begin_again(record(), PLAN, begun)
        assert [request.id for request in store.unacknowledged(begun)] == [waits]
    later = reader.append_request(Request(0, RequestKind.RESUME), "ben", "host")
    assert later == waits + 1
    store.release()
    again = open_store()
    again.acquire_lease("carl", MINUTE)
    assert [request.id for request in again.unacknowledged(stored_state(again))] == [waits, later]
    shown = reader.status_snapshot()
    assert shown is not None
    assert [each.request.id for each in shown.asked] == [answered, waits, later]


def test_requests_made_together_get_different_numbers(open_store: OpenStore) -> None:
    state = create(store := open_store())
    with ThreadPoolExecutor(4) as pool:
        numbers = list(
            pool.map(lambda _: open_store().append_request(Request(0, RequestKind.PAUSE), "ben", "desk"), range(8))
        )
    assert sorted(numbers) == list(range(1, 9))
    assert len(store.unacknowledged(state)) == 8


def test_nothing_is_asked_of_a_job_that_does_not_exist(open_store: OpenStore) -> None:
    with pytest.raises(StateError, match="'orders' does not exist"):
        open_store().append_request(Request(0, RequestKind.PAUSE), "ben", "desk")


def test_plan_left_by_a_crash_is_not_read(open_store: OpenStore) -> None:
    store = open_store()
    state = create(store)
    orphan = PLAN.extend(((bound_of(PARTS, (40,)), 5), (bound_of(PARTS, (50,)), 0)))
    store.write_plan(orphan, 1)
    store.release()
    again = open_store()
    again.acquire_lease("ben", MINUTE)
    longer = PLAN.extend(((bound_of(PARTS, (40,)), 7), (bound_of(PARTS, (60,)), 0)))
    again.write_plan(orphan, 1)
    again.write_plan(longer, 1)
    again.write_plan(plan_with(5, 6), 0)
    loaded = open_store().load()
    assert loaded is not None
    assert loaded.plan == PLAN
    again.commit(replace(following(state), plan_generation=1))
    loaded = open_store().load()
    assert loaded is not None
    assert loaded.plan == longer


def test_generation_that_was_not_written_cannot_be_committed(open_store: OpenStore) -> None:
    store = open_store()
    state = create(store)
    with pytest.raises(LawBrokenError, match="plan generation 1 was not written"):
        store.commit(replace(following(state), plan_generation=1))


def test_empty_table_has_a_job_too(open_store: OpenStore) -> None:
    store = open_store()
    plan = plan_with()
    state = beginning(plan)
    store.create(record(), plan, state, store.acquire_lease("anna", MINUTE))
    loaded = open_store().load()
    assert loaded is not None
    assert (loaded.plan, loaded.state) == (plan, state)


def test_status_reads_the_estimates_and_the_highest_percentage(open_store: OpenStore) -> None:
    store = open_store()
    state = create(store)
    vnode = next(v for v in state.vnodes if PLAN.of_vnode(v.vnode))
    ordinals = tuple((planned.ordinal, Epoch(1)) for planned in PLAN.of_vnode(vnode.vnode))
    read = tuple(replace(v, reads=ordinals, rows=30) if v is vnode else v for v in state.vnodes)
    ahead = replace(following(state), vnodes=read)
    store.commit(ahead)
    snapshot = open_store().status_snapshot()
    assert snapshot is not None
    assert snapshot.estimates.rows == {0: 10, 1: 10, 2: 10}
    assert snapshot.lease == store.lease
    assert snapshot.percent > 0
    store.commit(replace(following(ahead), vnodes=state.vnodes))
    again = open_store().status_snapshot()
    assert again is not None
    assert again.percent == snapshot.percent


def test_state_of_an_unknown_format_is_refused_with_both_versions(open_store: OpenStore, clock: Clock) -> None:
    store = open_store()
    create(store)
    clock.wait(MINUTE)
    rows = checkpoints(store).to_pyarrow_table().to_pylist()
    for row in rows:
        if row["row"] == "job":
            row["document"] = json.dumps({**json.loads(row["document"]), "version": 3})
    write_deltalake(checkpoints(store), pa.Table.from_pylist(rows, schema=from_table(store)), mode="overwrite")
    for use in (store.load, store.status_snapshot, store.exists, lambda: open_store().acquire_lease("ben", MINUTE)):
        with pytest.raises(StateError, match="format version 3, this program reads version 2"):
            use()


def from_table(store: StateReader) -> pa.Schema:
    return checkpoints(store).to_pyarrow_table().schema


def test_checkpoint_with_a_vnode_missing_is_refused(open_store: OpenStore) -> None:
    store = open_store()
    create(store)
    checkpoints(store).delete("vnode = 2")
    with pytest.raises(StateError, match="3 rows for 4 vnodes"):
        store.load()


def test_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = StateStore(str(tmp_path / "file"), "orders")
    with pytest.raises(StateError, match=r"state in .*/file/orders/checkpoints cannot be written") as caught:
        store.acquire_lease("anna", MINUTE)
    assert "state.path" in caught.value.hint


def test_damaged_log_is_named(open_store: OpenStore) -> None:
    store = open_store()
    create(store)
    log = Path(store.folder, "checkpoints/_delta_log")
    for entry in log.glob("*.json"):
        entry.write_text("garbage")
    with pytest.raises(StateError, match="checkpoints cannot be opened"):
        store.load()


def test_state_does_not_grow_with_the_number_of_commits(open_store: OpenStore) -> None:
    store = open_store(retention=Retention(hours=0, commits=10, log_checkpoint_commits=5))
    state = create(store)
    for _ in range(60):
        state = following(state)
        store.commit(state)
    assert len([path for path in Path(store.folder).rglob("*") if path.is_file()]) < 60
    assert stored_state(open_store()) == state
