"""What was asked of all tables of a job is kept for tables that join it, until it is asked otherwise."""

from __future__ import annotations

from pathlib import Path

from progress.state.backfill_state import Request, RequestKind
from progress.store.tables_store import TablesStore
from tests.unit.progress.state.state_examples import beginning
from tests.unit.progress.store.tables_folder import PLAN, stored

PAUSE, RESUME = Request(0, RequestKind.PAUSE), Request(0, RequestKind.RESUME)
SLOW = Request(0, RequestKind.RATE_LIMIT, rows_per_second=5)


def ask(store: TablesStore, request: Request, *, every: bool = True) -> dict[str, int]:
    return store.append_requests({"shop.a": request}, "anna", "host", every=request if every else None)


def kinds(store: TablesStore) -> list[RequestKind]:
    return [each.request.kind for each in store.asked_of_every()]


def test_of_each_matter_the_last_request_holds_whatever_came_after_it(tmp_path: Path) -> None:
    store = stored(tmp_path, "a")
    assert store.asked_of_every() == (), "a job of an earlier release has none"
    ask(store, SLOW)
    for _ in range(60):
        ask(store, PAUSE)
        ask(store, RESUME)
    assert ask(store, Request(0, RequestKind.RESCALE, workers=3)) == {"shop.a": 122}
    other = TablesStore(str(tmp_path), "shop")
    assert kinds(other) == [RequestKind.RATE_LIMIT, RequestKind.RESUME, RequestKind.RESCALE]
    assert (other.asked_of_every()[0].request.rows_per_second, other.asked_of_every()[2].request.workers) == (5, 3)


def test_a_request_to_some_tables_holds_for_no_other_and_leaves_what_holds(tmp_path: Path) -> None:
    store = stored(tmp_path, "a", "b")
    ask(store, PAUSE)
    ask(store, SLOW, every=False)
    assert kinds(store) == [RequestKind.PAUSE]
    found = store.unacknowledged(dict.fromkeys(("shop.a", "shop.b"), beginning(PLAN, workers=2)))
    assert [each.kind for each in found["shop.a"]] == [RequestKind.PAUSE, RequestKind.RATE_LIMIT]
    assert "shop.b" not in found, "what is kept for later tables is asked of none that is there"


def test_a_dropped_job_leaves_nothing_that_holds_for_the_next(tmp_path: Path) -> None:
    store = stored(tmp_path, "a")
    ask(store, PAUSE)
    store.drop("anna")
    assert stored(tmp_path, "a").asked_of_every() == ()
