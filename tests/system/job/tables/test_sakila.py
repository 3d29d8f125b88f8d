"""The shapes of a widely used sample database are one job: every table is copied and followed, also where keys cascade."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.comparer import compare_delta
from devkit.mysql import SqlServer
from tests.system.job.tables.many_tables import Here, Tables
from tests.system.job.tables.rental_shop import KEYS, create_rental_shop, rekey, rent

pytestmark = pytest.mark.long


@pytest.fixture
def rentals(source_server: SqlServer, database: str, tmp_path: Path) -> Tables:
    create_rental_shop(source_server, database)
    return Tables(source_server, tmp_path, database, settings={"limits": {"range_rows": 100}})


def test_every_table_is_copied_and_followed(rentals: Tables, spark: SparkSession) -> None:
    here = Here(rentals, spark)
    rent(rentals.server, rentals.database, seed=1)
    assert here.run() == {}
    assert here.opened.aside == {}, "children of a cascade are copied too, also those in a circle"
    assert {table.name.rpartition(".")[2] for table in here.job.tables} == KEYS.keys(), "and no view"
    with Here(rentals, spark).running() as later:
        later.until_live(*KEYS)
        rent(rentals.server, rentals.database, seed=2)
        rekey(rentals.server, rentals.database)
        later.until_live(*KEYS)
    assert Here(rentals, spark).run() == {}
    assert {name: _differences(rentals, name) for name in KEYS} == dict.fromkeys(KEYS, 0)


def _differences(case: Tables, name: str) -> int:
    with case.server.connect() as connection:
        return len(compare_delta(connection, case.database, name, KEYS[name], case.lake / name))
