"""A table that joins a job has the job's number of vnodes and what all tables were asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from progress.state.backfill_state import Controls, Request, RequestKind
from progress.state.report import AskedRequest
from progress.store.tables_store import TablesStore
from tests.unit.progress.state.state_examples import beginning
from tests.unit.progress.store.state_folder import START
from tests.unit.progress.store.tables_folder import PLAN, stored
from vnode_backfill.config.job import Config, load_config
from vnode_backfill.job.tables.joining import as_asked, ask_what_came_since, with_vnodes_of_job
from vnode_backfill.words.bitmap import VnodeBitmap

PAUSE = Request(0, RequestKind.PAUSE)
RESUME = Request(0, RequestKind.RESUME)
SLOW = Request(0, RequestKind.RATE_LIMIT, rows_per_second=5)
ONE_WORKER = Request(0, RequestKind.RESCALE, workers=1)


def asked(*requests: Request) -> list[AskedRequest]:
    return [AskedRequest(request, "anna", "host", START) for request in requests]


def test_a_new_table_is_as_if_it_had_been_asked_too() -> None:
    state = as_asked(beginning(PLAN, workers=3), PLAN, asked(PAUSE, SLOW, ONE_WORKER))
    assert state.controls == Controls(paused=True, rows_per_second=5)
    assert (len(state.assignment), state.acknowledged, state.revision) == (1, (), 0)


def test_a_new_table_takes_bitmaps_that_fit_and_no_others() -> None:
    one = VnodeBitmap.of([1], 4)
    fitting = Request(0, RequestKind.RESCALE, assignment=(one, VnodeBitmap.full(4) - one))
    assert as_asked(beginning(PLAN), PLAN, asked(fitting)).assignment == fitting.assignment
    other = Request(0, RequestKind.RESCALE, assignment=(VnodeBitmap.full(8),))
    assert as_asked(beginning(PLAN, workers=2), PLAN, asked(other)) == beginning(PLAN, workers=2)


def test_what_all_tables_were_asked_while_a_table_was_created_is_asked_of_it_too(tmp_path: Path) -> None:
    store = stored(tmp_path, "a", "b")
    store.append_requests({"shop.a": PAUSE}, "anna", "host", every=PAUSE)
    known = store.asked_of_every()
    store.append_requests({"shop.a": SLOW}, "anna", "host", every=SLOW)
    ask_what_came_since(store, ["shop.b"], known)
    found = store.unacknowledged(dict.fromkeys(("shop.a", "shop.b"), beginning(PLAN, workers=2)))
    assert [each.kind for each in found["shop.b"]] == [RequestKind.RATE_LIMIT]
    assert [each.kind for each in found["shop.a"]] == [RequestKind.PAUSE, RequestKind.RATE_LIMIT]


class ResumedMeanwhile:
    """A store in which an operator resumes all tables right before the driver writes for the first time."""

    def __init__(self, store: TablesStore) -> None:
        self.store, self.asked_of_every, self._is_first = store, store.asked_of_every, True

    def append_requests(self, requests: dict[str, Request], who: str, host: str) -> None:
        if self._is_first:
            self._is_first = False
            self.store.append_requests(dict.fromkeys(("shop.a", "shop.b"), RESUME), "ben", "host", every=RESUME)
        self.store.append_requests(requests, who, host)


def test_what_was_asked_last_is_what_a_new_table_is_asked_last(tmp_path: Path) -> None:
    store = stored(tmp_path, "a", "b")
    store.append_requests({"shop.a": PAUSE}, "anna", "host", every=PAUSE)
    ask_what_came_since(cast(TablesStore, ResumedMeanwhile(store)), ["shop.b"], ())
    found = store.unacknowledged({"shop.b": beginning(PLAN, workers=2)})
    assert [each.kind for each in found["shop.b"]] == [RequestKind.RESUME, RequestKind.PAUSE, RequestKind.RESUME]


def test_new_tables_have_the_vnodes_of_the_job_and_no_more_workers_than_that(tmp_path: Path) -> None:
    edited = _config(tmp_path, vnodes=256, workers=8)
    assert with_vnodes_of_job(edited, TablesStore(str(tmp_path / "state"), "shop")) is edited
    found = with_vnodes_of_job(edited, stored(tmp_path / "state", "a"))
    assert (found.vnodes, found.workers) == (4, 4)


def _config(folder: Path, **settings: object) -> Config:
    values = {
        "job": "shop", "mysql": {"host": "nowhere.invalid", "user": "u", "tables": ["shop.*"]},
        "sink": {"delta": {"path": f"{folder}/lake/{{table}}"}}, "state": {"path": f"{folder}/state"}, **settings,
    }  # fmt: skip
    file = folder / "job.yaml"
    file.write_text(json.dumps(values))
    return load_config(file)
