"""The newest servers that can be had, skipped where they cannot.

Preflight passes, and every value arrives both ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.errors import DevkitError
from devkit.mysql import SqlServer
from devkit.newest import NewestMariaDbServer, NewestMySqlServer, fetch_newest_mariadb, fetch_newest_mysql
from tests.system.consume_upstream.mysql.test_preflight import config, look, refusals, refused_then_fixed
from tests.system.consume_upstream.mysql.test_value_matrix import METADATA, copied_and_followed
from tests.system.job_case import COPIER, create_copier, execute
from vnode_backfill.words.finding import Level

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    fetch, make = {
        "mysql": (fetch_newest_mysql, NewestMySqlServer),
        "mariadb": (fetch_newest_mariadb, NewestMariaDbServer),
    }[request.param]
    try:
        version = fetch().version
    except DevkitError as error:
        pytest.skip(f"the newest {request.param} cannot be had here: {error}")
    with make() as started:
        print(f"{request.param} {version}")
        create_copier(started)
        yield started


def test_preflight_passes_and_refuses_as_on_older_servers(server: SqlServer) -> None:
    execute(server, None, "CREATE DATABASE newest", "CREATE TABLE newest.t (id INT PRIMARY KEY, v VARCHAR(9))")
    findings = look(server, config("newest"))
    assert [finding for finding in findings if finding.level in (Level.REFUSED, Level.WARNING)] == []
    execute(server, None, "SET GLOBAL binlog_row_image = MINIMAL")
    refused_then_fixed(server, config("newest"), "binlog.row_image")
    if server.flavour == "mysql":
        execute(server, "newest", "ALTER TABLE t ADD COLUMN near VECTOR(3)")
        refused_then_fixed(server, config("newest"), "table.column_type")
    assert refusals(look(server, config("sys", {"table": "sys_config"}))) == ["table.schema"]
    execute(server, None, "DROP DATABASE newest")


@pytest.mark.parametrize("form", ["plain", "compressed"])
@pytest.mark.parametrize("metadata", ["default", "FULL"])
def test_every_value_arrives_from_the_newest_server(
    server: SqlServer, tmp_path: Path, spark: SparkSession, form: str, metadata: str
) -> None:
    named = METADATA[server.flavour][0] if metadata == "default" else metadata
    copied_and_followed(server, tmp_path, spark, form, named)


def test_every_value_arrives_by_an_account_without_other_rights(
    server: SqlServer, tmp_path: Path, spark: SparkSession
) -> None:
    copied_and_followed(server, tmp_path, spark, "plain", "FULL", account=COPIER)
