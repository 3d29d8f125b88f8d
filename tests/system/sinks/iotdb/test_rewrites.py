"""Points that are written where others were deleted are still there when the server was killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devkit.iotdb import IotdbServer
from tests.system.sinks.iotdb.iotdb_case import READINGS, Change, IotdbCase, TableCase, reading
from tests.tables import Row
from vnode_backfill.sinks.iotdb.preflight import inspect_iotdb
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import SinkUnavailableError
from vnode_backfill.words.finding import Level

pytestmark = pytest.mark.long

INSERT, UPDATE, DELETE = ChangeOp
BEFORE = (reading(1, 5), reading(2, 6), reading(3, 7, 1.0, "x"))
EMPTYING: tuple[Change, ...] = (
    (DELETE, BEFORE[0], None),
    (UPDATE, BEFORE[2], reading(3, 7, 1.0, None)),
)
FILLING: tuple[Change, ...] = (
    (INSERT, None, reading(4, 5, 4.0)),
    (UPDATE, BEFORE[1], reading(2, 8)),
    (INSERT, None, reading(5, 6, 5.0)),
    (UPDATE, reading(3, 7, 1.0, None), reading(3, 7, 1.0, "y")),
)
AFTER: list[Row] = [reading(2, 8), reading(3, 7, 1.0, "y"), reading(4, 5, 4.0), reading(5, 6, 5.0)]


@pytest.fixture(scope="module")
def server() -> Iterator[IotdbServer]:
    with IotdbServer() as server:
        yield server


class Death:
    """A lease check at whose call number `call`, counted from `armed` on, the server is killed and started again."""

    def __init__(self, server: IotdbServer, call: int) -> None:
        self._server, self._left = server, call
        self.armed = False

    @property
    def met(self) -> bool:
        return self._left <= 0

    def __call__(self) -> None:
        if self.armed:
            self._left -= 1
            if self._left == 0:
                self._server.kill()
                self._server.start()


def repeated(action: Callable[[], None]) -> None:
    """As the job does it: an epoch that failed for a passing reason is done again."""
    for _ in range(5):
        try:
            return action()
        except SinkUnavailableError:
            continue
    raise AssertionError("the server came back, but the epoch does not end")


@pytest.mark.parametrize("made", [IotdbCase, TableCase], ids=["tree", "table"])
@pytest.mark.parametrize("driver", ["same", "next"])
def test_slots_that_merges_emptied_and_filled_survive(
    server: IotdbServer, tmp_path: Path, driver: str, made: type[IotdbCase]
) -> None:
    case = made(server, tmp_path)
    sink = case.sink()
    case.append(sink, *BEFORE)
    case.apply(sink, *EMPTYING, epoch=2)
    case.apply(sink if driver == "same" else case.sink(), *FILLING, epoch=3)
    server.kill()
    server.start()
    assert case.rows() == AFTER


def test_slots_that_a_merge_emptied_and_a_read_filled_survive(server: IotdbServer, tmp_path: Path) -> None:
    case = IotdbCase(server, tmp_path)
    sink = case.sink()
    case.append(sink, *BEFORE)
    case.apply(sink, (DELETE, BEFORE[0], None), (DELETE, BEFORE[1], None), epoch=2)
    case.append(sink, reading(11, 5), reading(12, 6), epoch=3, ordinal=1)
    again = case.read(sink, 0, reading(3, 9), epoch=4)
    sink.commit_reads(Epoch(4), [], [again], case.plan())
    back = case.read(sink, 0, BEFORE[2], epoch=5)
    sink.commit_reads(Epoch(5), [], [back], case.plan())
    server.kill()
    server.start()
    assert case.rows() == [reading(11, 5), reading(12, 6), BEFORE[2]]


@pytest.mark.parametrize("call", [1, 4])
def test_a_server_killed_while_it_is_written_to_loses_nothing(server: IotdbServer, tmp_path: Path, call: int) -> None:
    death = Death(server, call)
    case = IotdbCase(server, tmp_path, lease=death)
    # Small calls, so that it can die between two of them.
    sink = case.sink(tablet_rows=1)
    case.append(sink, *BEFORE)
    case.apply(sink, *EMPTYING, epoch=2)
    death.armed = True
    repeated(lambda: case.apply(sink, *FILLING, epoch=3))
    assert death.met
    server.kill()
    server.start()
    assert case.rows() == AFTER


def test_an_account_that_may_not_flush_is_reported(
    server: IotdbServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    case = IotdbCase(server, tmp_path)
    session = server.session()
    session.execute_non_query_statement(f"CREATE USER writer1 '{server.password}'")
    session.execute_non_query_statement(f"CREATE DATABASE root.{case.database}")
    session.execute_non_query_statement("GRANT WRITE_DATA, WRITE_SCHEMA ON root.** TO USER writer1")
    session.close()
    sink = case.sink(user="writer1")
    case.append(sink, *BEFORE)
    assert "the account may not flush" in caplog.text
    assert case.rows() == sorted(BEFORE)
    found = {each.check: each.level for each in inspect_iotdb(case.config(user="writer1"), READINGS, server.password)}
    assert found["iotdb.account"] is Level.WARNING
