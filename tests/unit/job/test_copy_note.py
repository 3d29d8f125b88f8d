"""`status` and the page say what readers see while a table is copied again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

from progress.store.rows.job_rows import JobRecord
from progress.store.store import Loaded
from tests.unit.decide.coordinated_job import live_job
from vnode_backfill.job.open.renew import IN_PLACE, copy_note

RECORD = cast(JobRecord, SimpleNamespace(created_at=datetime(2026, 3, 1, tzinfo=UTC)))


def loaded(percent: float) -> Loaded:
    state = replace(live_job().state, failure=None)
    return cast(Loaded, SimpleNamespace(state=state, percent=percent))


def test_points_of_the_old_copy_are_gone_where_there_is_one_place() -> None:
    assert copy_note(loaded(100.0), RECORD, "a key", beside=False).readers == IN_PLACE
    assert "removed first" in IN_PLACE


def test_the_old_copy_is_seen_where_the_new_one_is_beside_it() -> None:
    found = copy_note(loaded(100.0), RECORD, "a key", beside=True)
    assert found.readers.startswith("the old copy at ")
