"""The rows of all tables are written, each once and as they are now, however they were packed before."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from progress.store.rows.packed_rows import PackedRows


def rows_of(name: str, revision: int) -> pa.Table:
    return pa.table({"table": [name, name], "revision": [revision, revision]})


def written(packed: PackedRows, tables: dict[str, pa.Table]) -> list[tuple[str, int]]:
    rows = pa.concat_tables(packed.parts(tables)).to_pylist()
    return sorted({(row["table"], row["revision"]) for row in rows}) if len(rows) == 2 * len(tables) else []


@pytest.mark.parametrize("most_apart", [0, 1, 3, 64])
def test_what_is_written_is_what_the_tables_have_now(most_apart: int) -> None:
    random, packed = Random(most_apart), PackedRows(most_apart)
    revisions = {f"t{number}": 0 for number in range(9)}
    tables = {name: rows_of(name, 0) for name in revisions}
    for revision in range(1, 200):
        for name in random.sample(sorted(revisions), random.randint(0, min(4, len(revisions)))):
            revisions[name] = revision
            tables = {**tables, name: rows_of(name, revision)}
        if random.random() < 0.05 and len(tables) > 3:
            gone = random.choice(sorted(tables))
            del revisions[gone]
            tables = {name: rows for name, rows in tables.items() if name != gone}
        assert written(packed, tables) == sorted(revisions.items())


def test_tables_that_change_again_and_again_are_apart_and_nothing_is_packed_again() -> None:
    packed, tables = PackedRows(), {f"t{number}": rows_of(f"t{number}", 0) for number in range(300)}
    assert len(packed.parts(tables)) == 1
    found = []
    for revision in range(1, 5):
        tables = {**tables, "t7": rows_of("t7", revision)}
        parts = packed.parts(tables)
        assert [part.num_rows for part in parts] == [598, 2]
        found.append(parts[0])
    assert all(each is found[0] for each in found)


def test_there_are_few_pieces_also_where_all_change() -> None:
    packed = PackedRows(3)
    for revision in range(20):
        assert len(packed.parts({f"t{number}": rows_of(f"t{number}", revision) for number in range(50)})) == 1
