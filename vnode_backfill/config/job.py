"""Configures a job: every key of its YAML file, typed, checked, and frozen.

What must be true: a job that starts has a configuration without a single doubtful value. An unknown key, a number
without its unit, two keys that exclude each other or one that lacks its partner is a ConfigError whose message starts
with the YAML path, before Spark starts. A key left empty counts as not written. Passwords are never in the file:
`password_env` and `password_file` say where they are, and they are fetched where a connection is opened. Options that
may hold secrets (`storage.options`, `spark`) are masked in every repr and dump.

`conf/backfill.yaml` is the manual of these keys. Tests check that it and these models agree, and that every key has an
effect.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    SecretStr,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from vnode_backfill.config.choices import (
    DroppedColumns,
    DroppedPartitions,
    Executor,
    MergeMode,
    NewTables,
    SchemaChanges,
    StartupMode,
    TlsVerify,
    ZeroDates,
)
from vnode_backfill.config.iotdb import IotdbSinkConfig
from vnode_backfill.config.table_entries import Pattern, TableEntry
from vnode_backfill.config.table_faults import faults_of_sink, faults_of_source
from vnode_backfill.config.targets import folder_of
from vnode_backfill.config.values import (
    Count,
    CountOrZero,
    Duration,
    Flag,
    Gtids,
    Host,
    JobName,
    LeaseDuration,
    Moment,
    Options,
    PasswordSection,
    Place,
    Port,
    Section,
    ServerIdRange,
    Size,
    SizeOrZero,
    Text,
    Timeout,
    TlsSection,
    User,
    between,
    matching,
)
from vnode_backfill.config.yaml_file import config_error, explain, override, read_yaml
from vnode_backfill.words.units import MB, format_duration

__all__ = [
    "CUT_RETENTION", "KEY_CACHE", "TARGET_FILE_SIZE", "TARGET_RETENTION", "VECTORS_RETENTION", "BufferConfig", "CdcConfig", "Config",
    "DeltaSinkConfig", "DroppedColumns", "DroppedPartitions", "EpochConfig", "Executor", "LimitsConfig", "MergeMode",
    "MySqlConfig", "NewTables", "QueryCheck", "ReplicaCheck", "SchemaChanges", "SinkConfig", "SpecificConfig",
    "StartupMode", "StateConfig", "StorageConfig", "TableEntry", "ThrottleConfig", "TlsConfig", "TlsVerify", "UiConfig",
    "ZeroDates", "check_config", "load_config",
]  # fmt: skip

TARGET_FILE_SIZE = 128 * MB
TARGET_RETENTION = timedelta(days=7)
VECTORS_RETENTION = timedelta(hours=6)
"""At one commit a second, seven days of superseded entries are six million, and opening the table takes seconds."""
CUT_RETENTION = timedelta(days=1)
"""How long the versions of a cut are kept where no other cut follows. They cost the files that were superseded since,
and the commits since: 86,400 at one a second, which whoever opens the table lists (0.08 CPU-seconds on a local disk)."""
KEY_CACHE = 1000 * MB


class TlsConfig(TlsSection):
    verify: TlsVerify = TlsVerify.IDENTITY


class SpecificConfig(Section):
    """A point of the log, in exactly one of three forms."""

    file: Annotated[Text, matching(r"[^/]+\.[0-9]+", "the name of a binlog file, as in binlog.000042")] | None = None
    pos: Annotated[int, Strict(), between(4, 2**63 - 1)] | None = None
    gtid: Gtids | None = None
    from_job: JobName | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        given = tuple(name for name in SpecificConfig.model_fields if getattr(self, name) is not None)
        if given not in (("file", "pos"), ("gtid",), ("from_job",)):
            raise ValueError("must hold either file and pos, or gtid, or from_job")
        return self


class CdcConfig(Section):
    startup_mode: StartupMode = StartupMode.INITIAL
    specific: Annotated[SpecificConfig | None, Field(validate_default=True)] = None
    timestamp: Annotated[Moment | None, Field(validate_default=True)] = None

    @field_validator("specific", "timestamp")
    @classmethod
    def _goes_with_its_mode(
        cls, value: SpecificConfig | datetime | None, info: ValidationInfo
    ) -> SpecificConfig | datetime | None:
        mode, name = info.data.get("startup_mode"), info.field_name
        if mode is not None and value is None and mode == name:
            raise ValueError(f"must be given when startup_mode is {name}")
        if mode is not None and value is not None and mode != name:
            raise ValueError(f"is allowed only when startup_mode is {name}; it is {mode}")
        return value


_OR_TABLES = PlainSerializer(lambda name: name or None)
"""An empty name is a key that was not given."""


class MySqlConfig(PasswordSection):
    yaml_path: ClassVar[str] = "mysql"

    host: Host
    port: Port = 3306
    user: User
    tls: TlsConfig = TlsConfig()
    database: Annotated[Text, _OR_TABLES] = ""
    table: Annotated[Text, _OR_TABLES] = ""
    tables: tuple[TableEntry, ...] = ()
    exclude: tuple[Pattern, ...] = ()
    new_tables: NewTables = NewTables.ADD
    server_id_range: Annotated[ServerIdRange, PlainValidator(ServerIdRange.parse), PlainSerializer(str)] = (
        ServerIdRange(5400, 5499)
    )
    connect_timeout: Timeout = timedelta(seconds=10)
    read_timeout: Timeout = timedelta(seconds=60)
    visibility_timeout: Timeout = timedelta(seconds=60)
    watermark_table: Annotated[Text, matching(r"[^.`]+\.[^.`]+", "database.table")] | None = None
    cdc: CdcConfig = CdcConfig()

    @model_validator(mode="after")
    def _one_table_or_many(self) -> Self:
        if pairs := faults_of_source(self):
            raise PydanticCustomError("pairs", "values exclude each other", {"pairs": pairs})
        return self


class EpochConfig(Section):
    backfill: Duration = timedelta(seconds=10)
    live: Duration = timedelta(seconds=1)
    cut: Duration | None = None
    lag: Duration | None = None


class QueryCheck(Section):
    """Holds the snapshot while `sql`, which returns one number, is above `max`."""

    name: Text
    sql: Text
    max: Annotated[float, Strict()]


class ReplicaCheck(Section):
    """Holds the snapshot while this replica is more than `max_lag` behind; logged into as `mysql` is."""

    host: Host
    port: Port = 3306
    max_lag: Duration = timedelta(seconds=10)


class ThrottleConfig(Section):
    """Checks on the source; while one is over its limit the snapshot waits, and capturing the log continues."""

    every: Duration = timedelta(seconds=5)
    threads_running: Count | None = None
    flag_file: Place | None = None
    queries: tuple[QueryCheck, ...] = ()
    replicas: tuple[ReplicaCheck, ...] = ()


class LimitsConfig(Section):
    rows_per_second: CountOrZero | None = None
    range_rows: Count | None = None
    range_bytes: Size = 64 * MB
    log_memory: Size = 256 * MB
    log_readers: Count = 2
    retries: CountOrZero = 8
    backoff: Duration = timedelta(seconds=1)
    max_backoff: Annotated[Duration, Field(validate_default=True)] = timedelta(seconds=60)
    throttle: ThrottleConfig = ThrottleConfig()

    @field_validator("max_backoff")
    @classmethod
    def _not_below_backoff(cls, value: timedelta, info: ValidationInfo) -> timedelta:
        first = info.data.get("backoff")
        if first is not None and value < first:
            raise ValueError(f"must not be shorter than backoff, which is {format_duration(first)}")
        return value

    def pause(self, attempt: int) -> float:
        """Seconds to wait after so many failed attempts: longer each time, and not all drivers alike."""
        doubled = 2.0 ** min(attempt - 1, 64)
        longest = min(self.backoff.total_seconds() * doubled, self.max_backoff.total_seconds())
        return longest * random.uniform(0.5, 1.0)


class DeltaSinkConfig(Section):
    path: Place
    replace: Flag = False
    target_file_size: Size = TARGET_FILE_SIZE
    compact_small_files: CountOrZero = 200
    merge: MergeMode | None = None
    key_cache: SizeOrZero = KEY_CACHE
    retention: Duration | None = None


class SinkConfig(Section):
    """Where rows go: exactly one of the keys."""

    delta: DeltaSinkConfig | None = None
    iotdb: IotdbSinkConfig | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.delta is None) == (self.iotdb is None):
            raise ValueError("must hold exactly one of delta, iotdb")
        return self


class StateConfig(Section):
    path: Place
    lease: LeaseDuration = timedelta(seconds=30)
    retention: Duration = timedelta(hours=1)


class BufferConfig(Section):
    retention: Duration = timedelta(hours=1)


class StorageConfig(Section):
    options: Options = Field(default_factory=dict)


class UiConfig(Section):
    host: Host = "127.0.0.1"
    port: Annotated[int, Strict(), between(0, 65535)] = 8321
    stalled_after: Duration = timedelta(minutes=10)
    table_metrics: Flag = True


def _workers_of(data: Mapping[str, object]) -> int:
    vnodes = data.get("vnodes", 256)
    return min(4, vnodes) if isinstance(vnodes, int) else 4


class Config(Section):
    """The whole file."""

    job: JobName
    mysql: MySqlConfig
    sink: SinkConfig
    state: StateConfig
    vnodes: Annotated[int, Strict(), between(1, 32768)] = 256
    workers: Count = Field(default_factory=_workers_of)
    executor: Executor = Executor.PARALLEL
    zero_dates: ZeroDates = ZeroDates.NULL
    schema_changes: SchemaChanges = SchemaChanges.FOLLOW
    dropped_columns: DroppedColumns = DroppedColumns.KEEP
    dropped_partitions: DroppedPartitions = DroppedPartitions.DELETE
    epoch: EpochConfig = EpochConfig()
    limits: LimitsConfig = LimitsConfig()
    buffer: BufferConfig = BufferConfig()
    storage: StorageConfig = StorageConfig()
    ui: UiConfig = UiConfig()
    spark: Options = Field(default_factory=dict)

    _whole: tuple[str, str] | None = PrivateAttr(default=None)
    _among: Config | None = PrivateAttr(default=None)
    _folds_case: bool = PrivateAttr(default=False)

    @property
    def whole(self) -> tuple[str, str] | None:
        """State path and name of the job of many tables that this one is a part of; None for a job of its own."""
        return self._whole

    @property
    def table_of_many(self) -> str:
        """The name by which commands mean this table of a job of many; empty for a job of its own."""
        return self.job if self._whole else ""

    @property
    def among_many(self) -> bool:
        """Whether this describes one table of a job of many."""
        return self._among is not None

    @property
    def among(self) -> tuple[Config, bool] | None:
        """The job of many tables that this is one of, and whether its server folds the case of names."""
        return None if self._among is None else (self._among, self._folds_case)

    def as_one_of(self, many: Config, *, folds_case: bool) -> Config:
        one = self.model_copy()
        one._among, one._folds_case = many, folds_case
        return one

    def as_part_of(self, whole: Config, name: str, path: str) -> Config:
        """This configuration of one table, as a part of a job of many: its state is below `path`."""
        part = self.model_copy(update={"job": name, "state": self.state.model_copy(update={"path": path})})
        part._whole = (whole.state.path, whole.job)
        return part

    @property
    def many(self) -> bool:
        """Whether the job copies the tables of `mysql.tables`; `config.tables.table_config` describes each of them."""
        return bool(self.mysql.tables)

    @property
    def merge_mode(self) -> MergeMode:
        """How the table that this job creates is changed: a copy that ends by itself leaves a plain table."""
        ends = self.mysql.cdc.startup_mode is StartupMode.SNAPSHOT
        asked = self.sink.delta.merge if self.sink.delta else None
        return asked or (MergeMode.REWRITE if ends else MergeMode.VECTORS)

    @property
    def kept_for(self) -> timedelta:
        """How long superseded files of a Delta target stay, where no table says another `merge`."""
        asked = self.sink.delta.retention if self.sink.delta else None
        return asked or (VECTORS_RETENTION if self.merge_mode is MergeMode.VECTORS else TARGET_RETENTION)

    @property
    def cut_kept_for(self) -> timedelta:
        """How long the versions of a cut stay where no other cut follows."""
        return max(CUT_RETENTION, self.kept_for)

    @field_validator("workers")
    @classmethod
    def _a_vnode_for_each(cls, value: int, info: ValidationInfo) -> int:
        vnodes = info.data.get("vnodes")
        if vnodes is not None and value > vnodes:
            raise ValueError(f"must not be more than vnodes, which is {vnodes}")
        return value

    @field_validator("spark")
    @classmethod
    def _spark_keys(cls, value: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        foreign = [name for name in value if not name.startswith("spark.")]
        if foreign:
            raise ValueError(f"must hold keys that start with spark. only, not {', '.join(foreign)}")
        if "spark.master" in value:
            raise ValueError("must not hold spark.master; give --master to the command or to spark-submit")
        for name in (name for name in value if re.search(r"\.memory(Overhead)?$", name)):
            if not re.fullmatch(r"[0-9]+([kmgtp]b?|b)?", value[name].get_secret_value(), re.IGNORECASE):
                raise ValueError(f"must hold a size without a space in {name}, as in 4g")
        # A task that runs twice at the same time would hold two connections for one worker and write files twice.
        if "spark.speculation" in value and value["spark.speculation"].get_secret_value().lower() != "false":
            raise ValueError("must not turn spark.speculation on")
        return value

    @model_validator(mode="after")
    def _pairs_across_sections(self) -> Self:
        pairs = [*_overlapping_paths(self), *faults_of_sink(self)]
        ids, readers = self.mysql.server_id_range, self.limits.log_readers
        if self.epoch.cut is not None and not self.many:
            pairs.append(("epoch.cut", "is allowed only with mysql.tables: the target of one table is always a cut"))
        if self.epoch.lag is not None and not self.many:
            pairs.append(("epoch.lag", "is allowed only with mysql.tables: of one table every epoch is merged"))
        if ids.count < readers:
            pairs.append(("mysql.server_id_range", f"is {ids}; must hold limits.log_readers ids, which is {readers}"))
        if pairs:
            raise PydanticCustomError("pairs", "values exclude each other", {"pairs": pairs})
        return self


def load_config(
    path: Path, overrides: Mapping[str, object] | None = None, *, env: Mapping[str, str] | None = None
) -> Config:
    """Read, substitute, override by dotted path, and check; every mistake found raises one ConfigError.

    `overrides` is what the command line gave, `{"vnodes": 64, "ui.port": None}`; None leaves the file's value.
    """
    return check_config(override(read_yaml(path, os.environ if env is None else env), overrides or {}), path)


def check_config(values: Mapping[str, object], where: Path | str) -> Config:
    """Check the keys of a file, or of whatever `where` names; every mistake found raises one ConfigError."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        mistakes = [mistake for item in error.errors() for mistake in explain(item, Config)]
    raise config_error(mistakes, where)


def _overlapping_paths(config: Config) -> list[tuple[str, str]]:
    """Pairs of folders of which one is in the other: vacuuming one table would delete the files of the other."""
    delta, iotdb = config.sink.delta, config.sink.iotdb
    paths = {
        "state.path": config.state.path,
        "sink.delta.path": delta.path if delta else None,
        "sink.iotdb.dead_letter": iotdb.dead_letter if iotdb else None,
    }
    given = [(name, path, folder_of(path)) for name, path in paths.items() if path is not None]
    return [
        (name, f"is {path}; must not be inside {other}, which is {other_path}, nor hold it")
        for (name, path, folder), (other, other_path, other_folder) in combinations(given, 2)
        if folder.startswith(other_folder) or other_folder.startswith(folder)
    ]
