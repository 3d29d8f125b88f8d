"""The end of a run without some of its tables, as one error for those who call from Python."""

from __future__ import annotations

from vnode_backfill.commands.tables.run import error_of
from vnode_backfill.words.errors import BackfillError, PlanRefusedError

REFUSED = PlanRefusedError("checks refuse it", detail="\nrefused  table.key  it has no key\n", hint="Apply each fix.")


def test_one_table_gives_its_reason_and_its_hint() -> None:
    error = error_of("shop", {"shop.audit": REFUSED})
    assert error.message == "job shop has ended without shop.audit"
    assert error.detail == "shop.audit: checks refuse it\nrefused  table.key  it has no key"
    assert error.hint == "Apply each fix."


def test_several_tables_are_named_each_with_what_helps() -> None:
    lost = {"shop.b c": BackfillError("the target is gone"), "shop.audit": REFUSED}
    error = error_of("shop", lost)
    assert error.message == "job shop has ended without shop.audit, shop.b c"
    assert error.detail.splitlines()[-1] == "shop.b c: the target is gone"
    assert error.hint.splitlines() == [
        "shop.audit: Apply each fix.", "shop.b c: `vnode-backfill status --table 'shop.b c'` shows more.",
    ]  # fmt: skip


def test_of_very_many_tables_the_first_are_named() -> None:
    error = error_of("shop", {f"shop.t{number:02}": REFUSED for number in range(11)})
    assert error.message.endswith("shop.t07, and 3 more tables")
    assert error.detail.endswith("and 3 more tables")
    assert len(error.hint.splitlines()) == 8
