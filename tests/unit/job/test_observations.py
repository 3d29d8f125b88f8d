"""The age of the lake is that of the newest change merged, whatever else the source writes. And how long epochs take."""

from __future__ import annotations

from consume_upstream.log.offset import VisibleAt
from progress.state.backfill_state import Intent
from tests.job_reports import offset
from vnode_backfill.job.run.observations import Pace, Seen
from vnode_backfill.words.epoch import BarrierKind, Epoch


def capture(seen: Seen, pos: int, newest: int, *, sampled_at: float = 0.0) -> None:
    """A slice of the log up to `pos` was sampled and buffered; its newest change is of the time `newest`."""
    seen.sampled(offset(1, pos), sampled_at)
    seen.captured(Intent(Epoch(1), BarrierKind.CHECKPOINT, offset(1, pos), VisibleAt(offset(1, pos)), ((),), 0), newest)


def test_it_is_not_known_before_the_first_merge_of_a_run() -> None:
    seen = Seen()
    assert seen.lake_age(offset(1, 10), 1000.0) is None
    capture(seen, 20, 990)
    assert seen.lake_age(offset(1, 10), 1000.0) is None


def test_it_is_the_age_of_the_newest_change_merged_not_of_the_newest_captured() -> None:
    seen = Seen()
    for pos, newest in ((20, 990), (30, 995), (40, 999)):
        capture(seen, pos, newest)
    assert seen.lake_age(offset(1, 30), 1000.0) == 5
    assert seen.lag_seconds(offset(1, 30), 1000.0) == 1
    assert seen.lake_age(offset(1, 35), 1003.0) == 8


def test_it_is_0_when_everything_written_is_merged_however_long_ago_that_was() -> None:
    seen = Seen()
    capture(seen, 20, 990)
    assert seen.lake_age(offset(1, 20), 5000.0) == 0
    seen.sampled(offset(1, 21), 5000.0)
    assert seen.lake_age(offset(1, 20), 5001.0) == 4011


def test_log_of_other_tables_does_not_make_it_old() -> None:
    seen = Seen()
    capture(seen, 20, 990, sampled_at=991.0)
    capture(seen, 30, 0, sampled_at=4999.0)
    seen.sampled(offset(1, 40), 5000.0)
    assert seen.lake_age(offset(1, 30), 5000.0) == 1


def test_a_slice_whose_sample_is_not_known_counts_only_with_a_change() -> None:
    """An epoch that is repeated after a start was sampled by another driver."""
    seen = Seen()
    seen.captured(Intent(Epoch(1), BarrierKind.CHECKPOINT, offset(1, 20), VisibleAt(offset(1, 20)), ((),), 0), 0)
    assert seen.lake_age(offset(1, 20), 1000.0) is None


def test_an_epoch_that_is_lengthened_waits_so_many_times_as_long() -> None:
    pace = Pace(epoch_began=100.0)
    assert pace.rest(2.0, 101.0) == 1.0
    pace.lengthened = 8
    assert pace.rest(2.0, 101.0) == 15.0
