"""Defines the kinds of values that a key of the file can have, and what all its sections have in common.

Each kind says itself what is allowed, in words that continue "`mysql.port` is 99999; …", so that a mistake is reported
in the same way wherever the kind is used.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    Strict,
    ValidationInfo,
    field_validator,
    model_validator,
)

from consume_upstream.log.gtid import parse_gtids
from vnode_backfill.config.small_files import read_small_text
from vnode_backfill.words.errors import ConfigError, OffsetError
from vnode_backfill.words.units import format_duration, format_size, parse_duration, parse_size


@dataclass(frozen=True, slots=True)
class ServerIdRange:
    """Server ids that log readers may announce themselves with, both ends included."""

    low: int
    high: int

    @classmethod
    def parse(cls, value: object) -> Self:
        if isinstance(value, cls):
            return value
        found = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", value) if isinstance(value, str) else None
        if found is None or not 1 <= int(found[1]) <= int(found[2]) < 2**32:
            raise ValueError("must be two server ids from 1 to 4294967295, the lower first, as in 5400-5499")
        return cls(int(found[1]), int(found[2]))

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


def between(low: int, high: int) -> AfterValidator:
    def check(value: int) -> int:
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}")
        return value

    return AfterValidator(check)


def matching(pattern: str, allowed: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"must be {allowed}")
        return value

    return AfterValidator(check)


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be longer than 0s")
    return value


def _storable(value: str) -> str:
    """Refuse what neither a path nor a connection can carry: NUL, halves of a surrogate pair, very long text."""
    if len(value) > _LONGEST_TEXT:
        raise ValueError(f"must not be longer than {_LONGEST_TEXT:,} letters")
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError("must not hold NUL or a code point that is not a character")
    return value


def _host(value: str) -> str:
    """An address, or a name whose labels a resolver can look up: none is empty or longer than 63 bytes."""
    try:
        ipaddress.ip_address(value)
    except ValueError:
        if not re.fullmatch(r"[\w-]+(\.[\w-]+)*\.?", value) or not _can_be_looked_up(value):
            raise ValueError(
                "must be the name of a host or its address, without a port; each part of a name has 1 to 63 letters"
            ) from None
    return value


def _can_be_looked_up(name: str) -> bool:
    try:
        return len(name.encode("idna")) <= _LONGEST_HOST
    except UnicodeError:
        return False


def _place(value: str) -> str:
    if value.startswith("~"):
        raise ValueError(
            "must be written out: ~ means a home only to a shell; ${HOME}/ is replaced, and ./~ is a folder"
        )
    scheme, sign, rest = value.partition("://")
    # After a colon is a port, or a password that may hold `/`. Parameters are tokens, such as the `sig` of Azure.
    secret = r"[^/@]*:(?![0-9]+/)[^@]*@|.*[?&][\w-]+=" if sign else r"[^/@]*:[^/@]*@"
    if re.match(secret, rest if sign else value):
        raise ValueError("must not hold a password or a token; storage.options is for that")
    if re.match(r"file:/(?!//)", value) or (
        sign and (scheme.lower() not in _STORES or not re.match(r"\S*[^\s/]", rest))
    ):
        raise ValueError(f"must be a path, or an address that begins with one of {', '.join(_STORES)} and ://")
    return value


def _user(value: str) -> str:
    if re.match(r"[^@]*:[^@]*@", value):
        raise ValueError(
            "must be the name of an account alone; password_env or password_file says where its password is"
        )
    return value


def _timeout(value: timedelta) -> timedelta:
    if value > _LONGEST_TIMEOUT:
        raise ValueError(f"must not be longer than {format_duration(_LONGEST_TIMEOUT)}")
    return value


def _lease(value: timedelta) -> timedelta:
    if not _SHORTEST_LEASE <= value <= _LONGEST_LEASE:
        raise ValueError(f"must be from {format_duration(_SHORTEST_LEASE)} to {format_duration(_LONGEST_LEASE)}")
    return value


def _scalars_as_text(value: object) -> object:
    """Let `true` and `4` be written without quotes in maps of options, whose readers take text only."""
    if not isinstance(value, Mapping):
        return value
    return {str(key): _scalar_as_text(item) for key, item in value.items()}


def _scalar_as_text(item: object) -> object:
    if isinstance(item, bool):
        return "true" if item else "false"
    return str(item) if isinstance(item, (int, float)) else item


def _storable_options(options: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
    for name, value in options.items():
        if not name.strip():
            raise ValueError("must not hold an option without a name")
        _storable(name)
        _storable(value.get_secret_value())
    return options


def _moment(value: object) -> datetime:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError("must be a moment with its time zone, as in 2026-05-01T12:00:00Z")
    if not _FIRST_YEAR < moment.year < _LAST_YEAR:
        raise ValueError(f"must be after {_FIRST_YEAR} and before {_LAST_YEAR}, as all moments in a log are")
    return moment


def _gtids(value: str) -> str:
    try:
        return str(parse_gtids(value))
    except OffsetError:
        raise ValueError("must be a GTID set of MySQL or a GTID position of MariaDB") from None


_LARGE = 2**31 - 1
_LONGEST_TEXT = 4096
_LONGEST_HOST = 253
_STORES = ("file", "s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "hdfs", "viewfs", "lakefs", "uc")
# The seconds of a log event are a number of four bytes.
_FIRST_YEAR, _LAST_YEAR = 1970, 2106
# A socket's timeout is a number of milliseconds in four bytes, one of them a sign: 24.8 days.
_LONGEST_TIMEOUT = timedelta(days=24)
# A driver renews its lease every third of it, and a commit may take a second. After a crash the next driver may have to
# wait for all of it.
_SHORTEST_LEASE, _LONGEST_LEASE = timedelta(seconds=5), timedelta(days=1)

Flag = Annotated[bool, Strict()]
Text = Annotated[str, matching(r"(?s).*\S.*", "text that is not empty"), AfterValidator(_storable)]
Host = Annotated[Text, AfterValidator(_host)]
User = Annotated[Text, AfterValidator(_user)]
Place = Annotated[Text, AfterValidator(_place)]
"""A file or a folder, on this machine or in an object store."""
Duration = Annotated[
    timedelta, BeforeValidator(parse_duration), AfterValidator(_positive), PlainSerializer(format_duration)
]
Timeout = Annotated[Duration, AfterValidator(_timeout)]
"""A duration that a socket waits."""
LeaseDuration = Annotated[Duration, AfterValidator(_lease)]
Size = Annotated[int, BeforeValidator(parse_size), between(1, 2**50), PlainSerializer(format_size)]
SizeOrZero = Annotated[int, BeforeValidator(parse_size), between(0, 2**50), PlainSerializer(format_size)]
Moment = Annotated[datetime, BeforeValidator(_moment)]
Gtids = Annotated[Text, AfterValidator(_gtids)]
Port = Annotated[int, Strict(), between(1, 65535)]
Count = Annotated[int, Strict(), between(1, _LARGE)]
CountOrZero = Annotated[int, Strict(), between(0, _LARGE)]
Options = Annotated[Mapping[str, SecretStr], BeforeValidator(_scalars_as_text), AfterValidator(_storable_options)]
JobName = Annotated[
    str,
    matching(
        r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "1 to 64 letters, digits, _, . or -, beginning with a letter or digit"
    ),
]


def reveal(options: Mapping[str, SecretStr]) -> dict[str, str]:
    """Unmask options for the library that takes them; the result must not be logged."""
    return {name: value.get_secret_value() for name, value in options.items()}


class Section(BaseModel):
    """A part of the file: frozen, no unknown keys, and a key without a value counts as not written."""

    # A section is checked as part of the whole file: a checker of its own would be made for nothing.
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, allow_inf_nan=False, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_unset(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        return {key: value for key, value in data.items() if value is not None or key not in cls.model_fields}


class TlsSection(Section):
    """Whether a connection must be encrypted, and files of certificates."""

    enabled: Flag = False
    ca: Place | None = None
    cert: Place | None = None
    key: Annotated[Place | None, Field(validate_default=True)] = None

    @field_validator("ca", "cert", "key")
    @classmethod
    def _only_when_enabled(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("enabled") is False:
            raise ValueError("has no effect while tls.enabled is false")
        return value

    @field_validator("key")
    @classmethod
    def _cert_with_key(cls, value: str | None, info: ValidationInfo) -> str | None:
        if "cert" in info.data and (value is None) != (info.data["cert"] is None):
            raise ValueError("must be given together with cert, or neither")
        return value


class PasswordSection(Section):
    """A section that logs in somewhere: says where its password is; neither key means an account without one."""

    yaml_path: ClassVar[str]

    password_env: Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")] | None = (
        None
    )
    password_file: Place | None = None

    @field_validator("password_file")
    @classmethod
    def _one_source(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("password_env") is not None:
            raise ValueError("must not be given together with password_env")
        return value

    def resolve_password(self, env: Mapping[str, str], read_file: Callable[[Path], str] = read_small_text) -> SecretStr:
        """Fetch the password now; a source that is missing or empty raises ConfigError with its YAML path.

        The key's value is shown only if it looks like a name: somebody may have written the password itself there.
        """
        if self.password_env is not None:
            where, found = f"{self.yaml_path}.password_env", env.get(self.password_env, "")
            name = self.password_env if re.fullmatch(r"[A-Z0-9]+(_[A-Z0-9]+)+", self.password_env) else "that it names"
            missing = f"environment variable {name} is not set or empty"
        elif self.password_file is not None:
            where, found = f"{self.yaml_path}.password_file", self._read_password(read_file)
            missing = f"file {self.password_file} is empty"
        else:
            return SecretStr("")
        if not found:
            raise ConfigError(f"{where}: {missing}")
        try:
            _storable(found)
        except ValueError as error:
            raise ConfigError(f"{where}: the password {error}", hint="It must be UTF-8 text.") from None
        return SecretStr(found)

    def _read_password(self, read_file: Callable[[Path], str]) -> str:
        try:
            return read_file(Path(self.password_file or "")).rstrip("\r\n")
        except OSError as error:
            raise ConfigError(
                f"{self.yaml_path}.password_file: the file that it names cannot be read", detail=error.strerror or ""
            ) from None
        except UnicodeDecodeError:
            raise ConfigError(f"{self.yaml_path}.password_file: the file that it names is not UTF-8 text") from None
