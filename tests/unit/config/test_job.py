"""A job's file is read exactly, and each mistake in it is reported with its path, its value and what is allowed."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from vnode_backfill.config.iotdb import IotdbSinkConfig
from vnode_backfill.config.job import (
    Config,
    Executor,
    StartupMode,
    ZeroDates,
    load_config,
)
from vnode_backfill.config.values import ServerIdRange, reveal
from vnode_backfill.words.errors import ConfigError
from vnode_backfill.words.units import format_duration, format_size, parse_duration, parse_size

CONF = Path(__file__).parents[3] / "conf"
MANUAL = CONF / "backfill.yaml"

SOURCE = "host: db\n  user: u\n  database: shop\n  table: orders"
MINIMAL = f"""
job: orders
mysql:
  {SOURCE}
sink: {{delta: {{path: /lake/orders}}}}
state: {{path: /lake/state}}
"""
IOTDB = """
job: readings
mysql: {host: db, user: u, database: plant, table: reading}
state: {path: /lake/state}
sink:
  iotdb:
    host: iotdb
    device: "root.plant.{region}.s{sensor}"
    time: {column: at}
"""


def load(
    folder: Path, text: str, overrides: Mapping[str, object] | None = None, env: Mapping[str, str] | None = None
) -> Config:
    path = folder / "job.yaml"
    path.write_text(text)
    return load_config(path, overrides, env=env or {})


def with_mysql(lines: str) -> str:
    return MINIMAL.replace(SOURCE, f"{SOURCE}\n  {lines}")


def test_a_minimal_file_gets_every_default(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL)
    assert (config.vnodes, config.workers, config.executor) == (256, 4, Executor.PARALLEL)
    assert config.mysql.cdc.startup_mode is StartupMode.INITIAL
    assert config.epoch.backfill == timedelta(seconds=10)
    assert config.limits.range_bytes == 64_000_000
    assert config.limits.rows_per_second is None
    assert config.mysql.server_id_range == ServerIdRange(5400, 5499)


def test_a_loaded_config_is_frozen_and_can_be_pickled(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        config.vnodes = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config


def test_what_a_config_prints_loads_to_the_same_config(tmp_path: Path) -> None:
    config = load(tmp_path, with_mysql("read_timeout: 1h30m\n  server_id_range: 7-19"))
    assert Config.model_validate(json.loads(config.model_dump_json())) == config


def test_zero_dates_null_is_a_value_and_not_an_absent_one(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL + "zero_dates: null").zero_dates is ZeroDates.NULL
    assert load(tmp_path, MINIMAL + "zero_dates: error").zero_dates is ZeroDates.ERROR


def test_a_section_whose_keys_are_all_commented_out_keeps_its_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL + "limits:\n  # retries: 3\n").limits.retries == 8


def test_workers_default_to_no_more_than_vnodes(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL + "vnodes: 2").workers == 2


def test_overrides_win_and_those_not_given_leave_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL + "vnodes: 8", {"workers": 6, "vnodes": None, "ui.port": 0, "epoch.live": "2s"})
    assert (config.vnodes, config.workers, config.ui.port) == (8, 6, 0)
    assert config.epoch.live == timedelta(seconds=2)


def test_a_wrong_override_is_reported_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^workers is 9; must not be more than vnodes, which is 4"):
        load(tmp_path, MINIMAL, {"workers": 9, "vnodes": 4})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("vnode: 4", "vnode is not a known key; did you mean vnodes? allowed: job, mysql, sink"),
        ("vnodes: 0", "vnodes is 0; must be from 1 to 32768"),
        ("vnodes: 40000", "vnodes is 40000; must be from 1 to 32768"),
        ("vnodes: yes", 'vnodes is "yes"; must be a whole number'),
        ("vnodes: true", "vnodes is true; must be a whole number"),
        ("vnodes: 1.5", "vnodes is 1.5; must be a whole number"),
        ("executor: fast", 'executor is "fast"; allowed: parallel, single'),
        ("zero_dates: keep", 'zero_dates is "keep"; allowed: null, error'),
        ("schema_changes: ignore", 'schema_changes is "ignore"; allowed: follow, stop'),
        ("dropped_columns: delete", 'dropped_columns is "delete"; allowed: keep, drop'),
        ("dropped_partitions: drop", 'dropped_partitions is "drop"; allowed: delete, keep, reread'),
        ("epoch: {backfill: 10}", "epoch.backfill is 10; must be a duration with its unit"),
        ("epoch: {backfill: 64MB}", 'epoch.backfill is "64MB"; must be a duration with its unit'),
        ("epoch: {live: 0s}", 'epoch.live is "0s"; must be longer than 0s'),
        ("limits: {range_bytes: 64}", "limits.range_bytes is 64; must be a size with its unit"),
        ("limits: {range_bytes: 5m}", 'limits.range_bytes is "5m"; must be a size with its unit'),
        ("limits: {rows_per_second: off}", 'limits.rows_per_second is "off"; must be a whole number'),
        ("limits: {rows_per_second: -1}", "limits.rows_per_second is -1; must be from 0 to"),
        ("limits: {backoff: 2m}", "limits.max_backoff is 1m; must not be shorter than backoff, which is 2m"),
        ("limits: {throttle: {queries: [{name: q, sql: s}]}}", "limits.throttle.queries[0].max is missing"),
        ("limits: {throttle: {queries: {name: q}}}", "limits.throttle.queries holds name; must be a list"),
        ("limits: {throttle: {replica: []}}", "limits.throttle.replica is not a known key; did you mean replicas?"),
        ("limits: 7", "limits is 7; must be a mapping of keys to values"),
        ("ui: {port: 70000}", "ui.port is 70000; must be from 0 to 65535"),
        ("ui: {host: ''}", 'ui.host is ""; must be text that is not empty'),
        ("spark: {executor.memory: 4g}", "spark is (hidden); must hold keys that start with spark. only"),
        ("spark: {spark.master: yarn}", "spark is (hidden); must not hold spark.master; give --master"),
        (
            "spark: {spark.executor.memory: abc}",
            "spark is (hidden); must hold a size without a space in spark.executor",
        ),
        (
            "spark: {spark.driver.memoryOverhead: 4 GB}",
            "spark is (hidden); must hold a size without a space in spark.dr",
        ),
        ("spark: {spark.speculation: true}", "spark is (hidden); must not turn spark.speculation on"),
    ],
)
def test_a_mistake_names_its_path_its_value_and_what_is_allowed(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, MINIMAL + lines)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("lease", ["1ms", "4999ms", "24h1s", "3650d"])
def test_a_lease_is_from_five_seconds_to_a_day(tmp_path: Path, lease: str) -> None:
    with pytest.raises(ConfigError, match=f'state.lease is "{lease}"; must be from 5s to 1d'):
        load(tmp_path, MINIMAL.replace("/lake/state", f"/lake/state, lease: {lease}"))
    for allowed in ("5s", "24h"):
        load(tmp_path, MINIMAL.replace("/lake/state", f"/lake/state, lease: {allowed}"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("port: 0", "mysql.port is 0; must be from 1 to 65535"),
        ("port: '3306'", 'mysql.port is "3306"; must be a whole number'),
        ("host2: x", "mysql.host2 is not a known key; did you mean host?"),
        ("password: hunter2", "mysql.password is not allowed: a password is never in the file"),
        ("password_env: hunter2!", "mysql.password_env is (hidden); must be the name of an environment variable"),
        ("password_env: P\n  password_file: /p", "mysql.password_file is (hidden); must not be given together with"),
        ("server_id_range: 9-3", 'mysql.server_id_range is "9-3"; must be two server ids from 1 to 4294967295'),
        ("server_id_range: 5400", "mysql.server_id_range is 5400; must be two server ids"),
        ("server_id_range: 7-7", "mysql.server_id_range is 7-7; must hold limits.log_readers ids, which is 2"),
        ("watermark_table: marks", 'mysql.watermark_table is "marks"; must be database.table'),
        ("tls: {ca: /ca}", 'mysql.tls.ca is "/ca"; has no effect while tls.enabled is false'),
        ("tls: {enabled: true, cert: /c}", "mysql.tls.key is missing; must be given together with cert"),
        ("tls: {enabled: yes}", 'mysql.tls.enabled is "yes"; must be true or false'),
        ("tls: {enabled: true, verify: false}", "mysql.tls.verify is false; allowed: identity, ca, none"),
    ],
)
def test_a_mistake_about_the_source_names_its_path(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, with_mysql(lines))
    assert caught.value.message.startswith(message)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("cdc", "message"),
    [
        ("{startup_mode: newest}", 'startup_mode is "newest"; allowed: initial, latest, specific, earliest, timestamp'),
        ("{startup_mode: specific}", "specific is missing; must be given when startup_mode is specific"),
        ("{startup_mode: timestamp}", "timestamp is missing; must be given when startup_mode is timestamp"),
        ("{specific: {gtid: 0-1-7}}", "specific holds gtid; is allowed only when startup_mode is specific"),
        ("{timestamp: '2026-05-01T12:00:00Z'}", 'timestamp is "2026-05-01T12:00:00Z"; is allowed only when'),
        ("{startup_mode: timestamp, timestamp: 2026-05-01}", 'timestamp is "2026-05-01"; must be a moment with its'),
        ("{startup_mode: specific, specific: {}}", "specific holds nothing; must hold either file and pos, or gtid"),
        ("{startup_mode: specific, specific: {file: b.01}}", "specific holds file; must hold either file and pos"),
        (
            "{startup_mode: specific, specific: {file: b.01, pos: 4, gtid: 0-1-7}}",
            "specific holds file, pos, gtid; must hold either file and pos, or gtid, or from_job",
        ),
        ("{startup_mode: specific, specific: {gtid: newest}}", 'specific.gtid is "newest"; must be a GTID set'),
        ("{startup_mode: specific, specific: {file: b, pos: 4}}", 'specific.file is "b"; must be the name of a binlog'),
        ("{startup_mode: specific, specific: {file: b.01, pos: 3}}", "specific.pos is 3; must be from 4 to"),
    ],
)
def test_a_mode_and_its_point_must_fit_each_other(tmp_path: Path, cdc: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, with_mysql(f"cdc: {cdc}"))
    assert caught.value.message.startswith(f"mysql.cdc.{message}")


def test_a_moment_keeps_its_zone(tmp_path: Path) -> None:
    config = load(tmp_path, with_mysql("cdc: {startup_mode: timestamp, timestamp: '2026-05-01T14:00:00+02:00'}"))
    assert config.mysql.cdc.timestamp == datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ("", "sink is missing; it has no default"),
        ("sink: {}", "sink holds nothing; must hold exactly one of delta, iotdb"),
        ("sink: {delta: {path: /lake/state/t}}", "state.path is /lake/state; must not be inside sink.delta.path"),
        ("sink: {delta: {path: /lake/}}", "state.path is /lake/state; must not be inside sink.delta.path"),
        ("sink: {delta: {}}", "sink.delta.path is missing"),
        (
            "sink: {delta: {path: /x, metadata_columns: false}}",
            "sink.delta.metadata_columns is not a known key; allowed: path, replace, target_file_size",
        ),
        ("sink: {iceberg: {path: /x}}", "sink.iceberg is not a known key; allowed: delta, iotdb"),
        (
            "sink: {delta: {path: /x}, iotdb: {host: h, device: root.a.b, time: {column: t}}}",
            "sink holds delta, iotdb; must hold exactly one of delta, iotdb",
        ),
    ],
)
def test_exactly_one_sink_outside_the_state_is_demanded(tmp_path: Path, sink: str, message: str) -> None:
    text = MINIMAL.replace("sink: {delta: {path: /lake/orders}}", sink)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("port: 99999", "port is 99999; must be from 1 to 65535"),
        ("device: plant.x", "device is given twice"),
        ("include: [a]\n    exclude: [b]", "exclude is a list; must not be given together with include"),
        ("exclude: [b]\n    rename: {b: c}", "rename holds b; must not name columns that are left out: b"),
        ("include: [a]\n    types: {b: int32}", "types holds b; must not name columns that are left out: b"),
        ("types: {a: int}", 'types.a is "int"; allowed: boolean, int32, int64'),
        ("decimal: exact", 'decimal is "exact"; allowed: double, text'),
        ("duplicates: ignore", 'duplicates is "ignore"; allowed: error, last'),
        ("model: graph", 'model is "graph"; allowed: tree, table'),
        ("model: table", 'device is "root.plant.{region}.s{sensor}"; is allowed only when model is tree; it is table'),
        ("tags: [region]", "tags is a list; is allowed only when model is table; it is tree"),
        ("database: plant", 'database is "plant"; is allowed only when model is table; it is tree'),
        ("table: readings", 'table is "readings"; is allowed only when model is table; it is tree'),
    ],
)
def test_a_mistake_about_iotdb_names_its_path(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, IOTDB + f"    {lines}")
    assert caught.value.message.startswith(f"sink.iotdb.{message}")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("tags: [region]", "database is missing; must be given when model is table"),
        ("database: plant", "tags is empty; must be given when model is table"),
        ("database: plant\n    tags: [a, a]", "tags is a list; must not name a column twice"),
        ("database: a-b\n    tags: [a]", 'database is "a-b"; must be a name of letters, digits and _'),
        ("database: information_schema\n    tags: [a]", 'database is "information_schema"; must be a name'),
        ("database: d\n    table: Time\n    tags: [a]", 'table is "Time"; must be a name of letters'),
        ("database: d\n    tags: [a]\n    aligned: true", "aligned is true; must not be true when model is table"),
        ("database: d\n    tags: [a]\n    include: [a, b]", "include is a list; must not name tags"),
        ("database: d\n    tags: [a]\n    types: {a: int32}", "types holds a; must not name tags"),
    ],
)
def test_a_mistake_about_the_table_model_names_its_path(tmp_path: Path, lines: str, message: str) -> None:
    text = IOTDB.replace('device: "root.plant.{region}.s{sensor}"', "model: table")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text + f"    {lines}")
    assert caught.value.message.startswith(f"sink.iotdb.{message}")


def test_the_table_model_has_tags_and_no_device(tmp_path: Path) -> None:
    text = (
        IOTDB.replace('device: "root.plant.{region}.s{sensor}"', "model: table") + "    database: d\n    tags: [a, b]"
    )
    iotdb = load(tmp_path, text + "\n    include: [c]\n    rename: {a: x, c: y}").sink.iotdb
    assert isinstance(iotdb, IotdbSinkConfig)
    assert (iotdb.device, iotdb.table, iotdb.tags) == (None, None, ("a", "b"))


@pytest.mark.parametrize("device", ["plant.x", "root.x", "root..x", "root.a.{b", "root.a.b}", "root.a.{}", "root.a. b"])
def test_a_device_template_that_is_not_a_path_is_refused(tmp_path: Path, device: str) -> None:
    with pytest.raises(ConfigError, match=r"^sink\.iotdb\.device is .*; must be a path"):
        load(tmp_path, IOTDB.replace("root.plant.{region}.s{sensor}", device))


def test_all_mistakes_are_listed_at_once(tmp_path: Path) -> None:
    text = with_mysql("prot: 1").replace("/lake/orders", "7") + "epoch: {live: 3}\nvnodes: 2\nworkers: 3"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert caught.value.message.startswith("mysql.prot ")
    assert caught.value.detail.startswith("4 mistakes in ")
    assert [line.split()[0] for line in caught.value.detail.splitlines()[1:]] == [
        "mysql.prot",
        "sink.delta.path",
        "workers",
        "epoch.live",
    ]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("- job", "must hold a mapping"),
        ("job", "must hold a mapping"),
        ("job: [", "is not valid YAML"),
        ("job: a\n---\njob: b", "is not valid YAML"),
        ("job: a\njob: b", "^job is given twice; again in line 2"),
        ("ui: {port: 1, port: 2}", r"^ui\.port is given twice"),
        ("job: !!python/name:os.system x", "^job has a tag; tags are not allowed"),
        ("ui: &a {host: *a}", r"^ui\.host is an alias of what holds it"),
    ],
)
def test_a_file_that_is_not_a_mapping_of_keys_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml cannot be read"):
        load_config(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"job: caf\xe9")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_config(tmp_path / "latin.yaml")


def test_variables_are_replaced_and_typed_like_the_text_they_stand_for(tmp_path: Path) -> None:
    text = MINIMAL.replace("host: db", "host: ${HOST:-localhost}\n  port: ${PORT}").replace(
        "/lake/orders", "'${ROOT}/orders'"
    )
    config = load(tmp_path, text, env={"PORT": "3307", "ROOT": "/data", "HOST": ""})
    assert (config.mysql.host, config.mysql.port) == ("localhost", 3307)
    assert config.sink.delta is not None
    assert config.sink.delta.path == "/data/orders"


def test_a_variable_cannot_add_keys(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL.replace("user: u", "user: ${USER}"), env={"USER": "u\n  port: 1"})
    assert (config.mysql.user, config.mysql.port) == ("u\n  port: 1", 3306)


def test_an_escaped_reference_stays_as_written(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL.replace("user: u", "user: a$${X}b")).mysql.user == "a${X}b"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${NOWHERE}", "mysql.host needs the environment variable NOWHERE, which is not set or empty"),
        ("${1X}", "mysql.host holds ${ that does not begin a reference; allowed: ${NAME}, ${NAME:-default}"),
        ("${X", "mysql.host holds ${ that does not begin a reference; allowed"),
    ],
)
def test_a_variable_that_is_missing_is_named_with_its_path(tmp_path: Path, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, MINIMAL.replace("host: db", f"host: {value}"))
    assert caught.value.message.startswith(message)


def test_a_password_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    by_env = load(tmp_path, with_mysql("password_env: DB_PASSWORD")).mysql
    by_file = load(tmp_path, with_mysql(f"password_file: {secret}")).mysql
    assert by_env.resolve_password({"DB_PASSWORD": "hunter2"}) == SecretStr("hunter2")
    assert by_file.resolve_password({}) == SecretStr("hunter2")
    assert load(tmp_path, MINIMAL).mysql.resolve_password({}) == SecretStr("")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("password_env: DB_PASSWORD", "mysql.password_env: environment variable DB_PASSWORD is not set or empty"),
        ("password_file: /nowhere/secret", "mysql.password_file: the file that it names cannot be read"),
        ("password_file: /dev/null", "mysql.password_file: file /dev/null is empty"),
    ],
)
def test_a_password_that_cannot_be_had_names_its_path(tmp_path: Path, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(tmp_path, with_mysql(key)).mysql.resolve_password({})


def test_options_are_masked_wherever_they_could_be_printed(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL + "storage: {options: {KEY: hunter2, ALLOW_HTTP: true}}\nspark: {spark.k: hunter2}")
    assert not [text for text in (repr(config), str(config), config.model_dump_json()) if "hunter2" in text]
    assert reveal(config.storage.options) == {"KEY": "hunter2", "ALLOW_HTTP": "true"}
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, MINIMAL + "storage: {options: {KEY: [hunter2]}}")
    assert "hunter2" not in str(caught.value)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3650)))
def test_a_printed_duration_parses_to_itself(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@given(st.integers(min_value=0, max_value=2**50))
def test_a_printed_size_parses_to_itself(value: int) -> None:
    assert parse_size(format_size(value)) == value


def test_units_are_what_they_say() -> None:
    assert parse_duration("1h30m") == timedelta(minutes=90)
    assert parse_duration("1.5s") == timedelta(milliseconds=1500)
    assert (parse_size("64MB"), parse_size("1GiB"), parse_size("1.5kB")) == (64_000_000, 2**30, 1500)


@pytest.mark.parametrize(
    "value", ["", "10", "s", "-1s", "1 hour", "1s,", "\u0663s", "1" * 200 + "s", "0.5us", 5, 1.5, True]
)
def test_what_is_not_a_duration_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="must be a duration with its unit"):
        parse_duration(value)


ENV = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.name)
def test_every_file_in_conf_loads(path: Path) -> None:
    assert load_config(path, env=ENV).job


@pytest.mark.parametrize("value", ["3651d", "99999999999999d", "900000000d", "999999999999999999d999999999999999999h"])
def test_a_duration_beyond_all_dates_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="must not be longer than 3650d"):
        parse_duration(value)
