"""Tables that cannot become a target are refused with the reason, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import obstore
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.tables import ORDERS, batch, order, stored
from vnode_backfill.delta import store_check
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.errors import SinkError

_put: Callable[..., object] = obstore.put


def sink_at(folder: Path, *, replace: bool = False) -> DeltaSink:
    return DeltaSink(str(folder), ORDERS, "job", replace=replace)


def overwrite(store: object, path: str, data: bytes, *, mode: str = "overwrite") -> object:
    return _put(store, path, data)


@pytest.mark.parametrize("before", ["nothing", "empty", "again", "replaced"])
def test_a_store_that_overwrites_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    if before == "again":
        sink_at(tmp_path / "target").prepare()
    elif before != "nothing":
        write_deltalake(tmp_path / "target", batch(ORDERS, [order(1)] if before == "replaced" else []))
    log = tmp_path / "target" / "_delta_log"
    held = sorted(log.iterdir()) if log.exists() else []
    # As in a process that has tried no store yet.
    monkeypatch.setattr(store_check, "_RIGHT", set())
    monkeypatch.setattr(obstore, "put", overwrite)
    with pytest.raises(SinkError, match="cannot hold a Delta table"):
        sink_at(tmp_path / "target", replace=before == "replaced").prepare()
    assert sorted(log.iterdir()) == held


def test_a_table_that_may_only_be_appended_to_is_not_replaced(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "target", batch(ORDERS, [order(1)]), configuration={"delta.appendOnly": "true"})
    for refused in (
        sink_at(tmp_path / "target", replace=True).check,
        sink_at(tmp_path / "target", replace=True).prepare,
    ):
        with pytest.raises(SinkError, match="cannot be replaced") as raised:
            refused()
        assert "delta.appendOnly" in raised.value.detail
    assert stored(tmp_path / "target") == [order(1)]


def test_a_table_with_a_rule_for_writers_is_refused_with_the_reason(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "target", batch(ORDERS, []))
    DeltaTable(tmp_path / "target").alter.add_constraint({"positive": "id > 0"})
    for refused in (sink_at(tmp_path / "target").check, sink_at(tmp_path / "target").prepare):
        with pytest.raises(SinkError, match="cannot take") as raised:
            refused()
        assert "checkConstraints" in raised.value.detail or "positive" in raised.value.detail
    sink_at(tmp_path / "target", replace=True).prepare()
    assert stored(tmp_path / "target") == []
