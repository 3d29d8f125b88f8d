"""A target is turned over by `upgrade`, both ways, without a JVM; whatever was interrupted is continued."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError

from devkit.lake import read_lake
from progress.store.rows.job_rows import JobRecord
from progress.store.store import StateStore
from tests.tables import Change, Row, batch, change_table, in_order, plan, stored, table_of
from tests.unit.progress.state.state_examples import beginning
from tests.unit.progress.store.state_folder import Clock, record
from vnode_backfill.commands.cli import execute
from vnode_backfill.commands.upgrade import Renewing
from vnode_backfill.config.job import MergeMode
from vnode_backfill.job.open.sink import fitted_record
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.change import OFFSET_COLUMNS, ChangeOp
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import FencedError, LawBrokenError, SinkError

NOTES = table_of({"id": "bigint", "name": "varchar(20)"}, "id")
PLAN = plan(NOTES, (0,), (100,), (200,), (300,))
INSERT, UPDATE, DELETE = ChangeOp


def note(number: int, name: str = "old") -> Row:
    return (number, name)


KEPT = [note(number) for number in range(300) if number not in (1, 2, 101, 102)]
ROWS = in_order([*KEPT, note(1, "new"), note(101, "new"), note(400)])


@dataclass
class Job:
    """A stopped job whose table has rows in three files, two of which have lost some."""

    folder: Path
    record: JobRecord
    epoch: int = 1

    @property
    def config(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def table(self) -> Path:
        return self.folder / "lake"

    def configure(self, **delta: object) -> None:
        settings = {
            "job": "orders",
            "mysql": {"host": "nowhere.invalid", "user": "u", "database": "shop", "table": "orders"},
            "sink": {"delta": {"path": str(self.table), **delta}},
            "state": {"path": str(self.folder / "state")},
            "vnodes": PLAN.vnode_count,
            "workers": 1,
        }
        self.config.write_text(json.dumps(settings))

    def store(self) -> StateStore:
        return StateStore(str(self.folder / "state"), "orders")

    def stored_record(self) -> JobRecord:
        loaded = self.store().load()
        assert loaded is not None
        return loaded.record

    def sink(self, mode: MergeMode = MergeMode.VECTORS, generation: int = 0) -> DeltaSink:
        return DeltaSink(str(self.table), NOTES, self.record.id, creates=mode, generation=generation, key_cache=0)

    def driver(self) -> DeltaSink:
        """The sink of the newest driver, which has ended."""
        store = self.store()
        generation = store.acquire_lease("anna", timedelta(minutes=1)).generation
        store.release()
        return self.sink(generation=generation)

    def fill(self, mode: MergeMode) -> None:
        sink = self.sink(mode)
        sink.prepare()
        held = [[note(number) for number in range(low, low + 100)] for low in (0, 100, 200)]
        receipts = [sink.writer().write(Epoch(1), n, 0, [batch(NOTES, rows)]) for n, rows in enumerate(held)]
        sink.commit_reads(Epoch(1), receipts, [], PLAN)
        first, second = note(1, "new"), note(101, "new")
        self.merge((UPDATE, 1, first), (DELETE, 2, note(2)), (UPDATE, 3, second), (DELETE, 4, note(102)))
        self.merge((INSERT, 1, note(400)))

    def merge(self, *wanted: Change) -> None:
        self.epoch += 1
        table = change_table(NOTES, wanted).drop_columns(list(OFFSET_COLUMNS))
        self.driver().apply(Epoch(self.epoch), MemoryChanges(table, NOTES.key))

    def create(self) -> None:
        store = self.store()
        store.create(self.record, PLAN, beginning(PLAN), store.acquire_lease("anna", timedelta(minutes=1)))
        store.release()

    def fence(self) -> None:
        """A driver later than the next ones commits to the table, which takes nothing from them then."""
        added = change_table(NOTES, [(INSERT, 1, note(401))]).drop_columns(list(OFFSET_COLUMNS))
        self.sink(generation=99).apply(Epoch(99), MemoryChanges(added, NOTES.key))

    def upgrade(self, mode: str) -> int:
        return execute(["upgrade", "--config", str(self.config), "--merge", mode])


@pytest.fixture
def make(tmp_path: Path) -> Callable[[MergeMode], Job]:
    def made(mode: MergeMode) -> Job:
        fresh = replace(record(), definition=NOTES, vnode_count=PLAN.vnode_count)
        job = Job(tmp_path, fresh.fit_for(vectors=mode is MergeMode.VECTORS))
        job.configure()
        job.fill(mode)
        job.create()
        return job

    return made


def test_both_ways_and_back_keep_the_rows(make: Callable[[MergeMode], Job], capsys: pytest.CaptureFixture[str]) -> None:
    job = make(MergeMode.REWRITE)
    plain = DeltaTable(job.table).protocol()
    assert job.upgrade("vectors") == 0
    assert job.stored_record().has_vectors
    job.merge((UPDATE, 1, note(14, "newer")), (DELETE, 2, note(15)))
    gone = (note(14), note(15))
    expected = in_order([*(row for row in ROWS if row not in gone), note(14, "newer")])
    assert stored(job.table) == expected
    with pytest.raises(DeltaProtocolError):
        DeltaTable(job.table).to_pyarrow_table()
    assert job.upgrade("rewrite") == 0
    assert not job.stored_record().has_vectors
    assert stored(job.table) == expected
    assert DeltaTable(job.table).to_pyarrow_table().num_rows == len(expected)
    assert (DeltaTable(job.table).protocol(), job.sink().has_vectors) == (plain, False)
    told = capsys.readouterr().out
    assert "rows are changed by deletion vectors from now on" in told
    assert "wrote 1 files with deleted rows again as 1" in told
    job.merge((UPDATE, 1, note(14, "newest")))
    assert DeltaTable(job.table).to_pyarrow_table().num_rows == len(expected)


def test_earlier_releases_refuse_the_job_before_its_table_gets_vectors(
    make: Callable[[MergeMode], Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = make(MergeMode.REWRITE)
    job.fence()
    assert job.upgrade("vectors") == 1
    assert "generation 99" in capsys.readouterr().err
    assert (job.stored_record().has_vectors, job.sink().has_vectors) == (True, False)


def test_earlier_releases_refuse_the_job_until_its_table_has_no_vectors(
    make: Callable[[MergeMode], Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = make(MergeMode.VECTORS)
    _fold_all(job.driver())
    job.fence()
    assert job.upgrade("rewrite") == 1
    assert "generation 99" in capsys.readouterr().err
    assert (job.stored_record().has_vectors, job.sink().has_vectors) == (True, True)


@pytest.mark.parametrize("mode", MergeMode)
def test_a_second_call_changes_nothing(
    make: Callable[[MergeMode], Job], capsys: pytest.CaptureFixture[str], mode: MergeMode
) -> None:
    job = make(mode)
    version = DeltaTable(job.table).version()
    assert job.upgrade(mode) == 0
    assert DeltaTable(job.table).version() == version
    assert "nothing to do" in capsys.readouterr().out


def test_features_that_the_old_protocol_implied_are_named(make: Callable[[MergeMode], Job]) -> None:
    job = make(MergeMode.REWRITE)
    assert job.upgrade("vectors") == 0
    protocol = DeltaTable(job.table).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == ["deletionVectors"]
    assert sorted(protocol.writer_features or ()) == ["appendOnly", "deletionVectors", "invariants"]


def _fold_one(sink: DeltaSink) -> None:
    assert sink.fold_vectors(step_bytes=1) is not None


def _fold_all(sink: DeltaSink) -> None:
    while sink.fold_vectors(step_bytes=1) is not None:
        pass


def _drop(sink: DeltaSink) -> None:
    _fold_all(sink)
    assert sink.drop_vectors()


@pytest.mark.parametrize("done", [_fold_one, _fold_all, _drop])
def test_what_was_interrupted_is_continued(make: Callable[[MergeMode], Job], done: Callable[[DeltaSink], None]) -> None:
    job = make(MergeMode.VECTORS)
    done(job.driver())
    assert stored(job.table) == ROWS
    assert job.stored_record().has_vectors
    assert job.upgrade("rewrite") == 0
    assert DeltaTable(job.table).to_pyarrow_table().num_rows == len(ROWS)
    assert not job.stored_record().has_vectors


def test_the_feature_stays_while_a_file_needs_it(make: Callable[[MergeMode], Job]) -> None:
    job = make(MergeMode.VECTORS)
    _fold_one(job.driver())
    assert not job.driver().drop_vectors()
    assert stored(job.table) == ROWS
    log = job.driver()._log
    table = log.open()
    with pytest.raises(LawBrokenError, match="have vectors"):
        log.redefine(table, table.protocol.without_feature("deletionVectors"), {})


def test_a_reader_of_the_newest_version_starts_behind_the_vectors(make: Callable[[MergeMode], Job]) -> None:
    """The checkpoint hides commits that it would not understand; who knows vectors can still go back to them."""
    job = make(MergeMode.VECTORS)
    before = DeltaTable(job.table).version()
    assert job.upgrade("rewrite") == 0
    newest = DeltaTable(job.table).version()
    last = json.loads((job.table / "_delta_log/_last_checkpoint").read_text())
    assert last["version"] == newest
    old = DeltaTable(job.table, version=before)
    assert "deletionVectors" in (old.protocol().reader_features or ())
    for version in range(newest):
        (job.table / f"_delta_log/{version:020d}.json").unlink()
    assert read_lake(job.table).num_rows == len(ROWS)


def test_a_driver_that_runs_is_not_disturbed(
    make: Callable[[MergeMode], Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = make(MergeMode.REWRITE)
    job.store().acquire_lease("anna", timedelta(hours=1))
    assert job.upgrade("vectors") == 1
    told = capsys.readouterr().err
    assert "is driven by anna" in told
    assert "vnode-backfill stop" in told
    assert not job.sink().has_vectors
    assert not job.stored_record().has_vectors


def test_a_driver_that_slept_through_it_cannot_commit(make: Callable[[MergeMode], Job]) -> None:
    job = make(MergeMode.REWRITE)
    sleeper = job.driver()
    sleeper.prepare()
    assert job.upgrade("vectors") == 0
    changes = change_table(NOTES, [(DELETE, 1, note(14))]).drop_columns(list(OFFSET_COLUMNS))
    with pytest.raises(FencedError):
        sleeper.apply(Epoch(9), MemoryChanges(changes, NOTES.key))


def test_a_driver_that_was_replaced_turns_nothing_over(make: Callable[[MergeMode], Job]) -> None:
    job = make(MergeMode.REWRITE)
    replaced = job.driver()
    job.merge((DELETE, 1, note(14)))
    with pytest.raises(FencedError):
        replaced.add_vectors()
    assert not job.sink().has_vectors


def test_a_file_that_asks_for_the_other_mode_is_refused(
    make: Callable[[MergeMode], Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = make(MergeMode.REWRITE)
    job.configure(merge="rewrite")
    assert job.upgrade("vectors") == 2
    assert "sink.delta.merge is rewrite" in capsys.readouterr().err
    assert not job.sink().has_vectors


def test_the_table_of_another_job_is_left_alone(make: Callable[[MergeMode], Job]) -> None:
    job = make(MergeMode.REWRITE)
    stranger = DeltaSink(str(job.table), NOTES, "stranger")
    for turn in (stranger.add_vectors, stranger.drop_vectors):
        with pytest.raises(SinkError, match="is not the one that this job writes to"):
            turn()


def test_a_table_that_got_vectors_from_somebody_else_shuts_earlier_releases_out(
    make: Callable[[MergeMode], Job],
) -> None:
    job = make(MergeMode.REWRITE)
    job.driver().add_vectors()
    store = job.store()
    lease = store.acquire_lease("anna", timedelta(minutes=1))
    fitted = fitted_record(job.stored_record(), store, job.sink(generation=lease.generation))
    assert fitted.has_vectors
    assert job.stored_record() == fitted


@pytest.mark.parametrize("mode", MergeMode)
def test_a_record_stays_where_the_table_is_as_it_says_or_plainer(
    make: Callable[[MergeMode], Job], mode: MergeMode
) -> None:
    job = make(mode)
    assert fitted_record(job.record, job.store(), job.sink()) == job.record
    _drop(job.driver())
    assert fitted_record(job.record, job.store(), job.sink()) == job.record


def test_only_a_delta_target_is_turned_over(
    make: Callable[[MergeMode], Job], capsys: pytest.CaptureFixture[str]
) -> None:
    job = make(MergeMode.REWRITE)
    settings = json.loads(job.config.read_text())
    settings["sink"] = {"iotdb": {"host": "nowhere.invalid", "device": "root.s.{id}", "time": {"column": "at"}}}
    job.config.write_text(json.dumps(settings))
    assert job.upgrade("vectors") == 2
    assert "only rows of a Delta target" in capsys.readouterr().err


def test_the_lease_is_kept_while_files_are_written(tmp_path: Path) -> None:
    clock = Clock()
    store = StateStore(str(tmp_path), "orders", now=clock)
    began = store.acquire_lease("anna", timedelta(minutes=1))
    renewing = Renewing(store)
    clock.wait(timedelta(seconds=50))
    assert renewing()
    assert store.lease is not None
    assert store.lease.expires == began.expires + timedelta(seconds=50)
    clock.wait(timedelta(minutes=2))
    StateStore(str(tmp_path), "orders", now=clock).acquire_lease("bert", timedelta(minutes=1))
    with pytest.raises(FencedError):
        Renewing(store)()
