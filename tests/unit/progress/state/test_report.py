"""Proves that what is shown of a job never goes backwards and says what the job is doing."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consume_upstream.log.statement import FoundStatement
from progress.state.backfill_state import Acknowledgement, BackfillState, Controls, Failure, Phase, Request, RequestKind
from progress.state.estimates import Estimates, left_of
from progress.state.make_report import percent_of, phase_of, report_of
from progress.state.report import AskedRequest, JobPhase, Observed, RateWindow, Retry, Subject
from progress.state.schema_state import CopyNote, DefinitionVersion, SchemaState
from progress.state.target_health import TargetHealth, VectorHealth
from tests.unit.progress.state.state_examples import DEFINITION, at, beginning, plan_with
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.schema_change import TableShape

PLAN = plan_with(*range(0, 61, 10), vnode_count=4, rows=50)
ESTIMATES = Estimates.of(PLAN)
SUBJECT = Subject("orders", "shop.orders", "delta:/lake/orders")
WHEN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def after_reading(*read: tuple[int, int]) -> BackfillState:
    """Ranges by ordinal, read with so many rows each."""
    rows = dict(read)
    state = beginning(PLAN, workers=2)
    vnodes = []
    for vnode in state.vnodes:
        planned = [r.ordinal for r in PLAN.of_vnode(vnode.vnode)]
        mine = [ordinal for ordinal in planned if ordinal in rows]
        done = len(mine) == len(planned)
        vnodes.append(
            replace(
                vnode,
                reads=tuple((ordinal, Epoch(1)) for ordinal in mine),
                rows=sum(rows[ordinal] for ordinal in mine),
                complete=Epoch(1) if done else None,
                phase=Phase.CATCH_UP if done else Phase.SNAPSHOT if mine else Phase.PENDING,
            )
        )
    return replace(state, vnodes=tuple(vnodes))


def live() -> BackfillState:
    state = after_reading(*((ordinal, 50) for ordinal in range(6)))
    return replace(state, vnodes=tuple(replace(v, phase=Phase.LIVE) for v in state.vnodes))


@settings(deadline=None)
@given(st.permutations(range(6)), st.lists(st.integers(0, 500), min_size=6, max_size=6))
def test_percent_rises_with_every_range_whatever_it_holds(order: list[int], rows: list[int]) -> None:
    read = list(zip(order, rows, strict=True))
    shown = [percent_of(ESTIMATES, after_reading(*read[:done])) for done in range(7)]
    assert shown == sorted(shown)
    assert shown[0] == 0
    assert shown[-1] <= 99.99


@settings(deadline=None)
@given(st.sets(st.integers(0, 5)))
def test_what_is_left_is_the_same_whether_vnodes_are_known_or_not(read: set[int]) -> None:
    state = after_reading(*((ordinal, 7) for ordinal in read))
    assert (
        left_of(ESTIMATES, state) == left_of(Estimates(ESTIMATES.rows), state) == (50 * (6 - len(read)), 6 - len(read))
    )


def test_percent_is_a_hundred_only_when_the_table_is_live_at_one_offset() -> None:
    assert percent_of(ESTIMATES, live()) == 100
    uneven = replace(live(), vnodes=(replace(live().vnodes[0], applied=at(101)), *live().vnodes[1:]))
    assert percent_of(ESTIMATES, uneven) == 99.99


def test_percent_does_not_fall_when_something_is_read_again() -> None:
    assert percent_of(ESTIMATES, after_reading((0, 50)), at_least=100.0) == 100
    more = Estimates({**ESTIMATES.rows, 6: 1000})
    assert percent_of(more, after_reading((0, 50)), at_least=40.0) == 40


def test_empty_table_is_read_from_the_beginning() -> None:
    empty = plan_with()
    assert percent_of(Estimates.of(empty), beginning(empty)) == 98


def test_estimate_of_what_is_read_gives_way_to_what_it_held() -> None:
    report = report_of(SUBJECT, ESTIMATES, after_reading((0, 10), (1, 500)))
    assert (report.rows, report.estimated_rows) == (510, 510 + 4 * 50)
    assert (report.ranges, report.ranges_total) == (2, 6)


@pytest.mark.parametrize(
    ("state", "running", "phase"),
    [
        (after_reading(), True, JobPhase.SNAPSHOT),
        (replace(after_reading(), controls=Controls(paused=True)), True, JobPhase.PAUSED),
        (replace(after_reading(), controls=Controls(rows_per_second=0)), True, JobPhase.PAUSED),
        (replace(live(), controls=Controls(paused=True)), True, JobPhase.LIVE),
        (after_reading(*((n, 1) for n in range(6))), True, JobPhase.CATCH_UP),
        (live(), True, JobPhase.LIVE),
        (replace(live(), stopped=True), False, JobPhase.STOPPED),
        (replace(live(), stopped=True), True, JobPhase.LIVE),
        (replace(live(), failure=Failure(Epoch(1), "disk full")), False, JobPhase.FAILED),
        (replace(live(), failure=Failure(Epoch(1), "disk full")), True, JobPhase.LIVE),
    ],
)
def test_phase_says_what_the_job_is_doing(state: BackfillState, running: bool, phase: JobPhase) -> None:
    assert phase_of(state, running=running) is phase


def test_job_without_a_state_is_being_planned() -> None:
    report = report_of(SUBJECT, ESTIMATES, None)
    assert (report.phase, report.percent, report.estimated_rows) == (JobPhase.PLANNING, 0, 300)


def test_remaining_time_follows_from_the_rate() -> None:
    reading = after_reading((0, 50))
    assert report_of(SUBJECT, ESTIMATES, reading, Observed(rows_per_second=25)).eta_seconds == 10
    assert report_of(SUBJECT, ESTIMATES, reading, Observed(rows_per_second=0)).eta_seconds is None
    assert report_of(SUBJECT, ESTIMATES, reading).eta_seconds is None
    paused = replace(reading, controls=Controls(paused=True))
    assert report_of(SUBJECT, ESTIMATES, paused, Observed(rows_per_second=25)).eta_seconds is None
    assert report_of(SUBJECT, ESTIMATES, live()).eta_seconds == 0


def test_rate_is_taken_over_the_window_only() -> None:
    assert RateWindow().add(0, 5).rows_per_second is None
    window = RateWindow(seconds=10)
    for second, rows in [(0, 0), (5, 1000), (12, 1700), (15, 2000)]:
        window = window.add(second, rows)
    assert [rows for _, rows in window.samples] == [1000, 1700, 2000]
    assert window.rows_per_second == 100


def test_repeated_epoch_is_no_negative_rate() -> None:
    window = RateWindow().add(0, 500).add(1, 100).add(1, 900).add(2, 500)
    assert window.rows_per_second == 0


def test_vnodes_and_workers_are_listed_with_their_share() -> None:
    state = after_reading(*((ordinal, 10) for ordinal in range(6)))
    report = report_of(SUBJECT, ESTIMATES, state)
    assert [(w.worker, w.bitmap, w.vnodes) for w in report.workers] == [(0, "0-1", 2), (1, "2-3", 2)]
    assert sum(w.rows for w in report.workers) == 60
    assert [v.worker for v in report.vnodes] == [0, 0, 1, 1]
    assert {v.applied for v in report.vnodes} == {"binlog.000001:100"}
    assert report.phases == {Phase.CATCH_UP: 4}


def test_requests_show_who_asked_and_what_became_of_them() -> None:
    asked = tuple(
        AskedRequest(Request(number, kind), "ben", "desk", WHEN)
        for number, kind in ((8, RequestKind.RESCALE), (9, RequestKind.PAUSE))
    )
    state = replace(live(), acknowledged=(Acknowledgement(7, Epoch(3)), Acknowledgement(8, Epoch(4), "too many")))
    shown = report_of(SUBJECT, ESTIMATES, state, Observed(asked=asked)).requests
    assert [(r.id, r.kind, r.who, r.epoch, r.refused) for r in shown] == [
        (7, "", "", 3, ""),
        (8, "rescale", "ben", 4, "too many"),
        (9, "pause", "ben", None, ""),
    ]


def test_a_failed_job_does_not_say_that_it_tries_again() -> None:
    state = replace(live(), failure=Failure(Epoch(1), "the table was changed"))
    tried = Observed(driver="anna", retry=Retry(1, "the table was changed"))
    assert report_of(SUBJECT, ESTIMATES, state, tried).observed.retry == tried.retry
    ended = report_of(SUBJECT, ESTIMATES, state, replace(tried, driver=""))
    assert (ended.phase, ended.observed.retry) == (JobPhase.FAILED, None)


def test_statements_are_shown_with_what_became_of_them() -> None:
    found = [FoundStatement(at(pos), at(pos + 10), text) for pos, text in ((150, "CREATE INDEX"), (200, "ALTER" * 200))]
    added = DefinitionVersion(1, at(200), at(210), Epoch(3), found[1].text, TableShape(DEFINITION))
    schema = SchemaState().noted(found[0], "none").with_version(added).noted(found[1], "the columns follow")
    shown = json.loads(report_of(SUBJECT, ESTIMATES, replace(live(), schema=schema)).to_json())["definition"]
    assert (shown["version"], shown["in_target"], shown["ended"]) == (1, 0, "")
    assert shown["pending"]["offset"] == "binlog.000001:200"
    assert shown["pending"]["statement"].endswith("ALTER …")
    assert [(each["offset"], each["effect"]) for each in shown["statements"]] == [
        ("binlog.000001:150", "none"),
        ("binlog.000001:200", "the columns follow"),
    ]


def test_new_copy_is_reported_until_it_is_live() -> None:
    copy = CopyNote("2026-03-01T12:00:00+00:00", "another type", "the old copy at x", "x", "ALTER " + "y" * 600)
    begun = replace(beginning(PLAN), schema=SchemaState(copy=copy))
    found = report_of(SUBJECT, ESTIMATES, begun).definition
    assert found is not None
    assert found.new_copy is not None
    assert (found.new_copy.offset, len(found.new_copy.statement)) == ("x", 502)
    whole = report_of(SUBJECT, ESTIMATES, begun, at_least=100.0).definition
    assert whole is not None
    assert whole.new_copy is None


def test_json_has_the_documented_keys() -> None:
    observed = Observed(
        rows_per_second=12.34567,
        lag_seconds=float("inf"),
        lag_bytes=7,
        driver="anna",
        retry=Retry(2, "source lost"),
        asked=(AskedRequest(Request(1, RequestKind.STOP), "ben", "desk", WHEN),),
    )
    state = replace(after_reading((0, 50)), failure=Failure(Epoch(1), "disk full", hint="make room"))
    text = report_of(SUBJECT, ESTIMATES, state, observed).to_json()
    shown = json.loads(text)
    assert "\n" not in text
    documented = (
        "version job source sink phase percent rows estimated_rows ranges ranges_total rows_per_second eta_seconds "
        "lag_seconds lag_bytes buffer_bytes lake_age_seconds target lengthened rate_limit paused throttled_by epoch "
        "revision written applied definition driver phases workers requests failure retry in_hand planning"
    )
    assert list(shown) == documented.split()
    assert (shown["version"], shown["phase"], shown["rows_per_second"]) == (1, "snapshot", 12.346)
    assert (shown["lag_seconds"], shown["lag_bytes"], shown["buffer_bytes"]) == (None, 7, None)
    assert shown["failure"] == {"epoch": 1, "message": "disk full", "detail": "", "hint": "make room"}
    assert shown["requests"][0]["asked_at"] == "2026-03-01T12:00:00+00:00"
    assert sum(shown["phases"].values()) == 4
    assert list(shown["phases"]) == ["pending", "snapshot", "catch-up", "live"]


def test_json_tells_the_shape_of_the_target_and_why_epochs_take_longer() -> None:
    health = TargetHealth(3, 100, 40, 7, 70, 60, 20, VectorHealth(10, 50))
    seen = Observed(lake_age_seconds=2.34567, target=health, lengthened=4, lengthened_by="its log grows")
    shown = json.loads(report_of(SUBJECT, ESTIMATES, live(), seen).to_json())
    assert shown["lake_age_seconds"] == 2.346
    assert shown["target"] == {
        "files": 3, "bytes": 100, "rows": 40, "gone_rows": 10, "vector_share": 0.25, "fold_debt_bytes": 50,
        "log_bytes": 7, "written_bytes": 60, "changed_bytes": 20, "write_amplification": 3.0,
    }  # fmt: skip
    assert shown["lengthened"] == {"factor": 4, "reason": "its log grows"}
    without = replace(seen, target=replace(health, vectors=None, changed_bytes=0), lengthened=1)
    shown = json.loads(report_of(SUBJECT, ESTIMATES, live(), without).to_json())
    unknown = ("gone_rows", "vector_share", "fold_debt_bytes", "write_amplification")
    assert [shown["target"][name] for name in unknown] == [None] * 4
    assert shown["lengthened"] is None


def test_vnodes_are_in_the_json_only_if_asked_for() -> None:
    report = report_of(SUBJECT, ESTIMATES, live())
    assert "vnodes" not in json.loads(report.to_json())
    vnodes = json.loads(report.to_json(per_vnode=True))["vnodes"]
    assert list(vnodes[0]) == ["vnode", "phase", "rows", "epoch", "worker", "applied"]
    assert len(vnodes) == 4
