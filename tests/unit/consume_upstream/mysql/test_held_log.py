"""The files that the server lists show how much of the log is held, and how far capture is behind."""

from __future__ import annotations

from consume_upstream.log.offset import CdcOffset
from consume_upstream.mysql.positions.held_log import HeldFiles
from progress.faces.alerts import RETENTION_UNKNOWN, Retention
from vnode_backfill.job.run.observations import Seen

HELD = HeldFiles(((7, 1000), (8, 500), (9, 40)), kept_seconds=3600.0)


def at(number: int, pos: int) -> CdcOffset:
    return CdcOffset("server", "binlog", number, pos)


def test_bytes_before_and_behind_a_point_are_summed_over_files() -> None:
    assert HELD.bytes_before(at(8, 100)) == 1100
    assert HELD.bytes_after(at(8, 100)) == 440
    assert HELD.bytes_before(at(9, 40)) == 1540
    assert HELD.bytes_after(at(9, 40)) == 0


def test_point_that_was_purged_has_less_than_nothing_before_it() -> None:
    assert HELD.bytes_before(at(6, 900)) < 0
    assert HELD.bytes_after(at(6, 900)) == 1540


def test_point_behind_a_list_that_has_become_old_has_nothing_behind_it() -> None:
    assert HELD.bytes_after(at(9, 90)) == 0
    assert HELD.bytes_after(at(10, 4)) == 0


def test_lag_in_bytes_is_known_across_files_once_the_source_was_looked_at() -> None:
    seen = Seen(written=at(9, 30))
    assert seen.lag_bytes(at(8, 100)) is None
    seen.held_log = HELD
    assert seen.lag_bytes(at(8, 100)) == 440
    assert seen.lag_bytes(at(9, 10)) == 30


def test_lag_in_seconds_is_not_zero_while_the_log_is_known_to_have_moved_on() -> None:
    seen = Seen(newest=100, written=at(9, 10))
    assert seen.lag_seconds(at(9, 10), now=107.0) == 0.0
    seen.held_log = HELD
    assert seen.lag_seconds(at(9, 10), now=107.0) == 7.0


def test_retention_tells_bytes_held_behind_capture_and_seconds_kept() -> None:
    assert Seen().retention(at(8, 100)) == RETENTION_UNKNOWN
    assert Seen(held_log=HELD).retention(at(8, 100)) == Retention(1100, 3600.0)
