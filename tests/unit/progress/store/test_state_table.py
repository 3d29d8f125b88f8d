"""A table of the state is made with its first rows by one commit, and is the same for every reader."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from progress.store.state_table import DEFAULT_RETENTION, StateTable
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.storage import Storage
from vnode_backfill.words.errors import SinkError, SinkUnavailableError, StateUnavailableError

SCHEMA = pa.schema(
    [pa.field("id", pa.string(), nullable=False), ("at", pa.timestamp("us", tz="UTC")), ("n", pa.int32())]
)


def table_at(folder: Path) -> StateTable:
    return StateTable(str(folder), SCHEMA, {}, DEFAULT_RETENTION)


def rows_of(*names: str) -> pa.Table:
    return pa.Table.from_pylist([{"id": name, "at": None, "n": 1} for name in names], schema=SCHEMA)


def names_in(rows: pa.Table) -> list[str]:
    return sorted(rows["id"].to_pylist())


def test_the_first_rows_make_the_table_as_the_library_would(tmp_path: Path) -> None:
    made, expected = table_at(tmp_path / "made"), table_at(tmp_path / "expected")
    made.add(rows_of("a", "b"))
    expected.append(rows_of("a", "b"))
    one, other = DeltaTable(made.uri), DeltaTable(expected.uri)
    assert one.version() == other.version() == 0
    assert one.protocol() == other.protocol()
    assert one.schema() == other.schema()
    assert one.metadata().configuration == other.metadata().configuration
    assert made.read(made.open()).equals(expected.read(expected.open()))
    assert made.rows().equals(expected.rows())


def test_rows_are_added_to_a_table_that_is_there(tmp_path: Path) -> None:
    table = table_at(tmp_path / "table")
    for name in ("a", "b", "c"):
        table.add(rows_of(name))
    assert names_in(table.rows()) == names_in(table.read(table.open())) == ["a", "b", "c"]
    handle = table.open()
    assert handle is not None
    table.replace(handle, rows_of("d"))
    assert names_in(table.rows()) == ["d"]
    assert table.rows(["n"]).to_pylist() == [{"n": 1}]


def test_there_are_no_rows_without_a_table(tmp_path: Path) -> None:
    assert table_at(tmp_path / "nothing").rows().num_rows == 0


def test_rows_are_added_to_a_table_that_somebody_makes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, create = table_at(tmp_path / "table"), DeltaLog.create

    def slowly(log: DeltaLog, *given: object, **named: object) -> TableVersion:
        monkeypatch.undo()
        table.add(rows_of("first"))
        return create(log, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaLog, "create", slowly)
    table.add(rows_of("second"))
    assert names_in(table.rows()) == ["first", "second"]
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 2


def test_rows_are_not_added_twice_where_nobody_knows_whether_they_landed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_at(tmp_path / "table")

    def lost(storage: Storage, name: str, data: bytes) -> str | None:
        (tmp_path / "table" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "table" / name).write_bytes(data)
        raise TimeoutError("no answer")

    table_at(tmp_path / "other").add(rows_of("a"))
    monkeypatch.setattr(Storage, "put_new", lost)
    with pytest.raises(StateUnavailableError, match="cannot be written"):
        table.add(rows_of("a"))
    assert names_in(table.rows()) == ["a"]


@pytest.mark.parametrize("error", [SinkError("no"), SinkUnavailableError("no")])
def test_a_store_that_is_refused_here_is_the_librarys_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: SinkError
) -> None:
    """One whose writers agree by a lock of that library's cannot be written past it. It can be read by it."""

    def refused(storage: Storage, folder: str, after: str = "") -> list[str]:
        raise error

    table = table_at(tmp_path / "table")
    table.append(rows_of("a"))
    monkeypatch.setattr(Storage, "list_names", refused)
    assert names_in(table.rows()) == ["a"]
    if error.retryable:
        with pytest.raises(StateUnavailableError):
            table.add(rows_of("b"))
    else:
        table.add(rows_of("b"))
        assert names_in(table.rows()) == ["a", "b"]


def test_a_store_that_keeps_no_condition_is_left_without_a_file_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_log: DeltaLog) -> None:
        raise SinkError("the store lets two commits make one version")

    monkeypatch.setattr(DeltaLog, "check_store", refused)
    table = table_at(tmp_path / "table")
    table.add(rows_of("a"))
    assert names_in(table.rows()) == ["a"]
    assert len(list((tmp_path / "table").glob("*.parquet"))) == 1


def test_a_file_with_other_columns_is_read_by_the_library(tmp_path: Path) -> None:
    """An earlier release may have written fewer."""
    fewer = StateTable(str(tmp_path / "table"), SCHEMA.remove(2), {}, DEFAULT_RETENTION)
    fewer.append(rows_of("a").select(["id", "at"]))
    DeltaTable(fewer.uri).alter.add_columns([Field("n", PrimitiveType("integer"))])
    assert table_at(tmp_path / "table").rows().to_pylist() == [{"id": "a", "at": None, "n": None}]
