"""A short stretch of the log is read by the driver, also where it goes on in the next file: that alone needs no task."""

from __future__ import annotations

import pytest

from consume_upstream.log.offset import SHORT_STRETCH_BYTES, CdcOffset
from consume_upstream.mysql.positions.held_log import HeldFiles
from consume_upstream.upstream_table import is_read_by_driver
from tests.unit.progress.state.state_examples import at

AFTER = at(100, number=7)
HELD = HeldFiles(((6, 900), (7, 1_100), (8, 5_000), (9, 10)), None)
LONG = HeldFiles(((7, SHORT_STRETCH_BYTES + 90), (8, 5_000)), None)


@pytest.mark.parametrize(
    ("upto", "held", "by_driver"),
    [
        (at(3_000, number=8), HELD, True),
        (at(10, number=8), LONG, True),
        (at(11, number=8), LONG, False),
        (at(10, number=9), HELD, False),
        (at(3_000, number=8), None, False),
        (at(3_000, number=8), HeldFiles(((8, 5_000),), None), False),
        (at(200, number=7).in_era(1), HELD, False),
    ],
    ids=["the next file", "just short", "a byte longer", "one more file", "not known", "gone", "another log"],
)
def test_stretch_that_goes_on_in_the_next_file_is_read_by_the_driver_where_it_is_short(
    upto: CdcOffset, held: HeldFiles | None, by_driver: bool
) -> None:
    assert is_read_by_driver(AFTER, upto, lambda: held) is by_driver


@pytest.mark.parametrize(("length", "by_driver"), [(SHORT_STRETCH_BYTES, True), (SHORT_STRETCH_BYTES + 1, False)])
def test_the_source_is_not_asked_about_one_file(length: int, by_driver: bool) -> None:
    def asked() -> None:
        raise AssertionError("the source was asked")

    assert is_read_by_driver(AFTER, at(100 + length, number=7), asked) is by_driver
