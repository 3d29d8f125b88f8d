"""Gives tests real servers and a real Spark. Each is started once per run, when the first test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest
from pyspark.sql import SparkSession

from devkit.iotdb import Heaps, IotdbServer
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.orders import quote
from devkit.spark import local_spark
from tests.parts import files_of_part, part
from tests.system.job_case import ASKED_MERGE
from vnode_backfill.config.job import MergeMode

_database_numbers = count(1)
_LONGEST = ("test_crashes.py", "test_edges.py", "test_commands.py", "test_visibility_race.py")
"""Files whose tests are chains of whole job runs. They begin first, so that no core waits at the end for a long one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--merge",
        choices=[str(mode) for mode in MergeMode],
        help="the `sink.delta.merge` of jobs whose test names none (the product's own default without this)",
    )
    parser.addoption("--part", type=part, metavar="K/N", help="part K of N, of about as many tests each; whole files")


def pytest_configure(config: pytest.Config) -> None:
    # Each job that a test starts would compile the whole product again, in its driver and in its daemon.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    asked = config.getoption("--merge")
    if asked:
        os.environ[ASKED_MERGE] = asked


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Comes after `-m` and `-k`, so that parts are of what is left."""
    if asked := config.getoption("--part"):
        chosen = files_of_part([item.path for item in items], *asked)
        config.hook.pytest_deselected(items=[item for item in items if item.path not in chosen])
        items[:] = [item for item in items if item.path in chosen]
    items.sort(key=lambda item: _LONGEST.index(item.path.name) if item.path.name in _LONGEST else len(_LONGEST))


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[MySqlServer]:
    with MySqlServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    with MariaDbServer() as server:
        yield server


@pytest.fixture(scope="session", params=["mysql", "mariadb"])
def source_server(request: pytest.FixtureRequest) -> SqlServer:
    """Both servers, one after the other: the tests of the source run on each."""
    server = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(server, SqlServer)
    return server


@pytest.fixture
def database(source_server: SqlServer) -> Iterator[str]:
    """The name of an empty database on `source_server`, dropped afterwards."""
    name = f"test_{next(_database_numbers)}"
    with source_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {quote(name)}")
    yield name
    with source_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {quote(name)}")


@pytest.fixture(scope="session")
def iotdb_server() -> Iterator[IotdbServer]:
    # Each test has its own database, and each database has its own buffers outside the heap.
    with IotdbServer(heaps=Heaps(direct=256)) as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = local_spark(warehouse=tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()
