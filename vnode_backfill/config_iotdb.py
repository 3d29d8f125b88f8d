"""What a job into IoTDB is told: which of the server's two models, where rows go in it, and how their columns are kept.

The rules of `config` hold here too: a value that cannot work, or works with another model only, is refused with its YAML path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, Strict, ValidationInfo, field_validator

from vnode_backfill.config_values import Duration, Flag, PasswordSection, Port, Section, Text, between, matching


class TimeUnit(StrEnum):
    """The unit of a whole-number time column."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    NANOSECONDS = "ns"


class DecimalAs(StrEnum):
    """How DECIMAL is kept by a sink without decimals: fast and rounded, or exact as text."""

    DOUBLE = "double"
    TEXT = "text"


class Duplicates(StrEnum):
    """What happens when two source keys map to one (device, time)."""

    ERROR = "error"
    LAST = "last"


class IotdbType(StrEnum):
    """Types a measurement can have."""

    BOOLEAN = "boolean"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT = "float"
    DOUBLE = "double"
    TEXT = "text"
    STRING = "string"
    TIMESTAMP = "timestamp"
    DATE = "date"
    BLOB = "blob"


class TimeColumn(Section):
    column: Text
    unit: TimeUnit | None = None


class IotdbSinkConfig(PasswordSection):
    yaml_path: ClassVar[str] = "sink.iotdb"

    host: Text
    port: Port = 6667
    user: Text = "root"
    timeout: Duration = timedelta(seconds=60)
    device: Annotated[str, matching(r"root(\.([^.{}`\s]|\{[^{}]+\})+){2,}", "a path as root.shop.{region}.{device_id}")]
    time: TimeColumn
    include: tuple[Text, ...] = ()
    exclude: tuple[Text, ...] = ()
    rename: Mapping[Text, Text] = Field(default_factory=dict)
    types: Mapping[Text, IotdbType] = Field(default_factory=dict)
    decimal: DecimalAs = DecimalAs.DOUBLE
    aligned: Flag = False
    duplicates: Duplicates = Duplicates.ERROR
    replace: Flag = False
    tablet_rows: Annotated[int, Strict(), between(1, 1_000_000)] = 10_000
    dead_letter: Text | None = None

    @property
    def device_columns(self) -> tuple[str, ...]:
        """The columns that make the device path, in the template's order."""
        return tuple(re.findall(r"\{([^{}]+)\}", self.device))

    @field_validator("exclude")
    @classmethod
    def _not_with_include(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if value and info.data.get("include"):
            raise ValueError("must not be given together with include")
        return value

    @field_validator("rename", "types")
    @classmethod
    def _of_kept_columns(cls, value: Mapping[str, str], info: ValidationInfo) -> Mapping[str, str]:
        include, exclude = info.data.get("include", ()), info.data.get("exclude", ())
        gone = [column for column in value if column in exclude or (include and column not in include)]
        if gone:
            raise ValueError(f"must not name columns that are left out: {', '.join(gone)}")
        return value

    @field_validator("rename")
    @classmethod
    def _to_different_names(cls, value: Mapping[str, str]) -> Mapping[str, str]:
        if len(set(value.values())) < len(value):
            raise ValueError("must not give two columns one name")
        return value
