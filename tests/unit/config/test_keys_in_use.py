"""Every key of a job's file changes something: no key is documented, checked and then read by nobody.

Each key is in one of three tables. `REACHES` gives it two values and asks the function that uses it for both answers,
which must differ. `SHOWN_BY` names a test that shows its effect on a real server; that test must exist. `READ_IN` is
for keys whose effect is a length of time, which no test asserts: there the module that reads the key must do so. A new
key is in none, and fails until it is.
"""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.tables import batch, change_table
from tests.unit.config.test_manual import fields
from tests.unit.consume_upstream.mysql.test_tls_options import write_certificate
from tests.unit.progress.state.state_examples import DEFINITION
from tests.unit.progress.store.state_folder import PLAN, record
from tests.unit.sinks.test_iotdb_mapping import MS, READINGS
from vnode_backfill.config.cache_folder import cache_folder
from vnode_backfill.config.iotdb import IotdbSinkConfig
from vnode_backfill.config.job import Config, load_config
from vnode_backfill.config.tables import Chosen, chosen_tables, priority_of, table_config
from vnode_backfill.config.yaml_file import section_of
from vnode_backfill.job.open.locations import buffer_path, parallel_store, state_folder, state_retention, state_store
from vnode_backfill.job.open.opened import acquire
from vnode_backfill.job.open.sink import change_buffer
from vnode_backfill.job.open.source import source_address
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.sinks.changes import MemoryChanges
from vnode_backfill.sinks.iotdb.mapping import PointMapping
from vnode_backfill.sinks.iotdb.server.store import WriterSettings
from vnode_backfill.sinks.iotdb.sink import settings_of
from vnode_backfill.snapshot.plan_questions import rows_per_range
from vnode_backfill.spark.slots import slots_needed
from vnode_backfill.words.change import OFFSET_COLUMNS, ChangeOp
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import ConfigError
from vnode_backfill.words.plan import TableFacts
from vnode_backfill.words.table_name import TableName

REPOSITORY = Path(__file__).parents[3]
FACTS = TableFacts(READINGS.key_parts, None, None, 10_000_000, 500)
Settings = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Reach:
    """Two values of a key for which `by` must answer differently; `given` is in both files, None removes a key."""

    by: Callable[[Config], object]
    one: object
    other: object
    given: Settings = field(default_factory=dict)
    other_given: Settings = field(default_factory=dict)


def delta_properties(config: Config) -> Mapping[str, str]:
    sink, _ = configured_sink(config).compacted_by_request(record(config.job))
    sink.prepare()
    return DeltaTable(sink.staging.path).metadata().configuration


def keeps_indexes(config: Config) -> bool:
    """Whether merges leave an index of the keys of a file that they have touched twice."""
    sink, _ = configured_sink(config).compacted_by_request(record(config.job))
    sink.prepare()
    receipt = sink.writer().write(Epoch(1), 0, 0, [batch(DEFINITION, [(n, "a") for n in range(40_000)])])
    sink.commit_reads(Epoch(1), [receipt], [], PLAN)
    for number in (1, 2):
        deleted = change_table(DEFINITION, [(ChangeOp.DELETE, 1, (number, "a"))]).drop_columns(list(OFFSET_COLUMNS))
        sink.apply(Epoch(1 + number), MemoryChanges(deleted, DEFINITION.key))
    return any(cache_folder().rglob("*.keys"))


def buffer_properties(config: Config) -> Mapping[str, str]:
    store = parallel_store(config)
    acquire(config, store)
    change_buffer(config, record(config.job), store).prepare()
    return DeltaTable(buffer_path(config)).metadata().configuration


def pause(attempt: int) -> Callable[[Config], float]:
    def seconds(config: Config) -> float:
        random.seed(7)
        return config.limits.pause(attempt)

    return seconds


def iotdb(config: Config) -> IotdbSinkConfig:
    assert config.sink.iotdb is not None
    return config.sink.iotdb


def points(config: Config) -> PointMapping:
    return PointMapping.of(iotdb(config), READINGS, MS)


def iotdb_writer(config: Config) -> WriterSettings:
    return settings_of(iotdb(config), points(config), iotdb(config).resolve_password(os.environ).get_secret_value())


ENCRYPTED = {"mysql.tls.enabled": True}
OWN = {"mysql.tls.cert": "{folder}/one/cert.pem", "mysql.tls.key": "{folder}/one/key.pem"}
IOTDB: Settings = {
    "sink.delta": None, "sink.iotdb.host": "iotdb", "sink.iotdb.device": "root.plant.{region}.s{sensor}",
    "sink.iotdb.time.column": "at",
}  # fmt: skip
IOTDB_TLS = {**IOTDB, "sink.iotdb.tls.enabled": True}
IOTDB_OWN = {"sink.iotdb.tls.cert": "{folder}/one/cert.pem", "sink.iotdb.tls.key": "{folder}/one/key.pem"}
TABLE: Settings = {
    **IOTDB, "sink.iotdb.device": None, "sink.iotdb.model": "table", "sink.iotdb.database": "plant",
    "sink.iotdb.tags": ["region", "sensor"],
}  # fmt: skip

MANY: Settings = {"mysql.database": None, "mysql.table": None, "sink.delta.path": "{folder}/lake/{table}"}
TREE: Settings = {
    **IOTDB, "mysql.database": None, "mysql.table": None, "sink.iotdb.device": "root.plant.{table}.{region}.s{sensor}",
}  # fmt: skip
ROWS: Settings = {**TABLE, "mysql.database": None, "mysql.table": None}
ORDERS = TableName("shop", "orders")
LISTED = (TableName("shop", "items"), ORDERS)


def derived(config: Config) -> Config:
    """What everything that copies the table reads."""
    return table_config(config, ORDERS)


def derived_points(config: Config) -> PointMapping:
    return points(derived(config))


def chosen(config: Config) -> Chosen:
    return chosen_tables(config, LISTED, fold_case=False)


REACHES = {
    "mysql.tables.table": Reach(chosen, "shop.orders", "shop.items", MANY),
    "mysql.tables.priority": Reach(lambda config: priority_of(config, ORDERS), 1, 2, MANY),
    "mysql.tables.rows_per_second": Reach(lambda config: derived(config).limits.rows_per_second, 1, 2, MANY),
    "mysql.tables.range_rows": Reach(lambda config: rows_per_range(FACTS, derived(config)), 100, 101, MANY),
    "mysql.tables.zero_dates": Reach(lambda config: derived(config).zero_dates, "null", "error", MANY),
    "mysql.tables.schema_changes": Reach(lambda config: derived(config).schema_changes, "follow", "stop", MANY),
    "mysql.tables.dropped_columns": Reach(lambda config: derived(config).dropped_columns, "keep", "drop", MANY),
    "mysql.tables.dropped_partitions": Reach(lambda config: derived(config).dropped_partitions, "keep", "reread", MANY),
    "mysql.tables.delta.path": Reach(
        lambda config: configured_sink(derived(config)).target, "{folder}/lake/a", "{folder}/lake/b", MANY
    ),
    "mysql.tables.delta.replace": Reach(lambda config: derived(config).sink.delta, False, True, MANY),
    "mysql.tables.delta.merge": Reach(lambda config: derived(config).merge_mode, "vectors", "rewrite", MANY),
    "mysql.tables.iotdb.device": Reach(derived_points, "root.plant.{table}.{region}", "root.plant.b.{table}", TREE),
    "mysql.tables.iotdb.database": Reach(derived_points, "{database}", "{database}_2", ROWS),
    "mysql.tables.iotdb.table": Reach(derived_points, "a_{table}", "b_{table}", ROWS),
    "mysql.tables.iotdb.tags": Reach(derived_points, ["region", "sensor"], ["sensor", "region"], ROWS),
    "mysql.tables.iotdb.time.column": Reach(derived_points, "at", "id", TREE, {"mysql.tables.iotdb.time.unit": "ms"}),
    "mysql.tables.iotdb.time.unit": Reach(derived_points, "s", "ms", {**TREE, "mysql.tables.iotdb.time.column": "id"}),
    "mysql.tables.iotdb.include": Reach(derived_points, ["temp"], ["temp", "note"], TREE),
    "mysql.tables.iotdb.exclude": Reach(derived_points, ["note"], ["temp"], TREE),
    "mysql.tables.iotdb.rename": Reach(derived_points, {"temp": "t"}, {"temp": "warmth"}, TREE),
    "mysql.tables.iotdb.types": Reach(derived_points, {"temp": "float"}, {"temp": "double"}, TREE),
    "mysql.tables.iotdb.decimal": Reach(derived_points, "double", "text", TREE),
    "mysql.tables.iotdb.aligned": Reach(lambda config: iotdb(derived(config)), False, True, TREE),
    "mysql.tables.iotdb.duplicates": Reach(lambda config: iotdb(derived(config)), "error", "last", TREE),
    "mysql.tables.iotdb.replace": Reach(lambda config: iotdb(derived(config)), False, True, TREE),
    "mysql.tables.iotdb.dead_letter": Reach(
        lambda config: configured_sink(derived(config)).folders, "{folder}/bad/{table}", "{folder}/{table}", TREE
    ),
    "mysql.exclude": Reach(chosen, ["shop.o*"], ["shop.i*"], {**MANY, "mysql.tables.table": "shop.*"}),
    "job": Reach(state_folder, "orders", "others"),
    "mysql.host": Reach(source_address, "db", "db2"),
    "mysql.port": Reach(source_address, 3306, 3307),
    "mysql.user": Reach(source_address, "one", "other"),
    "mysql.password_env": Reach(source_address, "KEYS_ONE", "KEYS_OTHER"),
    "mysql.password_file": Reach(source_address, "{folder}/one/key.pem", "{folder}/other/key.pem"),
    "mysql.tls.enabled": Reach(source_address, True, False),
    "mysql.tls.verify": Reach(source_address, "identity", "ca", ENCRYPTED),
    "mysql.tls.ca": Reach(source_address, "{folder}/one/cert.pem", "{folder}/other/cert.pem", ENCRYPTED),
    "mysql.tls.cert": Reach(source_address, "{folder}/one/cert.pem", "{folder}/other/cert.pem", {**ENCRYPTED, **OWN}),
    "mysql.tls.key": Reach(source_address, "{folder}/one/key.pem", "{folder}/other/key.pem", {**ENCRYPTED, **OWN}),
    "mysql.connect_timeout": Reach(source_address, "10s", "11s"),
    "mysql.read_timeout": Reach(source_address, "60s", "61s"),
    "sink.delta.path": Reach(lambda config: configured_sink(config).target, "{folder}/lake", "{folder}/lake2"),
    "sink.delta.retention": Reach(delta_properties, "7d", "2h"),
    "sink.delta.merge": Reach(delta_properties, "vectors", "rewrite"),
    "sink.delta.key_cache": Reach(keeps_indexes, "77MB", "0B", {"sink.delta.merge": "vectors"}),
    "sink.iotdb.host": Reach(iotdb_writer, "iotdb", "iotdb2", IOTDB),
    "sink.iotdb.port": Reach(iotdb_writer, 6667, 6668, IOTDB),
    "sink.iotdb.user": Reach(iotdb_writer, "root", "writer", IOTDB),
    "sink.iotdb.password_env": Reach(iotdb_writer, "KEYS_ONE", "KEYS_OTHER", IOTDB),
    "sink.iotdb.password_file": Reach(iotdb_writer, "{folder}/one/key.pem", "{folder}/other/key.pem", IOTDB),
    "sink.iotdb.tls.enabled": Reach(iotdb_writer, True, False, IOTDB),
    "sink.iotdb.tls.ca": Reach(iotdb_writer, "{folder}/one/cert.pem", "{folder}/other/cert.pem", IOTDB_TLS),
    "sink.iotdb.tls.cert": Reach(
        iotdb_writer, "{folder}/one/cert.pem", "{folder}/other/cert.pem", {**IOTDB_TLS, **IOTDB_OWN}
    ),
    "sink.iotdb.tls.key": Reach(
        iotdb_writer, "{folder}/one/key.pem", "{folder}/other/key.pem", {**IOTDB_TLS, **IOTDB_OWN}
    ),
    "sink.iotdb.timeout": Reach(iotdb_writer, "60s", "61s", IOTDB),
    "sink.iotdb.model": Reach(points, "tree", "table", IOTDB, TABLE),
    "sink.iotdb.device": Reach(points, "root.plant.{region}.s{sensor}", "root.plant.{region}", IOTDB),
    "sink.iotdb.database": Reach(points, "plant", "plant2", TABLE),
    "sink.iotdb.table": Reach(points, "reading", "reading2", TABLE),
    "sink.iotdb.tags": Reach(points, ["region", "sensor"], ["sensor", "region"], TABLE),
    "sink.iotdb.time.column": Reach(points, "at", "id", IOTDB, {"sink.iotdb.time.unit": "ms"}),
    "sink.iotdb.time.unit": Reach(points, "s", "ms", {**IOTDB, "sink.iotdb.time.column": "id"}),
    "sink.iotdb.include": Reach(points, ["temp"], ["temp", "note"], IOTDB),
    "sink.iotdb.exclude": Reach(points, ["note"], ["temp"], IOTDB),
    "sink.iotdb.rename": Reach(points, {"temp": "t"}, {"temp": "warmth"}, IOTDB),
    "sink.iotdb.types": Reach(points, {"temp": "float"}, {"temp": "double"}, IOTDB),
    "sink.iotdb.decimal": Reach(points, "double", "text", IOTDB),
    "sink.iotdb.aligned": Reach(iotdb_writer, False, True, IOTDB),
    "sink.iotdb.tablet_rows": Reach(iotdb_writer, 10, 11, IOTDB),
    "sink.iotdb.dead_letter": Reach(iotdb_writer, None, "{folder}/rejected", IOTDB),
    "state.path": Reach(state_folder, "{folder}/state", "{folder}/state2"),
    "state.lease": Reach(lambda config: acquire(config, parallel_store(config)).duration, "30s", "31s"),
    "state.retention": Reach(state_retention, "1h", "2h"),
    "vnodes": Reach(lambda config: rows_per_range(FACTS, config), 256, 1),
    "workers": Reach(slots_needed, 4, 5),
    "executor": Reach(lambda config: type(state_store(config)), "parallel", "single"),
    "limits.range_rows": Reach(lambda config: rows_per_range(FACTS, config), 100, 101),
    "limits.range_bytes": Reach(lambda config: rows_per_range(FACTS, config), "1MB", "2MB"),
    "limits.log_readers": Reach(slots_needed, 2, 3),
    "limits.backoff": Reach(pause(1), "1s", "2s"),
    "limits.max_backoff": Reach(pause(30), "1m", "2m"),
    "buffer.retention": Reach(buffer_properties, "1h", "2h"),
}

_BUSY = (
    "tests/system/commands/test_rate_limit.py::test_busy_source_holds_the_snapshot_and_says_why_while_the_log_goes_on"
)
_REPLICA = "tests/system/job/run/test_source_watch.py::test_replica_that_lags_or_stands_still_holds_the_snapshot"
_SOURCE = "tests/system/job/open/test_source_keys.py::test_table_is_opened_as_the_file_says"
_STARTS = "tests/unit/decide/test_start_point.py"
_POLICIES = "tests/system/job/schema/test_schema_policies.py"
_TABLES = "tests/system/commands/test_plan_tables.py"
_MANY = "tests/system/job/tables/test_tables_job.py"
_REST = "tests/system/job/tables/test_resting_tables.py"
SHOWN_BY = {
    "mysql.new_tables": f"{_MANY}::test_a_statement_on_one_table_is_followed_while_the_others_go_on "
    "tests/system/job/tables/test_tables_chosen.py"
    "::test_a_table_that_is_only_to_be_reported_is_named_until_it_is_added",
    "epoch.cut": f"{_MANY}::test_a_sum_over_two_tables_is_the_same_in_every_cut",
    "epoch.lag": f"{_REST}::test_with_a_lag_changes_wait_for_others_unless_there_are_many",
    "mysql.database": _SOURCE,
    "mysql.table": _SOURCE,
    "mysql.server_id_range": _SOURCE,
    "mysql.visibility_timeout": _SOURCE,
    "mysql.watermark_table": _SOURCE,
    "zero_dates": _SOURCE,
    "schema_changes": f"{_POLICIES}::test_job_that_stops_at_a_statement_passes_it_once_it_is_accepted",
    "dropped_columns": f"{_POLICIES}::test_dropped_column_is_kept_or_dropped",
    "dropped_partitions": "tests/system/job/tables/test_statement_matrix.py"
    "::test_every_statement_has_its_effect_in_this_phase",
    "mysql.cdc.startup_mode": f"{_STARTS}::test_latest_follows_without_copying",
    "mysql.cdc.specific.file": f"{_STARTS}::test_a_position_the_log_holds_is_taken",
    "mysql.cdc.specific.pos": f"{_STARTS}::test_a_position_the_log_holds_is_taken",
    "mysql.cdc.specific.gtid": f"{_STARTS}::test_gtids_the_server_has_and_the_log_continues_are_taken",
    "mysql.cdc.specific.from_job": f"{_STARTS}::test_a_handoff_is_taken_up_where_the_copy_ended",
    "mysql.cdc.timestamp": f"{_STARTS}::test_a_moment_the_log_holds_is_taken",
    "sink.delta.replace": "tests/system/commands/test_requests.py"
    "::test_job_that_was_dropped_starts_clean_under_the_same_name",
    "sink.delta.target_file_size": "tests/system/commands/test_compact.py"
    "::test_files_are_joined_by_a_live_job_and_by_the_command_beside_it",
    "sink.delta.compact_small_files": "tests/unit/job/test_tidy.py"
    "::test_a_live_job_joins_when_there_are_more_small_files_than_its_file_says",
    "sink.iotdb.duplicates": "tests/system/sinks/iotdb/test_iotdb_jobs.py"
    "::test_two_keys_on_one_device_and_time_stop_the_job_or_the_last_one_wins",
    "sink.iotdb.replace": "tests/system/sinks/iotdb/test_iotdb_jobs.py"
    "::test_two_keys_on_one_device_and_time_stop_the_job_or_the_last_one_wins",
    "epoch.backfill": "tests/system/snapshot/test_partitioning.py"
    "::test_spark_partition_reads_exactly_the_ranges_of_its_bitmap_also_after_a_rescale",
    "limits.rows_per_second": "tests/system/commands/test_rate_limit.py"
    "::test_limit_holds_for_the_whole_job_and_zero_stops_the_snapshot_but_not_the_log",
    "limits.log_memory": "tests/system/job/run/test_edges.py"
    "::test_transaction_of_200000_rows_arrives_though_its_log_reader_is_killed",
    "limits.retries": "tests/system/job/run/test_chaos.py"
    "::test_a_target_that_cannot_be_written_stops_the_job_which_goes_on_when_it_is_mended",
    "limits.throttle.threads_running": _BUSY,
    "limits.throttle.flag_file": _BUSY,
    "limits.throttle.queries.name": _BUSY,
    "limits.throttle.queries.sql": _BUSY,
    "limits.throttle.queries.max": _BUSY,
    "limits.throttle.replicas.host": _REPLICA,
    "limits.throttle.replicas.port": _REPLICA,
    "limits.throttle.replicas.max_lag": _REPLICA,
    "storage.options": "tests/system/sinks/delta/test_object_store.py"
    "::test_wrong_credentials_are_refused_before_anything_is_written",
    "ui.host": "tests/system/job/open/test_refused.py"
    "::test_a_page_that_cannot_be_served_is_refused_before_anything_is_written",
    "ui.port": "tests/system/job/run/test_health.py::test_driver_that_finishes_nothing_becomes_unhealthy_and_recovers",
    "ui.stalled_after": "tests/system/job/run/test_health.py"
    "::test_driver_that_finishes_nothing_becomes_unhealthy_and_recovers",
    "ui.table_metrics": "tests/unit/progress/faces/test_metrics.py"
    "::test_tables_have_metrics_of_their_own_unless_the_file_says_otherwise",
    "spark": "tests/unit/spark/test_jvm_settings.py"
    "::test_page_of_spark_is_off_and_its_ports_are_on_the_loopback_unless_the_file_says_otherwise",
}

READ_IN = {
    "epoch.live": "vnode_backfill/job/run/performer.py",
    "limits.throttle.every": "vnode_backfill/job/run/loop.py",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        write_certificate(tmp_path / name)
        monkeypatch.setenv(f"KEYS_{name.upper()}", f"password {name}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def loaded(folder: Path, settings: Settings) -> Config:
    """A short job's file with these settings by dotted path; its state and target do not exist."""
    for name in ("state", "lake", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)
    lake: dict[str, object] = {"delta": {"path": str(folder / "lake")}}
    source: dict[str, object] = {"host": "db", "user": "u", "database": "shop", "table": "orders"}
    values: dict[str, object] = {
        "job": "orders",
        "mysql": source,
        "sink": lake,
        "state": {"path": str(folder / "state")},
    }
    for path, value in settings.items():
        section: dict[str, object] = values
        *parents, name = path.split(".")
        for parent in parents:
            inner = section.setdefault(parent, {})
            assert isinstance(inner, dict)
            section = inner
        section[name] = value
    if isinstance(tables := source.get("tables"), dict):
        source["tables"] = [{"table": "shop.orders", **tables}]
    file = folder / "job.yaml"
    file.write_text(json.dumps(values).replace("{folder}", str(folder)))
    return load_config(file)


def leaves() -> Iterator[str]:
    yield from (".".join(path) for path, info in fields(Config) if section_of(info.annotation) is None)


@cache
def functions_of(path: Path) -> frozenset[str]:
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("key", REACHES)
def test_another_value_of_a_key_has_another_effect(folder: Path, key: str) -> None:
    reach = REACHES[key]
    first = reach.by(loaded(folder, {**reach.given, key: reach.one}))
    assert reach.by(loaded(folder, {**reach.given, key: reach.one})) == first
    other = loaded(folder, {**reach.given, **reach.other_given, key: reach.other})
    try:
        found = reach.by(other)
    except ConfigError as error:
        found = error
    assert found != first


@pytest.mark.parametrize("key", SHOWN_BY)
def test_the_test_that_shows_an_effect_exists(key: str) -> None:
    for shown in SHOWN_BY[key].split():
        path, _, name = shown.partition("::")
        assert name in functions_of(REPOSITORY / path)


@pytest.mark.parametrize("key", READ_IN)
def test_a_key_of_time_is_read_where_it_is_said_to_be(key: str) -> None:
    chains = {ast.unparse(node) for node in ast.walk(ast.parse((REPOSITORY / READ_IN[key]).read_text()))
              if isinstance(node, ast.Attribute)}  # fmt: skip
    assert [chain for chain in chains if chain.endswith(f".{key}")]


def test_every_key_has_an_effect() -> None:
    shown = [*REACHES, *SHOWN_BY, *READ_IN]
    assert sorted(leaves()) == sorted(shown)
