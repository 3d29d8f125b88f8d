"""Tables that are opened together ask the server once, over connections that are kept, of the server that was found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import pytest
from pymysql.connections import Connection

from consume_upstream.log.identity import LogIdentity
from consume_upstream.log.offset import CdcOffset
from consume_upstream.log.source_log import LogFile, SourceLog
from consume_upstream.mysql import opened_together
from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.kept_connections import KeptConnections
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.opened_together import OpenedTogether
from consume_upstream.mysql.positions import start
from consume_upstream.mysql.server import ServerIdentity
from vnode_backfill.words.errors import SourceError, SourceLostError

SERVER = ServerIdentity("mariadb", (10, 11, 0), "server-id-1")
TABLE = cast(KnownTable, SimpleNamespace(identity=SERVER))


class Line:
    """A connection that counts how often it is asked for a sign of life."""

    host, port = "here", 3306

    def __init__(self) -> None:
        self.open, self.asked, self.answers = True, 0, True

    def ping(self, *, reconnect: bool) -> None:
        assert not reconnect
        self.asked += 1
        if not self.answers:
            self.open = False
            raise OSError("gone")

    def close(self) -> None:
        self.open = False


def kept(opened: list[Line], trusted_for: float) -> KeptConnections:
    def connect() -> Connection:
        opened.append(Line())
        return cast(Connection, opened[-1])

    return KeptConnections(connect, trusted_for=trusted_for)


@pytest.mark.parametrize(("trusted_for", "asked"), [(0.0, 2), (60.0, 0)])
def test_a_connection_is_used_again(trusted_for: float, asked: int) -> None:
    opened: list[Line] = []
    lines = kept(opened, trusted_for)
    for _ in range(3):
        with lines.lent():
            pass
    assert [line.asked for line in opened] == [asked]
    lines.close()
    assert not opened[0].open


def test_a_connection_that_failed_or_is_gone_is_not_used_again() -> None:
    opened: list[Line] = []
    lines = kept(opened, 0.0)
    with pytest.raises(SourceLostError), lines.lent():
        raise SourceLostError("lost")
    assert not opened[0].open
    with lines.lent():
        pass
    opened[1].answers = False
    with lines.lent():
        pass
    assert len(opened) == 3


def test_one_that_failed_makes_the_others_doubtful() -> None:
    opened: list[Line] = []
    lines = kept(opened, 60.0)
    with lines.lent(), lines.lent():
        pass
    opened[0].answers = opened[1].answers = False
    with pytest.raises(SourceLostError), lines.lent():
        raise SourceLostError("lost")
    with lines.lent() as after:
        assert after is cast(Connection, opened[2])


def test_two_that_are_lent_at_one_time_are_two() -> None:
    opened: list[Line] = []
    lines = kept(opened, 60.0)
    with lines.lent() as one, lines.lent() as other:
        assert one is not other
    with lines.lent():
        lines.close()
    assert [line.open for line in opened] == [False, False]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of a server that has written up to 100 when it is asked for the first time, then up to 200."""
    found: list[str] = []

    def read(_table: KnownTable, *, with_time: bool) -> SourceLog:
        found.append(f"log {with_time}")
        newest = CdcOffset.at(SERVER.server, "binlog.000001", 100 * len(found))
        return SourceLog(SERVER.server, (LogFile("binlog.000001", newest.pos),), newest, datetime.now(UTC), "")

    def file_now(_table: KnownTable, _files: object, stored: CdcOffset) -> str:
        found.append(f"file {stored.file}")
        return f"{len(found)}"

    monkeypatch.setattr(start, "read_source_log", read)
    monkeypatch.setattr(start, "file_now", file_now)
    return found


def at(pos: int) -> CdcOffset:
    identity = LogIdentity(began=1794886447, server_id=28130, events=16, digest=7)
    return replace(CdcOffset.at(SERVER.server, "binlog.000001", pos), log=str(identity))


def test_the_log_is_asked_for_once(asked: list[str]) -> None:
    together = OpenedTogether(SourceAddress("here", 3306, "me"))
    logs = [together.source_log(TABLE, with_time=False, stored=None) for _ in range(3)]
    stored = [together.source_log(TABLE, with_time=False, stored=at(pos)) for pos in (50, 60)]
    assert asked == ["log False", "file binlog.000001"]
    assert {log.newest.pos for log in (*logs, *stored)} == {100}
    assert [log.file_now for log in (*logs, *stored)] == ["", "", "", "2", "2"]
    together.source_log(TABLE, with_time=True, stored=None)
    assert asked[2:] == ["log True"]


def test_the_log_is_asked_for_again_where_an_offset_is_beyond_what_is_known(asked: list[str]) -> None:
    """Else the offset would count as lost, and the job would be refused."""
    together = OpenedTogether(SourceAddress("here", 3306, "me"))
    together.source_log(TABLE, with_time=False, stored=at(50))
    assert together.source_log(TABLE, with_time=False, stored=at(101)).newest.pos >= 101


def test_the_log_is_asked_for_again_where_an_offset_is_of_another_server(asked: list[str]) -> None:
    """A replica that is still carrying transactions out is further by now. What is old would count as a failure."""
    together = OpenedTogether(SourceAddress("here", 3306, "me"))
    for _ in range(2):
        together.source_log(TABLE, with_time=False, stored=replace(at(50), server="server-id-2"))
    assert [each for each in asked if each.startswith("log")] == ["log False"] * 2


def test_the_log_is_asked_for_again_after_something_went_wrong(asked: list[str]) -> None:
    together = OpenedTogether(SourceAddress("here", 3306, "me"))
    together.source_log(TABLE, with_time=False, stored=at(50))
    together.forget()
    together.source_log(TABLE, with_time=False, stored=at(50))
    assert asked == ["log False", "file binlog.000001"] * 2


def test_the_log_is_asked_for_again_once_what_is_known_is_old(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of opening may plan large tables for hours, and the server purges its log meanwhile."""
    together, clock = OpenedTogether(SourceAddress("here", 3306, "me")), SimpleNamespace(now=0.0)
    monkeypatch.setattr(opened_together, "time", SimpleNamespace(monotonic=lambda: clock.now))
    for clock.now in (1000.0, 1029.0, 1031.0):
        together.source_log(TABLE, with_time=False, stored=at(50))
    assert asked == ["log False", "file binlog.000001"] * 2


def test_an_offset_without_identity_says_nothing_of_one_that_has_it(asked: list[str]) -> None:
    together = OpenedTogether(SourceAddress("here", 3306, "me"))
    of_an_earlier_release = together.source_log(TABLE, with_time=False, stored=replace(at(50), log=""))
    assert of_an_earlier_release.file_now == ""
    begins = replace(at(50), log=str(LogIdentity(began=1794886447, server_id=28130)))
    assert together.source_log(TABLE, with_time=False, stored=begins).file_now == "2"


def test_every_connection_is_to_the_server_that_was_found_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names, opened = iter(["server-id-1", "server-id-1", "server-id-2"]), list[Line]()

    def connect(_address: SourceAddress) -> Line:
        opened.append(Line())
        return opened[-1]

    def check(_connection: Connection, identity: ServerIdentity) -> None:
        if next(names) != identity.server:
            raise SourceError("another server answers")

    monkeypatch.setattr(opened_together, "connect", connect)
    monkeypatch.setattr(opened_together, "identify", lambda _: replace(SERVER, server=next(names)))
    monkeypatch.setattr(opened_together, "check_server", check)
    together = OpenedTogether(SourceAddress("here", 3306, "me"))
    assert together.identity().server == "server-id-1"
    with together.lent(), together.lent(), pytest.raises(SourceError, match="another server"), together.lent():
        pass
    assert [line.open for line in opened] == [True, True, False]
    together.close()
