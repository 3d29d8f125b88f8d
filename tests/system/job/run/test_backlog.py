"""A job that was stopped for long takes the log in slices, is killed in the middle of them, and ends as an exact copy."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from devkit.orders import create_orders_table
from devkit.waiting import wait_for
from progress.state.report import JobPhase
from tests.system.job_case import DEADLINE, JobCase, execute, fetch
from vnode_backfill.decide.protocol import Action, BufferChanges, MergeEpoch
from vnode_backfill.job.run import order_threads

ROWS, ROUNDS = 4_000, 48
SMALL = {"limits": {"log_memory": "4MB", "backoff": "100ms", "max_backoff": "1s"}}
"""A slice is a quarter of it."""
SLICE = 1024 * 1024
COLUMNS = "big, name, amount, created, doc, state, score, flag, day"


@pytest.fixture
def case(source_server: SqlServer, database: str, tmp_path: Path) -> JobCase:
    with source_server.connect() as connection:
        create_orders_table(connection, ROWS, 8, database=database)
    return JobCase(source_server, tmp_path, database, settings=dict(SMALL))


def change(case: JobCase, first: int, rounds: int) -> None:
    """Insert, update, delete and move rows, old ones and those of the same backlog, in four transactions a round."""
    for number in range(first, first + rounds):
        part = f"id % {ROUNDS} = {number % ROUNDS}"
        execute(
            case.server, case.database,
            f"INSERT INTO orders ({COLUMNS}) SELECT {COLUMNS} FROM orders WHERE id <= 600",
            f"UPDATE orders SET amount = amount + {number}, name = 'round {number}' WHERE id % 7 = {number % 7} LIMIT 500",
            f"DELETE FROM orders WHERE {part} AND id > 600 LIMIT 200",
            f"UPDATE orders SET id = -id WHERE {part} AND id > 600 LIMIT 20",
        )  # fmt: skip


def log_bytes(case: JobCase) -> int:
    return sum(int(str(row[1])) for row in fetch(case.server, None, "SHOW BINARY LOGS"))


@pytest.mark.timeout(1800)
def test_backlog_of_many_slices_survives_kills(case: JobCase) -> None:
    case.to_live()
    before = log_bytes(case)
    change(case, 0, ROUNDS // 2)
    execute(case.server, None, "FLUSH BINARY LOGS")
    change(case, ROUNDS // 2, ROUNDS // 2)
    backlog, epoch = log_bytes(case) - before, case.report().epoch
    assert backlog > 8 * SLICE
    for seam in ("after:BufferChanges:3", "before:CommitEpoch:2", "after:MergeEpoch:2", "after:CommitEpoch"):
        case.run("--until", "live", kill=seam)
        change(case, 0, 1)
    case.to_live()
    assert case.report().epoch >= epoch + 8
    assert case.differences() == []


def test_a_stop_in_the_middle_of_a_backlog_ends_at_the_end_of_a_slice(case: JobCase) -> None:
    """A driver that was given a moment to stop leaves the rest of the log to the next one."""
    case.to_live()
    change(case, 0, ROUNDS)
    epoch, end = case.report().epoch, logged_up_to(case)
    with case.started("run") as driver:
        wait_for(lambda: case.report().epoch > epoch, "the first slice", seconds=DEADLINE)
        driver.send(signal.SIGTERM)
        driver.wait(0)
    stopped = case.report()
    assert stopped.phase is JobPhase.STOPPED
    assert stopped.written == stopped.applied != end
    case.to_live()
    assert case.report().applied == end
    assert case.differences() == []


def logged_up_to(case: JobCase) -> str:
    file, position, *_ = fetch(case.server, None, "SHOW MASTER STATUS")[0]
    return f"{file}:{position}"


class Orders:
    """What was captured and merged, in the order in which it began."""

    def __init__(self) -> None:
        self.captured: list[tuple[tuple[int, int], tuple[int, int]]] = []
        self.merged: list[tuple[int, int]] = []

    def __call__(self, moment: str, action: Action) -> None:
        if moment == "before" and isinstance(action, BufferChanges):
            self.captured.append((action.after.order, action.intent.written.order))
        if moment == "before" and isinstance(action, MergeEpoch):
            self.merged.append(action.upto.order)


def test_one_slice_is_merged_in_the_epoch_that_captures_the_next(
    case: JobCase, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert case.here(spark).run() is None
    change(case, 0, 24)
    orders = Orders()
    monkeypatch.setattr(order_threads, "seam", orders)
    assert case.here(spark).run() is None
    long = [(after, upto) for after, upto in orders.captured if after[0] == upto[0] and upto[1] - after[1] >= SLICE]
    assert len(long) >= 3
    assert all(upto[1] - after[1] < 2 * SLICE for after, upto in long)
    assert {upto for _, upto in long[:-1]} <= set(orders.merged)
    assert [after for after, _ in orders.captured[1:]] == [upto for _, upto in orders.captured[:-1]]
    assert case.differences() == []
