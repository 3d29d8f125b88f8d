"""`run --workers` holds for all tables of a job of many, whatever was asked before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from progress.state.backfill_state import Request, RequestKind
from tests.unit.progress.store.tables_folder import stored
from vnode_backfill.commands.tables.run import _ask_for_workers
from vnode_backfill.job.tables.open import OpenedTables


def test_a_number_of_workers_counts_although_a_rescale_to_another_one_waits(tmp_path: Path) -> None:
    """The table has two workers, and would have three once it has done what was asked before."""
    store, name = stored(tmp_path, "orders"), "shop.orders"
    store.append_requests({name: Request(0, RequestKind.RESCALE, workers=3)}, "anna", "host")
    loaded = store.table(name).load()
    assert loaded is not None
    table = SimpleNamespace(name=name, opened=SimpleNamespace(state=loaded.state))
    _ask_for_workers(store, cast(OpenedTables, SimpleNamespace(tables=(table,))), 2)
    asked = store.unacknowledged({name: loaded.state})[name]
    assert [each.workers for each in asked] == [3, 2]
