"""Small files are joined and old ones swept, while a job writes, and through a kill -9; no row ever changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from devkit.mysql import MySqlServer
from devkit.spark import REPOSITORY
from devkit.waiting import wait_for
from progress.state.backfill_state import Phase
from tests.system.live_job import live_job, writing
from tests.system.sinks.delta.overtaking import Meanwhile, staged
from tests.tables import ORDERS, Change, Row, batch, change_table, in_order, order, plan, stored
from tests.unit.progress.state.state_examples import beginning, plan_with
from vnode_backfill.commands.compact import compact, join_all
from vnode_backfill.config.job import Config, MergeMode
from vnode_backfill.job.run.upkeep import Upkeep
from vnode_backfill.sinks.changes import MemoryChanges, stage
from vnode_backfill.sinks.delta import compactor, rewrite
from vnode_backfill.sinks.delta.compaction import Compacted, CompactionPolicy
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.change import OFFSET_COLUMNS, ChangeOp
from vnode_backfill.words.epoch import Epoch

pytestmark = pytest.mark.long

INSERT, UPDATE, DELETE = ChangeOp
TARGET_SIZE = 20_000
"""About eight of the files that `fill` makes."""
EAGER = CompactionPolicy.on_request(TARGET_SIZE)


def sink_at(folder: Path) -> DeltaSink:
    return DeltaSink(str(folder / "target"), ORDERS, "job", target_file_size=TARGET_SIZE, retention=timedelta(hours=1))


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    """A table of 40 ranges of ten keys each, in 40 files."""
    made = sink_at(tmp_path)
    made.prepare()
    fill(made)
    return made


@pytest.fixture(params=MergeMode)
def any_sink(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaSink:
    """The same table, changed in either way; a sink that is made later does as the table says."""
    DeltaSink(str(tmp_path / "target"), ORDERS, "job", creates=request.param, target_file_size=TARGET_SIZE).prepare()
    made = sink_at(tmp_path)
    made.prepare()
    fill(made)
    assert made.has_vectors == (request.param is MergeMode.VECTORS)
    return made


def fill(sink: DeltaSink, ranges: int = 40) -> None:
    receipts = [
        sink.writer().write(Epoch(1), n, 0, [batch(ORDERS, [order(n * 10 + k) for k in range(10)])])
        for n in range(ranges)
    ]
    sink.commit_reads(Epoch(1), receipts, [], RANGES)


RANGES = plan(ORDERS, *((n * 10,) for n in range(41)))


def changes(*wanted: Change) -> MemoryChanges:
    table = change_table(ORDERS, wanted).drop_columns(list(OFFSET_COLUMNS))
    return MemoryChanges(table, ORDERS.key)


def bounds(folder: Path) -> list[tuple[int, int]]:
    actions = pa.table(DeltaTable(folder / "target").get_add_actions(flatten=True))
    return sorted(zip(actions["min.id"].to_pylist(), actions["max.id"].to_pylist(), strict=True))


def test_neighbours_become_few_files_in_key_order_with_the_same_rows(sink: DeltaSink, tmp_path: Path) -> None:
    before = stored(tmp_path / "target")
    done = sink.compact(EAGER)
    assert done is not None
    assert (done.removed, done.added, done.left) == (40, len(bounds(tmp_path)), 0)
    assert stored(tmp_path / "target") == before
    found = bounds(tmp_path)
    assert 1 < len(found) < 10
    assert all(high < low for (_, high), (low, _) in pairwise(found))


def test_readers_of_changes_see_none(sink: DeltaSink, tmp_path: Path) -> None:
    sink.compact(EAGER)
    newest = max((tmp_path / "target" / "_delta_log").glob("*.json"))
    entries = [json.loads(line) for line in newest.read_text().splitlines()]
    told = [entry[kind]["dataChange"] for entry in entries for kind in ("add", "remove") if kind in entry]
    assert len(told) > 40
    assert not any(told)


def test_a_step_is_bounded_and_the_rest_is_reported(sink: DeltaSink, tmp_path: Path) -> None:
    before = stored(tmp_path / "target")
    done = sink.compact(replace(EAGER, step_bytes=1))
    assert done is not None
    assert done.left == 40 - done.removed > 0
    assert stored(tmp_path / "target") == before


@pytest.mark.parametrize("worth_it", [True, False])
def test_files_that_were_rewritten_meanwhile_are_left_out_of_a_join_or_a_large_one_is_given_up(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worth_it: bool
) -> None:
    if not worth_it:
        monkeypatch.setattr(compactor, "BRIEF_BYTES", 0)
    wanted = changes((UPDATE, 1, order(5, "new")), (DELETE, 2, order(17)))
    done = sink.compact(EAGER, Meanwhile(lambda: sink_at(tmp_path).apply(Epoch(2), wanted)))
    assert done is not None
    assert done.removed == 38 if worth_it else 0 < done.removed < 38
    assert done.left == done.overtaken == 40 - done.removed
    expected = [order(n, "new" if n == 5 else "a") for n in range(400) if n != 17]
    assert stored(tmp_path / "target") == in_order(expected)


def test_a_join_is_kept_when_only_other_files_changed_meanwhile(sink: DeltaSink, tmp_path: Path) -> None:
    wanted = changes((INSERT, 1, order(1000)))
    done = sink.compact(EAGER, Meanwhile(lambda: sink_at(tmp_path).apply(Epoch(2), wanted)))
    assert done is not None
    assert done.removed == 40
    assert stored(tmp_path / "target") == in_order([*(order(n) for n in range(400)), order(1000)])


def test_a_merge_overtaken_by_a_compaction_is_exact(
    any_sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "REWRITE_IN_TASKS_BYTES", -1)
    wanted = staged(any_sink, (UPDATE, 1, order(5, "new")), (DELETE, 2, order(17)), (INSERT, 3, order(500)))
    joined: list[Compacted | None] = []
    any_sink.apply(Epoch(2), wanted, Meanwhile(lambda: joined.append(sink_at(tmp_path).compact(EAGER))))
    assert [each.removed for each in joined if each is not None] == [40]
    expected = [order(n, "new" if n == 5 else "a") for n in range(400) if n != 17] + [order(500)]
    assert stored(tmp_path / "target") == in_order(expected)
    any_sink.apply(Epoch(2), wanted)
    assert stored(tmp_path / "target") == in_order(expected)


def test_a_replaced_range_overtaken_by_a_compaction_is_exact(any_sink: DeltaSink, tmp_path: Path) -> None:
    again = any_sink.writer().write(Epoch(2), 3, 0, [batch(ORDERS, [order(33, "new")])])
    looks: list[int] = []

    def compacting(columns: Sequence[pa.Array]) -> None:
        looks.append(1)
        if len(looks) == 1:
            sink_at(tmp_path).compact(EAGER)

    any_sink.commit_reads(Epoch(2), [], [again], RANGES, compacting)
    expected = [order(n) for n in range(400) if not 30 <= n < 40] + [order(33, "new")]
    assert stored(tmp_path / "target") == in_order(expected)
    assert len(looks) > 1


def test_rows_survive_merges_and_compactions_at_the_same_time(any_sink: DeltaSink, tmp_path: Path) -> None:
    random = Random(11)
    model = {n: order(n) for n in range(400)}
    ended = threading.Event()
    failures: list[BaseException] = []

    def compacting() -> None:
        other = sink_at(tmp_path)
        try:
            while not ended.is_set():
                other.compact(EAGER)
        except BaseException as error:  # noqa: BLE001 - raised by the test itself
            failures.append(error)

    thread = threading.Thread(target=compacting)
    thread.start()
    try:
        for epoch in range(2, 25):
            any_sink.apply(Epoch(epoch), changes(*_random_changes(random, model, epoch)))
    finally:
        ended.set()
        thread.join()
    assert failures == []
    assert stored(tmp_path / "target") == in_order(model.values())


def _random_changes(random: Random, model: dict[int, Row], epoch: int) -> list[Change]:
    wanted: list[Change] = []
    for pos, key in enumerate(random.sample(range(600), 12)):
        if key in model and random.random() < 0.4:
            wanted.append((DELETE, pos, model.pop(key)))
        else:
            model[key] = order(key, f"e{epoch}")
            wanted.append((UPDATE, pos, model[key]))
    return wanted


_COMPACT_FOREVER = """
import sys
from pathlib import Path
from tests.system.sinks.delta.test_compaction import EAGER, sink_at

sink = sink_at(Path(sys.argv[1]))
while True:
    sink.compact(EAGER)
"""


def test_a_killed_compaction_leaves_nothing_half_visible(any_sink: DeltaSink, tmp_path: Path) -> None:
    any_sink.apply(Epoch(2), changes(*((DELETE, n, order(n)) for n in range(0, 400, 20))))
    before = stored(tmp_path / "target")
    process = subprocess.Popen(
        [sys.executable, "-c", _COMPACT_FOREVER, str(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    try:
        wait_for(lambda: any((tmp_path / "target").glob("compacted-*")), "a file is being joined")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert stored(tmp_path / "target") == before
    while any_sink.compact(EAGER) is not None:
        assert stored(tmp_path / "target") == before
    assert len(bounds(tmp_path)) == 1


def test_nothing_younger_than_the_retention_is_swept(sink: DeltaSink, tmp_path: Path) -> None:
    sink.writer().write(Epoch(2), 41, 0, [batch(ORDERS, [order(1000)])])
    stage(sink.staging, 0, change_table(ORDERS, [(INSERT, 1, order(1))]), ORDERS.key)
    sink.compact(EAGER)
    assert sink.sweep() == []


def test_uncommitted_and_staged_files_are_swept_after_a_day_whatever_the_retention(
    sink: DeltaSink, tmp_path: Path
) -> None:
    (orphan,) = sink.writer().write(Epoch(2), 41, 0, [batch(ORDERS, [order(1000)])]).files
    staged = stage(sink.staging, 0, change_table(ORDERS, [(INSERT, 1, order(1))]), ORDERS.key)
    assert staged is not None
    paths = [tmp_path / "target" / path for path in (orphan.path, staged.path)]
    _age(paths, hours=20)
    assert sink.sweep() == []
    _age(paths, hours=5)
    # While no later epoch has landed, its file may still be committed.
    sink.apply(Epoch(3), changes((UPDATE, 1, order(5))))
    assert sorted(map(os.path.basename, sink.sweep())) == sorted(path.name for path in paths)
    assert stored(tmp_path / "target") == in_order(order(n) for n in range(400))


def _age(paths: Sequence[Path], *, hours: int) -> None:
    for path in paths:
        before = path.stat().st_mtime - hours * 3600
        os.utime(path, (before, before))


def test_superseded_files_are_swept_after_the_retention(sink: DeltaSink, tmp_path: Path) -> None:
    sink.compact(EAGER)
    newest = max((tmp_path / "target" / "_delta_log").glob("*.json"))
    entries = [json.loads(line) for line in newest.read_text().splitlines()]
    for entry in entries:
        if "remove" in entry:
            entry["remove"]["deletionTimestamp"] -= 2 * 3600 * 1000
    newest.write_text("\n".join(map(json.dumps, entries)))
    assert len(sink.sweep()) == 40
    assert stored(tmp_path / "target") == in_order(order(n) for n in range(400))


def test_a_compaction_that_must_not_continue_is_given_up_at_once(sink: DeltaSink, tmp_path: Path) -> None:
    looks: list[int] = []

    def goes_on() -> bool:
        looks.append(1)
        return len(looks) < 5

    done = sink.compact(EAGER, goes_on=goes_on)
    assert done is not None
    assert (done.removed, done.left) == (0, 40)
    assert len(bounds(tmp_path)) == 40


def test_a_merge_overtaken_by_a_compaction_of_other_files_keeps_what_it_has_written(
    any_sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "REWRITE_IN_TASKS_BYTES", -1)
    joined: list[Compacted | None] = []
    run = Meanwhile(lambda: joined.append(sink_at(tmp_path).compact(replace(EAGER, step_bytes=1))))
    any_sink.apply(Epoch(2), staged(any_sink, (UPDATE, 1, order(395, "new")), (INSERT, 3, order(500))), run)
    expected = [order(n, "new" if n == 395 else "a") for n in range(400)] + [order(500)]
    assert stored(tmp_path / "target") == in_order(expected)
    assert [each.added for each in joined if each is not None] == [1]
    # One file and all new rows at first, and then no file: the changed one is still there.
    assert run.asked == [1, 1, 0]
    assert len(list((tmp_path / "target").glob("e2-*"))) == (1 if any_sink.has_vectors else 2)


def test_a_merge_overtaken_by_a_compaction_of_some_of_its_files_looks_at_the_joined_ones_only(
    any_sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "REWRITE_IN_TASKS_BYTES", -1)
    wanted = [(UPDATE, key, order(key, "new")) for key in range(5, 400, 10)]
    joined: list[Compacted | None] = []
    run = Meanwhile(lambda: joined.append(sink_at(tmp_path).compact(replace(EAGER, step_bytes=1))))
    any_sink.apply(Epoch(2), staged(any_sink, *wanted, (INSERT, 500, order(500))), run)
    expected = [order(n, "new" if n % 10 == 5 else "a") for n in range(400)] + [order(500)]
    assert stored(tmp_path / "target") == in_order(expected)
    assert [each.added for each in joined if each is not None] == [1]
    # 40 files and all new rows at first, and then the one that was joined of some of them.
    assert run.asked == [40, 1, 1]
    assert len(list((tmp_path / "target").glob("e2-*"))) == (1 if any_sink.has_vectors else 42)


def test_a_job_joins_when_it_goes_live_and_then_only_above_its_limit(sink: DeltaSink, tmp_path: Path) -> None:
    state = beginning(plan_with(0, 10))
    live = replace(state, vnodes=tuple(replace(v, phase=Phase.LIVE, complete=Epoch(1)) for v in state.vnodes))
    clock = [0.0]
    upkeep = Upkeep(sink, _config(tmp_path), lambda: clock[0])
    assert upkeep.maybe_compact(state) is None
    went_live = upkeep.maybe_compact(live)
    assert went_live is not None
    assert went_live.removed == 40
    for epoch in range(2, 12):
        sink.apply(Epoch(epoch), changes((INSERT, 1, order(1000 + epoch))))
        assert upkeep.maybe_compact(replace(live, revision=epoch)) is None
    for epoch in range(12, 40):
        sink.apply(Epoch(epoch), changes((INSERT, 1, order(1000 + epoch))))
    assert upkeep.maybe_compact(replace(live, revision=11)) is None
    assert upkeep.maybe_compact(replace(live, revision=39)) is not None


@dataclass
class MergeMeanwhile:
    """Lets a step continue; the merge of an epoch that changes every file begins while its files are being joined."""

    sink: DeltaSink
    epoch: Epoch
    looks: int = 0

    def __call__(self) -> bool:
        self.looks += 1
        if self.looks == 2:
            wanted = changes(*((UPDATE, n, order(n, "new")) for n in range(0, 400, 5)))
            merge = threading.Thread(target=self.sink.apply, args=(self.epoch, wanted))
            merge.start()
            merge.join(timeout=2)
        return True


def test_a_job_whose_changes_are_faster_than_a_join_joins_while_they_wait(sink: DeltaSink, tmp_path: Path) -> None:
    state = beginning(plan_with(0, 10))
    live = replace(state, vnodes=tuple(replace(v, phase=Phase.LIVE, complete=Epoch(1)) for v in state.vnodes))
    upkeep = Upkeep(sink, _config(tmp_path, small_files=1000))
    steps = [upkeep.maybe_compact(live, MergeMeanwhile(sink, Epoch(epoch))) for epoch in (2, 3)]
    assert [step.removed for step in steps if step is not None] == [0, 40]
    wait_for(lambda: sink.merged(Epoch(3)), "the merge that waited")
    assert stored(tmp_path / "target") == in_order(order(n, "new" if n % 5 == 0 else "a") for n in range(400))


def test_a_request_comes_to_its_end_beside_a_job_that_changes_files_and_makes_new_ones_all_the_time(
    sink: DeltaSink, tmp_path: Path
) -> None:
    ended, random, epochs = threading.Event(), Random(3), 0

    def write() -> None:
        nonlocal epochs
        other = sink_at(tmp_path)
        while not ended.is_set():
            epochs += 1
            key, new = 10 * random.randrange(40), 400 + epochs
            other.apply(Epoch(epochs + 1), changes((UPDATE, 1, order(key, "new")), (INSERT, 2, order(new))))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        tally = join_all(sink, CompactionPolicy.on_request(10 * TARGET_SIZE))
    finally:
        ended.set()
        writer.join()
    assert tally.removed >= 40
    assert {row[0] for row in stored(tmp_path / "target")} == set(range(401 + epochs)) - {400}


def _config(folder: Path, small_files: int = 20) -> Config:
    return Config.model_validate(
        {
            "job": "case",
            "mysql": {"host": "h", "user": "u", "database": "d", "table": "t"},
            "sink": {
                "delta": {
                    "path": str(folder / "target"),
                    "target_file_size": "20KB",
                    "compact_small_files": small_files,
                }
            },
            "state": {"path": str(folder / "state")},
        }
    )


def test_a_live_job_stays_exact_while_its_target_is_compacted_from_outside(
    spark: SparkSession, mysql_server: MySqlServer, tmp_path: Path
) -> None:
    said: list[str] = []
    with live_job(spark, mysql_server, tmp_path, settings={"sink": _sink(tmp_path)}) as job:
        job.start()
        with writing(job):
            job.until(lambda: bool(job.case.lake.exists() and bounds_exist(job.case.lake)), "the first rows")
            while not job.is_live:
                compact(job.config, say=said.append)
            for _ in range(5):
                compact(job.config, say=said.append)
        job.stop()
        assert compact(job.config, say=said.append) == 0
        job.assert_equal()
    assert any("joined" in line for line in said), said


def bounds_exist(lake: Path) -> bool:
    return (lake / "_delta_log").exists() and len(DeltaTable(lake).file_uris()) > 4


def _sink(folder: Path) -> dict[str, object]:
    return {"delta": {"path": str(folder / "lake"), "target_file_size": "200KB", "compact_small_files": 0}}
