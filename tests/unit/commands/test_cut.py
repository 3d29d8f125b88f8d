"""What `cut` prints of a stored cut: each target with its version, and the tables that are left out with the reason."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from progress.state.cut import Cut, Target
from progress.store.tables_store import TablesStore
from tests.unit.commands.test_tables import Asked
from tests.unit.progress.state.state_examples import at
from tests.unit.progress.store.tables_folder import MINUTE

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
CUT = Cut(
    at(100), AT, {"shop.orders": Target("iotdb:root.orders", None), "shop.Items": Target("iotdb:root.items", None)},
    {"shop.order_lines": "snapshot", "shop.events": "the log is gone"},
)  # fmt: skip
ORDERS = "version  -  shop.orders  iotdb:root.orders"
ITEMS = "version  -  shop.Items   iotdb:root.items"


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    made = Asked(tmp_path, capsys)
    store = TablesStore(str(tmp_path / "state"), "shop")
    store.acquire_lease("anna", MINUTE)
    own = store.table("shop.orders")
    own.acquire_lease("anna", MINUTE)
    held = own.load()
    assert held is not None
    state = replace(held.state, revision=held.state.revision + 1)
    assert store.commit_together([(own, state)], cut=CUT.to_json()) == {}
    store.release()
    return made


def test_tables_that_are_left_out_are_printed_after_the_targets_with_the_reason(asked: Asked) -> None:
    offset, *lines = asked("cut").splitlines()
    assert offset == f"offset   {at(100)} at {AT.isoformat()}"
    assert lines == [
        ITEMS, ORDERS, "left out    shop.events: the log is gone", "left out    shop.order_lines: snapshot",
    ]  # fmt: skip


def test_the_document_names_tables_that_are_left_out(asked: Asked) -> None:
    found = json.loads(asked("cut", "--json"))
    assert [each["name"] for each in found["tables"]] == ["shop.Items", "shop.orders"]
    assert found["left_out"] == [
        {"name": "shop.events", "reason": "the log is gone"}, {"name": "shop.order_lines", "reason": "snapshot"},
    ]  # fmt: skip


def test_some_tables_of_a_cut_are_shown_with_its_offset(asked: Asked) -> None:
    whole = asked("cut").splitlines()
    assert asked("cut", "--table", "shop.o*").splitlines() == [whole[0], ORDERS, whole[-1]]
    assert asked("cut", "--table", "shop.events").splitlines() == [whole[0], "left out    shop.events: the log is gone"]
    found = json.loads(asked("cut", "--json", "--table", "shop.items", "--table", "shop.events"))
    assert (found["offset"], found["at"]) == (str(at(100)), AT.isoformat())
    assert [each["name"] for each in found["tables"] + found["left_out"]] == ["shop.Items", "shop.events"]


def test_a_table_that_the_cut_does_not_have_is_refused(asked: Asked) -> None:
    """The job has it by now."""
    assert "--table shop.audit: the newest cut has no such table" in asked("cut", "--table", "shop.audit", code=2)
