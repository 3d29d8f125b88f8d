"""The servers are what the other tests take them for, and nothing is left of them when their owner is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.iotdb import IotdbServer
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.spark import REPOSITORY
from devkit.waiting import wait_for

SERVERS = [pytest.param(MySqlServer, id="mysql"), pytest.param(MariaDbServer, id="mariadb")]


def _value(server: SqlServer, query: str) -> object:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        row = cursor.fetchone()
    assert row is not None
    return row[0]


def _run(server: SqlServer, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_source_logs_full_rows_with_metadata_in_utc(source_server: SqlServer) -> None:
    names = ("log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "time_zone")
    assert [_value(source_server, f"SELECT @@{name}") for name in names] == [1, "ROW", "FULL", "FULL", "+00:00"]


def test_mysql_is_version_8_with_gtid(mysql_server: MySqlServer) -> None:
    assert str(_value(mysql_server, "SELECT VERSION()")).startswith("8.0.")
    assert _value(mysql_server, "SELECT @@gtid_mode") == "ON"
    assert ":" in str(_value(mysql_server, "SELECT CONCAT(@@server_uuid, ':')"))


def test_mariadb_is_version_10_11_and_counts_gtids(mariadb_server: MariaDbServer) -> None:
    assert str(_value(mariadb_server, "SELECT VERSION()")).startswith("10.11.")
    _run(mariadb_server, "CREATE DATABASE gtid_counted", "DROP DATABASE gtid_counted")
    assert str(_value(mariadb_server, "SELECT @@gtid_binlog_pos")).startswith("0-")


@pytest.mark.parametrize("kind", SERVERS)
def test_data_and_port_survive_restart_and_kill(kind: type[SqlServer]) -> None:
    with kind() as server:
        port, first_pid = server.port, server.pid
        _run(
            server, "CREATE DATABASE kept", "CREATE TABLE kept.t (id INT PRIMARY KEY)", "INSERT INTO kept.t VALUES (1)"
        )
        server.restart()
        _run(server, "INSERT INTO kept.t VALUES (2)")
        server.kill()
        assert not server.running
        server.start()
        assert (server.port, _value(server, "SELECT COUNT(*) FROM kept.t")) == (port, 2)
        assert server.pid != first_pid
        folder = server.folder
    assert not folder.exists()


def test_options_of_one_mysql_override_the_defaults() -> None:
    options = {
        "max_binlog_size": "65536",
        "binlog-row-metadata": "MINIMAL",
        "gtid-mode": "OFF",
        "enforce-gtid-consistency": "OFF",
        "default-time-zone": "+05:30",
        "collation-server": "utf8mb4_bin",
        "performance-schema": "ON",
        "plugin-load-add": "semisync_source.so",
        "rpl-semi-sync-source-enabled": "ON",
    }
    with MySqlServer(options) as server:
        names = ("max_binlog_size", "binlog_row_metadata", "gtid_mode", "time_zone", "collation_server")
        values = [_value(server, f"SELECT @@{name}") for name in names]
        assert values == [65536, "MINIMAL", "OFF", "+05:30", "utf8mb4_bin"]
        assert _value(server, "SELECT @@performance_schema + @@rpl_semi_sync_source_enabled") == 2


def test_options_of_one_mariadb_override_the_defaults() -> None:
    options = {"max-binlog-size": "65536", "binlog-row-metadata": "NO_LOG", "rpl-semi-sync-master-enabled": "ON"}
    with MariaDbServer({**options, "default-time-zone": "-03:00"}) as server:
        names = ("max_binlog_size", "binlog_row_metadata", "rpl_semi_sync_master_enabled", "time_zone")
        assert [_value(server, f"SELECT @@{name}") for name in names] == [65536, "NO_LOG", 1, "-03:00"]


def test_two_servers_of_one_kind_run_side_by_side_as_different_servers(mysql_server: MySqlServer) -> None:
    with MySqlServer() as other:
        assert other.port != mysql_server.port
        assert _value(other, "SELECT @@server_uuid") != _value(mysql_server, "SELECT @@server_uuid")
        assert _value(other, "SELECT @@server_id") != _value(mysql_server, "SELECT @@server_id")


def test_a_server_that_cannot_start_shows_its_log() -> None:
    with pytest.raises(Exception, match=r"mariadb server on port \d+ ended before it was ready") as failure:
        MariaDbServer({"no-such-option": "1"}).start()
    assert "no-such-option" in str(failure.value)


def test_iotdb_keeps_acknowledged_writes_through_kill() -> None:
    with IotdbServer(precision="us") as server:
        _iotdb(
            server, "CREATE DATABASE root.kept", "INSERT INTO root.kept.d(timestamp, a) VALUES (1700000000000001, 2)"
        )
        server.kill()
        assert not server.running
        server.start()
        session = server.session()
        rows = session.execute_query_statement("SELECT a FROM root.kept.d")
        assert rows.next().get_timestamp() == 1700000000000001
        rows.close_operation_handle()
        session.close()


def _iotdb(server: IotdbServer, *statements: str) -> None:
    session = server.session()
    for statement in statements:
        session.execute_non_query_statement(statement)
    session.close()


OWNERS = [
    pytest.param(
        "from devkit.mysql import MySqlServer; server = MySqlServer().start(); pids = [server.pid]", id="mysql"
    ),
    pytest.param(
        "from devkit.mysql import MariaDbServer; server = MariaDbServer().start(); pids = [server.pid]", id="mariadb"
    ),
    pytest.param(
        "from devkit.iotdb import IotdbServer; server = IotdbServer().start(); pids = server.pids", id="iotdb"
    ),
]


@pytest.mark.parametrize("start", OWNERS)
def test_nothing_is_left_when_the_owner_is_killed(start: str) -> None:
    code = f"{start}; print(server.folder, *pids, flush=True); input()"
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert owner.stdout is not None
    folder, *pids = owner.stdout.readline().split()
    assert all(_alive(int(pid)) for pid in pids)
    owner.kill()
    owner.communicate()
    wait_for(lambda: not any(_alive(int(pid)) for pid in pids) and not Path(folder).exists(), "nothing is left")


def test_a_server_dies_with_its_guard() -> None:
    with MariaDbServer() as server:
        guard = int(Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(guard, signal.SIGKILL)
        wait_for(lambda: not _alive(server.pid), "the server ends")


def test_spark_writes_and_reads_delta(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(10).write.format("delta").save(str(tmp_path / "ten"))
    assert spark.read.format("delta").load(str(tmp_path / "ten")).count() == 10


def _alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        # A zombie waits only for somebody to read its exit code.
        return state != "Z"
    return False
