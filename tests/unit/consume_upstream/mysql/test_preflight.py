"""Some facts refuse a job and some only warn; the list of both reads well."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from consume_upstream.log.source_log import LogFile
from consume_upstream.mysql.connection import Encryption, TlsMode
from consume_upstream.mysql.preflight.facts import ForeignKey, ServerFacts, TableProfile
from consume_upstream.mysql.preflight.grants import Privileges, parse_grants
from consume_upstream.mysql.preflight.inspect import SourceDetails, examine
from consume_upstream.mysql.preflight.server_checks import ServerDetails, Watermark, check_encryption
from consume_upstream.mysql.preflight.table_checks import TableDetails
from vnode_backfill.config.job import Config
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.errors import PlanRefusedError
from vnode_backfill.words.finding import Finding, Level, refuse, render, to_json

ENOUGH = frozenset({"SELECT", "REPLICATION SLAVE", "REPLICATION CLIENT", "XA_RECOVER_ADMIN"})
FACTS = ServerFacts(
    flavour="mysql",
    version="8.0.33",
    server="3e11fa47-71ca-11e1-9e33-c80aa9429562",
    server_id=1,
    log_bin=True,
    binlog_format="ROW",
    binlog_row_image="FULL",
    binlog_row_value_options="",
    binlog_row_metadata="FULL",
    gtid_mode="ON",
    log_retention_seconds=2_592_000,
    log_total_size_limit=None,
    log_files=(LogFile("binlog.000001", 157),),
    max_allowed_packet=64 << 20,
    time_zone="UTC",
    log_do_databases=(),
    log_ignore_databases=(),
    log_compressed=False,
    semi_sync=False,
    read_only=False,
    order_commits=True,
    replica_server_ids=(2, 3),
    privileges=Privileges(ENOUGH, ENOUGH),
)
MARIADB = replace(FACTS, flavour="mariadb", version="10.11.6-MariaDB-log", server="server-id-1")
WITHOUT_GTID = replace(FACTS, gtid_mode="OFF")
PROFILE = TableProfile("InnoDB", 1000, 100, 100_000, (), (), ())
SERVER = ServerDetails("`reader`@`10.%`", False, True, False, False, None)
CREATE_MARK = "CREATE TABLE IF NOT EXISTS `ops`.`mark` (id TINYINT PRIMARY KEY, sampled BIGINT UNSIGNED NOT NULL);"
GRANT_MARK = "GRANT SELECT, INSERT, UPDATE ON `ops`.`mark` TO `reader`@`10.%`;"
TABLE = TableDetails("BASE TABLE", False, (), "CREATE TABLE `orders` (\n  `id` int NOT NULL\n)", "")


def column(name: str, column_type: str = "int", charset: str = "") -> Column:
    return Column.parse(name, column_type, nullable=False, charset=charset)


def table(*columns: Column, key: tuple[str, ...] = ("id",)) -> TableDefinition:
    return TableDefinition("shop", "orders", (column("id"), *columns), key)


def config(mysql: Mapping[str, object] | None = None, **others: object) -> Config:
    source = {"host": "db", "user": "reader", "database": "shop", "table": "orders", **(mysql or {})}
    base = {"job": "orders", "sink": {"delta": {"path": "/lake/orders"}}, "state": {"path": "/lake/state"}}
    return Config.model_validate({**base, "mysql": source, **others})


def judge(
    facts: ServerFacts = FACTS,
    *,
    settings: Config | None = None,
    profile: TableProfile = PROFILE,
    definition: TableDefinition | None = None,
    details: SourceDetails | None = None,
    estimated_seconds: float | None = None,
) -> tuple[Finding, ...]:
    server, found = examine(
        settings or config(),
        facts,
        profile,
        definition or table(),
        details or SourceDetails(SERVER, TABLE),
        estimated_seconds=estimated_seconds,
    )
    return *server, *found


def of(findings: tuple[Finding, ...], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def refused(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.check for finding in findings if finding.level is Level.REFUSED]


def with_server(details: ServerDetails) -> SourceDetails:
    return SourceDetails(details, TABLE)


def with_table(details: TableDetails) -> SourceDetails:
    return SourceDetails(SERVER, details)


@pytest.mark.parametrize("facts", [FACTS, MARIADB], ids=["mysql", "mariadb"])
def test_good_facts_refuse_and_warn_of_nothing(facts: ServerFacts) -> None:
    findings = judge(facts, estimated_seconds=60.0)
    assert {finding.level for finding in findings} <= {Level.OK, Level.INFO}
    assert all(not finding.fix for finding in findings)
    refuse(findings)


@pytest.mark.parametrize(
    ("changed", "check", "fix"),
    [
        (replace(FACTS, binlog_format="MIXED"), "binlog.format", "SET GLOBAL binlog_format = 'ROW';"),
        (replace(FACTS, binlog_row_image="MINIMAL"), "binlog.row_image", "SET GLOBAL binlog_row_image = 'FULL';"),
        (replace(MARIADB, binlog_row_image="FULL_NODUP"), "binlog.row_image", "SET GLOBAL binlog_row_image = 'FULL';"),
        (
            replace(FACTS, binlog_row_value_options="PARTIAL_JSON"),
            "binlog.partial_json",
            "SET GLOBAL binlog_row_value_options = '';",
        ),
        (replace(FACTS, server_id=0), "server.id", "SET GLOBAL server_id = 1;"),
    ],
)
def test_a_setting_that_loses_changes_is_refused_with_its_statement(changed: ServerFacts, check: str, fix: str) -> None:
    findings = judge(changed)
    assert refused(findings) == [check]
    assert of(findings, check).fix == fix


def test_an_account_that_cannot_see_prepared_transactions_is_warned_of_them() -> None:
    blind = Privileges(ENOUGH - {"XA_RECOVER_ADMIN"}, ENOUGH)
    found = of(judge(replace(FACTS, privileges=blind)), "privileges.prepared")
    assert (found.level, found.fix) == (Level.WARNING, "GRANT XA_RECOVER_ADMIN ON *.* TO `reader`@`10.%`;")
    listing = Privileges(blind.server | {"PROCESS"}, ENOUGH)
    assert of(judge(replace(FACTS, privileges=listing)), "privileges.prepared").level is Level.OK
    assert of(judge(replace(MARIADB, privileges=blind)), "privileges.prepared").level is Level.OK


def test_a_server_without_binary_log_is_refused() -> None:
    found = of(judge(replace(FACTS, log_bin=False)), "binlog.enabled")
    assert (found.level, found.fix.split("   ")[0]) == (Level.REFUSED, "log_bin = binlog")


@pytest.mark.parametrize(
    ("done", "ignored", "is_refused"),
    [
        ((), (), False),
        (("shop", "other"), (), False),
        (("other",), (), True),
        ((), ("shop",), True),
        ((), ("SHOP",), True),
        ((), ("other",), False),
        # The server looks at the first list only, if there is one.
        (("shop",), ("shop",), False),
    ],
)
def test_a_filter_that_keeps_the_database_out_of_the_log_is_refused(
    done: tuple[str, ...], ignored: tuple[str, ...], is_refused: bool
) -> None:
    findings = judge(replace(FACTS, log_do_databases=done, log_ignore_databases=ignored))
    assert (refused(findings) == ["binlog.filter"]) is is_refused


def test_a_filter_that_cannot_be_seen_is_not_called_good() -> None:
    held = parse_grants(["GRANT SELECT, REPLICATION SLAVE ON *.* TO `reader`@`10.%`"], "shop", "orders")
    findings = judge(replace(FACTS, privileges=held))
    assert refused(findings) == ["privileges.position"]
    assert "binlog.filter" not in {finding.check for finding in findings}


@pytest.mark.parametrize(
    ("facts", "position"), [(FACTS, "REPLICATION CLIENT"), (MARIADB, "BINLOG MONITOR")], ids=["mysql", "mariadb"]
)
def test_missing_privileges_come_with_the_grant_for_the_real_account(facts: ServerFacts, position: str) -> None:
    findings = judge(replace(facts, privileges=Privileges(frozenset(), frozenset())))
    assert [finding.fix for finding in findings if finding.level is Level.REFUSED] == [
        "GRANT SELECT ON `shop`.`orders` TO `reader`@`10.%`;",
        "GRANT REPLICATION SLAVE ON *.* TO `reader`@`10.%`;",
        f"GRANT {position} ON *.* TO `reader`@`10.%`;",
    ]


def test_retention_is_measured_against_a_day_and_against_the_estimate() -> None:
    def level(kept: int | None, estimated: float | None) -> Level:
        return of(
            judge(replace(FACTS, log_retention_seconds=kept), estimated_seconds=estimated), "binlog.retention"
        ).level

    assert level(None, 1e9) is Level.OK
    assert level(86_400, 3_600) is Level.OK
    assert level(86_399, None) is Level.WARNING
    assert level(172_800, 172_801) is Level.WARNING


def test_short_retention_tells_both_times_and_how_to_keep_files_longer() -> None:
    short = replace(FACTS, log_retention_seconds=7_200)
    found = of(judge(short, estimated_seconds=432_000), "binlog.retention")
    assert "removed after 2h" in found.fact
    assert "estimated to take 5d" in found.fact
    assert found.fix == "SET GLOBAL binlog_expire_logs_seconds = 864000;"
    old = replace(MARIADB, version="10.5.9-MariaDB", log_retention_seconds=7_200)
    assert of(judge(old), "binlog.retention").fix == "SET GLOBAL expire_logs_days = 3;"


def test_a_limit_on_the_size_of_the_log_is_a_warning() -> None:
    found = of(judge(replace(MARIADB, log_total_size_limit=1_000_000)), "binlog.size_limit")
    assert found.level is Level.WARNING
    assert "1MB" in found.fact


def test_what_the_log_reader_understands_is_only_mentioned() -> None:
    facts = replace(FACTS, log_compressed=True, semi_sync=True)
    findings = judge(facts, details=with_server(replace(SERVER, log_encrypted=True)))
    checks = ("binlog.compression", "binlog.encryption", "server.semi_sync")
    assert {of(findings, check).level for check in checks} == {Level.INFO}


@pytest.mark.parametrize(("facts", "value"), [(FACTS, "MINIMAL"), (MARIADB, "NO_LOG")])
def test_full_metadata_is_recommended(facts: ServerFacts, value: str) -> None:
    found = of(judge(replace(facts, binlog_row_metadata=value)), "binlog.metadata")
    assert (found.level, found.fix) == (Level.WARNING, "SET GLOBAL binlog_row_metadata = FULL;")
    assert value in found.fact
    assert of(judge(replace(facts, binlog_row_metadata="FULL")), "binlog.metadata").level is Level.OK


def test_without_gtid_the_transactions_in_flight_must_be_seen() -> None:
    found = of(judge(WITHOUT_GTID), "privileges.process")
    assert (found.level, found.fix) == (Level.REFUSED, "GRANT PROCESS ON *.* TO `reader`@`10.%`;")
    seeing = replace(WITHOUT_GTID, privileges=Privileges(ENOUGH | {"PROCESS"}, ENOUGH))
    findings = judge(seeing)
    assert refused(findings) == []
    assert of(findings, "gtid.visibility").level is Level.WARNING


def test_the_way_to_gtids_has_the_steps_that_are_left() -> None:
    half_way = replace(FACTS, gtid_mode="ON_PERMISSIVE", privileges=Privileges(ENOUGH | {"PROCESS"}, ENOUGH))
    assert of(judge(half_way), "gtid.mode").fix.splitlines() == [
        "SET GLOBAL enforce_gtid_consistency = ON;",
        "SET GLOBAL gtid_mode = ON;",
    ]


@pytest.mark.parametrize(
    ("watermark", "facts", "fix"),
    [
        (
            Watermark("`ops`.`mark`", seen=False, writable=False),
            WITHOUT_GTID,
            f"{CREATE_MARK}\n{GRANT_MARK}",
        ),
        (
            Watermark("`ops`.`mark`", seen=False, writable=True),
            WITHOUT_GTID,
            CREATE_MARK,
        ),
        (
            Watermark("`ops`.`mark`", seen=True, writable=True),
            replace(WITHOUT_GTID, read_only=True),
            "remove mysql.watermark_table",
        ),
    ],
)
def test_a_watermark_table_that_cannot_be_written_is_refused(
    watermark: Watermark, facts: ServerFacts, fix: str
) -> None:
    found = of(judge(facts, details=with_server(replace(SERVER, watermark=watermark))), "gtid.watermark")
    assert (found.level, found.fix) == (Level.REFUSED, fix)


def test_a_writable_watermark_table_needs_no_process_privilege() -> None:
    details = with_server(replace(SERVER, watermark=Watermark("`ops`.`mark`", seen=True, writable=True)))
    assert refused(judge(WITHOUT_GTID, details=details)) == []


def test_a_watermark_table_is_of_no_use_where_commits_are_not_in_log_order() -> None:
    details = with_server(replace(SERVER, watermark=Watermark("`ops`.`mark`", seen=True, writable=True)))
    assert refused(judge(replace(WITHOUT_GTID, order_commits=False), details=details)) == ["privileges.process"]


def test_tagged_gtids_are_sampled_as_if_there_were_none() -> None:
    assert refused(judge(details=with_server(replace(SERVER, tagged_gtids=True)))) == ["privileges.process"]


@pytest.mark.parametrize(("ids", "fix"), [("1-4", "mysql.server_id_range: 4-7"), ("3-3", "mysql.server_id_range: 4-4")])
def test_server_ids_of_the_server_and_its_replicas_are_not_for_readers(ids: str, fix: str) -> None:
    settings = config(mysql={"server_id_range": ids}, limits={"log_readers": 1})
    found = of(judge(settings=settings), "server.id_range")
    assert (found.level, found.fix) == (Level.REFUSED, fix)


def test_the_proposed_server_ids_start_again_below_where_the_numbers_end() -> None:
    settings = config(mysql={"server_id_range": "4294967290-4294967295"})
    facts = replace(FACTS, server_id=4_294_967_295, replica_server_ids=(3,))
    assert of(judge(facts, settings=settings), "server.id_range").fix == "mysql.server_id_range: 4-9"


def test_replicas_that_cannot_be_seen_are_mentioned() -> None:
    assert of(judge(replace(FACTS, replica_server_ids=None)), "server.id_range").level is Level.INFO


@pytest.mark.parametrize(
    ("replicates", "logs", "read_only", "level"),
    [
        (True, False, True, Level.REFUSED),
        (True, False, False, Level.REFUSED),
        (True, True, True, Level.INFO),
        (None, False, True, Level.REFUSED),
        (None, False, False, Level.WARNING),
    ],
)
def test_a_replica_must_log_what_it_applies(replicates: bool | None, logs: bool, read_only: bool, level: Level) -> None:
    details = with_server(replace(SERVER, replicates=replicates, logs_replicated=logs))
    assert of(judge(replace(FACTS, read_only=read_only), details=details), "server.replica").level is level


def test_a_server_that_is_no_replica_may_leave_replicated_changes_unlogged() -> None:
    findings = judge(details=with_server(replace(SERVER, logs_replicated=False)))
    assert "server.replica" not in {finding.check for finding in findings}


@pytest.mark.parametrize("kind", ["VIEW", "SYSTEM VERSIONED", "SEQUENCE", "TEMPORARY"])
def test_only_base_tables_are_copied(kind: str) -> None:
    assert refused(judge(details=with_table(replace(TABLE, table_type=kind)))) == ["table.type"]


def test_another_engine_is_refused_with_the_alter_table() -> None:
    found = of(judge(profile=replace(PROFILE, engine="MyISAM")), "table.engine")
    assert (found.level, found.fix) == (Level.REFUSED, "ALTER TABLE `shop`.`orders` ENGINE = InnoDB;")


def test_a_key_the_client_cannot_order_needs_the_single_executor() -> None:
    definition = table(column("ratio", "double"), column("kind", "enum('a','b')"), key=("ratio", "kind"))
    findings = judge(definition=definition)
    assert refused(findings) == ["table.key_type", "table.key_type"]
    assert {f.fix for f in findings if f.level is Level.REFUSED} == {"executor: single"}
    assert refused(judge(definition=definition, settings=config(executor="single"))) == []


def test_a_collation_without_sort_keys_needs_the_single_executor() -> None:
    details = with_table(replace(TABLE, unorderable="a value of the key column id has no exact sort key"))
    assert refused(judge(details=details)) == ["table.key_type"]


def test_a_character_set_that_is_not_decoded_exactly_is_refused() -> None:
    found = of(judge(definition=table(column("note", "varchar(20)", charset="big5"))), "table.column_type")
    assert (found.level, found.fix) == (Level.REFUSED, "ALTER TABLE `shop`.`orders` CONVERT TO CHARACTER SET utf8mb4;")


def test_labels_that_may_be_others_need_a_log_that_holds_them() -> None:
    doubtful = table(column("kind", "enum('a','?')", charset="utf8mb4"))
    found = of(judge(replace(FACTS, binlog_row_metadata="MINIMAL"), definition=doubtful), "table.labels")
    assert (found.level, found.fix) == (Level.REFUSED, "SET GLOBAL binlog_row_metadata = FULL;")
    assert refused(judge(replace(FACTS, binlog_row_metadata="FULL"), definition=doubtful)) == []
    assert refused(judge(MARIADB, definition=doubtful)) == []
    assert refused(judge(definition=table(column("kind", "enum('a','?')", charset="latin1")))) == []


def test_a_compressed_column_is_refused_and_its_definition_kept_otherwise() -> None:
    text = "CREATE TABLE `orders` (\n  `id` int(11) NOT NULL,\n  `a,b` varchar(9) /*M!100301 COMPRESSED*/ DEFAULT 'x',\n  PRIMARY KEY (`id`)\n)"
    found = of(judge(details=with_table(replace(TABLE, create_table=text))), "table.column_type")
    assert found.fix == "ALTER TABLE `shop`.`orders` MODIFY `a,b` varchar(9) DEFAULT 'x';"


@pytest.mark.parametrize("name", ["_vnode", "_OP", "_offset_pos", "_before_price"])
def test_a_column_named_as_one_of_the_buffer_is_refused(name: str) -> None:
    found = of(judge(definition=table(column(name))), "table.column_name")
    assert found.level is Level.REFUSED
    assert found.fix.startswith(f"ALTER TABLE `shop`.`orders` RENAME COLUMN `{name}` TO `source_")


def test_columns_that_differ_in_case_only_are_refused() -> None:
    found = of(judge(definition=table(column("Name"), column("name"), column("source_name"))), "table.column_name")
    assert "Name, name" in found.fact
    assert found.fix == "ALTER TABLE `shop`.`orders` RENAME COLUMN `name` TO `source_name_`;"


def test_a_cascading_foreign_key_is_refused_by_name_and_replaced_by_one_that_does_not() -> None:
    text = """CREATE TABLE `orders` (
  `id` int NOT NULL COMMENT 'CONSTRAINT `no` FOREIGN KEY (`a`) REFERENCES `b` (`c`) ON DELETE CASCADE',
  CONSTRAINT `by customer` FOREIGN KEY (`a`, `b`) REFERENCES `crm`.`customer` (`x`, `y`) ON DELETE CASCADE ON UPDATE RESTRICT,
  CONSTRAINT `plain` FOREIGN KEY (`c`) REFERENCES `region` (`id`) ON DELETE RESTRICT
)"""
    found = of(judge(details=with_table(replace(TABLE, create_table=text))), "table.foreign_key")
    assert "`by customer` (ON DELETE CASCADE)" in found.fact
    assert found.fix.splitlines() == [
        "ALTER TABLE `shop`.`orders` DROP FOREIGN KEY `by customer`;",
        "ALTER TABLE `shop`.`orders` ADD CONSTRAINT `by customer` FOREIGN KEY (`a`, `b`) REFERENCES `crm`.`customer` (`x`, `y`);",
    ]


def test_a_cascading_foreign_key_that_only_the_dictionary_lists_is_refused_too() -> None:
    keys = (ForeignKey("fk", "customer", "RESTRICT", "SET NULL"), ForeignKey("plain", "x", "NO ACTION", "RESTRICT"))
    found = of(judge(profile=replace(PROFILE, foreign_keys=keys)), "table.foreign_key")
    assert found.fix == "ALTER TABLE `shop`.`orders` DROP FOREIGN KEY `fk`;"


def test_what_is_special_about_a_table_but_harmless_is_mentioned() -> None:
    profile = replace(PROFILE, triggers=("audit",), generated_columns=("total",))
    details = with_table(replace(TABLE, partitioned=True, invisible_columns=("hidden",)))
    findings = judge(profile=profile, details=details)
    assert refused(findings) == []
    for check in ("table.triggers", "table.generated", "table.partitions", "table.invisible"):
        assert of(findings, check).level is Level.INFO


def test_an_empty_table_is_fine() -> None:
    assert of(judge(profile=replace(PROFILE, estimated_rows=0, data_bytes=0)), "table.rows").level is Level.OK


def test_a_small_packet_matters_only_to_long_columns() -> None:
    small = replace(FACTS, max_allowed_packet=1 << 20)
    assert of(judge(small), "server.packet").level is Level.OK
    found = of(judge(small, definition=table(column("body", "longtext"))), "server.packet")
    assert (found.level, found.fix) == (Level.WARNING, "SET GLOBAL max_allowed_packet = 67108864;")


def test_a_zone_other_than_utc_is_told_to_owners_of_datetime_columns() -> None:
    findings = judge(replace(FACTS, time_zone="CET"), definition=table(column("at", "datetime")))
    found = of(findings, "server.time_zone")
    assert (found.level, "CET" in found.fact) == (Level.INFO, True)


def test_refusing_names_every_refusal_with_its_fix() -> None:
    findings = judge(replace(FACTS, binlog_format="STATEMENT", server_id=0))
    with pytest.raises(PlanRefusedError, match=r"2 of \d+ checks refuse") as refusal:
        refuse(findings)
    assert "fix: SET GLOBAL binlog_format = 'ROW';" in refusal.value.detail
    assert "fix: SET GLOBAL server_id = 1;" in refusal.value.detail
    assert refusal.value.exit_code == 2


def test_the_list_is_aligned_and_begins_with_refusals() -> None:
    findings = (
        Finding(Level.OK, "binlog.enabled", "the binary log is on"),
        Finding(Level.REFUSED, "gtid.mode", "no", "first;\nsecond;"),
    )
    assert render(findings) == (
        "refused  gtid.mode       no\n"
        "         fix: first;\n"
        "              second;\n"
        "ok       binlog.enabled  the binary log is on\n"
        "1 refused, 1 ok"
    )


def test_findings_as_json_have_four_fields_in_the_order_of_the_list() -> None:
    findings = (Finding(Level.OK, "a.b", "x"), Finding(Level.WARNING, "c.d", "y", "z"))
    assert json.loads(json.dumps(to_json(findings))) == [
        {"level": "warning", "check": "c.d", "fact": "y", "fix": "z"},
        {"level": "ok", "check": "a.b", "fact": "x", "fix": ""},
    ]


@pytest.mark.parametrize(
    ("checked", "host", "level", "says"),
    [
        (None, "db.example.com", Level.WARNING, "is not encrypted"),
        (None, "127.0.0.1", Level.INFO, "is not encrypted"),
        (TlsMode.REQUIRED, "db.example.com", Level.INFO, "certificate is not checked"),
        (TlsMode.VERIFY_CA, "db.example.com", Level.OK, "the issuer, not the name"),
        (TlsMode.VERIFY_IDENTITY, "db.example.com", Level.OK, "issuer and name"),
    ],
)
def test_plan_says_how_the_connection_is_encrypted(checked: TlsMode | None, host: str, level: Level, says: str) -> None:
    found = check_encryption(Encryption("TLSv1.3", "TLS_AES_256_GCM_SHA384", checked) if checked else None, host)
    assert (found.check, found.level) == ("server.tls", level)
    assert says in found.fact
    assert (found.fix == "") == (level is Level.OK)
