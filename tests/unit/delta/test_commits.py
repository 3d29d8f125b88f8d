"""Commits land once or not at all, whatever the store does to them, and say of each file which vector it has."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import obstore
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction
from obstore.exceptions import AlreadyExistsError, GenericError

from tests.unit.delta.delta_logs import (
    SCHEMA,
    actions,
    append_epochs,
    commits,
    log_at,
    named,
    new_table,
    receipt,
    vector,
)
from vnode_backfill.delta import store_check
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import DeletionVector, Masked
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.storage import Storage
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import (
    FencedError,
    LawBrokenError,
    OvertakenError,
    SinkError,
    SinkUnavailableError,
    StateError,
)

FIRST, SECOND = Epoch(1), Epoch(2)
Put = Callable[..., object]
_put: Put = obstore.put


def before(error: Exception) -> Put:
    def put(*given: object, **options: object) -> object:
        raise error

    return put


def after(error: Exception) -> Put:
    def put(*given: object, **options: object) -> object:
        _put(*given, **options)
        raise error

    return put


@pytest.fixture
def table(tmp_path: Path) -> Path:
    new_table(tmp_path / "table")
    return tmp_path / "table"


def test_a_put_that_failed_leaves_nothing_and_can_be_tried_again(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_at(table)
    version = log.open()
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", before(GenericError("connection refused")))
        with pytest.raises(SinkUnavailableError, match="cannot be committed"):
            log.commit(version, "append", FIRST, [receipt("a")])
    assert len(commits(table)) == 1
    assert not log.landed(log.open(), "append", FIRST)
    assert log.commit(log.open(), "append", FIRST, [receipt("a")]).version == 1


def test_a_put_that_landed_and_then_timed_out_is_found(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_at(table)
    version = log.open()
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", after(GenericError("timed out")))
        with pytest.raises(SinkUnavailableError):
            log.commit(version, "append", FIRST, [receipt("a")], note="said")
    found = log.open()
    assert found.version == 1
    assert log.note(found, "append", FIRST) == "said"


def test_a_put_that_the_store_repeats_by_itself_has_landed(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_at(table)
    version = log.open()
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", after(AlreadyExistsError("412")))
        made = log.commit(version, "append", FIRST, [receipt("a")])
    assert made.version == 1
    assert log.open() is made
    assert [file.path for file in log.files(made, ())] == ["a.parquet"]


def test_a_version_of_somebody_else_is_not_taken_for_ours(table: Path) -> None:
    log, other = log_at(table), log_at(table)
    stale = log.open()
    append_epochs(other, [1])
    with pytest.raises(OvertakenError, match="committed by somebody else"):
        log.commit(stale, "append", FIRST, [receipt("b")])
    assert [file.path for file in log.files(log.open(), ())] == ["e1.parquet"]


@pytest.mark.parametrize("hint", [4, 1, None])
def test_a_driver_that_slept_longer_than_the_log_is_kept_is_overtaken(table: Path, hint: int | None) -> None:
    """Also if a slow writer has set the hint back, or it is gone."""
    slow, other = log_at(table), log_at(table)
    asleep = append_epochs(slow, [1])
    append_epochs(other, [2, 3, 4])
    DeltaTable(table).create_checkpoint()
    for version in range(4):
        (table / "_delta_log" / f"{version:020d}.json").unlink()
    (table / "_delta_log" / "_last_checkpoint").write_text(json.dumps({"version": hint, "size": 1}))
    with pytest.raises(OvertakenError, match="behind a checkpoint of 4"):
        slow.remove(asleep, slow.files(asleep, ()))
    found = slow.open()
    assert found.version == 4
    assert sorted(file.path for file in slow.files(found, ())) == [f"e{epoch}.parquet" for epoch in range(1, 5)]
    assert slow.commit(found, "append", Epoch(5), [receipt("e5")]).version == 5


def test_a_hint_at_a_checkpoint_that_is_not_there_stops_nobody(table: Path) -> None:
    (table / "_delta_log" / "_last_checkpoint").write_text('{"version":99,"size":1}')
    log = log_at(table)
    made = append_epochs(log, [1])
    assert (made.version, made.checkpoint) == (1, -1)


def test_two_writers_that_race_make_each_version_once(table: Path) -> None:
    def write(name: str) -> list[int]:
        log = log_at(table, job=name)
        won: list[int] = []
        while len(won) < 100:
            found = log.open()
            try:
                won.append(log.commit(found, "append", Epoch(len(won) + 1), [receipt(f"{name}-{len(won)}")]).version)
            except OvertakenError:
                continue
        return won

    with ThreadPoolExecutor(2) as pool:
        won = [version for each in pool.map(write, ["a", "b"]) for version in each]
    assert sorted(won) == list(range(1, 201))
    assert len(DeltaTable(table).file_uris()) == len(log_at(table).open().files) == 200


def test_a_file_is_removed_only_as_the_version_has_it(tmp_path: Path) -> None:
    log, table = new_table(tmp_path / "table", vectors=True)
    table = log.commit(table, "append", FIRST, [receipt("a"), receipt("b")])
    plain = named(log.files(table, ()), "a")
    table = log.commit(table, "merge", FIRST, [], masked=[Masked(plain, vector())])
    for removed, masked in (([plain], []), ([], [Masked(plain, vector())])):
        with pytest.raises(LawBrokenError, match=r"a.parquet with the vector None is not in version 2"):
            log.commit(table, "merge", SECOND, [], removed, masked=masked)
    with_vector = named(log.files(table, ()), "a")
    with pytest.raises(LawBrokenError, match="twice"):
        log.commit(table, "merge", SECOND, [], [with_vector], masked=[Masked(with_vector, vector())])
    table = log.commit(table, "merge", SECOND, [], [with_vector])
    assert [file.path for file in log.files(table, ())] == ["b.parquet"]
    assert len(DeltaTable(tmp_path / "table").file_uris()) == 1


@pytest.mark.parametrize("rearranged", [False, True])
def test_a_masked_file_is_removed_with_its_old_vector_and_added_with_the_new(tmp_path: Path, rearranged: bool) -> None:
    log, table = new_table(tmp_path / "table", vectors=True)
    table = log.commit(table, "append", FIRST, [receipt("a")])
    old, new = vector(rows=1), vector(rows=3)
    for each in (old, new):
        masked = [Masked(named(log.files(table, ("id",)), "a"), each)]
        if rearranged:
            table = log.rearrange(table, [], [], masked)
        else:
            table = log.commit(table, "merge", Epoch(table.version), [], masked=masked)
    (remove,) = [line["remove"] for line in actions(tmp_path / "table", 3) if "remove" in line]
    (add,) = [line["add"] for line in actions(tmp_path / "table", 3) if "add" in line]
    assert (remove["path"], remove["deletionVector"]) == ("a.parquet", old.to_action())
    assert (add["path"], add["size"], add["deletionVector"]) == ("a.parquet", 100, new.to_action())
    assert str(add["stats"]) == receipt("a").stats[:-1] + ',"tightBounds":false}'
    assert add["dataChange"] is remove["dataChange"] is not rearranged
    file = named(log.files(table, ("id",)), "a")
    assert (file.rows, file.live_rows, file.low, file.high) == (10, 7, (0,), (9,))
    assert log_at(tmp_path / "table").open().described(("id",)) == [file]


def test_a_new_file_may_have_a_vector(tmp_path: Path) -> None:
    log, table = new_table(tmp_path / "table", vectors=True)
    given = receipt("a")
    held = vector()
    new = type(given)(given.path, given.size, given.rows, given.stats, held)
    table = log.rearrange(table, [new], [])
    assert named(log.files(table, ()), "a").vector == held
    (add,) = [line["add"] for line in actions(tmp_path / "table", 1) if "add" in line]
    assert json.loads(str(add["stats"]))["tightBounds"] is False


def test_vectors_go_only_into_tables_that_say_so_and_never_into_the_log(tmp_path: Path) -> None:
    plain, table = new_table(tmp_path / "plain")
    table = plain.commit(table, "append", FIRST, [receipt("a")])
    with pytest.raises(LawBrokenError, match="has no deletion vectors"):
        plain.commit(table, "merge", FIRST, [], masked=[Masked(named(plain.files(table, ()), "a"), vector())])
    log, table = new_table(tmp_path / "vectors", vectors=True)
    table = log.commit(table, "append", FIRST, [receipt("a")])
    inline = DeletionVector("i", "0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", None, 44, 6)
    with pytest.raises(LawBrokenError, match="in the log itself"):
        log.commit(table, "merge", FIRST, [], masked=[Masked(named(log.files(table, ()), "a"), inline)])


def test_a_file_without_statistics_gets_no_vector(tmp_path: Path) -> None:
    log, table = new_table(tmp_path / "table", vectors=True)
    table = log.commit(table, "append", FIRST, [type(receipt("a"))("a.parquet", 1, 1)])
    with pytest.raises(SinkError, match="how many rows"):
        log.commit(table, "merge", FIRST, [], masked=[Masked(named(log.files(table, ()), "a"), vector())])


def test_a_path_is_escaped_in_the_log_and_found_again(tmp_path: Path) -> None:
    log, table = new_table(tmp_path / "table")
    name = "a b%20c:ü#?"
    table = log.commit(table, "append", FIRST, [receipt(name)])
    assert DeltaTable(tmp_path / "table").file_uris() == [str(tmp_path / "table" / f"{name}.parquet")]
    (file,) = log_at(tmp_path / "table").open().described(())
    assert file.path == f"{name}.parquet"
    assert log.remove(table, [file]).files == {}
    assert DeltaTable(tmp_path / "table").file_uris() == []


def test_a_driver_that_was_replaced_cannot_commit(table: Path) -> None:
    old, new = log_at(table, generation=1), log_at(table, generation=2)
    old.fence(old.open())
    asleep = old.open()
    new.fence(new.open())
    new.fence(new.open())
    assert len(commits(table)) == 3
    with pytest.raises(OvertakenError):
        old.commit(asleep, "append", FIRST, [receipt("a")])
    with pytest.raises(FencedError, match="generation 2"):
        old.commit(old.open(), "append", FIRST, [receipt("a")])


def test_a_note_is_found_by_a_new_process_behind_many_commits_of_others(table: Path) -> None:
    log = log_at(table)
    append_epochs(log, [1])
    append_epochs(log_at(table, job="other"), range(1, 40))
    DeltaTable(table).create_checkpoint()
    fresh = log_at(table)
    assert fresh.open().places == {}
    assert fresh.note(fresh.open(), "append", FIRST) == "note 1"
    assert fresh.note(fresh.open(), "append", SECOND) is None


def test_a_note_that_is_gone_is_an_error(table: Path) -> None:
    append_epochs(log_at(table), [1])
    append_epochs(log_at(table, job="other"), [1])
    DeltaTable(table).create_checkpoint()
    (table / "_delta_log" / f"{1:020d}.json").unlink()
    fresh = log_at(table)
    with pytest.raises(StateError, match="no longer in the log"):
        fresh.note(fresh.open(), "append", FIRST)


def test_the_release_before_finds_our_notes_and_we_find_its(table: Path) -> None:
    """That one wrote with `deltalake`, and searched the history."""
    log = log_at(table)
    append_epochs(log, [1])
    (told,) = [json.loads(each["vnodeBackfill"]) for each in DeltaTable(table).history(1)]
    assert told == {"app": "job/append", "epoch": 1, "note": "note 1"}
    assert DeltaTable(table).transaction_version("job/append") == 1
    theirs = DeltaTable(table)
    theirs.create_write_transaction(
        [AddAction("b.parquet", 5, {}, 1, data_change=True, stats='{"numRecords":1}')],
        "append",
        theirs.schema(),
        commit_properties=CommitProperties(
            custom_metadata={"vnodeBackfill": json.dumps({"app": "job/append", "epoch": 2, "note": "theirs"})},
            app_transactions=[Transaction("job/append", 2)],
        ),
    )
    for reader in (log, log_at(table)):
        assert reader.note(reader.open(), "append", SECOND) == "theirs"


def properties_of(folder: Path) -> tuple[object, ...]:
    table = DeltaTable(folder)
    held = table.protocol()
    metadata = table.metadata()
    features = [sorted(names or []) for names in (held.reader_features, held.writer_features)]
    return (
        held.min_reader_version, held.min_writer_version, features, metadata.configuration,
        metadata.partition_columns, table.schema().to_json(),
    )  # fmt: skip


@pytest.mark.parametrize("schema", [SCHEMA, pa.schema({"id": pa.int64(), "at": pa.timestamp("us", "UTC")})])
def test_a_new_table_is_the_one_that_deltalake_would_make(tmp_path: Path, schema: pa.Schema) -> None:
    configuration = {"delta.checkpointInterval": "25", "delta.enableDeletionVectors": "false"}
    log_at(tmp_path / "ours").create(schema, configuration, landed=("prepare", FIRST))
    DeltaTable.create(tmp_path / "theirs", Schema.from_arrow(schema), configuration=dict(configuration))
    assert properties_of(tmp_path / "ours") == properties_of(tmp_path / "theirs")
    assert DeltaTable(tmp_path / "ours").transaction_version("job/prepare") == 1


def test_of_two_that_create_a_table_one_is_overtaken(tmp_path: Path) -> None:
    new_table(tmp_path / "table")
    with pytest.raises(OvertakenError):
        new_table(tmp_path / "table")
    assert len(commits(tmp_path / "table")) == 1


def test_a_replaced_table_has_none_of_its_rows_and_columns(tmp_path: Path) -> None:
    log, table = new_table(tmp_path / "table", vectors=True)
    table = log.commit(table, "append", FIRST, [receipt("a"), receipt("b")])
    table = log.commit(table, "merge", FIRST, [], masked=[Masked(named(log.files(table, ()), "a"), vector())])
    other = pa.schema({"id": pa.int32()})
    made = log.create(other, {}, over=table)
    assert made.files == {}
    assert log_at(tmp_path / "table").open().schema == other
    found = DeltaTable(tmp_path / "table")
    assert found.file_uris() == []
    assert (found.protocol().min_reader_version, found.protocol().min_writer_version) == (1, 2)


def test_a_store_that_overwrites_is_refused_each_time(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_check, "_RIGHT", set())
    log = log_at(table)

    def overwrite(store: object, path: str, data: bytes, *, mode: str = "overwrite") -> object:
        return _put(store, path, data)

    monkeypatch.setattr(obstore, "put", overwrite)
    for _ in range(2):
        with pytest.raises(SinkError, match="cannot hold a Delta table") as raised:
            log.check_store()
        assert "Commits would be lost" in raised.value.detail
    assert [path.name for path in (table / "_delta_log").iterdir()] == [f"{0:020d}.json"]


def test_a_store_is_tried_once_before_the_first_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_check, "_RIGHT", set())
    tried: list[str] = []

    def listening(store: object, path: str, data: bytes, **options: object) -> object:
        tried.append(path)
        return _put(store, path, data, **options)

    monkeypatch.setattr(obstore, "put", listening)
    new_table(tmp_path / "table")
    assert [path.startswith("_delta_log/.probe-") for path in tried] == [True, True, False]
    new_table(tmp_path / "another")
    assert [path.startswith("_delta_log/.probe-") for path in tried[3:]] == [False]


def test_each_bucket_is_tried_and_each_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one bucket promises, or one account may do, says nothing of another."""
    monkeypatch.setattr(store_check, "_RIGHT", set())
    tried: list[str] = []

    def keeps(storage: Storage) -> bool:
        tried.append(storage.path)
        return True

    monkeypatch.setattr(store_check, "_keeps_condition", keeps)
    places = [
        Storage.of("s3://a/x"),
        Storage.of("s3://a/y"),
        Storage.of("s3://b/x"),
        Storage.of("s3://a/x", {"key": "other"}),
    ]
    for storage in places:
        store_check.check_store(storage, "the table")
    assert tried == ["s3://a/x", "s3://b/x", "s3://a/x"]


def test_the_commit_that_makes_a_table_fences_earlier_drivers(tmp_path: Path) -> None:
    log = replace(log_at(tmp_path / "table"), generation=3)
    log.create(pa.schema([("id", pa.int64())]), {}, landed=("prepare", Epoch(1)))
    log.fence(log.open())
    assert log.open().version == 0
    earlier = replace(log_at(tmp_path / "table"), generation=2)
    with pytest.raises(FencedError):
        earlier.commit(earlier.open(), "append", Epoch(1), ())


def test_an_earlier_driver_does_not_make_a_table_again(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    later = replace(log_at(tmp_path / "table"), generation=3)
    made = later.create(schema, {})
    with pytest.raises(FencedError):
        replace(log_at(tmp_path / "table"), generation=2).create(schema, {}, over=made)


def test_a_table_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="the table is gone"):
        DeltaLog(log_at(tmp_path / "nothing").storage, "job", "the table").open()


def test_a_held_version_is_not_changed_by_later_commits(table: Path) -> None:
    log = log_at(table)
    first: TableVersion = append_epochs(log, [1])
    append_epochs(log, [2, 3])
    assert [file.path for file in log.files(first, ())] == ["e1.parquet"]
    assert first.transactions["job/append"] == 1
