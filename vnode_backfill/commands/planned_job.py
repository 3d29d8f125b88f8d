"""Shows and drops a job whose first plan is still being made: it has notes of its plans, and no state yet.

A plan that nobody makes any more counts as stopped: the next `run` continues it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

from progress.state.planning import PlanProgress
from progress.state.report import JobPhase, Observed, Report, Subject, TableProgress
from progress.store.planning_notes import PlanningNote
from vnode_backfill.config.job import Config
from vnode_backfill.job.open.locations import planning_notes
from vnode_backfill.job.open.writable import check_state_readable, check_state_writable
from vnode_backfill.job.sink.configured import configured_sink

__all__ = ["drop_plans", "find_planning_report"]


def find_planning_report(config: Config) -> Report | None:
    """The report on a job that has no state yet; None where nothing of it is being planned."""
    check_state_readable(config)
    notes = planning_notes(config)
    found = notes.all()
    if not found:
        return None
    going = [note for note in found if notes.is_going(note)]
    source = f"{len(found)} tables" if config.many else found[0].plan.name
    seen = reduce(PlanProgress.beside, (note.plan.progress for note in found))
    report = Report(
        Subject(config.job, source, configured_sink(config).target),
        JobPhase.PLANNING if going else JobPhase.STOPPED,
        percent=0.0, rows=0, estimated_rows=seen.estimated_rows, ranges=0, ranges_total=0,
        observed=Observed(driver=going[0].planner if going else ""), planning=seen,
    )  # fmt: skip
    return replace(report, tables=tuple(_line(note, going=note in going) for note in found)) if config.many else report


def drop_plans(config: Config, *, say: Callable[[str], None]) -> bool:
    """Remove what was noted of the job's plans; refused while another process makes them. Whether there was any."""
    notes = planning_notes(config)
    found = notes.all()
    if not found:
        return False
    check_state_writable(config)
    notes.check_free()
    for note in found:
        seen = note.plan.progress
        say(f"removing the unfinished plan of {note.plan.name}: {seen.ranges:,} ranges with {seen.rows:,} rows")
    notes.remove_all()
    return True


def _line(note: PlanningNote, *, going: bool) -> TableProgress:
    phase = JobPhase.PLANNING if going else JobPhase.STOPPED
    return TableProgress(note.plan.name, phase=str(phase), estimated_rows=note.plan.facts.estimated_rows)
