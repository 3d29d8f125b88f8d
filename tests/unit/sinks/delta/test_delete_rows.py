"""A sink deletes the rows that a statement took away, once, whole files without a look at them."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.unit.sinks.delta.shapes import ITEMS, Cells, items, lake, merge, read
from vnode_backfill.config.job import MergeMode
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.schema_change import DeleteRows, TableShape

SHAPE = TableShape(ITEMS)


def row(number: int, name: str = "a") -> Cells:
    return {"id": number, "name": name, "count": number, "price": 0.5}


@pytest.fixture(params=MergeMode)
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaSink:
    """Files with the ids 1 to 4, 5 to 8 and 9 to 12; 2 and 6 were deleted."""
    made = items(tmp_path, request.param)
    for epoch, first in enumerate((1, 5, 9), start=1):
        read(made, epoch, ITEMS, *(row(number) for number in range(first, first + 4)))
    merge(made, 4, ITEMS, delete=[row(2), row(6)])
    return made


def ids(folder: Path) -> list[object]:
    return [each["id"] for each in lake(folder)]


@pytest.mark.parametrize(
    ("step", "left"),
    [
        (DeleteRows("id", ((None, "5"),)), [5, 7, 8, 9, 10, 11, 12]),
        (DeleteRows("id", (("4", "9"),)), [1, 3, 9, 10, 11, 12]),
        (DeleteRows("id", (("1", "2"), ("12", None))), [3, 4, 5, 7, 8, 9, 10, 11]),
        (DeleteRows("id", (("2", "3"),)), [1, 3, 4, 5, 7, 8, 9, 10, 11, 12]),
        (DeleteRows("id", (("99", None),)), [1, 3, 4, 5, 7, 8, 9, 10, 11, 12]),
        (DeleteRows("name", values=("a ", "b")), []),
    ],
)
def test_rows_inside_the_bounds_go(sink: DeltaSink, tmp_path: Path, step: DeleteRows, left: list[int]) -> None:
    sink.change(1, SHAPE, [step])
    assert ids(tmp_path) == left
    assert sink.schema_version() == 1


def test_second_call_changes_nothing(sink: DeltaSink, tmp_path: Path) -> None:
    step = DeleteRows("id", ((None, "5"),))
    sink.change(1, SHAPE, [step])
    merge(sink, 5, ITEMS, row(3, "new"))
    version = DeltaTable(str(tmp_path / "target")).version()
    sink.change(1, SHAPE, [step])
    assert DeltaTable(str(tmp_path / "target")).version() == version
    assert 3 in ids(tmp_path)


def test_file_inside_the_bounds_is_removed_without_being_read(tmp_path: Path) -> None:
    sink = items(tmp_path)
    read(sink, 1, ITEMS, *(row(number) for number in range(1, 5)))
    read(sink, 2, ITEMS, *(row(number) for number in range(5, 9)))
    (lost,) = (Path(uri) for uri in DeltaTable(str(tmp_path / "target")).file_uris() if "e1-" in uri)
    lost.unlink()
    sink.change(1, SHAPE, [DeleteRows("id", (("0", "5"),))])
    assert ids(tmp_path) == [5, 6, 7, 8]
