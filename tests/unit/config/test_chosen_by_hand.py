"""What operators add and remove counts before the file, and nothing in the file brings a removed table back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.test_tables import ITEMS, ORDERS, USERS, chosen, job, path_of
from vnode_backfill.config.chosen_by_hand import with_chosen
from vnode_backfill.config.tables import is_chosen, priority_of
from vnode_backfill.words.errors import ConfigError
from vnode_backfill.words.table_name import TableName


def test_a_removed_table_is_chosen_by_no_pattern_and_by_no_entry_that_names_it(tmp_path: Path) -> None:
    config = job(tmp_path, "shop.*", "shop.items", {"table": "crm.*", "priority": 7})
    found = with_chosen(config, {}, [ITEMS, USERS])
    assert chosen(found, ORDERS, ITEMS, USERS).tables == (ORDERS,)
    assert chosen(config, ORDERS, ITEMS, USERS).tables == (USERS, ITEMS, ORDERS), "the file is as it was"


def test_an_added_table_has_the_settings_of_the_entry_that_means_it(tmp_path: Path) -> None:
    config = job(
        tmp_path, {"table": "shop.i*", "priority": 7, "delta": {"path": "/other/{table}"}}, "shop.orders",
        mysql={"exclude": ["shop.items"]},
    )  # fmt: skip
    assert not is_chosen(config, ITEMS)
    found = with_chosen(config, {ITEMS: None, USERS: 3}, ())
    assert chosen(found, ORDERS, ITEMS, USERS).tables == (USERS, ITEMS, ORDERS)
    assert [priority_of(found, name) for name in (ITEMS, USERS, ORDERS)] == [7, 3, 100]
    assert [path_of(found, name) for name in (ITEMS, USERS)] == ["/other/items", "/lake/crm/users"]
    assert priority_of(with_chosen(config, {ORDERS: 1}, ()), ORDERS) == 1


def test_a_name_that_the_file_spells_otherwise_is_the_same_table_where_the_server_says_so(tmp_path: Path) -> None:
    config = job(tmp_path, "Shop.Orders", "shop.*")
    assert chosen(with_chosen(config, {}, [ORDERS], [ORDERS]), ORDERS, ITEMS, fold_case=True).tables == (ITEMS,)
    both = job(tmp_path, "shop.Items", "shop.items")
    assert chosen(with_chosen(both, {}, [ITEMS]), ITEMS, TableName("shop", "Items")).tables == (
        TableName("shop", "Items"),
    )


def test_two_tables_whose_names_differ_by_case_alone_stay_two(tmp_path: Path) -> None:
    other, config = TableName("shop", "Items"), job(tmp_path, "shop.items", "shop.orders")
    added = with_chosen(config, {other: None}, ())
    assert set(chosen(added, ITEMS, other, ORDERS).tables) == {ITEMS, other, ORDERS}
    assert set(chosen(with_chosen(added, {}, [other]), ITEMS, other, ORDERS).tables) == {ITEMS, ORDERS}


def test_a_file_without_any_table_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="every table that the file names was taken out"):
        with_chosen(job(tmp_path, "shop.orders"), {}, [ORDERS])
