"""The demo ends as the README says, and its writer knows what it has written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from devkit.lake import count_lake
from devkit.mysql import MySqlServer
from devkit.shop.tables import KEYS, create_shop, rows_of_tables
from devkit.shop.writer import ShopWriter
from devkit.spark import REPOSITORY
from tests.system.job_case import execute


def test_a_shop_is_written_to_as_the_writer_counts(mysql_server: MySqlServer) -> None:
    with mysql_server.connect() as connection:
        create_shop(connection, 1_000, database="shop_of_writer")
    with mysql_server.connect() as connection, connection.cursor() as cursor:
        writer = ShopWriter(connection, "shop_of_writer", seed=3)
        assert sum(writer.write() for _ in range(400)) > 1_000
        cursor.execute("SELECT COUNT(*), SUM(id < 0) FROM orders")
        placed, cancelled = writer.done["orders placed"], writer.done["orders cancelled"]
        assert cursor.fetchone() == (rows_of_tables(1_000)["orders"] + placed - cancelled, 0)
        cursor.execute("SELECT COUNT(*) FROM order_items WHERE order_id NOT IN (SELECT id FROM orders)")
        assert cursor.fetchone() == (0,), "lines follow their order, also to another number"
        assert len(writer.done) == 8, "transactions of every kind"
    execute(mysql_server, None, "DROP DATABASE shop_of_writer")


@pytest.mark.long
def test_the_demo_copies_five_tables_through_a_kill_and_finds_no_difference(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "devkit.demo", "--rows", "20000", "--folder", str(tmp_path)]
    environment = {**os.environ, "DEMO_UI_PORT": "0"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout
    verified = re.search(r"^verified: ([\d,]+) rows in 5 tables, 0 differences$", done.stdout, re.MULTILINE)
    assert verified is not None, done.stdout
    assert int(verified[1].replace(",", "")) == sum(count_lake(tmp_path / table) for table in KEYS)
