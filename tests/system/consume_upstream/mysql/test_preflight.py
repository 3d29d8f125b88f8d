"""Real servers pass or are refused for the right reason, and the printed fix, executed as it stands, takes it away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from consume_upstream.mysql.connection import SourceAddress, TlsMode, TlsOptions, connect
from consume_upstream.mysql.positions.prepared import wait_for_prepared
from consume_upstream.mysql.preflight.inspect import inspect
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.orders import quote
from tests.system.job_case import JobCase
from vnode_backfill.config.job import Config
from vnode_backfill.words.errors import PlanRefusedError, SourceError
from vnode_backfill.words.finding import Finding, Level, refuse

PASSWORD = "secret-of-the-test"


def run(server: SqlServer, *statements: str, database: str | None = None) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def apply(server: SqlServer, finding: Finding) -> None:
    """Execute a printed fix, statement by statement."""
    run(server, *finding.fix.splitlines())


def config(database: str, mysql: Mapping[str, object] | None = None, **others: object) -> Config:
    source = {"host": "127.0.0.1", "user": "root", "database": database, "table": "t", **(mysql or {})}
    base = {"job": "t", "sink": {"delta": {"path": "/lake/t"}}, "state": {"path": "/lake/state"}}
    return Config.model_validate({**base, "mysql": source, **others})


def look(
    server: SqlServer, settings: Config, *, user: str = "root", rows_per_second: float | None = None
) -> tuple[Finding, ...]:
    password = "" if user == "root" else PASSWORD
    with connect(SourceAddress("127.0.0.1", server.port, user, password)) as connection:
        return inspect(connection, settings, rows_per_second=rows_per_second)


def refusals(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.check for finding in findings if finding.level is Level.REFUSED]


def of(findings: tuple[Finding, ...], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def refused_then_fixed(server: SqlServer, settings: Config, check: str) -> Finding:
    """The one refusal there is, gone after its fix."""
    findings = look(server, settings)
    assert refusals(findings) == [check]
    found = of(findings, check)
    apply(server, found)
    assert refusals(look(server, settings)) == []
    return found


@pytest.fixture
def reader(source_server: SqlServer) -> Iterator[str]:
    """An account that may do nothing yet."""
    run(source_server, f"CREATE USER 'preflight'@'127.%' IDENTIFIED BY '{PASSWORD}'")
    yield "preflight"
    run(source_server, "DROP USER 'preflight'@'127.%'")


def test_a_server_set_up_for_row_logging_passes(source_server: SqlServer, database: str) -> None:
    run(source_server, "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), at DATETIME)", database=database)
    findings = look(source_server, config(database))
    assert [finding for finding in findings if finding.level in (Level.REFUSED, Level.WARNING)] == []
    refuse(findings)


@pytest.mark.parametrize(
    ("setting", "wrong", "right"), [("binlog_format", "STATEMENT", "ROW"), ("binlog_row_image", "MINIMAL", "FULL")]
)
def test_a_log_without_whole_rows_is_refused_until_the_setting_is_fixed(
    source_server: SqlServer, database: str, setting: str, wrong: str, right: str
) -> None:
    run(source_server, "CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    run(source_server, f"SET GLOBAL {setting} = '{wrong}'")
    try:
        refused_then_fixed(source_server, config(database), setting.replace("_", ".", 1))
    finally:
        run(source_server, f"SET GLOBAL {setting} = '{right}'")


def test_partial_json_is_refused_until_it_is_off(mysql_server: MySqlServer) -> None:
    run(mysql_server, "CREATE DATABASE partial_json", "CREATE TABLE partial_json.t (id INT PRIMARY KEY, a JSON)")
    run(mysql_server, "SET GLOBAL binlog_row_value_options = 'PARTIAL_JSON'")
    try:
        refused_then_fixed(mysql_server, config("partial_json"), "binlog.partial_json")
    finally:
        run(mysql_server, "SET GLOBAL binlog_row_value_options = ''", "DROP DATABASE partial_json")


def test_a_short_retention_is_a_warning_that_its_fix_takes_away(source_server: SqlServer, database: str) -> None:
    run(source_server, "CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    run(source_server, "SET GLOBAL binlog_expire_logs_seconds = 7200")
    try:
        found = of(look(source_server, config(database)), "binlog.retention")
        assert found.level is Level.WARNING
        assert "removed after 2h" in found.fact
        apply(source_server, found)
        assert of(look(source_server, config(database)), "binlog.retention").level is Level.OK
    finally:
        run(source_server, "SET GLOBAL binlog_expire_logs_seconds = 0")


def test_the_rate_limit_decides_how_long_the_copy_is_estimated_to_take(source_server: SqlServer, database: str) -> None:
    rows = ", ".join(f"({number})" for number in range(1000))
    run(
        source_server,
        "CREATE TABLE t (id INT PRIMARY KEY)",
        f"INSERT INTO t VALUES {rows}",
        "ANALYZE TABLE t",
        database=database,
    )
    run(source_server, "SET GLOBAL binlog_expire_logs_seconds = 86400")
    try:
        slow = config(database, limits={"rows_per_second": 10})
        assert "estimated to take" in of(look(source_server, slow, rows_per_second=1e6), "binlog.retention").fact
        assert "estimated" not in of(look(source_server, config(database)), "binlog.retention").fact
    finally:
        run(source_server, "SET GLOBAL binlog_expire_logs_seconds = 0")


@pytest.mark.parametrize(
    ("create", "check"),
    [
        ("CREATE TABLE t (id INT PRIMARY KEY) ENGINE = MyISAM", "table.engine"),
        ("CREATE TABLE t (id INT, UNIQUE KEY nullable (id))", "table.key"),
        ("CREATE TABLE t (id INT PRIMARY KEY, _vnode INT)", "table.column_name"),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9) CHARACTER SET big5 NOT NULL DEFAULT 'x')",
            "table.column_type",
        ),
    ],
)
def test_a_table_that_cannot_be_copied_is_refused_until_it_is_altered(
    source_server: SqlServer, database: str, create: str, check: str
) -> None:
    run(source_server, create, database=database)
    refused_then_fixed(source_server, config(database), check)


def test_a_cascading_foreign_key_is_refused_until_it_no_longer_cascades(
    source_server: SqlServer, database: str
) -> None:
    run(
        source_server,
        "CREATE TABLE p (a INT, b INT, PRIMARY KEY (a, b))",
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, CONSTRAINT `by p` FOREIGN KEY (a, b) REFERENCES p (a, b) ON DELETE CASCADE)",
        database=database,
    )
    found = refused_then_fixed(source_server, config(database), "table.foreign_key")
    assert "`by p` (ON DELETE CASCADE)" in found.fact
    with source_server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW CREATE TABLE t")
        (row,) = cursor.fetchall()
    assert "CONSTRAINT `by p` FOREIGN KEY (`a`, `b`) REFERENCES `p` (`a`, `b`)" in row[1]


def test_an_account_without_privileges_is_led_to_a_working_one(
    source_server: SqlServer, database: str, reader: str
) -> None:
    run(source_server, "CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    findings = look(source_server, config(database), user=reader)
    missing = ["privileges.select", "privileges.log", "privileges.position"]
    assert refusals(findings) == [*missing, "table.exists"]
    for check in missing:
        apply(source_server, of(findings, check))
    findings = look(source_server, config(database), user=reader)
    assert refusals(findings) == []
    assert of(findings, "privileges.select").fact == "`preflight`@`127.%` may read the table"


def test_prepared_transactions_are_seen_once_the_fix_of_the_warning_is_applied(
    source_server: SqlServer, database: str, reader: str
) -> None:
    run(source_server, "CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    findings = look(source_server, config(database), user=reader)
    run(
        source_server,
        "XA START 'seen'",
        f"INSERT INTO {quote(database)}.t VALUES (1)",
        "XA END 'seen'",
        "XA PREPARE 'seen'",
    )
    try:
        found = of(findings, "privileges.prepared")
        assert (found.level is Level.WARNING) is (source_server.flavour == "mysql")
        if found.level is Level.WARNING:
            wait_as(source_server, reader)
            apply(source_server, found)
        assert of(look(source_server, config(database), user=reader), "privileges.prepared").level is Level.OK
        with pytest.raises(PlanRefusedError, match=r"1 XA transactions are prepared at the source, e\.g\. 'seen'"):
            wait_as(source_server, reader)
    finally:
        run(source_server, "XA ROLLBACK 'seen'")


def wait_as(server: SqlServer, user: str) -> None:
    """Wait for prepared transactions, for no time at all."""
    with connect(SourceAddress("127.0.0.1", server.port, user, PASSWORD)) as connection:
        wait_for_prepared(connection, 0.0)


def test_a_reading_account_sees_cascades_as_root_does(source_server: SqlServer, database: str, reader: str) -> None:
    run(
        source_server,
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE t (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON UPDATE SET NULL)",
        f"GRANT SELECT ON {quote(database)}.t TO 'preflight'@'127.%'",
        database=database,
    )
    findings = look(source_server, config(database), user=reader)
    assert "ON UPDATE SET NULL" in of(findings, "table.foreign_key").fact


SYSTEM_TABLES = {
    "mysql": ["mysql.user", "mysql.help_topic", "sys.sys_config", "performance_schema.threads",
        "information_schema.TABLES"],
    "mariadb": ["mysql.global_priv", "mysql.transaction_registry", "mysql.innodb_table_stats", "sys.sys_config",
                "performance_schema.threads", "information_schema.TABLES"],
}  # fmt: skip


def test_tables_of_the_server_itself_are_refused(source_server: SqlServer) -> None:
    for name in SYSTEM_TABLES[source_server.flavour]:
        database, table = name.split(".")
        assert refusals(look(source_server, config(database, {"table": table}))) == ["table.schema"]


def test_table_of_the_server_ends_a_run_with_2_before_anything_is_written(
    mysql_server: MySqlServer, tmp_path: Path
) -> None:
    case = JobCase(mysql_server, tmp_path, "mysql", "help_topic", ("help_topic_id",))
    assert "is a table of the server itself" in case.run(code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_labels_that_the_server_does_not_show_are_refused_until_the_log_holds_them(
    source_server: SqlServer, database: str
) -> None:
    run(source_server, "CREATE TABLE t (id INT PRIMARY KEY, e ENUM('a', '😀'))", database=database)
    run(source_server, "SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        if source_server.flavour == "mysql":
            refused_then_fixed(source_server, config(database), "table.labels")
        else:
            assert refusals(look(source_server, config(database))) == []
    finally:
        run(source_server, "SET GLOBAL binlog_row_metadata = FULL")


def test_a_view_and_a_missing_table_are_refused(source_server: SqlServer, database: str) -> None:
    assert refusals(look(source_server, config(database))) == ["table.exists"]
    run(
        source_server,
        "CREATE TABLE base (id INT PRIMARY KEY)",
        "CREATE VIEW t AS SELECT * FROM base",
        database=database,
    )
    assert refusals(look(source_server, config(database))) == ["table.type"]


def test_text_keys_are_orderable_and_double_keys_need_the_single_executor(
    source_server: SqlServer, database: str
) -> None:
    run(source_server, "CREATE TABLE t (a VARCHAR(20), b INT, PRIMARY KEY (a, b))", database=database)
    assert of(look(source_server, config(database)), "table.key").level is Level.OK
    run(source_server, "DROP TABLE t", "CREATE TABLE t (a DOUBLE PRIMARY KEY)", database=database)
    findings = look(source_server, config(database))
    assert (refusals(findings), of(findings, "table.key_type").fix) == (["table.key_type"], "executor: single")
    assert refusals(look(source_server, config(database, executor="single"))) == []


def test_harmless_features_of_a_table_are_only_mentioned(source_server: SqlServer, database: str) -> None:
    run(
        source_server,
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT AS (a + 1) VIRTUAL, c INT INVISIBLE DEFAULT 1) "
        "PARTITION BY HASH (id) PARTITIONS 3",
        "CREATE TRIGGER before_t BEFORE INSERT ON t FOR EACH ROW SET NEW.a = 1",
        database=database,
    )
    findings = look(source_server, config(database))
    assert refusals(findings) == []
    for check in ("table.triggers", "table.generated", "table.invisible", "table.partitions"):
        assert of(findings, check).level is Level.INFO


def test_the_servers_own_id_is_not_for_readers(source_server: SqlServer, database: str) -> None:
    run(source_server, "CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    ids = f"{source_server.port - 5}-{source_server.port + 4}"
    found = of(look(source_server, config(database, {"server_id_range": ids})), "server.id_range")
    assert found.level is Level.REFUSED
    key, _, proposed = found.fix.partition(": ")
    assert key == "mysql.server_id_range"
    assert refusals(look(source_server, config(database, {"server_id_range": proposed}))) == []


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param("id INT PRIMARY KEY", id="hidden period"),
        pytest.param(
            "id INT PRIMARY KEY, s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
            "e TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)",
            id="declared period",
        ),
    ],
)
def test_a_system_versioned_table_is_refused_until_it_has_no_history(
    mariadb_server: MariaDbServer, columns: str
) -> None:
    run(mariadb_server, "CREATE DATABASE versioned", f"CREATE TABLE versioned.t ({columns}) WITH SYSTEM VERSIONING")
    try:
        refused_then_fixed(mariadb_server, config("versioned"), "table.type")
    finally:
        run(mariadb_server, "DROP DATABASE versioned")


def test_a_compressed_column_is_refused_until_it_is_plain(mariadb_server: MariaDbServer) -> None:
    run(mariadb_server, "CREATE DATABASE packed")
    run(mariadb_server, "CREATE TABLE packed.t (id INT PRIMARY KEY, a VARCHAR(100) COMPRESSED NOT NULL DEFAULT 'x')")
    try:
        refused_then_fixed(mariadb_server, config("packed"), "table.column_type")
    finally:
        run(mariadb_server, "DROP DATABASE packed")


@pytest.fixture(scope="module")
def server_without_gtid() -> Iterator[MySqlServer]:
    """A MySQL without GTIDs, whose log leaves a database out, and an account that may read but not look around."""
    options = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF", "binlog-ignore-db": "hidden"}
    with MySqlServer(options) as server:
        run(server, f"CREATE USER 'narrow'@'127.%' IDENTIFIED BY '{PASSWORD}'")
        run(server, "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'narrow'@'127.%'")
        for database in ("hidden", "shown"):
            run(server, f"CREATE DATABASE {database}", f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
        run(server, "GRANT SELECT ON shown.* TO 'narrow'@'127.%'", "CREATE DATABASE ops")
        yield server


def test_a_database_that_is_not_logged_is_refused(server_without_gtid: MySqlServer) -> None:
    assert refusals(look(server_without_gtid, config("hidden"))) == ["binlog.filter"]
    assert refusals(look(server_without_gtid, config("shown"))) == []


def test_without_gtid_a_watermark_table_is_asked_for_until_it_can_be_written(server_without_gtid: MySqlServer) -> None:
    server, settings = server_without_gtid, config("shown", {"watermark_table": "ops.mark"})
    findings = look(server, settings, user="narrow")
    assert refusals(findings) == ["gtid.watermark"]
    apply(server, of(findings, "gtid.watermark"))
    assert refusals(look(server, settings, user="narrow")) == []


def test_without_gtid_the_process_privilege_is_asked_for_and_gtids_make_it_needless(
    server_without_gtid: MySqlServer,
) -> None:
    server, settings = server_without_gtid, config("shown")
    findings = look(server, settings, user="narrow")
    assert refusals(findings) == ["privileges.process"]
    apply(server, of(findings, "privileges.process"))
    assert refusals(look(server, settings, user="narrow")) == []
    run(server, "REVOKE PROCESS ON *.* FROM 'narrow'@'127.%'")
    apply(server, of(findings, "gtid.mode"))
    assert refusals(look(server, settings, user="narrow")) == []


def test_a_server_without_an_id_is_refused_until_it_has_one(mysql_server: MySqlServer) -> None:
    run(mysql_server, "CREATE DATABASE nameless", "CREATE TABLE nameless.t (id INT PRIMARY KEY)")
    run(mysql_server, "SET GLOBAL server_id = 0")
    try:
        refused_then_fixed(mysql_server, config("nameless"), "server.id")
    finally:
        run(mysql_server, f"SET GLOBAL server_id = {mysql_server.port}", "DROP DATABASE nameless")


@pytest.mark.parametrize("kind", [MySqlServer, MariaDbServer], ids=["mysql", "mariadb"])
def test_a_replica_that_logs_nothing_and_a_server_without_log_are_refused(kind: type[SqlServer]) -> None:
    setting = "log-replica-updates" if kind is MySqlServer else "log-slave-updates"
    with kind({setting: "OFF"}) as server:
        run(server, "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        assert refusals(look(server, config("shop"))) == []
        run(server, "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1, MASTER_USER = 'nobody'")
        assert refusals(look(server, config("shop"))) == ["server.replica"]
        server.restart({"log-bin": None, "skip-log-bin": "1"})
        assert refusals(look(server, config("shop"))) == ["binlog.enabled", "server.replica"]


def test_an_account_that_cannot_see_whether_a_server_is_a_replica_is_told_to_ask() -> None:
    with MariaDbServer({"log-slave-updates": "OFF"}) as server:
        run(server, "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        run(server, f"CREATE USER 'narrow'@'127.%' IDENTIFIED BY '{PASSWORD}'")
        run(server, "GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO 'narrow'@'127.%'")
        assert "server.replica" not in {finding.check for finding in look(server, config("shop"), user="narrow")}
        run(server, "SET GLOBAL gtid_slave_pos = '0-8-1000'")
        found = of(look(server, config("shop"), user="narrow"), "server.replica")
        assert found.level is Level.WARNING
        apply(server, found)
        assert "server.replica" not in {finding.check for finding in look(server, config("shop"), user="narrow")}


@pytest.mark.parametrize(
    ("mode", "level", "says"),
    [
        (TlsMode.DISABLED, Level.INFO, "is not encrypted"),
        (TlsMode.PREFERRED, Level.INFO, "certificate is not checked"),
        (TlsMode.VERIFY_CA, Level.OK, "(TLSv1."),
    ],
)
def test_plan_says_how_a_real_connection_is_encrypted(
    mysql_server: MySqlServer, mode: TlsMode, level: Level, says: str
) -> None:
    """With the certificates that the server has made for itself."""
    tls = TlsOptions.from_files(mode, ca=str(mysql_server.datadir / "ca.pem"))
    with connect(SourceAddress("127.0.0.1", mysql_server.port, "root", tls=tls)) as connection:
        found = of(inspect(connection, config("no_such_database")), "server.tls")
    assert (found.level, says in found.fact) == (level, True), found


@pytest.mark.parametrize(("mode", "ca"), [(TlsMode.VERIFY_CA, None), (TlsMode.VERIFY_IDENTITY, "ca.pem")])
def test_server_whose_certificate_does_not_fit_is_refused_for_good(
    mysql_server: MySqlServer, mode: TlsMode, ca: str | None
) -> None:
    """Its issuer is unknown to the system, and it holds no name."""
    tls = TlsOptions.from_files(mode, ca=str(mysql_server.datadir / ca) if ca else None)
    with pytest.raises(SourceError, match="is not accepted") as failure:
        connect(SourceAddress("127.0.0.1", mysql_server.port, "root", tls=tls))
    assert not failure.value.retryable
    assert "mysql.tls.ca" in failure.value.hint


def test_server_without_tls_is_refused_where_it_was_asked_for(mariadb_server: MariaDbServer) -> None:
    with pytest.raises(SourceError, match="is not encrypted, and mysql"):
        connect(SourceAddress("127.0.0.1", mariadb_server.port, "root", tls=TlsOptions(TlsMode.VERIFY_IDENTITY)))
