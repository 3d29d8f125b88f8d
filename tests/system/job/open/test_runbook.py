"""The handoff runbook does what it says: its commands, as written, on a table that is written to all the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devkit.mysql import MySqlServer
from devkit.orders import create_orders_table, orders_table
from devkit.runbook import Runbook, Step
from devkit.spark import REPOSITORY
from devkit.writer import Workload
from tests.system.job_case import execute

RUNBOOK = REPOSITORY / "docs" / "handoff-runbook.md"
ACCOUNT = "backfill@'127.0.0.1'"
QUIET = "# while nothing is written\n"

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def shop() -> Iterator[MySqlServer]:
    with MySqlServer() as server:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            create_orders_table(connection, 20_000, 7, database="shop", key_step=3)
        execute(
            server, None, f"CREATE USER {ACCOUNT} IDENTIFIED BY 'secret'",
            f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT, XA_RECOVER_ADMIN ON *.* TO {ACCOUNT}",
        )  # fmt: skip
        yield server


@contextmanager
def traffic(server: MySqlServer, step: Step, seed: int) -> Iterator[None]:
    """Changes of every kind during a step, unless it asks for quiet."""
    if step.commands.startswith(QUIET):
        yield
        return
    with Workload(lambda: server.connect("shop"), orders_table("shop"), seed=seed, rate=100, large_rows=100):
        yield


def test_every_command_of_the_runbook_prints_what_it_shows(shop: MySqlServer, tmp_path: Path) -> None:
    variables = {
        "MYSQL_HOST": shop.host, "MYSQL_PORT": str(shop.port), "MYSQL_PASSWORD": "secret", "LAKE": str(tmp_path / "lake"),
    }  # fmt: skip
    runbook = Runbook.parse(RUNBOOK.read_text())
    runbook.lay_out(tmp_path)
    assert any(step.commands.startswith(QUIET) for step in runbook.steps)
    for number, step in enumerate(runbook.steps):
        with traffic(shop, step, seed=number):
            printed = step.run(tmp_path, variables, seconds=400)
        print(f"$ {step.commands}{printed}")
        assert step.missing(printed) is None, printed
