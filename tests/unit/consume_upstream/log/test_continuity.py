"""A log that was reset or lost transactions is distinguished from one that has grown."""

from __future__ import annotations

import pytest

from consume_upstream.log.continuity import check_log_goes_on
from consume_upstream.log.offset import CdcOffset
from vnode_backfill.words.errors import SourceError

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def at(number: int, pos: int, gtids: str = "") -> CdcOffset:
    return CdcOffset("server", "binlog", number, pos, gtids=gtids)


@pytest.mark.parametrize(
    ("read", "newest"),
    [
        (at(3, 100), at(3, 100)),
        (at(3, 100), at(4, 4)),
        (at(3, 100, f"{UUID}:1-7"), at(3, 200, f"{UUID}:1-9")),
        (at(3, 100, "0-1-7"), at(3, 200, "0-1-9,1-1-2")),
        (at(3, 100, "0-1-7"), at(3, 200, "0-2-3")),
        (at(3, 100), at(3, 200, "0-1-9")),
    ],
)
def test_a_log_that_has_grown_is_the_same(read: CdcOffset, newest: CdcOffset) -> None:
    check_log_goes_on(read, newest)


@pytest.mark.parametrize(
    ("read", "newest"),
    [
        (at(3, 100), at(3, 99)),
        (at(3, 100), at(1, 5000)),
        (at(3, 100, f"{UUID}:1-7"), at(3, 200, f"{UUID}:1-6")),
        (at(3, 100, f"{UUID}:1-7"), at(3, 200)),
        (at(3, 100, "0-1-7"), at(3, 200, "0-1-6")),
        (at(3, 100, "0-1-7"), at(3, 200)),
        (at(3, 100, "0-1-7,1-1-1"), at(3, 200, "0-1-9")),
    ],
)
def test_a_log_that_lacks_what_was_read_is_another(read: CdcOffset, newest: CdcOffset) -> None:
    with pytest.raises(SourceError, match=r"read up to binlog\.000003:100 and now ends at") as raised:
        check_log_goes_on(read, newest)
    assert "resnapshot --all" in raised.value.hint
