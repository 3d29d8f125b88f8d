"""A reshape keeps every row, also those that went while it was written: compared with a dictionary, many times."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from vnode_backfill.delta.files import DataFile
from vnode_backfill.delta.parquet import FileLayout, read_columns, write_files
from vnode_backfill.delta.rows import Rows
from vnode_backfill.delta.storage import Storage
from vnode_backfill.delta.vectors import read_vector, write_vectors
from vnode_backfill.sinks.delta.compaction import GivenUpError
from vnode_backfill.sinks.delta.effect import Effect
from vnode_backfill.sinks.delta.reshape import Reshape, Reshaper, settle
from vnode_backfill.sinks.delta.reshape_process import run_apart
from vnode_backfill.words.errors import SinkError, SinkUnavailableError

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
LAYOUT = FileLayout((), ("id",), file_bytes=1 << 30)
NONE = Rows.of(np.empty(0, np.int64))


class Table:
    """Files, and which of their rows are gone: what a log would know."""

    def __init__(self, folder: Path) -> None:
        self.storage = Storage.of(str(folder))
        self.files: dict[str, DataFile] = {}
        self.made = 0

    def add(self, rows: list[tuple[int, str]]) -> str:
        table = pa.table([[i for i, _ in rows], [v for _, v in rows]], schema=SCHEMA)
        self.made += 1
        (receipt,) = write_files(self.storage, f"f{self.made}", SCHEMA, [table], LAYOUT)
        ids = [i for i, _ in rows]
        self.files[receipt.path] = DataFile(receipt.path, receipt.size, receipt.rows, (min(ids),), (max(ids),))
        return receipt.path

    def delete(self, path: str, rows: list[int]) -> None:
        file = self.files[path]
        (vector,) = write_vectors(self.storage, [self.gone(file).union(Rows.of(np.array(rows, np.int64)))])
        self.files[path] = DataFile(file.path, file.size, file.rows, file.low, file.high, vector)

    def gone(self, file: DataFile) -> Rows:
        return NONE if file.vector is None else read_vector(self.storage, file.vector)

    def rows(self) -> list[tuple[int, str]]:
        found = []
        for file in self.files.values():
            table = read_columns(self.storage, file.path, SCHEMA, gone=self.gone(file))
            found += [tuple(row.values()) for row in table.to_pylist()]
        return sorted(found)

    def put(self, effect: Effect) -> None:
        for file in effect.removed:
            assert self.files.pop(file.path).identity == file.identity
        for masked in effect.masked:
            old = self.files[masked.file.path]
            assert old.identity == masked.file.identity
            self.files[old.path] = DataFile(old.path, old.size, old.rows, old.low, old.high, masked.vector)
        for receipt in effect.added:
            ids = read_columns(self.storage, receipt.path, SCHEMA).column("id").to_pylist()
            bounds = (min(ids),), (max(ids),)
            self.files[receipt.path] = DataFile(receipt.path, receipt.size, receipt.rows, *bounds, receipt.vector)

    def reshaper(self) -> Reshaper:
        return Reshaper(self.storage, SCHEMA, ("id",), LAYOUT)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_a_fold_takes_its_rows_out_of_wide_files_and_deletes_follow(table: Table) -> None:
    base = table.add([(1, "a"), (3, "a"), (5, "a"), (7, "a"), (9, "a")])
    table.delete(base, [1, 3])
    wide = table.add([(3, "b"), (7, "b"), (40, "b")])
    done = table.reshaper().run(Reshape((table.files[base],), (table.files[wide],), 1, 9))
    table.delete(base, [2])
    effect = settle(table.storage, done, table.files, table.gone)
    assert effect is not None
    table.put(effect)
    assert table.rows() == [(1, "a"), (3, "b"), (7, "b"), (9, "a"), (40, "b")]
    assert base not in table.files
    assert table.gone(table.files[wide]).positions.tolist() == [0, 1]
    (new,) = (file for path, file in table.files.items() if path != wide)
    assert table.gone(new).positions.tolist() == [2]
    ids = read_columns(table.storage, new.path, SCHEMA).column("id").to_pylist()
    assert ids == [1, 3, 5, 7, 9], "a fold keeps the key order"


def test_rows_of_a_wide_file_that_go_during_a_fold_stay_gone(table: Table) -> None:
    base, wide = table.add([(1, "a"), (9, "a")]), table.add([(3, "b"), (7, "b"), (40, "b"), (50, "b")])
    done = table.reshaper().run(Reshape((table.files[base],), (table.files[wide],), 1, 9))
    # One row that the fold has taken, and one that it has not.
    table.delete(wide, [1, 3])
    effect = settle(table.storage, done, table.files, table.gone)
    assert effect is not None
    table.put(effect)
    assert table.rows() == [(1, "a"), (3, "b"), (9, "a"), (40, "b")]


def test_a_file_that_is_gone_ends_the_reshape(table: Table) -> None:
    one, two = table.add([(1, "a")]), table.add([(2, "a")])
    done = table.reshaper().run(Reshape((table.files[one], table.files[two])))
    del table.files[one]
    assert settle(table.storage, done, table.files, table.gone) is None


def test_a_new_file_whose_rows_have_all_gone_is_not_added(table: Table) -> None:
    one, two = table.add([(1, "a")]), table.add([(2, "a")])
    done = table.reshaper().run(Reshape((table.files[one], table.files[two])))
    table.delete(one, [0])
    table.delete(two, [0])
    effect = settle(table.storage, done, table.files, table.gone)
    assert effect is not None
    assert not effect.added
    table.put(effect)
    assert table.rows() == []


@pytest.mark.parametrize("seed", range(60))
def test_random_reshapes_keep_every_row(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    table = Table(tmp_path)
    for number in range(chance.randint(1, 4)):
        ids = sorted(chance.sample(range(number * 100, number * 100 + 100), chance.randint(1, 60)))
        table.add([(i, f"base{seed}") for i in ids])
    for number in range(chance.randint(0, 4)):
        ids = chance.sample(range(400), chance.randint(1, 30))
        table.add([(1000 * (number + 1) + i if chance.random() < 0.2 else i, f"w{number}") for i in sorted(ids)])
    delete_some(table, chance)
    whole = chance.sample(sorted(table.files), chance.randint(1, len(table.files)))
    wide = [path for path in table.files if path not in whole] if len(whole) == 1 else []
    base = table.files[whole[0]]
    task = Reshape(
        tuple(table.files[path] for path in whole),
        tuple(table.files[path] for path in wide),
        base.low[0] if wide else None,
        base.high[0] if wide else None,
    )
    done = table.reshaper().run(task)
    delete_some(table, chance)
    expected = table.rows()
    effect = settle(table.storage, done, table.files, table.gone)
    assert effect is not None
    table.put(effect)
    assert table.rows() == expected


def delete_some(table: Table, chance: random.Random) -> None:
    for path, file in list(table.files.items()):
        rows = [row for row in range(file.rows or 0) if chance.random() < 0.2]
        if rows and chance.random() < 0.7:
            table.delete(path, rows)


def test_a_process_of_its_own_gives_the_same_and_tells_its_errors(
    table: Table, capfd: pytest.CaptureFixture[str]
) -> None:
    one, two = table.add([(1, "a")]), table.add([(2, "b")])
    task = Reshape((table.files[one], table.files[two]))
    (done,) = run_apart(table.reshaper(), [task])
    assert [place.tolist() for place in done.places] == [[0], [1]]
    (Path(table.storage.path) / two).unlink()
    with pytest.raises(SinkError):
        run_apart(table.reshaper(), [task])
    assert capfd.readouterr().err == ""


def test_a_process_that_does_not_start_is_an_error_that_may_pass(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    # Enough files that what is left in the pipe would be written again when it is closed.
    task = Reshape(tuple(table.files[table.add([(n, "a")])] for n in range(3)) * 500)
    for program in ("/bin/false", "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", program)
        with pytest.raises(SinkUnavailableError):
            run_apart(table.reshaper(), [task])


def test_a_process_of_its_own_is_given_up_at_once(table: Table) -> None:
    task = Reshape((table.files[table.add([(1, "a")])],))
    shaper = Reshaper(table.storage, SCHEMA, ("id",), LAYOUT, goes_on=lambda: False)
    with pytest.raises(GivenUpError):
        run_apart(shaper, [task])
