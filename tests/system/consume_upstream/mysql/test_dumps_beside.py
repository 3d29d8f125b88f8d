"""Finding where a job begins ends no dump that is at work: of a reader, or of another table that is being opened."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.table import MySqlTable
from devkit.mysql import SqlServer
from tests.system.job_case import execute

ROWS = 24
"""Of a megabyte each: more than a server sends ahead of a reader that does not read on."""


@pytest.fixture
def table(source_server: SqlServer, database: str) -> MySqlTable:
    execute(source_server, database, "CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
    address = SourceAddress(source_server.host, source_server.port, source_server.user, "")
    return MySqlTable.open(address, database, "t")


def test_a_beginning_is_looked_for_beside_a_reader_of_the_log(
    table: MySqlTable, source_server: SqlServer, database: str
) -> None:
    after = table.written_offset()
    for number in range(ROWS):
        execute(source_server, database, f"INSERT INTO t VALUES ({number}, REPEAT('x', 1000000))")
    upto, log = table.written_offset(), table.source_log(with_time=True)
    reading = table.read_log(after, upto, reader=0)
    read = len(next(reading))
    with ThreadPoolExecutor(max_workers=4) as pool:
        found = list(pool.map(lambda _: table.position_at_time(datetime(2100, 1, 1, tzinfo=UTC), log), range(4)))
    assert {offset.order for offset in found} == {log.newest.order}
    assert table.boundary_fault(upto, log) == ""
    assert read + sum(len(batch) for batch in reading) == ROWS
