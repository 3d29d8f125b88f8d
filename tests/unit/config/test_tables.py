"""The tables of a job: which are chosen, what each one has of its own, and which files and targets are refused."""

from __future__ import annotations

import json
import posixpath
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.config.test_job import load
from vnode_backfill.config.choices import MergeMode, SchemaChanges, ZeroDates
from vnode_backfill.config.job import Config
from vnode_backfill.config.tables import Chosen, MeantTables, chosen_tables, only_reported, priority_of, table_config
from vnode_backfill.config.templates import filled_folder, filled_series
from vnode_backfill.words.errors import ConfigError
from vnode_backfill.words.table_name import TableName, TablePattern

ORDERS, ITEMS, USERS = TableName("shop", "orders"), TableName("shop", "items"), TableName("crm", "users")
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
LAKE: dict[str, object] = {"delta": {"path": "/lake/{database}/{table}"}}
TREE: dict[str, object] = {
    "iotdb": {"host": "iotdb", "device": "root.{database}.{table}.{region}", "time": {"column": "at"}},
}
ROWS: dict[str, object] = {
    "iotdb": {
        "host": "iotdb",
        "model": "table",
        "database": "{database}",
        "tags": ["region"],
        "time": {"column": "at"},
    },
}


def job(
    folder: Path, *tables: object, sink: object = LAKE, mysql: dict[str, object] | None = None, **other: object
) -> Config:
    source = {"host": "db", "user": "u", "tables": list(tables), **(mysql or {})}
    values = {"job": "all", "mysql": source, "sink": sink, "state": {"path": "/lake/_state"}, **other}
    return load(folder, json.dumps(values))


def refusal(
    folder: Path, *tables: object, sink: object = LAKE, mysql: dict[str, object] | None = None, **other: object
) -> str:
    with pytest.raises(ConfigError) as caught:
        job(folder, *tables, sink=sink, mysql=mysql, **other)
    return str(caught.value)


def chosen(config: Config, *names: TableName | str, fold_case: bool = False) -> Chosen:
    listed = [name if isinstance(name, TableName) else TableName(*name.split(".")) for name in names]
    return chosen_tables(config, listed, fold_case=fold_case)


def path_of(config: Config, name: TableName) -> str:
    delta = table_config(config, name).sink.delta
    assert delta is not None
    return delta.path


def test_a_job_of_many_tables_prints_and_reads_back(tmp_path: Path) -> None:
    config = job(tmp_path, "shop.*", {"table": "crm.users", "zero_dates": None}, mysql={"exclude": ["shop.t*"]})
    assert config.many
    assert config.mysql.tables[1].zero_dates is ZeroDates.NULL
    assert Config.model_validate(json.loads(config.model_dump_json())) == config


def test_names_and_patterns_choose_what_the_server_has(tmp_path: Path) -> None:
    config = job(tmp_path, "shop.orders", "crm.*", "shop.gone", "x.*", mysql={"exclude": ["crm.tmp_*"]})
    found = chosen(config, "shop.orders", "shop.items", "crm.users", "crm.tmp_1", "other.a")
    assert found.tables == (USERS, ORDERS)
    assert found.missing == (TableName("shop", "gone"),)
    assert found.unmatched == ("x.*",)


@pytest.mark.parametrize(
    "name",
    [
        "shop._orders_gho", "shop._orders_ghc", "shop._orders_del", "shop._orders_new", "shop._orders_old", "shop._A_OLD",
        "shop.#sql-12_3", "mysql.user", "sys.x", "performance_schema.threads", "information_schema.TABLES",
    ],
)  # fmt: skip
def test_no_pattern_chooses_a_helper_or_a_table_of_the_server(tmp_path: Path, name: str) -> None:
    assert chosen(job(tmp_path, "*.*"), name).tables == ()
    assert chosen(job(tmp_path, "shop.*", "*.*"), name).tables == ()


@pytest.mark.parametrize("name", ["shop._orders_gho", "shop.old", "shop._old", "shop.orders_old", "shop.sql"])
def test_a_table_that_is_named_is_chosen_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    assert len(chosen(job(tmp_path, name), name).tables) == 1


def test_a_name_wins_over_an_exclude_pattern_and_a_pattern_does_not(tmp_path: Path) -> None:
    config = job(tmp_path, "shop.*", "shop.tmp_keep", mysql={"exclude": ["shop.tmp_*"]})
    assert [str(name) for name in chosen(config, "shop.tmp_keep", "shop.tmp_1").tables] == ["shop.tmp_keep"]


def test_names_count_as_the_server_compares_them(tmp_path: Path) -> None:
    config = job(tmp_path, {"table": "Shop.Orders", "priority": 1}, {"table": "shop.*", "priority": 2})
    assert chosen(config, ORDERS).missing == (TableName("Shop", "Orders"),)
    folded = chosen(config, ORDERS, fold_case=True)
    assert (folded.tables, folded.missing, folded.unmatched) == ((ORDERS,), (), ())
    assert priority_of(config, ORDERS) == 2
    assert priority_of(config, ORDERS, fold_case=True) == 1


def test_a_table_is_compared_with_the_entries_of_a_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running job asks for every table once a second, and may have hundreds, each with an entry."""
    meant = MeantTables(job(tmp_path, "shop.a", "shop.b", "crm.*"), fold_case=False)
    names = [TableName("shop", "a"), TableName("crm", "people"), TableName("shop", "c")]
    assert [name in meant for name in names] == [True, True, False]

    def compared(*_: object, **__: object) -> bool:
        raise AssertionError("a table was compared again")

    monkeypatch.setattr(TablePattern, "matches", compared)
    assert [name in meant for name in names] == [True, True, False]


def test_the_entry_that_names_a_table_counts_else_the_first_pattern(tmp_path: Path) -> None:
    config = job(
        tmp_path,
        {"table": "shop.*", "priority": 3},
        {"table": "*.*", "priority": 4},
        {"table": "shop.orders", "priority": 1},
    )
    assert [priority_of(config, name) for name in (ORDERS, ITEMS, USERS)] == [1, 3, 4]
    assert chosen(config, ORDERS).unmatched == ()


def test_a_table_is_a_job_of_its_own_with_its_settings(tmp_path: Path) -> None:
    entry = {
        "table": "shop.orders", "rows_per_second": 7, "range_rows": 8, "schema_changes": "stop", "zero_dates": "error",
        "delta": {"merge": "rewrite", "replace": True},
    }  # fmt: skip
    config = job(tmp_path, entry, "crm.*", limits={"rows_per_second": 9, "retries": 1}, zero_dates=None)
    one = table_config(config, ORDERS)
    assert (one.mysql.database, one.mysql.table, one.mysql.tables, one.many) == ("shop", "orders", (), False)
    assert (one.limits.rows_per_second, one.limits.range_rows, one.limits.retries) == (7, 8, 1)
    assert (one.schema_changes, one.zero_dates, one.merge_mode) == (
        SchemaChanges.STOP,
        ZeroDates.ERROR,
        MergeMode.REWRITE,
    )
    assert one.sink.delta is not None
    assert (one.sink.delta.path, one.sink.delta.replace) == ("/lake/shop/orders", True)
    other = table_config(config, USERS)
    assert (other.limits.rows_per_second, other.schema_changes) == (9, SchemaChanges.FOLLOW)
    assert (one.job, one.state, one.workers) == (config.job, config.state, config.workers)


@pytest.mark.parametrize(
    ("of_job", "of_table", "counts"),
    [(100, 100_000, 100), (100, 7, 7), (100, None, 100), (None, 7, 7), (None, None, None), (100, 0, 0), (0, 7, 0)],
)
def test_a_table_is_read_at_its_own_limit_within_that_of_the_job(
    tmp_path: Path, of_job: int | None, of_table: int | None, counts: int | None
) -> None:
    entry = {"table": "shop.orders", "rows_per_second": of_table}
    config = job(tmp_path, entry, "crm.*", limits={"rows_per_second": of_job})
    assert table_config(config, ORDERS).limits.rows_per_second == counts
    assert table_config(config, USERS).limits.rows_per_second == of_job


def test_a_new_table_that_an_entry_names_in_other_letters_is_copied_also_where_others_are_reported(
    tmp_path: Path,
) -> None:
    config = job(tmp_path, "shop.*", "Shop.Orders", mysql={"new_tables": "report"})
    assert only_reported(config, [ORDERS, ITEMS], fold_case=True) == (ITEMS,)
    assert only_reported(config, [ORDERS, ITEMS], fold_case=False) == (ORDERS, ITEMS)
    assert only_reported(job(tmp_path, "shop.*"), [ORDERS], fold_case=False) == ()


def test_a_job_of_one_table_describes_itself(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "job: a\nmysql: {host: db, user: u, database: shop, table: orders}\n"
        "sink: {delta: {path: '/lake/{table}'}}\nstate: {path: /lake/_state}",
    )
    assert not config.many
    assert table_config(config, ORDERS) is config
    assert chosen(config, ORDERS, ITEMS).tables == (ORDERS,)
    assert config.sink.delta is not None
    assert config.sink.delta.path == "/lake/{table}"


@given(NAMES, NAMES, NAMES, NAMES)
def test_folders_of_two_tables_are_two_and_stay_below_the_template(a: str, b: str, c: str, d: str) -> None:
    one, other = (filled_folder("/lake/{database}/{table}", name) for name in (TableName(a, b), TableName(c, d)))
    assert (one == other) == ((a, b) == (c, d))
    assert posixpath.normpath(one) == one
    assert one.count("/") == 3
    assert not one.endswith("/_delta_log")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("orders", "orders"), ("..", "~2E."), (".hidden", "~2Ehidden"), ("a/b", "a~2Fb"), ("a~2Fb", "a~7E2Fb"),
        ("order items", "order~20items"), ("_delta_log", "~5Fdelta_log"), ("a=b", "a~3Db"), ("größe", "größe"),
        ("v1.2", "v1.2"), ("a%20b", "a~2520b"), ("a\\b", "a~5Cb"),
    ],
)  # fmt: skip
def test_a_folder_keeps_the_name_readable_and_safe(name: str, folder: str) -> None:
    assert filled_folder("{table}", TableName("shop", name)) == folder


@given(NAMES)
def test_a_name_of_iotdb_holds_only_what_that_server_takes(name: str) -> None:
    assert all(letter.isascii() or "一" <= letter <= "龿" for letter in filled_series("{table}", TableName("d", name)))


def test_a_table_has_the_iotdb_names_that_the_templates_say(tmp_path: Path) -> None:
    tree = table_config(job(tmp_path, "*.*", sink=TREE), TableName("my-shop", "order items")).sink.iotdb
    assert tree is not None
    assert tree.device == "root.my_2Dshop.order_20items.{region}"
    rows = table_config(job(tmp_path, "*.*", sink=ROWS), TableName("shop", "time")).sink.iotdb
    assert rows is not None
    assert (rows.database, rows.table) == ("shop", "_time")


def test_a_table_of_iotdb_has_a_mapping_of_its_own(tmp_path: Path) -> None:
    own = {
        "device": "root.x.{table}.{id}",
        "time": {"column": "t", "unit": "s"},
        "include": ["a"],
        "types": {"a": "float"},
    }
    sink = {"iotdb": {**TREE["iotdb"], "exclude": ["note"], "dead_letter": "/lake/bad/{table}"}}  # type: ignore[dict-item]
    config = job(tmp_path, "shop.*", {"table": "shop.orders", "iotdb": own}, sink=sink)
    one, other = (table_config(config, name).sink.iotdb for name in (ORDERS, ITEMS))
    assert one is not None
    assert other is not None
    assert (one.device, one.time.column, one.include, one.exclude) == ("root.x.orders.{id}", "t", ("a",), ())
    assert (other.device, other.exclude, other.dead_letter) == (
        "root.shop.items.{region}",
        ("note",),
        "/lake/bad/items",
    )


@pytest.mark.parametrize(
    ("tables", "mysql", "message"),
    [
        ([], {}, "mysql.tables is empty; must name at least one table"),
        (["shop.a"], {"database": "shop"}, "mysql.database must not be given together with tables"),
        (["orders"], {}, 'mysql.tables[0].table is "orders"; must be database.table'),
        ([7], {}, "mysql.tables[0] is 7; must be a mapping"),
        ([{"table": 7}], {}, "mysql.tables[0].table is 7; must be text"),
        ([{"priority": 7}], {}, "mysql.tables[0].table is missing"),
        ([{"table": "a.b", "prioritty": 7}], {}, "mysql.tables[0].prioritty is not a known key; did you mean priority?"),
        ([{"table": "a.b", "delta": {"pth": "x"}}], {}, "mysql.tables[0].delta.pth is not a known key; did you mean path?"),
        (["a.b", "a.`b`"], {}, "mysql.tables[1].table is a.`b`; an entry before it has the same name"),
        (["a.*", "a.*"], {}, "mysql.tables[1].table is a.*; an entry before it has the same name"),
        (["a.b", "a.*"], {"exclude": ["a.b"]}, "mysql.exclude[0] is a.b; mysql.tables names this table"),
        (["a.b"], {"exclude": ["a.c"]}, "mysql.exclude has no effect without a pattern"),
        (["a.b"], {"new_tables": "report"}, "mysql.new_tables has no effect without a pattern"),
        (["a.b"], {"new_tables": "ad"}, 'mysql.new_tables is "ad"; allowed: add, report'),
        (["a." + "x" * 65], {}, "must not hold a name of more than 64 characters"),
        ([{"table": "a.b", "iotdb": {"replace": True}}], {}, "mysql.tables[0].iotdb has no effect: the job's sink is delta"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_tables_is_named(
    tmp_path: Path, tables: list[object], mysql: dict[str, object], message: str
) -> None:
    assert message in refusal(tmp_path, *tables, mysql=mysql)


def test_one_table_needs_both_names(tmp_path: Path) -> None:
    told = refusal(tmp_path, mysql={"tables": None, "database": "shop"})
    assert told.startswith("mysql.table is missing; give database and table for one table, or tables for many")


def test_the_single_executor_copies_one_table(tmp_path: Path) -> None:
    assert "executor is single; must be parallel with mysql.tables" in refusal(tmp_path, "a.b", executor="single")


@pytest.mark.parametrize(
    ("sink", "key"),
    [
        ({"delta": {"path": "/lake/all"}}, "sink.delta.path is /lake/all; must hold {table}"),
        ({"delta": {"path": "/lake/{tabel}"}}, "sink.delta.path is /lake/{tabel}; {tabel} is not replaced"),
        ({"delta": {"path": "/lake/{table"}}, "sink.delta.path is /lake/{table; { is not replaced"),
        ({"iotdb": {**TREE["iotdb"], "device": "root.a.{region}"}}, "sink.iotdb.device is root.a.{region}; must hold"),  # type: ignore[dict-item]
        ({"iotdb": {**ROWS["iotdb"], "table": "all"}}, "sink.iotdb.table is all; must hold {table}"),  # type: ignore[dict-item]
        ({"iotdb": {**TREE["iotdb"], "dead_letter": "/bad"}}, "sink.iotdb.dead_letter is /bad; must hold {table}"),  # type: ignore[dict-item]
    ],
)
def test_a_target_of_several_tables_depends_on_the_table(tmp_path: Path, sink: object, key: str) -> None:
    assert key in refusal(tmp_path, "shop.*", sink=sink)
    assert key in refusal(tmp_path, "shop.a", "shop.b", sink=sink)


def test_a_path_without_a_template_is_fine_for_one_table_and_where_each_has_its_own(tmp_path: Path) -> None:
    plain = {"delta": {"path": "/lake/all"}}
    assert path_of(job(tmp_path, "shop.orders", sink=plain), ORDERS) == "/lake/all"
    own = {"table": "shop.items", "delta": {"path": "/lake/items"}}
    config = job(tmp_path, "shop.orders", own, sink=plain)
    assert (path_of(config, ORDERS), path_of(config, ITEMS)) == ("/lake/all", "/lake/items")


def test_a_pattern_whose_own_path_is_one_folder_is_refused(tmp_path: Path) -> None:
    told = refusal(tmp_path, {"table": "shop.*", "delta": {"path": "/lake/x"}})
    assert "mysql.tables[0].delta.path is /lake/x; must hold {table}" in told


@pytest.mark.parametrize(
    "path", ["/lake/shop/orders", "/lake/shop/./orders/", "/lake/shop/orders/inside", "/lake/shop"]
)
def test_two_named_tables_with_one_target_or_one_inside_the_other_are_refused(tmp_path: Path, path: str) -> None:
    told = refusal(tmp_path, "shop.orders", {"table": "crm.users", "delta": {"path": path}})
    assert "mysql.tables must give each table its own target; shop.orders and crm.users have one target" in told


def test_folders_that_only_begin_alike_are_no_clash(tmp_path: Path) -> None:
    config = job(tmp_path, "shop.*")
    names = [TableName("shop", name) for name in ("a", "a-b", "ab", "a.b")]
    assert chosen(config, *names).clashes == ()


def test_a_table_that_a_pattern_finds_gives_way_to_one_that_has_its_target(tmp_path: Path) -> None:
    config = job(tmp_path, "*.*", "shop.orders", sink={"delta": {"path": "/lake/{table}"}})
    other, third = TableName("crm", "orders"), TableName("a", "orders")
    found = chosen(config, ORDERS, other, third, ITEMS)
    assert [(clash.table, clash.other) for clash in found.clashes] == [(third, ORDERS), (other, ORDERS)]


def test_tables_of_iotdb_clash_without_upper_and_lower_case(tmp_path: Path) -> None:
    upper = TableName("shop", "Orders")
    assert chosen(job(tmp_path, "*.*", sink=ROWS), ORDERS, upper).clashes[0].table == ORDERS
    assert chosen(job(tmp_path, "*.*", sink=LAKE), ORDERS, upper).clashes == ()
    encoded = TableName("shop", "a-b"), TableName("shop", "a_2Db")
    assert len(chosen(job(tmp_path, "*.*", sink=TREE), *encoded).clashes) == 1


def test_devices_that_differ_only_in_the_name_of_a_column_are_one_target(tmp_path: Path) -> None:
    told = refusal(
        tmp_path,
        {"table": "a.b", "iotdb": {"device": "root.x.{region}"}},
        {"table": "a.c", "iotdb": {"device": "root.x.{area}"}},
        sink=TREE,
    )
    assert "a.c and a.b have one target" in told


def test_a_table_whose_folder_would_hold_the_state_is_refused_by_name(tmp_path: Path) -> None:
    config = job(tmp_path, "*.*", sink={"delta": {"path": "/lake/{table}"}})
    with pytest.raises(ConfigError, match=r"mysql.tables\[0\]: state.path is /lake/_state; must not") as caught:
        table_config(config, TableName("shop", "_state"))
    assert "for table shop._state" in str(caught.value)


def test_a_template_of_names_is_refused_in_a_job_of_one_table(tmp_path: Path) -> None:
    told = refusal(tmp_path, sink=ROWS, mysql={"tables": None, "database": "shop", "table": "orders"})
    assert "sink.iotdb.database is {database}; names are replaced only with mysql.tables" in told


@pytest.mark.parametrize(
    ("cut", "delta", "kept"),
    [
        ("1d", {}, "1d"),
        ("8d", {"merge": "rewrite"}, "7d"),
        ("2d", {"retention": "1h"}, "1d"),
        ("9d", {"retention": "9d"}, "9d"),
    ],
)
def test_a_cut_that_would_be_gone_before_the_next_one_is_refused(
    tmp_path: Path, cut: str, delta: dict[str, object], kept: str
) -> None:
    sink = {"delta": {"path": "/lake/{table}", **delta}}
    found = refusal(tmp_path, "shop.orders", sink=sink, epoch={"cut": cut})
    assert f"is {cut}; must be less than {kept}, for which a cut is kept" in found
    assert job(tmp_path, "shop.orders", sink=sink, epoch={"cut": "23h"}).epoch.cut is not None
