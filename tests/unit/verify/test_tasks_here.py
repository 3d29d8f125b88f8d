"""Tasks of a comparison run without Spark: in threads, or in processes that end with the one that asks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from consume_upstream.mysql.rows.value_forms import SameForms
from devkit.spark import REPOSITORY
from devkit.waiting import wait_for
from tests.tables import ORDERS, batch, order, plan
from vnode_backfill.delta.storage import Storage
from vnode_backfill.verify.delta_version import TargetView, open_target
from vnode_backfill.verify.groups import placement_of, stretches_of
from vnode_backfill.verify.tasks import SourceSums, TargetSums, TaskRunner, combined, tell_sums
from vnode_backfill.verify.tasks_here import TasksHere
from vnode_backfill.words.errors import ActorError, SinkError

ROWS = pa.Table.from_batches([batch(ORDERS, [order(number) for number in range(1, 41)])])
PLACEMENT = placement_of(ORDERS, stretches_of(plan(ORDERS, (10,), (20,), (30,))), 0)
NO_SOURCE: list[SourceSums] = []


@pytest.fixture
def view(tmp_path: Path) -> TargetView:
    """Forty rows in four files."""
    schema = pa.schema([field.with_nullable(True) for field in ORDERS.arrow_schema])
    for first in (0, 10, 20, 30):
        write_deltalake(tmp_path, ROWS.slice(first, 10).cast(schema), mode="append")
    return open_target(ORDERS, Storage.of(str(tmp_path)), SameForms())


@pytest.fixture
def apart() -> Iterator[TasksHere]:
    """Every target counts as large."""
    with TasksHere(2, large_rows=1) as tasks:
        yield tasks


def sums(tasks: TaskRunner, view: TargetView, lanes: int = 2) -> list[object]:
    asked = [TargetSums(files, PLACEMENT) for files in view.lanes(lanes)]
    _, found = tasks.run(tell_sums, NO_SOURCE, asked)
    whole = combined(found)
    return [whole.groups.tolist(), whole.rows.tolist(), whole.sums.tolist()]


def children() -> set[int]:
    """The processes that read for this one, whichever of its threads has started them."""
    found: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int(process.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"reader_process" in process.joinpath("cmdline").read_bytes():
                found.add(int(process.name))
    return found


def test_processes_and_threads_find_the_same_sums(view: TargetView, apart: TasksHere) -> None:
    with TasksHere() as tasks:
        expected = sums(tasks, view)
        assert children() == set()
    assert expected[:2] == [[0, 1, 2, 3], [9, 10, 11, 10]]
    assert sums(apart, view) == expected


def test_processes_are_used_again_and_end_with_the_block(view: TargetView) -> None:
    with TasksHere(2, large_rows=1) as tasks:
        sums(tasks, view)
        started = children()
        sums(tasks, view)
        assert (len(started), children()) == (2, started)
    assert children() == set()


@pytest.mark.parametrize("large_rows", [1, 1000])
def test_error_of_a_task_comes_with_its_detail(view: TargetView, tmp_path: Path, large_rows: int) -> None:
    for file in view.files:
        (tmp_path / file.path).write_bytes(b"no parquet")
    with TasksHere(2, large_rows=large_rows) as tasks, pytest.raises(SinkError, match="of the target cannot be read"):
        sums(tasks, view)


def test_killed_process_is_an_error_that_says_so(view: TargetView) -> None:
    with TasksHere(1, large_rows=1) as tasks:
        sums(tasks, view, lanes=1)
        (reader,) = children()
        os.kill(reader, signal.SIGKILL)
        with pytest.raises(ActorError, match="a process that read the target has ended") as raised:
            sums(tasks, view, lanes=1)
        assert raised.value.detail == "It ended with -9."
        assert sums(tasks, view, lanes=1)[0] == [0, 1, 2, 3], "another process takes its place"


def test_processes_end_when_the_one_that_asks_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from vnode_backfill.verify.tasks_here import _Reader; reader = _Reader();"
        "print(reader.ask(len, ()), reader._process.pid, flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    driver = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    answer, reader = driver.stdout.readline().split()
    assert answer == "0"
    driver.kill()
    driver.wait()
    wait_for(lambda: not _runs(int(reader)), "the reader to end", seconds=60)


def test_processes_end_in_the_middle_of_a_task_when_the_one_that_asks_is_killed() -> None:
    program = (
        "import sys, threading, time; from vnode_backfill.verify.tasks_here import _Reader; reader = _Reader();"
        "threading.Thread(target=reader.ask, args=(time.sleep, 600), daemon=True).start();"
        "print(reader._process.pid, flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    driver = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    reader = int(driver.stdout.readline())
    wait_for(lambda: _threads(reader) > 1, "the reader to begin", seconds=60)
    driver.kill()
    driver.wait()
    wait_for(lambda: not _runs(reader), "the reader to end", seconds=60)


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_no_more_processes_than_allowed_read_for_tables_side_by_side(view: TargetView) -> None:
    with TasksHere(1, large_rows=1) as tasks:
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda _: sums(tasks, view), range(3)))
        assert len(children()) == 1
    assert found == [found[0]] * 3


def _runs(pid: int) -> bool:
    try:
        return b"reader_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_large_target_is_divided_among_processes_and_a_small_one_is_not() -> None:
    tasks = TasksHere(8)
    assert [tasks.lanes(rows) for rows in (0, 1_999_999, 2_000_000, 3_500_000, 10**9)] == [2, 2, 2, 3, 8]


def test_comparing_on_this_machine_loads_no_spark() -> None:
    program = (
        "import sys; import vnode_backfill.commands.verify, vnode_backfill.verify.table;"
        "import vnode_backfill.verify.tasks_here, vnode_backfill.job.open.source;"
        "print(sorted({'pyspark', 'py4j', 'pandas'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout
