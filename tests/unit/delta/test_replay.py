"""A replayed log is what `deltalake` finds in it, whatever other writers have left behind; what is not known is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.unit.delta.delta_logs import SCHEMA_TEXT, append_epochs, log_at, new_table, random_log, receipt
from vnode_backfill.delta.log.replay import TableVersion, at_version, newest
from vnode_backfill.delta.storage import Storage
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import SinkError

COLUMNS = ("id", "small", "price", "ratio", "single", "name", "day", "at", "local", "raw")
LOGS_EACH = 8


@pytest.mark.parametrize("seed", range(0, 25 * LOGS_EACH, LOGS_EACH))
def test_random_logs_are_read_as_deltalake_reads_them(tmp_path: Path, seed: int) -> None:
    for each in range(seed, seed + LOGS_EACH):
        read_alike(tmp_path / "table", each)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10_000, 11_000, 100))
def test_a_thousand_random_logs_are_read_as_deltalake_reads_them(tmp_path: Path, seed: int) -> None:
    for each in range(seed, seed + 100):
        read_alike(tmp_path / "table", each)


def read_alike(folder: Path, seed: int) -> None:
    """Let a log grow, looking at it now and then; who has looked and who has not see what `deltalake` sees."""
    made = random_log(folder, seed)
    storage, held = Storage.of(str(made.folder)), None
    for _ in range(made.random.randrange(1, 25)):
        made.grow()
        if made.random.random() < 0.2:
            made.checkpoint()
        if made.random.random() < 0.3:
            held = newest(storage, held)
    fresh, kept = newest(storage, None), newest(storage, held)
    assert fresh is not None, f"seed {seed}"
    assert kept is not None, f"seed {seed}"
    assert facts(fresh) == facts(kept), f"seed {seed}"
    assert facts(fresh) == facts_by_deltalake(made.folder), f"seed {seed}"


def facts(table: TableVersion) -> dict[str, object]:
    files = sorted(table.described(COLUMNS), key=lambda file: file.path)
    return {
        "version": table.version,
        "schema": table.schema,
        "configuration": table.metadata.configuration,
        "transactions": [table.transactions.get(f"job-{number}/append") for number in range(3)],
        "files": [(file.path, file.size, file.rows) for file in files],
        "bounds": [bound for file in files for bound in zip(COLUMNS, file.low, file.high, strict=True)],
    }


def facts_by_deltalake(folder: Path, version: int | None = None) -> dict[str, object]:
    table = DeltaTable(folder, version=version)
    uris = [Path(uri).relative_to(folder).as_posix() for uri in table.file_uris()]
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert len(uris) == len(actions)
    files = sorted(zip(uris, actions, strict=True), key=lambda each: each[0])
    return {
        "version": table.version(),
        "schema": pa.schema(table.schema().to_arrow()),
        "configuration": table.metadata().configuration,
        "transactions": [table.transaction_version(f"job-{number}/append") for number in range(3)],
        "files": [(uri, action["size_bytes"], action.get("num_records")) for uri, action in files],
        "bounds": [
            (name, action.get(f"min.{name}"), action.get(f"max.{name}")) for _, action in files for name in COLUMNS
        ],
    }


def test_a_vector_survives_a_checkpoint_and_a_replay(tmp_path: Path) -> None:
    made = random_log(tmp_path / "table", 5)
    while not any("deletionVector" in each for each in made.live):
        made.grow()
    before = newest(Storage.of(str(made.folder)), None)
    DeltaTable(made.folder).create_checkpoint()
    for commit in (made.folder / "_delta_log").glob("*.json"):
        commit.unlink()
    after = newest(Storage.of(str(made.folder)), None)
    assert before is not None
    assert after is not None
    expected = {(str(each["path"]), json.dumps(each.get("deletionVector"))) for each in made.live}
    for table in (before, after):
        held = table.files.values()
        assert {(f.name, json.dumps(f.vector and f.vector.to_action())) for f in held} == expected


def test_a_removal_that_names_another_vector_has_no_effect(tmp_path: Path) -> None:
    log, table = new_table(tmp_path / "table")
    table = log.commit(table, "append", Epoch(1), [receipt("a")])
    remove = {"path": "a.parquet", "dataChange": True, "deletionTimestamp": 1}
    other = {"storageType": "u", "pathOrInlineDv": "x" * 20, "offset": 1, "sizeInBytes": 1, "cardinality": 1}
    path = tmp_path / "table" / "_delta_log" / f"{2:020d}.json"
    path.write_text(json.dumps({"remove": {**remove, "deletionVector": other}}))
    assert [file.path for file in log.files(log.open(), ())] == ["a.parquet"]
    path.with_name(f"{3:020d}.json").write_text(json.dumps({"remove": remove}))
    assert log.files(log.open(), ()) == []


def test_an_earlier_version_is_found_as_others_find_it_until_the_log_no_longer_leads_to_it(tmp_path: Path) -> None:
    made = random_log(tmp_path / "table", 7)
    storage = Storage.of(str(made.folder))
    for version in range(12):
        made.grow()
        if version in (4, 8):
            DeltaTable(made.folder).create_checkpoint()
    for version in range(12):
        found = at_version(storage, version)
        assert found is not None
        assert facts(found) == facts_by_deltalake(made.folder, version)
    assert at_version(storage, 12) is None
    for version in range(8):
        (made.folder / "_delta_log" / f"{version:020d}.json").unlink()
    assert [version for version in range(12) if at_version(storage, version) is not None] == [4, 8, 9, 10, 11]


def test_an_own_commit_is_known_without_reading_it(tmp_path: Path) -> None:
    log, table = new_table(tmp_path / "table")
    for epoch in range(1, 4):
        table = log.commit(table, "append", Epoch(epoch), [receipt(f"e{epoch}")])
        assert log.open() is table


def test_a_held_version_continues_with_the_commits_of_others_only(tmp_path: Path) -> None:
    log, _ = new_table(tmp_path / "table")
    append_epochs(log_at(tmp_path / "table"), range(1, 90))
    held = log.open()
    (tmp_path / "table" / "_delta_log" / f"{1:020d}.json").write_text("not read again")
    assert held.version == 89
    assert log.open() is held


def test_a_version_that_was_cleaned_away_is_found_from_the_newest_checkpoint(tmp_path: Path) -> None:
    new_table(tmp_path / "table")
    slow, log = log_at(tmp_path / "table"), log_at(tmp_path / "table")
    append_epochs(slow, [1])
    append_epochs(log, [2, 3, 4])
    DeltaTable(tmp_path / "table").create_checkpoint()
    for version in range(4):
        (tmp_path / "table" / "_delta_log" / f"{version:020d}.json").unlink()
    assert slow.open().version == 4
    assert len(slow.open().files) == 4


def test_a_table_that_was_made_again_is_seen_as_it_is(tmp_path: Path) -> None:
    new_table(tmp_path / "table")
    log = log_at(tmp_path / "table")
    append_epochs(log, [1, 2, 3])
    shutil.rmtree(tmp_path / "table")
    assert log.find() is None
    new_table(tmp_path / "table")
    assert log.open().version == 0


def test_an_unfinished_checkpoint_does_not_count(tmp_path: Path) -> None:
    log, _ = new_table(tmp_path / "table")
    append_epochs(log, [1, 2])
    name = f"{1:020d}.checkpoint.0000000001.0000000002.parquet"
    (tmp_path / "table" / "_delta_log" / name).write_bytes(b"unfinished")
    assert len(log_at(tmp_path / "table").open().files) == 2


def test_a_gap_in_the_log_is_an_error(tmp_path: Path) -> None:
    new_table(tmp_path / "table")
    append_epochs(log_at(tmp_path / "table"), [1, 2, 3])
    (tmp_path / "table" / "_delta_log" / f"{2:020d}.json").unlink()
    with pytest.raises(SinkError, match="has a gap") as raised:
        log_at(tmp_path / "table").open()
    assert "commit 3" in raised.value.detail
    with pytest.raises(DeltaError):
        DeltaTable(tmp_path / "table")


def test_a_commit_that_is_not_json_is_named(tmp_path: Path) -> None:
    new_table(tmp_path / "table")
    (tmp_path / "table" / "_delta_log" / f"{1:020d}.json").write_text('{"add":')
    with pytest.raises(SinkError, match=r"00001\.json is not one of a Delta log"):
        log_at(tmp_path / "table").open()


def test_there_is_no_table_in_an_empty_folder_or_none(tmp_path: Path) -> None:
    assert log_at(tmp_path / "nothing").find() is None
    (tmp_path / "empty" / "_delta_log").mkdir(parents=True)
    assert log_at(tmp_path / "empty").find() is None
    assert not (tmp_path / "nothing").exists()


def test_files_that_are_no_commits_are_passed_over(tmp_path: Path) -> None:
    log, _ = new_table(tmp_path / "table")
    append_epochs(log, [1, 2])
    folder = tmp_path / "table" / "_delta_log"
    for name in (
        f"{0:020d}.{1:020d}.compacted.json",
        f"{5:020d}.json#1",
        f"{9:020d}.crc",
        ".probe-1",
        "_staged/x.json",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    assert log_at(tmp_path / "table").open().version == 2


def write_table(folder: Path, protocol: dict[str, object], configuration: dict[str, str], schema: str) -> None:
    metadata = {"id": "1", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
    lines = [
        {"protocol": protocol},
        {"metaData": {**metadata, "partitionColumns": [], "configuration": configuration}},
    ]
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, lines)))


def of_features(readers: list[str], writers: list[str]) -> dict[str, object]:
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": readers, "writerFeatures": writers}


@pytest.mark.parametrize("feature", ["v2Checkpoint", "catalogManaged", "somethingNew"])
def test_a_table_whose_log_has_another_form_is_not_opened(tmp_path: Path, feature: str) -> None:
    write_table(tmp_path / "table", of_features([feature], [feature]), {}, SCHEMA_TEXT)
    with pytest.raises(SinkError, match="cannot be read") as raised:
        log_at(tmp_path / "table").open()
    assert feature in raised.value.detail


def test_a_table_with_a_newer_checkpoint_of_another_form_is_not_opened(tmp_path: Path) -> None:
    log, _ = new_table(tmp_path / "table")
    append_epochs(log, [1, 2])
    name = f"{2:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (tmp_path / "table" / "_delta_log" / name).write_text("{}")
    with pytest.raises(SinkError, match="cannot be read") as raised:
        log_at(tmp_path / "table").open()
    assert "checkpoint of version 2" in raised.value.detail


WRITERS = [
    "inCommitTimestamp", "rowTracking", "domainMetadata", "clustering", "checkConstraints", "generatedColumns",
    "identityColumns", "changeDataFeed", "icebergCompatV2", "somethingNew",
]  # fmt: skip


@pytest.mark.parametrize("feature", WRITERS)
def test_a_table_with_an_unknown_feature_is_read_and_not_written(tmp_path: Path, feature: str) -> None:
    write_table(tmp_path / "table", of_features([], [feature]), {}, SCHEMA_TEXT)
    _refused(tmp_path / "table", feature)


def _refused(folder: Path, reason: str) -> None:
    log = log_at(folder)
    table = log.open()
    with pytest.raises(SinkError, match="cannot be written to") as raised:
        log.commit(table, "append", Epoch(1), [receipt("a")])
    assert reason in raised.value.detail
    assert raised.value.hint


PROPERTIES = {
    "delta.appendOnly": "true", "delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name",
    "delta.enableRowTracking": "true", "delta.enableInCommitTimestamps": "true", "delta.constraints.positive": "id > 0",
    "delta.setTransactionRetentionDuration": "interval 1 days",
}  # fmt: skip


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_that_asks_more_of_a_writer_is_refused(tmp_path: Path, name: str) -> None:
    legacy: dict[str, object] = {"minReaderVersion": 2, "minWriterVersion": 6}
    write_table(tmp_path / "table", legacy, {name: PROPERTIES[name]}, SCHEMA_TEXT)
    _refused(tmp_path / "table", name.removeprefix("delta.constraints."))


@pytest.mark.parametrize("rule", ["delta.invariants", "delta.generationExpression", "delta.identity.start"])
def test_a_column_that_asks_more_of_a_writer_is_refused(tmp_path: Path, rule: str) -> None:
    schema = json.loads(SCHEMA_TEXT)
    schema["fields"][0]["metadata"] = {rule: "1"}
    legacy: dict[str, object] = {"minReaderVersion": 1, "minWriterVersion": 6}
    write_table(tmp_path / "table", legacy, {}, json.dumps(schema))
    _refused(tmp_path / "table", "Column id")


def test_an_old_protocol_and_known_features_are_written(tmp_path: Path) -> None:
    known = ["timestampNtz", "appendOnly", "invariants", "vacuumProtocolCheck", "deletionVectors"]
    old: dict[str, object] = {"minReaderVersion": 1, "minWriterVersion": 4}
    for number, protocol in enumerate((of_features(["timestampNtz", "deletionVectors"], known), old)):
        folder = tmp_path / str(number)
        write_table(folder, protocol, {"delta.appendOnly": "false", "delta.columnMapping.mode": "none"}, SCHEMA_TEXT)
        log = log_at(folder)
        assert log.commit(log.open(), "append", Epoch(1), [receipt("a")]).version == 1
