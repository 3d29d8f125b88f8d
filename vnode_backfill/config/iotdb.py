"""Configures a job into IoTDB: which of the server's two models, where rows go in it, and how their columns are kept.

The rules of `config.job` hold here too: a value that cannot work, or works with another model only, is refused with its
YAML path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, Strict, ValidationInfo, field_validator

from vnode_backfill.config.values import (
    Flag,
    Host,
    PasswordSection,
    Place,
    Port,
    Section,
    Text,
    Timeout,
    TlsSection,
    User,
    between,
    matching,
)


class IotdbModel(StrEnum):
    """How the server keeps points: as series of device paths, or as rows of a table whose tags name the device."""

    TREE = "tree"
    TABLE = "table"


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


DevicePath = Annotated[
    Text, matching(r"root(\.([^.{}`\s]|\{[^{}]+\})+){2,}", "a path as root.shop.{region}.{device_id}")
]
TABLE_NAME = r"(?!(?i:time|timestamp|root|information_schema)$)[A-Za-z_\u4e00-\u9fff][A-Za-z0-9_\u4e00-\u9fff]*"
"""What the server accepts as the name of a database and of a table in every call; statements alone accept more."""
_TABLE_NAMES = "must be a name of letters, digits and _, not time, timestamp, root or information_schema"


def _table_template(value: str) -> str:
    """{database} and {table} may be in it; what replaces them is a name of such letters, too."""
    if not re.fullmatch(TABLE_NAME, re.sub(r"\{(?:database|table)\}", "x", value)):
        raise ValueError(_TABLE_NAMES)
    return value


TableTemplate = Annotated[str, AfterValidator(_table_template)]


class IotdbSinkConfig(PasswordSection):
    yaml_path: ClassVar[str] = "sink.iotdb"

    host: Host
    port: Port = 6667
    user: User = "root"
    tls: TlsSection = TlsSection()
    timeout: Timeout = timedelta(seconds=60)
    model: IotdbModel = IotdbModel.TREE
    device: Annotated[DevicePath | None, Field(validate_default=True)] = None
    database: Annotated[TableTemplate | None, Field(validate_default=True)] = None
    table: TableTemplate | None = None
    tags: Annotated[tuple[Text, ...], Field(validate_default=True)] = ()
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
    dead_letter: Place | None = None

    @field_validator("device", "database", "table", "tags")
    @classmethod
    def _goes_with_its_model(
        cls, value: str | tuple[str, ...] | None, info: ValidationInfo
    ) -> str | tuple[str, ...] | None:
        model, name = info.data.get("model"), info.field_name
        own = IotdbModel.TREE if name == "device" else IotdbModel.TABLE
        if model is own and not value and name != "table":
            raise ValueError(f"must be given when model is {own}")
        if model is not None and model is not own and value:
            raise ValueError(f"is allowed only when model is {own}; it is {model}")
        return value

    @field_validator("tags")
    @classmethod
    def _each_tag_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("must not name a column twice")
        return value

    @field_validator("include", "exclude", "types")
    @classmethod
    def _not_of_tags(
        cls, value: tuple[str, ...] | Mapping[str, IotdbType], info: ValidationInfo
    ) -> tuple[str, ...] | Mapping[str, IotdbType]:
        named = [column for column in value if column in info.data.get("tags", ())]
        if named:
            raise ValueError(f"must not name tags, which are columns of text already: {', '.join(named)}")
        return value

    @field_validator("aligned")
    @classmethod
    def _of_the_tree(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("model") is IotdbModel.TABLE:
            raise ValueError("must not be true when model is table, whose devices are aligned by themselves")
        return value

    @field_validator("exclude")
    @classmethod
    def _not_with_include(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if value and info.data.get("include"):
            raise ValueError("must not be given together with include")
        return value

    @field_validator("rename", "types")
    @classmethod
    def _of_kept_columns(cls, value: Mapping[str, str], info: ValidationInfo) -> Mapping[str, str]:
        include, exclude, tags = (info.data.get(name, ()) for name in ("include", "exclude", "tags"))
        gone = [c for c in value if c in exclude or (include and c not in include and c not in tags)]
        if gone:
            raise ValueError(f"must not name columns that are left out: {', '.join(gone)}")
        return value
