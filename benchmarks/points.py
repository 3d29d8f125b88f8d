"""How fast rows become points in IoTDB: the job from MySQL through Spark, beside one process that writes ready data in a loop.

The table has one device per sensor and five measurements, in the order of sensor and time. The loop calls `insert_tablet` with NumPy
arrays that are in the client's own layout already, 10,000 rows of one device each: no source, no conversion, no Spark. Both
write to the same server, in turns, into databases of their own, and both are counted afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from iotdb.Session import Session
from iotdb.utils.IoTDBConstants import TSDataType
from iotdb.utils.NumpyTablet import NumpyTablet

from benchmarks.bench import Bench
from benchmarks.results import Figure, figure
from benchmarks.runs import JobRun, RunFailedError
from devkit.iotdb import Heaps, IotdbServer

TABLE, WORKERS = "readings", 2
_SENSORS, _TABLET_ROWS = 20, 10_000
_KINDS = (TSDataType.INT32, TSDataType.INT64, TSDataType.FLOAT, TSDataType.DOUBLE, TSDataType.INT32)
_NAMES = ["level", "total", "temperature", "pressure", "state"]
_CREATE = """
CREATE TABLE {table} (
    sensor INT NOT NULL, at BIGINT NOT NULL, level INT NOT NULL, total BIGINT NOT NULL, temperature FLOAT NOT NULL,
    pressure DOUBLE NOT NULL, state TINYINT NOT NULL, PRIMARY KEY (sensor, at))"""
_FILL = """
INSERT INTO {table}
SELECT n DIV {each}, 1700000000000 + (n % {each}) * 100, n % 1000, n * 4294967291, n / 7, n / 3e0, n % 5
FROM (SELECT seq AS n FROM seq_{first}_to_{last}) numbers"""
_FILL_ROWS = 100_000


def iotdb(bench: Bench) -> list[Figure]:
    """The job with two workers, and the loop, in turns."""
    _create_table(bench)
    case, points = "iotdb", bench.rows * len(_KINDS)
    jobs: list[JobRun] = []
    loops: list[float] = []
    with IotdbServer(heaps=Heaps(data_node=768, direct=128)) as server:
        _write_ready(server, "warm", min(bench.rows, 50_000))
        for number in range(bench.rounds):
            loops.append(_write_ready(server, f"loop{number}", bench.rows))
            jobs.append(_copy(bench, server, f"job{number}"))
            with _session(server) as session:
                for database in (f"loop{number}", f"job{number}"):
                    _check(session, database, bench.rows)
                    session.execute_non_query_statement(f"DELETE DATABASE root.{database}")
    writing = [_writing_seconds(run) for run in jobs]
    return [
        figure(case, "loop of insert_tablet, one process", [points / taken for taken in loops], "points/s"),
        figure(case, "job, while it reads and writes", [points / taken for taken in writing], "points/s"),
        figure(case, "job, from its start to live", [points / run.seconds for run in jobs], "points/s"),
        figure(case, "job against loop, while it reads and writes",
               [loop / taken for loop, taken in zip(loops, writing, strict=True)], "×", goal=">= 0.5"),
        figure(case, "job against loop, from its start to live",
               [loop / run.seconds for loop, run in zip(loops, jobs, strict=True)], "×"),
    ]  # fmt: skip


def _create_table(bench: Bench) -> None:
    each = -(-bench.rows // _SENSORS)
    bench.source.execute(_CREATE.format(table=TABLE))
    for first in range(0, bench.rows, _FILL_ROWS):
        last = min(first + _FILL_ROWS, bench.rows) - 1
        bench.source.execute(_FILL.format(table=TABLE, each=each, first=first, last=last))
    bench.source.execute(f"ANALYZE TABLE {TABLE}")


def _copy(bench: Bench, server: IotdbServer, database: str) -> JobRun:
    sink = {
        "host": server.host, "port": server.port, "device": f"root.{database}.s{{sensor}}",
        "time": {"column": "at", "unit": "ms"}, "password_file": str(_password(bench, server)),
    }  # fmt: skip
    job = bench.job(TABLE, {"sink": {"iotdb": sink}, "workers": WORKERS, "limits": {"range_rows": _TABLET_ROWS}})
    return job.to_live()


def _password(bench: Bench, server: IotdbServer) -> str:
    path = bench.folder / "iotdb-password"
    path.write_text(server.password)
    return str(path)


def _writing_seconds(run: JobRun) -> float:
    """From the first order to read until the receipts of the last range are committed: all that depends on the rows."""
    epochs = [mark.epoch for mark in run.marks if mark.name == "ReadRanges" and mark.ranges]
    return run.at("CommitReceipts", "after", max(epochs)) - run.at("ReadRanges", "before", min(epochs))


def _write_ready(server: IotdbServer, database: str, rows: int) -> float:
    """Seconds that the loop takes; the data is ready before."""
    tablets = list(_tablets(database, rows))
    with _session(server) as session:
        began = time.monotonic()
        for tablet in tablets:
            session.insert_tablet(tablet)
        return time.monotonic() - began


def _tablets(database: str, rows: int) -> Iterator[NumpyTablet]:
    each = -(-rows // _SENSORS)
    for start in range(0, rows, each):
        for first in range(start, min(start + each, rows), _TABLET_ROWS):
            n = np.arange(first, min(first + _TABLET_ROWS, start + each, rows), dtype=np.int64)
            columns = [n % 1000, n * 4294967291, n / 7, n / 3, n % 5]
            values = [column.astype(kind.np_dtype()) for column, kind in zip(columns, _KINDS, strict=True)]
            times = (1_700_000_000_000 + (n % each) * 100).astype(">i8")
            yield NumpyTablet(f"root.{database}.s{start // each}", _NAMES, list(_KINDS), values, times)


def _check(session: Session, database: str, rows: int) -> None:
    answer = session.execute_query_statement(f"SELECT COUNT(total) FROM root.{database}.*")
    found = sum(int(str(field.value)) for field in answer.next().get_fields())
    answer.close_operation_handle()
    if found != rows:
        raise RunFailedError(f"root.{database} holds {found} points of `total`, the table has {rows} rows")


@contextmanager
def _session(server: IotdbServer) -> Iterator[Session]:
    session = server.session()
    try:
        yield session
    finally:
        session.close()
