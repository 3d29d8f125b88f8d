"""Reports on the tables of a job, summed up as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from progress.state.definition_report import DefinitionProgress, StatementProgress
from progress.state.report import JobPhase, Observed, Report, Subject
from progress.state.schema_state import CopyNote
from progress.state.tables_report import grid_of, reason_of, summed_up, vnodes_of_job
from progress.state.target_health import TargetHealth, VectorHealth
from tests.tables_reports import tables_report
from vnode_backfill.words.errors import BackfillError

SUBJECT = Subject("shop", "several tables", "delta:/lake")


def test_rows_are_added_up_and_the_worst_lag_and_age_count() -> None:
    whole = tables_report(12)
    assert whole.rows == sum(part.rows for part in whole.parts.values())
    assert whole.ranges_total == sum(part.ranges_total for part in whole.parts.values())
    assert whole.observed.lake_age_seconds == max(part.observed.lake_age_seconds or 0 for part in whole.parts.values())
    assert (whole.phase, whole.failure) == (JobPhase.SNAPSHOT, None)


def test_every_row_is_that_of_a_shown_worker_while_a_rescale_goes_from_table_to_table() -> None:
    parts = dict(tables_report(3).parts)
    last = parts["shop.table_002"]
    parts["shop.table_002"] = replace(last, workers=tuple(replace(last.workers[0], worker=w, rows=7) for w in range(4)))
    shown = summed_up(SUBJECT, parts, {}, Observed()).workers
    assert len(shown) == 4
    assert sum(each.rows for each in shown) == sum(each.rows for part in parts.values() for each in part.workers)


def test_the_log_is_applied_as_far_as_for_the_table_that_is_least_far() -> None:
    found = tables_report(3).parts
    places = {"shop.table_000": (9, "b:9"), "shop.table_001": (3, "b:3"), "shop.table_002": (5, "b:5")}
    parts = {
        name: replace(part, written="b:9", applied=places[name][1], places=((1, 9), (1, places[name][0])))
        for name, part in found.items()
    }
    whole = summed_up(SUBJECT, parts, {}, Observed())
    assert (whole.written, whole.applied) == ("b:9", "b:3")
    failed = {**parts, "shop.table_001": replace(parts["shop.table_001"], phase=JobPhase.FAILED)}
    assert summed_up(SUBJECT, failed, {}, Observed()).applied == "b:5"
    assert summed_up(SUBJECT, {}, {}, Observed()).applied is None


def test_tables_are_listed_largest_first_and_those_set_aside_last() -> None:
    tables = tables_report(12).tables
    sizes = [table.estimated_rows for table in tables[:-1]]
    assert sizes == sorted(sizes, reverse=True)
    assert (tables[-1].name, tables[-1].phase) == ("shop.audit", "set aside")


def test_table_set_aside_is_in_no_sum_and_says_how_far_it_was() -> None:
    parts = tables_report(3).parts
    whole = summed_up(SUBJECT, parts, {"shop.table_001": "its new copy is refused"}, Observed())
    assert whole.rows == sum(part.rows for name, part in parts.items() if name != "shop.table_001")
    line = whole.tables[-1]
    known = parts["shop.table_001"]
    assert (line.phase, line.error, line.rows, line.applied) == (
        "set aside", "its new copy is refused", known.rows, known.applied,
    )  # fmt: skip


def test_job_is_as_far_as_the_table_that_is_least_far_and_live_beside_a_failed_one() -> None:
    parts = {name: part for name, part in tables_report(6).parts.items() if part.phase is not JobPhase.SNAPSHOT}
    assert {part.phase for part in parts.values()} == {JobPhase.LIVE, JobPhase.FAILED}
    assert summed_up(SUBJECT, parts, {}, Observed()).phase is JobPhase.LIVE
    paused = replace(next(iter(parts.values())), phase=JobPhase.PAUSED)
    assert summed_up(SUBJECT, {**parts, "shop.z": paused}, {}, Observed()).phase is JobPhase.PAUSED


def test_grid_of_a_job_is_that_of_the_vnodes_that_most_tables_have() -> None:
    parts = list(tables_report(4).parts.values())
    other = replace(parts[0], vnodes=parts[0].vnodes[:8])
    assert vnodes_of_job([8, 64, 64]) == 64
    assert vnodes_of_job([64, 8]) == 8
    assert grid_of([other, *parts[1:]]) == grid_of(parts[1:])
    assert grid_of([other]) == other.vnodes
    assert grid_of([]) == ()


def test_reason_is_the_finding_that_refuses_the_table() -> None:
    detail = "\nok  table.engine  InnoDB\nrefused  table.key  it has no key\n   fix: add one"
    assert reason_of(BackfillError("1 of 3 checks refuse it", detail=detail)) == "it has no key"
    assert reason_of(BackfillError("the target is gone", detail="No such folder.")) == "the target is gone"


LARGE = TargetHealth(30, 900, 360, 70, 700, 600, 300, VectorHealth(90, 450))
SMALL = TargetHealth(3, 100, 40, 7, 70, 60, 20)


def reports(*seen: Observed) -> dict[str, Report]:
    """One report per observation, of tables that run."""
    found = list(tables_report(9).parts.items())
    parts = [(name, part) for name, part in found if part.phase is JobPhase.LIVE][: len(seen)]
    return {name: replace(part, observed=each) for (name, part), each in zip(parts, seen, strict=True)}


def summed(parts: Mapping[str, Report]) -> Observed:
    return summed_up(SUBJECT, parts, {}, Observed()).observed


def test_targets_are_added_up_and_each_share_is_weighted() -> None:
    found = summed(reports(Observed(target=LARGE), Observed(target=SMALL), Observed())).target
    assert found == TargetHealth(33, 1000, 400, 77, 770, 660, 320, VectorHealth(90, 450))
    assert (found.vector_share, found.fold_debt_bytes, found.write_amplification) == (90 / 400, 450, 660 / 320)
    without = summed(reports(Observed(target=SMALL), Observed(target=SMALL))).target
    assert without is not None
    assert (without.files, without.vectors, without.vector_share) == (6, None, None)
    assert summed(reports(Observed(), Observed())).target is None


def test_epochs_take_as_long_as_for_the_table_that_is_slowest_which_is_named() -> None:
    parts = reports(Observed(lengthened=2, lengthened_by="its log"), Observed(lengthened=8, lengthened_by="its folds"))
    slowest = list(parts)[1]
    found = summed({name: replace(part, subject=Subject(name, name, "")) for name, part in parts.items()})
    assert (found.lengthened, found.lengthened_by) == (8, f"its folds ({slowest})")
    as_configured = summed(reports(Observed(), Observed()))
    assert (as_configured.lengthened, as_configured.lengthened_by) == (1, "")


def test_table_that_has_ended_or_failed_hides_no_lag_and_no_age() -> None:
    """Its phase may be what it was: it is the driver that is gone."""
    fast = Observed(lag_seconds=1.0, lag_bytes=10, lake_age_seconds=2.0, driver="etl-3")
    gone = Observed(lag_seconds=9e9, lag_bytes=9**9, lake_age_seconds=9e9, lengthened=16, buffer_bytes=7)
    found = summed(reports(fast, gone))
    assert (found.lag_seconds, found.lag_bytes, found.lake_age_seconds, found.lengthened) == (1.0, 10, 2.0, 1)
    assert found.buffer_bytes == 7, "its changes are still there"
    assert summed(reports(replace(fast, driver=""), gone)).lag_bytes == 9**9


def test_statements_of_all_tables_are_one_list_and_each_names_its_table() -> None:
    first, second, third = reports(Observed(), Observed(), Observed())
    notes = {
        first: (note("b.000009:7"), note("b.000010:500")),
        second: tuple(note(f"b.000010:{place}") for place in range(1, 30)),
        third: (),
    }
    parts = reports(Observed(), Observed(), Observed())
    followed = {
        name: replace(
            part, definition=DefinitionProgress(len(notes[name]), 2 if notes[name] else 0, statements=notes[name])
        )
        for name, part in parts.items()
    }
    found = summed_up(SUBJECT, followed, {}, Observed()).definition
    assert found is not None
    assert (found.version, found.in_target, found.ended, found.new_copy) == (31, 4, "", None)
    newest = found.statements[-1]
    assert (newest.offset, newest.table, len(found.statements)) == ("b.000010:500", first, 20)
    assert (found.statements[-2].offset, found.statements[0].offset) == ("b.000010:29", "b.000010:11")
    assert {"table": first, "effect": "followed"}.items() <= newest.to_json().items()
    assert "table" not in note("b.000009:7").to_json()


def test_tables_that_end_or_are_copied_again_or_changed_are_named() -> None:
    first, second, third = reports(Observed(), Observed(), Observed())
    old, new = CopyNote("2026-03-01", "another type", "the old copy"), CopyNote("2026-03-02", "on request", "nothing")
    said = {
        first: DefinitionProgress(1, 0, note("b.000001:4", effect=""), new_copy=new),
        second: DefinitionProgress(ended="dropped at b.000002:4"),
        third: DefinitionProgress(ended="renamed at b.000003:4", new_copy=old),
    }
    parts = {name: replace(part, definition=said[name]) for name, part in reports(*[Observed()] * 3).items()}
    found = summed_up(SUBJECT, parts, {}, Observed()).definition
    assert found is not None
    assert found.ended == f"dropped at b.000002:4 ({second} and 1 more)"
    assert found.new_copy == replace(old, reason=f"another type ({third} and 1 more)")
    assert found.pending == note("b.000001:4", effect="", table=first)
    assert found.to_json()["pending"] == {
        "offset": "b.000001:4",
        "statement": "ALTER TABLE t ADD c INT",
        "table": first,
    }
    assert summed_up(SUBJECT, {}, {}, Observed()).definition is None


def note(offset: str, effect: str = "followed", table: str = "") -> StatementProgress:
    return StatementProgress(offset, "ALTER TABLE t ADD c INT", effect, table)
