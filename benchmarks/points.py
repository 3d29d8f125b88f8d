"""Measures how fast rows become points in IoTDB: the job, beside one process that writes ready data in a loop.

The table has one device per sensor and five measurements, in the order of sensor and time. The loop calls
`insert_tablet` with NumPy arrays that have the client's own layout already, 10,000 rows of one device each: no source,
no conversion, no Spark. Both write to the same server, in turns, each into its own database, once the server has
written out what the other gave it. The points of both are counted afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from iotdb.Session import Session
from iotdb.utils.IoTDBConstants import TSDataType
from iotdb.utils.NumpyTablet import NumpyTablet

from benchmarks.bench import Bench
from benchmarks.process_tree import process_cpu_seconds
from benchmarks.results import Figure, figure
from benchmarks.runs import JobRun, RunFailedError, memory_figures
from devkit.iotdb import Heaps, IotdbServer
from devkit.waiting import wait_for

TABLE, WORKERS, COLUMNS = "readings", 2, 7
_CASE = "iotdb"
_SENSORS, _TABLET_ROWS, _RANGE_ROWS = 20, 10_000, 50_000
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
_IDLE_SECONDS, _PATIENCE_SECONDS = 3.0, 300


@dataclass(frozen=True, slots=True)
class Loop:
    """What writing ready data took; `cpu` is this process's, `target_cpu` that of IoTDB."""

    seconds: float
    cpu: float
    target_cpu: float


def iotdb(bench: Bench) -> list[Figure]:
    """The job with two workers, and the loop, in turns."""
    _create_table(bench)
    jobs: list[JobRun] = []
    jobs_cpu: list[float] = []
    loops: list[Loop] = []
    with IotdbServer(heaps=Heaps(data_node=768, direct=128)) as server:
        _write_ready(server, "warm", min(bench.rows, 50_000))
        for number in range(bench.rounds):
            _settle(server)
            loops.append(_write_ready(server, f"loop{number}", bench.rows))
            _settle(server)
            before = _cpu_seconds(server)
            jobs.append(_copy(bench, server, f"job{number}"))
            jobs_cpu.append(_cpu_seconds(server) - before)
            with _session(server) as session:
                for database in (f"loop{number}", f"job{number}"):
                    _check(session, database, bench.rows)
                    session.execute_non_query_statement(f"DELETE DATABASE root.{database}")
    return [*_speeds(bench.rows * len(_KINDS), jobs, loops), *_costs(jobs, jobs_cpu, loops)]


def _speeds(points: int, jobs: Sequence[JobRun], loops: Sequence[Loop]) -> list[Figure]:
    writing = [_writing_seconds(run) for run in jobs]
    return [
        figure(_CASE, "loop of insert_tablet, one process", [points / loop.seconds for loop in loops], "points/s"),
        figure(_CASE, "job, while it reads and writes", [points / taken for taken in writing], "points/s"),
        figure(_CASE, "job, from its start to live", [points / run.seconds for run in jobs], "points/s"),
        figure(_CASE, "job, whole process", [run.spent.whole_seconds for run in jobs], "s"),
        figure(_CASE, "job against loop, while it reads and writes",
               [loop.seconds / taken for loop, taken in zip(loops, writing, strict=True)], "×", goal=">= 0.5"),
        figure(_CASE, "job against loop, from its start to live",
               [loop.seconds / run.seconds for loop, run in zip(loops, jobs, strict=True)], "×"),
    ]  # fmt: skip


def _costs(jobs: Sequence[JobRun], jobs_cpu: Sequence[float], loops: Sequence[Loop]) -> list[Figure]:
    return [
        figure(_CASE, "loop, CPU of client", [loop.cpu for loop in loops], "CPU-s"),
        figure(_CASE, "loop, CPU of IoTDB", [loop.target_cpu for loop in loops], "CPU-s"),
        figure(_CASE, "job, CPU of driver", [run.spent.cpu.driver for run in jobs], "CPU-s"),
        figure(_CASE, "job, CPU of JVM", [run.spent.cpu.jvm for run in jobs], "CPU-s"),
        figure(_CASE, "job, CPU of workers", [run.spent.cpu.workers for run in jobs], "CPU-s"),
        figure(_CASE, "job, CPU of source", [run.spent.server_cpu for run in jobs], "CPU-s"),
        figure(_CASE, "job, CPU of IoTDB", jobs_cpu, "CPU-s"),
        *memory_figures(_CASE, "job without servers", [run.spent for run in jobs]),
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
    job = bench.job(TABLE, {"sink": {"iotdb": sink}, "workers": WORKERS, "limits": {"range_rows": _RANGE_ROWS}})
    return job.to_live()


def _password(bench: Bench, server: IotdbServer) -> str:
    path = bench.folder / "iotdb-password"
    path.write_text(server.password)
    return str(path)


def _writing_seconds(run: JobRun) -> float:
    """From the first order to read until the receipts of the last range are committed: all that depends on the rows."""
    epochs = [mark.epoch for mark in run.marks if mark.name == "ReadRanges" and mark.ranges]
    return run.at("CommitReceipts", "after", max(epochs)) - run.at("ReadRanges", "before", min(epochs))


def _write_ready(server: IotdbServer, database: str, rows: int) -> Loop:
    """The loop; the data is ready before."""
    tablets = list(_tablets(database, rows))
    with _session(server) as session:
        target, cpu, began = _cpu_seconds(server), time.process_time(), time.monotonic()
        for tablet in tablets:
            session.insert_tablet(tablet)
        return Loop(time.monotonic() - began, time.process_time() - cpu, _cpu_seconds(server) - target)


def _settle(server: IotdbServer) -> None:
    """Let the server write out what it was given, so that nobody pays for what came before."""
    with _session(server) as session:
        session.execute_non_query_statement("FLUSH")
    wait_for(lambda: _is_idle(server), "IoTDB to have nothing left to do", seconds=_PATIENCE_SECONDS)


def _is_idle(server: IotdbServer) -> bool:
    before = _cpu_seconds(server)
    time.sleep(_IDLE_SECONDS)
    return _cpu_seconds(server) - before < _IDLE_SECONDS / 10


def _cpu_seconds(server: IotdbServer) -> float:
    return sum(map(process_cpu_seconds, server.pids))


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
