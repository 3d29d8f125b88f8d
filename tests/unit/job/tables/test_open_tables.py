"""A running job looks for tables that have appeared, without a server: whether it asks at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from devkit.process import free_ports
from progress.store.tables_store import TablesStore
from tests.unit.progress.store.tables_folder import stored
from vnode_backfill.config.job import load_config
from vnode_backfill.job.tables import open as opening
from vnode_backfill.job.tables.open import TablesOpener
from vnode_backfill.words.errors import SourceLostError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TablesStore]:
    made = stored(tmp_path / "state", "orders")
    yield made
    made.release()


def opener_of(store: TablesStore, folder: Path, *tables: str, new_tables: str) -> TablesOpener:
    """Nobody listens where its file says that the server is."""
    mysql = {"host": "127.0.0.1", "port": free_ports(1)[0], "user": "u", "tables": tables, "new_tables": new_tables}
    values = {
        "job": "shop", "mysql": mysql, "sink": {"delta": {"path": f"{folder}/lake/{{table}}"}},
        "state": {"path": f"{folder}/state"},
    }  # fmt: skip
    file = folder / "job.yaml"
    file.write_text(json.dumps(values))
    return TablesOpener(load_config(file), store, lambda: None)


@pytest.mark.parametrize("new_tables", ["add", "report"])
def test_tables_are_looked_for_again_whether_they_are_added_or_reported(
    store: TablesStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_tables: str
) -> None:
    opener = opener_of(store, tmp_path, "shop.*", new_tables=new_tables)
    assert opener.look_again(["shop.orders"]).tables == [], "somebody has looked just now"
    monkeypatch.setattr(opening, "_LOOK_SECONDS", -1.0)
    with pytest.raises(SourceLostError):
        opener.look_again(["shop.orders"])
