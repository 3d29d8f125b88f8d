"""Reads a stored state of schema v2 field by field, as every later release must.

`tests/data/state_v2/half_done` was written by the release before the modules moved into folders: a job in the middle of
its snapshot, with a visibility that has holes, an intent in progress, a plan of two generations, four requests (two of
them answered), and the failure that ended its driver.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from consume_upstream.log.gtid import GtidSet
from consume_upstream.log.offset import CdcOffset, LoggedTransaction, VisibleAt, VisibleGtids
from progress.state.backfill_state import (
    Acknowledgement,
    Controls,
    Failure,
    Intent,
    Phase,
    Request,
    RequestKind,
    VnodeState,
)
from progress.store.lease import Process
from progress.store.rows.job_rows import JobRecord
from progress.store.store import Loaded, StateStore
from tests.unit.progress.state.state_examples import DEFINITION, PARTS, SERVER, at
from tests.unit.progress.store.state_folder import MINUTE
from vnode_backfill.words.bitmap import VnodeBitmap
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.key import VnodeId
from vnode_backfill.words.key_range import bound_of

SAMPLE = Path(__file__).parents[3] / "data" / "state_v2" / "half_done"
WRITTEN_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """The sample, copied, because opening may write; by a clock a second after its last commit."""
    shutil.copytree(SAMPLE, tmp_path / "half_done")
    return StateStore(str(tmp_path), "half_done", now=lambda: WRITTEN_AT + timedelta(seconds=1))


@pytest.fixture
def loaded(store: StateStore) -> Loaded:
    found = store.load()
    assert found is not None
    return found


def exact(offset: CdcOffset) -> tuple[str, str, int, int, str, str]:
    """Every field: neither the GTIDs nor the identity of the log takes part in comparing offsets."""
    return offset.server, offset.prefix, offset.number, offset.pos, offset.gtids, offset.log


def test_record(loaded: Loaded) -> None:
    assert loaded.record == JobRecord(
        "half_done", "7c9f0e8ad1b24c5e9f6a3b2c1d0e4f5a", WRITTEN_AT, "parallel", 4, SERVER, "shop", "orders",
        DEFINITION, "delta:/lake/orders", 2,
    )  # fmt: skip


def test_plan_of_two_generations(loaded: Loaded) -> None:
    plan = loaded.plan
    assert (plan.parts, plan.vnode_count, plan.generation) == (PARTS, 4, 1)
    assert [(r.ordinal, r.vnode, r.estimated_rows, r.generation) for r in plan.ranges] == [
        (0, 1, 10, 0), (1, 1, 10, 0), (2, 0, 10, 0), (3, 2, 10, 0), (4, 0, 7, 1),
    ]  # fmt: skip
    bounds = [(r.range.low, r.range.high, r.range.closed) for r in plan.ranges]
    ends = [(0, 10, False), (10, 20, False), (20, 30, False), (30, 40, True), (50, 60, True)]
    assert bounds == [(bound_of(PARTS, (low,)), bound_of(PARTS, (high,)), closed) for low, high, closed in ends]


def test_offsets_and_visibilities(loaded: Loaded) -> None:
    state = loaded.state
    assert (state.revision, state.epoch) == (12, 5)
    assert exact(state.written) == (SERVER, "binlog", 2, 900, f"{SERVER}:1-40", "f3a9|mysql-8")
    assert state.visible == ((3, VisibleAt(at(300))), (5, VisibleAt(at(700, number=2))))
    assert [exact(visible.position)[4] for _, visible in state.visible] == ["", f"{SERVER}:1-36"]
    assert state.missing == (
        LoggedTransaction(f"{SERVER}:37", at(760, number=2)),
        LoggedTransaction(f"{SERVER}:39", at(820, number=2)),
    )
    assert state.changed == at(880, number=2)


def test_vnodes_in_every_phase(loaded: Loaded) -> None:
    first = at(100)
    assert loaded.state.vnodes == (
        VnodeState(
            VnodeId(0), Phase.SNAPSHOT, first, Epoch(5), ((2, Epoch(3)),), 9, None, frozenset({4}), at(450, number=2)
        ),
        VnodeState(VnodeId(1), Phase.CATCH_UP, first, Epoch(5), ((0, Epoch(3)), (1, Epoch(5))), 19, Epoch(5)),
        VnodeState(VnodeId(2), Phase.PENDING, first, Epoch(0)),
        VnodeState(VnodeId(3), Phase.LIVE, at(700, number=2), Epoch(5), (), 0, Epoch(0)),
    )
    assert loaded.state.assignment == (VnodeBitmap.of([0, 3], 4), VnodeBitmap.of([1, 2], 4))
    assert (loaded.state.plan_generation, loaded.state.assignment_generation) == (1, 2)


def test_intent_in_progress(loaded: Loaded) -> None:
    visible = VisibleGtids(GtidSet.parse(f"{SERVER}:1-47:49-52"))
    intent = Intent(Epoch(6), BarrierKind.CHECKPOINT, at(1200, number=2), visible, ((4,), (3,)), 1)
    assert loaded.state.intent == intent
    assert exact(loaded.state.intent.written)[4:] == (f"{SERVER}:1-52", "f3a9|mysql-8")


def test_controls_answers_and_failure(loaded: Loaded) -> None:
    state = loaded.state
    assert state.controls == Controls(paused=False, rows_per_second=500)
    assert state.acknowledged == (
        Acknowledgement(1, Epoch(4)),
        Acknowledgement(2, Epoch(5), "9 workers are more than 4 vnodes"),
    )
    assert state.failure == Failure(
        Epoch(6),
        "the source at db:3306 cannot be reached",
        "Connection refused (111)",
        "Check mysql.host and mysql.port.",
    )
    assert (state.stopped, loaded.percent) == (False, 61.26)


def test_requests_and_the_driver(store: StateStore) -> None:
    found = store.status_snapshot()
    assert found is not None
    assert [asked.request for asked in found.asked] == [
        Request(1, RequestKind.RATE_LIMIT, rows_per_second=500),
        Request(2, RequestKind.RESCALE, workers=9),
        Request(3, RequestKind.RESNAPSHOT, vnodes=frozenset({VnodeId(1)}), ordinals=frozenset({0}), extend=True),
        Request(4, RequestKind.RESCALE, assignment=(VnodeBitmap.of([0, 1], 4), VnodeBitmap.of([2, 3], 4))),
    ]
    assert {(asked.who, asked.host, asked.asked_at) for asked in found.asked} == {("anna", "host-1", WRITTEN_AT)}
    assert found.lease is not None
    assert (found.lease.generation, found.lease.owner) == (1, "anna")
    assert found.lease.process == Process("host-1", 4711, "a-machine", "12345")
    assert (found.lease.since, found.lease.expires) == (WRITTEN_AT, WRITTEN_AT + MINUTE)


def test_job_continues_where_it_was(store: StateStore, loaded: Loaded, tmp_path: Path) -> None:
    later = StateStore(str(tmp_path), "half_done", now=lambda: WRITTEN_AT + 2 * MINUTE)
    assert later.acquire_lease("berta", MINUTE).generation == 2
    assert [request.id for request in later.unacknowledged(loaded.state)] == [3, 4]
    following = replace(loaded.state, revision=13, failure=None)
    later.commit(following)
    again = store.load()
    assert again is not None
    assert (again.state, again.plan) == (following, loaded.plan)
