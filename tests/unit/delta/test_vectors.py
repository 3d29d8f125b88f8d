"""A deletion vector that is read names exactly the rows that were deleted, or reading fails."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given
from hypothesis import strategies as st

from vnode_backfill.delta import parquet
from vnode_backfill.delta.files import DeletionVector
from vnode_backfill.delta.parquet import read_batches, read_columns
from vnode_backfill.delta.rows import Rows
from vnode_backfill.delta.storage import Storage
from vnode_backfill.delta.vectors import VectorCache, read_vector, write_vectors
from vnode_backfill.words.errors import SinkError, SinkUnavailableError

GOLDEN_ROWS = [3, 4, 7, 11, 18, 29]
GOLDEN = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
"""The vector of these rows as the tests of another implementation have it, in base 85; it has 44 bytes."""
POSITIONS = st.lists(st.integers(0, 200) | st.integers(0, (1 << 40)), max_size=40)


def rows_of(*positions: int) -> Rows:
    return Rows.of(np.array(positions, np.int64))


def file_of(folder: Path) -> Path:
    (found,) = (folder / "_dv").iterdir()
    return found


@pytest.fixture
def written(tmp_path: Path) -> tuple[Storage, DeletionVector]:
    storage = Storage.of(str(tmp_path))
    (vector,) = write_vectors(storage, [rows_of(*GOLDEN_ROWS)])
    return storage, vector


def test_the_golden_vector_is_written_byte_for_byte(written: tuple[Storage, DeletionVector], tmp_path: Path) -> None:
    golden = read_vector(Storage.of("/nowhere"), DeletionVector("i", GOLDEN, None, 44, 6))
    content = file_of(tmp_path).read_bytes()
    data = content[5:-4]
    assert golden.positions.tolist() == GOLDEN_ROWS
    assert content == b"\x01" + struct.pack(">I", 44) + data + struct.pack(">I", zlib.crc32(data))
    inline = replace(written[1], storage="i", place=z85_of(data), offset=None)
    assert (inline.place, inline.size) == (GOLDEN, 44)


def test_all_vectors_of_a_commit_are_in_one_file_under_the_prefix(tmp_path: Path) -> None:
    storage, all_rows = Storage.of(str(tmp_path)), [rows_of(1), rows_of(*range(5000)), rows_of(1 << 33, 7)]
    vectors = write_vectors(storage, all_rows)
    assert [read_vector(storage, vector) for vector in vectors] == all_rows
    assert {(vector.storage, vector.place) for vector in vectors} == {("u", vectors[0].place)}
    assert vectors[0].place.startswith("_dv")
    assert len(vectors[0].place) == 23
    assert [vector.cardinality for vector in vectors] == [1, 5000, 2]
    assert file_of(tmp_path).name.startswith("deletion_vector_")


def test_without_vectors_there_is_no_file(tmp_path: Path) -> None:
    assert write_vectors(Storage.of(str(tmp_path)), []) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_a_vector_is_found_by_its_absolute_path(tmp_path: Path, form: str) -> None:
    storage = Storage.of(str(tmp_path / "the table"))
    (vector,) = write_vectors(storage, [rows_of(1, 5)])
    place = form.format(str(file_of(tmp_path / "the table")).replace(" ", "%20"))
    assert read_vector(Storage.of("/nowhere"), replace(vector, storage="p", place=place)) == rows_of(1, 5)


def test_a_vector_is_found_in_the_root(written: tuple[Storage, DeletionVector], tmp_path: Path) -> None:
    storage, vector = written
    file_of(tmp_path).rename(tmp_path / file_of(tmp_path).name)
    assert read_vector(storage, replace(vector, place=vector.place.removeprefix("_dv"))) == rows_of(*GOLDEN_ROWS)


@pytest.mark.parametrize("place", range(1, 53))
def test_any_flipped_bit_is_noticed(written: tuple[Storage, DeletionVector], tmp_path: Path, place: int) -> None:
    storage, vector = written
    content = bytearray(file_of(tmp_path).read_bytes())
    content[place] ^= 0x10
    file_of(tmp_path).write_bytes(content)
    with pytest.raises(SinkError, match=f"{file_of(tmp_path).name} is damaged"):
        read_vector(storage, vector)


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (struct.pack("<I", 1681511376) + bytes(40), "no format of a vector that is known"),
        (struct.pack("<I", 1681511377) + b"\xff" * 40, "deserialize"),
        (b"", "no format of a vector that is known"),
    ],
    ids=["other format", "no bitmap", "nothing"],
)
def test_data_with_a_right_checksum_that_is_no_vector_is_refused(tmp_path: Path, data: bytes, detail: str) -> None:
    content = b"\x01" + struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    (tmp_path / "v.bin").write_bytes(content)
    with pytest.raises(SinkError, match=detail):
        read_vector(Storage.of("/nowhere"), DeletionVector("p", f"{tmp_path}/v.bin", 1, len(data), 1))


def test_a_cut_file_and_a_wrong_size_or_count_are_refused(
    written: tuple[Storage, DeletionVector], tmp_path: Path
) -> None:
    storage, vector = written
    with pytest.raises(SinkError, match=r"names 6 rows, and the table's log says 5"):
        read_vector(storage, replace(vector, cardinality=5))
    with pytest.raises(SinkError, match=r"size is 44, and the table's log says 40"):
        read_vector(storage, replace(vector, size=40))
    file_of(tmp_path).write_bytes(file_of(tmp_path).read_bytes()[:-3])
    with pytest.raises(SinkError, match="ends 3 bytes too early"):
        read_vector(storage, vector)


def test_a_missing_file_says_what_to_do_and_is_not_tried_again(
    written: tuple[Storage, DeletionVector], tmp_path: Path
) -> None:
    file_of(tmp_path).unlink()
    with pytest.raises(SinkError, match="is missing") as raised:
        read_vector(*written)
    assert not isinstance(raised.value, SinkUnavailableError)
    assert "re-snapshot" in raised.value.hint


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (DeletionVector("i", GOLDEN[:-5], None, 44, 6), "has 40 bytes, and the log says 44"),
        (DeletionVector("i", GOLDEN[:-1], None, 44, 6), "not text in base 85"),
        (DeletionVector("i", "é" + GOLDEN[1:], None, 44, 6), "damaged"),
        (DeletionVector("u", "_dv" + "~" * 20, 1, 44, 6), "not text in base 85"),
        (DeletionVector("u", "short", 1, 44, 6), "damaged"),
        (DeletionVector("x", GOLDEN, None, 44, 6), "storage type 'x'"),
    ],
    ids=["cut", "cut in a group", "not ascii", "not base 85", "no uuid", "unknown type"],
)
def test_a_descriptor_that_makes_no_sense_is_refused(vector: DeletionVector, message: str, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=message):
        read_vector(Storage.of(str(tmp_path)), vector)


@given(POSITIONS, POSITIONS)
def test_rows_behave_as_a_set(first: list[int], second: list[int]) -> None:
    one, other = Rows.of(np.array(first, np.int64)), Rows.of(np.array(second, np.int64))
    assert one.union(other).positions.tolist() == sorted({*first, *second})
    assert one.contains(np.array(second, np.int64)).tolist() == [each in set(first) for each in second]
    small = rows_of(*(each for each in first if each <= 200))
    assert np.flatnonzero(small.mask(201)).tolist() == small.positions.tolist()
    assert small.rest(201).tolist() == sorted(set(range(201)) - set(small.positions.tolist()))
    assert small.count == len(small.positions)


def test_rows_beyond_the_file_are_refused() -> None:
    assert rows_of(9).mask(10)[9]
    with pytest.raises(SinkError, match="names row 10 of a file that has 10 rows"):
        rows_of(10).mask(10)
    with pytest.raises(ValueError, match="-1 is no position"):
        rows_of(-1)


def test_a_kept_vector_is_not_read_again_and_the_oldest_one_goes(tmp_path: Path) -> None:
    storage, all_rows = Storage.of(str(tmp_path)), [rows_of(*range(start, start + 10)) for start in range(4)]
    vectors = write_vectors(storage, all_rows)
    cache = VectorCache(limit_bytes=3 * 80)
    for vector, rows in zip(vectors[:3], all_rows, strict=False):
        cache.keep(vector, rows)
    assert cache.read(storage, vectors[0]) is all_rows[0]
    cache.keep(vectors[0], all_rows[0])
    assert cache.read(storage, vectors[3]) == all_rows[3]
    file_of(tmp_path).unlink()
    assert [cache.read(storage, vectors[number]) for number in (0, 2, 3)] == [all_rows[n] for n in (0, 2, 3)]
    with pytest.raises(SinkError, match="is missing"):
        cache.read(storage, vectors[1])


@pytest.mark.parametrize("gone", [[], [0], [5, 6, 7, 8, 9, 10], [249], list(range(250)), [0, 99, 100, 249]])
def test_rows_that_are_gone_are_not_read(tmp_path: Path, gone: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "READ_ROWS", 16)
    table = pa.table({"id": pa.array(range(1000, 1250), pa.int64()), "name": [f"n{n}" for n in range(250)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    storage, rows = Storage.of(str(tmp_path)), rows_of(*gone)
    left = table.take(pa.array(rows.rest(250)))
    assert read_columns(storage, "a.parquet", table.schema, gone=rows) == left
    batches = list(read_batches(storage, "a.parquet", table.schema, gone=rows))
    assert pa.concat_tables([table.schema.empty_table(), *batches]).combine_chunks() == left
    assert all(batch.num_rows for batch in batches)


def test_rows_that_are_gone_are_not_read_from_a_file_of_another_writer(tmp_path: Path) -> None:
    """delta-rs writes text and bytes as views after an UPDATE, and pyarrow cannot filter views."""
    table = pa.table({"name": pa.array(["a", "b", None]), "image": pa.array([b"a", None, b"c"])})
    views = pa.schema([("name", pa.string_view()), ("image", pa.binary_view())])
    pq.write_table(table.cast(views), tmp_path / "a.parquet")
    assert pq.read_schema(tmp_path / "a.parquet").types == views.types
    storage, left = Storage.of(str(tmp_path)), table.take(pa.array([0, 2]))
    assert read_columns(storage, "a.parquet", table.schema, gone=rows_of(1)) == left
    assert pa.concat_tables(read_batches(storage, "a.parquet", table.schema, gone=rows_of(1))) == left


def test_a_vector_of_another_file_is_refused_while_reading(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
    pq.write_table(table, tmp_path / "a.parquet")
    storage = Storage.of(str(tmp_path))
    with pytest.raises(SinkError, match="names row 3 of a file that has 3 rows"):
        read_columns(storage, "a.parquet", table.schema, gone=rows_of(3))
    with pytest.raises(SinkError, match="names row 3 of a file that has 3 rows"):
        list(read_batches(storage, "a.parquet", table.schema, gone=rows_of(3)))


def test_other_readers_see_the_rows_that_are_left(tmp_path: Path) -> None:
    storage, gone = Storage.of(str(tmp_path)), [rows_of(*GOLDEN_ROWS), rows_of(0, 150, 299)]
    vectors = write_vectors(storage, gone)
    adds = [_add(tmp_path, number, vector) for number, vector in enumerate(vectors)]
    _commit(tmp_path, [_protocol(), _metadata(), *adds])
    left = sorted(1000 * number + int(row) for number in (0, 1) for row in gone[number].rest(300))
    asked = QueryBuilder().register("t", DeltaTable(tmp_path)).execute("select id from t order by id").read_all()
    assert pa.table(asked).column("id").to_pylist() == left
    assert sorted(pl.scan_delta(str(tmp_path)).collect()["id"].to_list()) == left


def _add(folder: Path, number: int, vector: DeletionVector) -> dict[str, object]:
    name = f"f{number}.parquet"
    table = pa.table({"id": pa.array(range(1000 * number, 1000 * number + 300), pa.int64())})
    pq.write_table(table, folder / name, row_group_size=64)
    size = (folder / name).stat().st_size
    stats = json.dumps({"numRecords": 300, "tightBounds": False})
    facts = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
    return {"add": {**facts, "stats": stats, "deletionVector": vector.to_action()}}


def _protocol() -> dict[str, object]:
    feature = ["deletionVectors"]
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": feature,
            "writerFeatures": feature,
        }
    }


def _metadata() -> dict[str, object]:
    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    return {
        "metaData": {
            "id": "8f0c2f1e-0000-4000-8000-000000000001",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": [],
            "configuration": {"delta.enableDeletionVectors": "true"},
            "createdTime": 0,
        }
    }


def _commit(folder: Path, actions: list[dict[str, object]]) -> None:
    (folder / "_delta_log").mkdir()
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (folder / "_delta_log" / f"{0:020d}.json").write_text(text)


def z85_of(data: bytes) -> str:
    """Base 85 as ZeroMQ writes it, letter by letter."""
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    groups = (int.from_bytes(data[start : start + 4], "big") for start in range(0, len(data), 4))
    return "".join(letters[group // 85**power % 85] for group in groups for power in (4, 3, 2, 1, 0))
