"""An index that is kept finds what a new one finds, whatever happens to the files it is kept in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.parquet import read_columns
from vnode_backfill.delta.storage import Storage
from vnode_backfill.sinks.delta.keys import cache as key_cache
from vnode_backfill.sinks.delta.keys.cache import KeyCache
from vnode_backfill.words.errors import SinkError

ROWS = 1000
NUMBERS = pa.schema([("n", pa.int64())])
TEXTS = pa.schema([("t", pa.string())])
BOTH = pa.schema([("n", pa.int64()), ("t", pa.string())])
KEPT = 1 << 20
REPOSITORY = Path(__file__).resolve().parents[4]


def keys_of(numbers: list[int]) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "t": pa.array([f"text {n}" for n in numbers])})


@pytest.fixture
def table(tmp_path: Path) -> Storage:
    storage = Storage.of(str(tmp_path / "table"))
    storage.make_folder()
    return storage


def add_file(table: Storage, name: str, first: int = 0) -> DataFile:
    rows = keys_of([*range(first + ROWS - 1, first - 1, -1)])
    pq.write_table(rows, Path(table.path) / name)
    return DataFile(name, 0, ROWS, (), ())


@pytest.fixture
def file(table: Storage) -> DataFile:
    return add_file(table, "a.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def found(cache: KeyCache, table: Storage, file: DataFile, schema: pa.Schema = NUMBERS) -> list[tuple[int, int]]:
    rows, changes = cache.find(table, file, schema, keys_of([5, 5000, 999]))
    return sorted(zip(rows.tolist(), changes.tolist(), strict=True))


EXPECTED = [(0, 2), (994, 0)]


def kept(cache: KeyCache, table: Storage, file: DataFile, schema: pa.Schema = NUMBERS) -> list[tuple[int, int]]:
    """Ask twice: the second time an index is made."""
    first = found(cache, table, file, schema)
    assert found(cache, table, file, schema) == first
    return first


def age(folder: Path, *names: str, seconds: float = 120) -> None:
    """As if nobody had used these for so long."""
    for path in [folder / name for name in names] or entries(folder):
        before = path.stat().st_mtime - seconds
        os.utime(path, (before, before))


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def forget_the_file(table: Storage, file: DataFile) -> None:
    """From now on only what is kept can answer."""
    (Path(table.path) / file.path).unlink()


@pytest.mark.parametrize("schema", [NUMBERS, TEXTS, BOTH], ids=["number", "text", "composite"])
def test_a_kept_index_answers_without_the_file_in_this_process_and_in_another(
    table: Storage, file: DataFile, folder: Path, schema: pa.Schema
) -> None:
    cache = KeyCache(folder, KEPT)
    assert kept(cache, table, file, schema) == EXPECTED
    forget_the_file(table, file)
    assert found(cache, table, file, schema) == EXPECTED
    assert found(KeyCache(folder, KEPT), table, file, schema) == EXPECTED
    assert len(entries(folder)) == 1


@pytest.mark.parametrize("schema", [NUMBERS, TEXTS, BOTH], ids=["number", "text", "composite"])
def test_rows_without_a_key_and_files_without_rows_are_kept_too(
    table: Storage, folder: Path, schema: pa.Schema
) -> None:
    sparse = pa.table({"n": pa.array([None, 5, None, 999], pa.int64()), "t": [None, "text 5", "x", "text 999"]})
    for name, rows, expected in (("e", sparse.slice(0, 0), []), ("s", sparse, [(1, 0), (3, 2)])):
        pq.write_table(rows, Path(table.path) / name)
        for _ in range(2):
            assert kept(KeyCache(folder, KEPT), table, DataFile(name, 0, None, (), ()), schema) == expected


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut_in_the_head(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10])


def zero_at_the_end(path: Path) -> None:
    """As after a power cut: the size is there, the content is not."""
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))


def other_format(path: Path) -> None:
    path.write_bytes(b"vnbkeys0" + path.read_bytes()[8:])


def damaged_description(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"arrays"', b'"Arrays"'))


def link(path: Path) -> None:
    target = path.parent.parent / "elsewhere"
    path.rename(target)
    path.symlink_to(target)


def lost(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "harm", [cut, empty, cut_in_the_head, zero_at_the_end, other_format, damaged_description, link, lost]
)
@pytest.mark.parametrize("schema", [NUMBERS, TEXTS], ids=["number", "text"])
def test_a_harmed_index_is_made_again(
    table: Storage, file: DataFile, folder: Path, harm: Callable[[Path], None], schema: pa.Schema
) -> None:
    kept(KeyCache(folder, KEPT), table, file, schema)
    (index,) = entries(folder)
    whole = index.stat().st_size
    harm(index)
    assert kept(KeyCache(folder, KEPT), table, file, schema) == EXPECTED
    assert entries(folder) == [index]
    assert not index.is_symlink()
    assert index.stat().st_size == whole


def test_a_damaged_index_is_not_used_even_if_the_file_is_gone(table: Storage, file: DataFile, folder: Path) -> None:
    kept(KeyCache(folder, KEPT), table, file)
    zero_at_the_end(*entries(folder))
    forget_the_file(table, file)
    with pytest.raises(SinkError, match=r"a\.parquet cannot be read"):
        found(KeyCache(folder, KEPT), table, file)


def test_an_index_of_another_format_is_not_used(table: Storage, file: DataFile, folder: Path) -> None:
    kept(KeyCache(folder, KEPT), table, file)
    other_format(*entries(folder))
    forget_the_file(table, file)
    with pytest.raises(SinkError, match=r"a\.parquet cannot be read"):
        found(KeyCache(folder, KEPT), table, file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_file_of_another_user_is_not_mapped(table: Storage, file: DataFile, folder: Path) -> None:
    kept(KeyCache(folder, KEPT), table, file)
    os.chown(entries(folder)[0], 65534, 65534)
    forget_the_file(table, file)
    with pytest.raises(SinkError, match=r"a\.parquet cannot be read"):
        found(KeyCache(folder, KEPT), table, file)


def test_an_index_is_never_seen_half_written(
    table: Storage, file: DataFile, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed: list[tuple[str, bool]] = []
    rename = Path.replace

    def noted(path: Path, target: Path) -> Path:
        renamed.append((path.suffix, target.exists()))
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", noted)
    assert kept(KeyCache(folder, KEPT), table, file) == EXPECTED
    assert renamed == [(".draft", False)]
    assert [path.suffix for path in entries(folder)] == [".keys"]


def test_an_index_that_is_deleted_while_it_is_mapped_goes_on_answering(
    table: Storage, file: DataFile, folder: Path
) -> None:
    cache = KeyCache(folder, KEPT)
    kept(cache, table, file, TEXTS)
    forget_the_file(table, file)
    entries(folder)[0].unlink()
    assert found(cache, table, file, TEXTS) == EXPECTED


def test_another_table_another_file_and_another_type_have_another_index(
    table: Storage, file: DataFile, folder: Path, tmp_path: Path
) -> None:
    cache = KeyCache(folder, KEPT)
    kept(cache, table, file)
    other = Storage.of(str(tmp_path / "other"))
    other.make_folder()
    add_file(other, "a.parquet", first=5000)
    assert kept(cache, other, file) == [(999, 1)]
    assert kept(cache, table, add_file(table, "b.parquet", first=5000)) == [(999, 1)]
    kept(cache, table, file, pa.schema([("n", pa.decimal128(20, 0))]))
    assert len(entries(folder)) == 4
    assert found(cache, table, replace(file, size=7)) == EXPECTED
    assert len(entries(folder)) == 4


def test_the_index_used_least_recently_goes_first(table: Storage, folder: Path) -> None:
    files = [add_file(table, f"{number}.parquet") for number in range(4)]
    cache = KeyCache(folder, KEPT)
    kept(cache, table, files[0])
    size = entries(folder)[0].stat().st_size
    small = KeyCache(folder, 3 * size)
    for number in (0, 1, 2, 0, 3):
        age(folder, seconds=100)
        kept(small, table, files[number])
    assert sum(path.stat().st_size for path in entries(folder)) == 3 * size
    for number in (0, 2, 3):
        forget_the_file(table, files[number])
        assert found(KeyCache(folder, KEPT), table, files[number]) == EXPECTED
    forget_the_file(table, files[1])
    with pytest.raises(SinkError, match="cannot be read"):
        found(small, table, files[1])


def test_an_index_is_made_when_a_file_is_asked_for_the_second_time(
    table: Storage, file: DataFile, folder: Path
) -> None:
    cache = KeyCache(folder, KEPT)
    assert found(cache, table, file) == EXPECTED
    assert entries(folder) == []
    assert found(cache, table, file) == EXPECTED
    assert len(entries(folder)) == 1


def test_an_index_that_is_in_use_goes_for_no_other_and_none_is_made_in_vain(
    table: Storage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each epoch touches all files, and there is room for two of three."""
    files = [add_file(table, f"{number}.parquet") for number in range(3)]
    kept(KeyCache(folder, KEPT), table, files[0])
    cache = KeyCache(folder, 2 * entries(folder)[0].stat().st_size)
    made: list[str] = []

    def noted(storage: Storage, path: str, schema: pa.Schema) -> pa.Table:
        made.append(path)
        return read_columns(storage, path, schema)

    monkeypatch.setattr(key_cache, "read_columns", noted)
    for _ in range(6):
        assert [found(cache, table, file) for file in files] == [EXPECTED] * 3
    assert made == ["1.parquet", "2.parquet"]
    age(folder)
    monkeypatch.setattr(key_cache, "_FULL_SECONDS", 0.0)
    cache = KeyCache(folder, 2 * entries(folder)[0].stat().st_size)
    assert kept(cache, table, files[2]) == EXPECTED
    assert made[2:] == ["2.parquet"]
    assert len(entries(folder)) == 2


def test_what_killed_processes_left_behind_goes_too(table: Storage, file: DataFile, folder: Path) -> None:
    cache = KeyCache(folder, 40_000)
    (folder / "0.draft").write_bytes(bytes(39_000))
    os.utime(folder / "0.draft", (0, 0))
    kept(cache, table, file)
    assert [path.suffix for path in entries(folder)] == [".keys"]


def test_an_index_larger_than_the_limit_is_not_kept_and_displaces_nothing(
    table: Storage, file: DataFile, folder: Path
) -> None:
    cache = KeyCache(folder, 1000)
    (folder / "x.keys").write_bytes(b"")
    assert kept(cache, table, file) == EXPECTED
    assert [path.name for path in entries(folder)] == ["x.keys"]


def test_without_a_limit_nothing_is_written(table: Storage, file: DataFile, folder: Path) -> None:
    cache = KeyCache(folder, 0)
    assert found(cache, table, file) == EXPECTED
    assert cache.of(table, file, NUMBERS).find(keys_of([999]))[0].tolist() == [0]
    assert not folder.exists()


def test_a_folder_that_others_can_write_to_is_refused(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(SinkError, match="cannot be kept in") as raised:
        KeyCache(folder, KEPT)
    assert "key_cache" in raised.value.hint


def test_the_folder_is_made_for_this_user_alone(folder: Path) -> None:
    KeyCache(folder, KEPT)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_disk_that_takes_nothing_does_no_harm(table: Storage, file: DataFile, folder: Path) -> None:
    cache = KeyCache(folder, KEPT)
    folder.rmdir()
    folder.write_bytes(b"not a folder")
    assert kept(cache, table, file) == EXPECTED


def test_two_processes_that_make_the_same_index_at_once_leave_one(table: Storage, file: DataFile, folder: Path) -> None:
    program = (
        "import sys; from tests.unit.sinks.delta.test_key_cache import *;"
        "print('ready', flush=True); sys.stdin.readline();"
        "print(kept(KeyCache(Path(sys.argv[1]), KEPT), Storage.of(sys.argv[2]), DataFile('a.parquet', 0, None, (), ()), TEXTS))"
    )
    line = [sys.executable, "-c", program, str(folder), table.path]
    both = [
        subprocess.Popen(line, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    assert [process.communicate("go\n")[0] for process in both] == [f"{EXPECTED}\n"] * 2
    assert [path.suffix for path in entries(folder)] == [".keys"]


def test_importing_it_loads_nothing_heavy() -> None:
    program = (
        "import sys, vnode_backfill.delta.vectors, vnode_backfill.sinks.delta.keys.cache;"
        "print([name for name in ('numba', 'pandas', 'pyroaring', 'pyspark') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_a_small_index_stays_in_memory_and_never_gets_a_file(table: Storage, file: DataFile, folder: Path) -> None:
    cache = KeyCache(folder, KEPT, in_memory=256 * 1024)
    assert kept(cache, table, file) == EXPECTED
    forget_the_file(table, file)
    assert found(cache, table, file) == EXPECTED
    assert not folder.exists() or entries(folder) == []


def test_the_cache_of_this_user_keeps_small_indexes_in_memory(
    table: Storage, file: DataFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    cache = key_cache.key_cache.__wrapped__(KEPT)
    assert kept(cache, table, file) == EXPECTED
    assert entries(tmp_path / "home" / "vnode-backfill" / "keys") == []


def test_small_indexes_in_memory_have_a_limit_together(
    table: Storage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [add_file(table, f"small-{number}", 1000 * number) for number in range(3)]
    monkeypatch.setattr(key_cache, "_SMALL_TOGETHER", 30_000)
    cache = KeyCache(folder, KEPT, in_memory=256 * 1024)
    for each in files:
        kept(cache, table, each)
        forget_the_file(table, each)
    found(cache, table, files[2])
    with pytest.raises(SinkError, match="cannot be read"):
        found(cache, table, files[0])
