"""A long stretch of a table that is behind the others is read beside them; every other one takes its turn."""

from __future__ import annotations

import pytest

from consume_upstream.log.offset import SHORT_STRETCH_BYTES, CdcOffset
from vnode_backfill.job.tables.shared_log import is_late

FAR = 100 + SHORT_STRETCH_BYTES + 1


def at(pos: int, number: int = 7, era: int = 0) -> CdcOffset:
    return CdcOffset.at("server", f"binlog.{number:06d}", pos, era=era)


@pytest.mark.parametrize(
    ("after", "upto", "others", "late"),
    [
        (at(100), at(FAR), [at(200)], True),
        (at(100), at(200), [at(200)], False),
        (at(100), at(FAR), [at(100)], False),
        (at(100), at(FAR), [], False),
        (at(100, 7), at(4, 8), [at(100, 7), at(4, 8)], True),
        (at(100, era=3), at(FAR, era=3), [at(50, era=1), at(99)], False),
    ],
    ids=["behind and long", "behind and short", "all at one offset", "alone", "over two files", "ahead in a later era"],
)
def test_only_a_long_stretch_behind_another_table_is_late(
    after: CdcOffset, upto: CdcOffset, others: list[CdcOffset], late: bool
) -> None:
    assert is_late(after, upto, [other.in_era(0).order for other in others]) is late
