"""The shapes of a widely used sample database are one job: every table is copied, or set aside with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.comparer import compare_delta
from devkit.mysql import SqlServer
from tests.system.job.tables.many_tables import Here, Tables
from tests.system.job.tables.rental_shop import CHILDREN, KEYS, create_rental_shop, rent

pytestmark = pytest.mark.long


@pytest.fixture
def rentals(source_server: SqlServer, database: str, tmp_path: Path) -> Tables:
    create_rental_shop(source_server, database)
    return Tables(source_server, tmp_path, database, settings={"limits": {"range_rows": 100}})


def test_every_table_is_copied_and_followed_or_set_aside_with_its_reason(rentals: Tables, spark: SparkSession) -> None:
    here = Here(rentals, spark)
    rent(rentals.server, rentals.database, seed=1)
    assert here.run() == {}
    aside = {name.rpartition(".")[2]: str(error) for name, error in here.opened.aside.items()}
    assert aside.keys() <= CHILDREN, "only children of a cascade may be left out"
    assert all("foreign key" in reason.lower() for reason in aside.values()), aside
    copied = KEYS.keys() - aside.keys()
    assert {table.name.rpartition(".")[2] for table in here.job.tables} == copied, "and no view"
    with Here(rentals, spark).running() as later:
        later.until_live(*copied)
        rent(rentals.server, rentals.database, seed=2)
    assert {name: _differences(rentals, name) for name in copied} == dict.fromkeys(copied, 0)


def _differences(case: Tables, name: str) -> int:
    with case.server.connect() as connection:
        return len(compare_delta(connection, case.database, name, KEYS[name], case.lake / name))
