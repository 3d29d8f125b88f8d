"""Foreign keys change rows of children outside the log: a job that copies parents and children is exact all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pymysql
import pytest
from pyspark.sql import SparkSession

from devkit.mysql import SqlServer
from devkit.waiting import wait_for
from tests.system.job.tables.many_tables import Here, Shape, Tables
from tests.system.job_case import execute

CASCADES = "ON DELETE CASCADE ON UPDATE CASCADE"
FAMILY = {
    "customers": ("id INT PRIMARY KEY, code VARCHAR(9) UNIQUE, name VARCHAR(20)", ("id",)),
    "orders": (
        f"id INT PRIMARY KEY, customer INT, v INT, CONSTRAINT of_c FOREIGN KEY (customer) REFERENCES customers (id) {CASCADES}",
        ("id",),
    ),
    "items": (
        (
            "customer INT, n INT, order_id INT, v INT, PRIMARY KEY (n), "
            f"CONSTRAINT of_o FOREIGN KEY (order_id) REFERENCES orders (id) {CASCADES}"
        ),
        ("n",),
    ),
    "notes": (
        (
            "id INT PRIMARY KEY, code VARCHAR(9), v INT, "
            "CONSTRAINT of_code FOREIGN KEY (code) REFERENCES customers (code) ON DELETE SET NULL ON UPDATE CASCADE"
        ),
        ("id",),
    ),
    "places": (
        f"customer INT, n INT, v INT, PRIMARY KEY (customer, n), FOREIGN KEY (customer) REFERENCES customers (id) {CASCADES}",
        ("customer", "n"),
    ),
    "tree": ("id INT PRIMARY KEY, up INT, v INT, FOREIGN KEY (up) REFERENCES tree (id) ON DELETE CASCADE", ("id",)),
    "plain": ("id INT PRIMARY KEY, v INT", ("id",)),
}
CHILDREN = ("orders", "items", "notes", "places", "tree")
CUSTOMERS = 60


def family_of(n: int) -> list[str]:
    """A customer with two orders of two items each, a note, a place, and three rows of the tree."""
    return [
        f"INSERT INTO customers VALUES ({n}, 'c{n}', 'name {n}')",
        *(f"INSERT INTO orders VALUES ({2 * n + k}, {n}, {n})" for k in (0, 1)),
        *(f"INSERT INTO items VALUES ({n}, {4 * n + k}, {2 * n + k // 2}, {n})" for k in range(4)),
        f"INSERT INTO notes VALUES ({n}, 'c{n}', {n})",
        f"INSERT INTO places VALUES ({n}, 1, {n})",
        f"INSERT INTO tree VALUES ({3 * n}, NULL, {n}), ({3 * n + 1}, {3 * n}, {n}), ({3 * n + 2}, {3 * n + 1}, {n})",
        f"INSERT INTO plain VALUES ({n}, {n})",
    ]


@pytest.fixture
def family(source_server: SqlServer, database: str, tmp_path: Path) -> Tables:
    tables = Tables(source_server, tmp_path, database, settings={"limits": {"range_rows": 50}})
    creating = [f"CREATE TABLE {name} ({columns})" for name, (columns, _) in FAMILY.items()]
    execute(source_server, database, *creating, *(each for n in range(1, CUSTOMERS + 1) for each in family_of(n)))
    tables.shapes = {name: Shape(columns, key, "") for name, (columns, key) in FAMILY.items()}
    return tables


@contextmanager
def lives(tables: Tables, seed: int) -> Iterator[list[int]]:
    """Families come, go and get other keys during the block; so do their parts. It counts the transactions."""
    ended, done = threading.Event(), [0]

    def live() -> None:
        random = Random(seed)
        with tables.server.connect(tables.database) as connection, connection.cursor() as cursor:
            connection.autocommit(False)
            while not ended.wait(0.02):
                try:
                    for statement in _change(random, done[0]):
                        cursor.execute(statement)
                    connection.commit()
                except pymysql.err.MySQLError:
                    connection.rollback()
                done[0] += 1

    thread = threading.Thread(target=live, name="writer")
    thread.start()
    try:
        wait_for(lambda: done[0] > 5, "the writer has begun", seconds=60)
        yield done
    finally:
        ended.set()
        thread.join()


def _change(random: Random, number: int) -> list[str]:
    n = random.randint(1, CUSTOMERS)
    if number % 40 == 20:
        return random.choice(
            [
                [f"DELETE FROM customers WHERE id = {n}"],
                [f"UPDATE customers SET id = id + 1000 WHERE id = {n}"],
                [f"UPDATE customers SET code = CONCAT(code, 'x') WHERE id = {n}"],
                [f"DELETE FROM orders WHERE id = {2 * n}"],
                [f"DELETE FROM tree WHERE id = {3 * n}"],
                [f"REPLACE INTO customers VALUES ({n}, 'c{n}', 'replaced')"],
            ]
        )
    if number % 10 == 5:
        return family_of(CUSTOMERS + number)
    table = random.choice(("orders", "items", "notes", "places", "tree", "plain"))
    return [f"UPDATE {table} SET v = v + 1 WHERE v = {n}", f"UPDATE customers SET name = 'n{number}' WHERE id = {n}"]


def ended_equal(tables: Tables, spark: SparkSession) -> None:
    here = Here(tables, spark)
    assert (here.run(), here.opened.aside, here.job.aside) == ({}, {}, {})
    assert tables.wrong() == {}


def copies(here: Here) -> dict[str, str]:
    return {table.name.rpartition(".")[2]: table.table.opened.record.id for table in here.job.tables}


def until_copied_again(here: Here, before: dict[str, str], *names: str) -> None:
    wait_for(
        lambda: all(copies(here)[name] != before[name] for name in names),
        f"{names} are copied again", seconds=120, state=here.shown,
    )  # fmt: skip
    here.until_live()


def test_rows_of_children_follow_their_parents_under_a_writer(family: Tables, spark: SparkSession) -> None:
    with lives(family, seed=1) as done, Here(family, spark).running() as here:
        assert here.opened.aside == {}
        wait_for(lambda: done[0] > 200, "some cascades", seconds=120)
    ended_equal(family, spark)


def test_one_change_of_a_parent_copies_its_children_and_no_other_table(family: Tables, spark: SparkSession) -> None:
    server, database = family.server, family.database
    with Here(family, spark).running() as here:
        here.until_live()
        before = copies(here)
        execute(
            server, database, "UPDATE customers SET name = 'other'", "INSERT INTO customers VALUES (900, 'new', '')"
        )
        execute(server, database, "ALTER TABLE customers COMMENT 'x'", "CREATE INDEX i ON customers (name)")
        execute(server, database, "UPDATE items SET v = 7", "UPDATE plain SET v = 7")
        here.until_live()
        assert copies(here) == before, "what nobody refers to costs nothing"
        execute(server, database, "DELETE FROM customers WHERE id = 3")
        until_copied_again(here, before, "orders", "items", "notes", "places")
        after = copies(here)
        assert {name for name in before if before[name] == after[name]} == {"customers", "tree", "plain"}
        execute(server, database, "DELETE FROM tree WHERE id = 12")
        until_copied_again(here, after, "tree")
        assert {**copies(here), "tree": ""} == {**after, "tree": ""}
    ended_equal(family, spark)


SEAMS = ("after:BufferChanges:60", "before:CommitEpoch:40", "after:CommitEpoch:40", "after:MergeEpoch:60")


@pytest.mark.parametrize("seam", [SEAMS[0], *(pytest.param(each, marks=pytest.mark.long) for each in SEAMS[1:])])
def test_a_killed_driver_finds_cascades_again(family: Tables, spark: SparkSession, seam: str) -> None:
    with lives(family, seed=2):
        family.run(kill=seam)
        family.run(kill=seam.rpartition(":")[0] + ":20")
    ended_equal(family, spark)


def test_keys_that_are_dropped_after_a_cascade_that_nobody_has_read(family: Tables, spark: SparkSession) -> None:
    assert Here(family, spark).run() == {}
    execute(
        family.server, family.database, "DELETE FROM customers WHERE id < 9",
        "UPDATE customers SET code = 'other' WHERE id = 20", "DELETE FROM tree WHERE id = 30",
        "ALTER TABLE orders DROP FOREIGN KEY of_c", "ALTER TABLE items DROP FOREIGN KEY of_o",
        "ALTER TABLE notes DROP FOREIGN KEY of_code", "DELETE FROM customers WHERE id = 10",
    )  # fmt: skip
    ended_equal(family, spark)


def test_parents_that_get_another_name_or_other_columns_while_nobody_runs_the_job(
    family: Tables, spark: SparkSession
) -> None:
    assert Here(family, spark).run() == {}
    execute(
        family.server, family.database, "DELETE FROM customers WHERE id < 9",
        "ALTER TABLE customers RENAME COLUMN id TO number, RENAME COLUMN code TO text",
        "RENAME TABLE customers TO clients", "UPDATE clients SET number = 5000 WHERE number = 11",
        "UPDATE clients SET text = 'moved' WHERE number = 12", "DELETE FROM orders WHERE id = 30",
    )  # fmt: skip
    del family.shapes["customers"]
    family.shapes["clients"] = Shape("", ("number",), "")
    with Here(family, spark).running() as here:
        here.until_live("clients", *CHILDREN)
        execute(family.server, family.database, "DELETE FROM clients WHERE number = 13")
        here.until_live("clients", *CHILDREN)
    ended_equal(family, spark)


def test_children_wait_for_a_tool_that_replaces_their_parent(family: Tables, spark: SparkSession) -> None:
    """As pt-online-schema-change does it: after the swap the keys refer to the old table until they are rebuilt."""
    server, database = family.server, family.database
    children = {"orders": "of_c", "notes": "of_code", "places": "places_ibfk_1"}
    with Here(family, spark).running() as here:
        here.until_live()
        before = copies(here)
        execute(
            server, database, "CREATE TABLE _customers_new LIKE customers",
            "INSERT INTO _customers_new SELECT * FROM customers",
            "RENAME TABLE customers TO _customers_old, _customers_new TO customers",
        )  # fmt: skip
        stopped = [table for table in here.job.tables if table.name.rpartition(".")[2] in children]
        wait_for(lambda: all(t.run.has_stopped for t in stopped), "children end", seconds=60, state=here.shown)
        for name, key in children.items():
            declared = FAMILY[name][0].partition("FOREIGN KEY")[2]
            rebuilt = f"DROP FOREIGN KEY {key}, ADD CONSTRAINT rebuilt_{name} FOREIGN KEY {declared}"
            execute(server, database, f"ALTER TABLE {name} {rebuilt}")
        execute(server, database, "DROP TABLE _customers_old", "DELETE FROM customers WHERE id = 5")
        until_copied_again(here, before, "customers", "items", *children)
        assert here.job.aside == {}
    ended_equal(family, spark)


def test_a_key_that_begins_to_cascade_makes_a_copy_that_knows_its_parent(family: Tables, spark: SparkSession) -> None:
    server, database = family.server, family.database
    with Here(family, spark).running() as here:
        here.until_live()
        before = copies(here)
        execute(
            server, database, "ALTER TABLE plain ADD CONSTRAINT of_id FOREIGN KEY (id) REFERENCES customers (id) "
            "ON DELETE CASCADE", "DELETE FROM customers WHERE id = 4",
        )  # fmt: skip
        until_copied_again(here, before, "plain", "orders")
        before = copies(here)
        execute(server, database, "DELETE FROM customers WHERE id = 5")
        until_copied_again(here, before, "plain", "orders")
    ended_equal(family, spark)


def test_a_parent_that_is_taken_out_of_the_job_is_still_looked_at(family: Tables, spark: SparkSession) -> None:
    """Its child is known to be old, and is set aside with the reason: the new copy would have a parent elsewhere."""
    assert Here(family, spark).run() == {}
    family.mysql["exclude"] = [f"{family.database}.customers"]
    family.use(limits={"range_rows": 50, "retries": 1})
    execute(family.server, family.database, "DELETE FROM customers WHERE id = 7")
    here = Here(family, spark)
    here.run()
    assert {name.rpartition(".")[2] for name in here.job.aside} == {"orders", "items", "notes", "places"}
    assert all(f"{family.database}.customers is not a table of this job" in str(e) for e in here.job.aside.values())
    del family.mysql["exclude"]
    family.use(sink={"delta": {"path": f"{family.lake}/{{table}}", "replace": True}})
    ended_equal(family, spark)


def test_a_child_whose_grandparent_is_elsewhere_is_refused(family: Tables, spark: SparkSession) -> None:
    family.mysql["exclude"] = [f"{family.database}.customers"]
    here = Here(family, spark)
    here.run()
    aside = {name.rpartition(".")[2]: str(error) for name, error in here.opened.aside.items()}
    assert aside.keys() == {"orders", "items", "notes", "places"}
    assert "customers is not a table of this job" in aside["items"]
    family.shapes = {name: family.shapes[name] for name in ("tree", "plain")}
    assert family.wrong() == {}
