"""The state of many tables is shown from one read, asked by one write, and remembers what is set aside."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from devkit.waiting import wait_for
from progress.state.backfill_state import Request, RequestKind
from progress.state.report import Observed
from progress.state.target_health import TargetHealth, VectorHealth
from progress.store.observed import ObservedFile, ObservedReporter, TableSeen, tables_seen
from progress.store.tables_store import TablesStore
from tests.job_reports import RUNNING
from tests.tables_reports import tables_report
from tests.unit.progress.state.state_examples import beginning
from tests.unit.progress.store.tables_folder import MINUTE, PLAN, stored
from vnode_backfill.words.errors import PlanRefusedError, StateError


def everything(names: Collection[str]) -> Collection[str]:
    return names


def test_all_tables_are_shown_from_one_read_of_the_state(tmp_path: Path) -> None:
    stored(tmp_path, "items", "orders").release()
    looking = TablesStore(str(tmp_path), "shop")
    shown = looking.shown(everything)
    assert shown is not None
    assert (shown.names, set(shown.tables), shown.lease) == (("shop.items", "shop.orders"), set(shown.names), None)
    assert [len(each.estimates.rows) for each in shown.tables.values()] == [3, 3]
    assert TablesStore(str(tmp_path), "nothing").shown(everything) is None


def test_rows_of_the_tables_may_be_stored_in_any_order(tmp_path: Path) -> None:
    stored(tmp_path, "items", "orders").release()
    folder = f"{TablesStore(str(tmp_path), 'shop').folder}/checkpoints"
    rows = DeltaTable(folder).to_pyarrow_table()
    write_deltalake(folder, rows.sort_by([("vnode", "descending"), ("table", "ascending")]), mode="overwrite")
    shown = TablesStore(str(tmp_path), "shop").shown(everything)
    assert shown is not None
    assert [len(each.state.vnodes) for each in shown.tables.values()] == [4, 4]


def test_request_to_many_tables_is_one_write_and_each_driver_of_a_table_finds_its_own(tmp_path: Path) -> None:
    store = stored(tmp_path, "items", "orders")
    asking = TablesStore(str(tmp_path), "shop")
    pause = Request(0, RequestKind.PAUSE)
    assert asking.append_requests({"shop.items": pause}, "maria", "host") == {"shop.items": 1}
    both = asking.append_requests(dict.fromkeys(("shop.items", "shop.orders"), pause), "maria", "host")
    assert both == {"shop.items": 2, "shop.orders": 1}
    assert DeltaTable(f"{asking.folder}/requests").version() == 1
    states = {name: beginning(PLAN, workers=2) for name in ("shop.items", "shop.orders")}
    found = store.unacknowledged(states)
    assert {name: [each.id for each in asked] for name, asked in found.items()} == {
        "shop.items": [1, 2],
        "shop.orders": [1],
    }
    shown = store.asked(states)
    assert {name: [(each.who, each.request.id) for each in asked] for name, asked in shown.items()} == {
        "shop.items": [("maria", 1), ("maria", 2)],
        "shop.orders": [("maria", 1)],
    }


def test_what_is_set_aside_is_known_without_a_driver_and_gone_when_it_is_copied(tmp_path: Path) -> None:
    store = stored(tmp_path, "orders")
    store.note_aside({"shop.audit": PlanRefusedError("no key", detail="none at all", hint="add one")})
    store.release()
    looking = TablesStore(str(tmp_path), "shop")
    shown = looking.shown(everything)
    assert shown is not None
    assert shown.names == ("shop.audit", "shop.orders")
    assert str(shown.aside["shop.audit"]) == str(PlanRefusedError("no key", detail="none at all", hint="add one"))
    looking.acquire_lease("anna", MINUTE)
    looking.note_aside({})
    looking.release()
    assert TablesStore(str(tmp_path), "shop").aside() == {}


def test_same_tables_set_aside_again_are_not_written_again(tmp_path: Path) -> None:
    store = stored(tmp_path, "orders")
    for _ in range(3):
        store.note_aside({})
    version = DeltaTable(f"{store.folder}/checkpoints").version()
    for _ in range(3):
        store.note_aside({"shop.audit": PlanRefusedError("no key")})
    assert DeltaTable(f"{store.folder}/checkpoints").version() == version + 1


def test_dropped_job_has_no_tables_and_its_driver_is_fenced(tmp_path: Path) -> None:
    store = stored(tmp_path, "items", "orders")
    with pytest.raises(StateError, match="is driven by anna"):
        TablesStore(str(tmp_path), "shop").drop("maria")
    store.note_aside({"shop.audit": PlanRefusedError("no key")})
    store.release()
    dropping = TablesStore(str(tmp_path), "shop")
    dropping.drop("maria")
    left = TablesStore(str(tmp_path), "shop")
    assert (left.exists(), left.aside(), left.cut()) == (False, {}, None)
    assert left.acquire_lease("anna", MINUTE).generation > 1


def test_driver_notes_what_it_knows_of_each_table(tmp_path: Path) -> None:
    report = tables_report(6)
    file = ObservedFile(str(tmp_path), {}, 1)
    file.write(Observed(rows_per_second=5.0, reported=("shop.later",)), tables_seen(report))
    found = file.read_with_tables()
    assert found is not None
    seen, tables = found
    assert (seen.rows_per_second, seen.reported) == (5.0, ("shop.later",))
    assert tables["shop.table_001"] == TableSeen(True, 0.4, 1.3)
    assert (tables["shop.table_003"].driven, tables["shop.audit"].driven) == (False, False)
    assert tables["shop.table_004"].retry == "the connection to the source was lost"


def test_shape_of_each_target_is_noted_and_not_known_from_a_note_of_an_earlier_release(tmp_path: Path) -> None:
    health = TargetHealth(3, 100, 40, 7, 70, 60, 20, VectorHealth(10, 50))
    noted = TableSeen(
        True, 0.4, 1.3, "", lag_bytes=5, buffer_bytes=6, target=health, lengthened=4, lengthened_by="its log"
    )
    seen = replace(RUNNING, target=health, lag_bytes=5, buffer_bytes=6, lengthened=4, lengthened_by="its log")
    file = ObservedFile(str(tmp_path), {}, 1)
    reporter = ObservedReporter(file, every=0.01)
    reporter.show(tables_report(6, per_table=seen))
    wait_for(lambda: (file.read_with_tables() or ({}, {}))[1].get("shop.table_001") == noted, "the note")
    reporter.close()
    earlier = '{"lag_seconds": 1.0, "tables": {"shop.table_001": {"driven": true, "lag_seconds": 0.4, "retry": "x"}}}'
    (tmp_path / "observed-1").write_text(earlier)
    found = file.read_with_tables()
    assert found == (Observed(lag_seconds=1.0), {"shop.table_001": TableSeen(True, 0.4, None, "x")})
