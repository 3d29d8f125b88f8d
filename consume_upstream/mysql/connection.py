"""How a connection to the source is opened, and which of our errors each of its failures is.

Every session reads in UTC, speaks utf8mb4 and cannot write, so that a value does not depend on the server's settings
and a mistake cannot touch production data. Every socket has a connect and a read timeout: nothing waits for ever.

Errors are told apart by the server's number, never by text. What may help when tried again (a lost or killed
connection, a server that is restarting, too many connections) is `SourceLostError`; everything else is `SourceError`.
"""

from __future__ import annotations

import functools
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pymysql
from pymysql.connections import Connection

from vnode_backfill.errors import ConfigError, SourceError, SourceLostError
from vnode_backfill.small_files import read_small_text

__all__ = ["SourceAddress", "TlsMode", "TlsOptions", "connect", "source_errors"]

ERROR_MAX_EXECUTION_TIME = frozenset({1969, 3024})
"""MariaDB's `max_statement_time` and MySQL's `max_execution_time`."""

_ACCESS_DENIED = frozenset({1044, 1045, 1130, 1142, 1143, 1227, 1410, 3118})
_LOST = frozenset({
    0, 1040, 1042, 1043, 1047, 1053, 1077, 1078, 1079, 1080, 1152, 1153, 1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161,
    1184, 1189, 1190, 1203, 1205, 1213, 1226, 1317, 1927, 2002, 2003, 2006, 2013, 2014, 2026, 2027, 2055, 3169, 4031,
})  # fmt: skip
# An explicit sql_mode: PAD_CHAR_TO_FULL_LENGTH, ANSI_QUOTES or NO_BACKSLASH_ESCAPES would change values or our SQL. The
# net timeouts are how long the server waits for a reader that is busy writing what it has read.
_SESSION_SETTINGS = (
    "SET SESSION time_zone = '+00:00', SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION', "
    "SESSION net_write_timeout = 600, SESSION net_read_timeout = 600"
)


class TlsMode(StrEnum):
    """The same words as the `--ssl-mode` of the servers' own clients."""

    DISABLED = "disabled"
    PREFERRED = "preferred"
    REQUIRED = "required"
    VERIFY_CA = "verify-ca"
    VERIFY_IDENTITY = "verify-identity"


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Whether the connection is encrypted, and whom it trusts; without `ca` the system's authorities.

    Holds the certificates themselves, not where they lie: a worker on another machine has no such files. `client` is its own
    certificate and key, one after the other.
    """

    mode: TlsMode = TlsMode.PREFERRED
    ca: str | None = field(default=None, repr=False)
    client: str | None = field(default=None, repr=False)

    @classmethod
    def from_files(
        cls, mode: TlsMode, *, ca: str | None = None, cert: str | None = None, key: str | None = None
    ) -> TlsOptions:
        try:
            own = "\n".join(read_small_text(Path(path)) for path in (cert, key) if path) or None
            return cls(mode, read_small_text(Path(ca)) if ca else None, own)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"mysql.tls: a certificate or key cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class SourceAddress:
    """Where the source is and who reads it; picklable, and silent about the password."""

    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)
    tls: TlsOptions = TlsOptions()
    connect_timeout: float = 10.0
    read_timeout: float = 120.0

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


def connect(address: SourceAddress, *, read_only: bool = True) -> Connection:
    """Open a session in UTC and utf8mb4 with autocommit, so that no read view outlives its query.

    `read_only=False` is for the one write this system makes: the row of a configured watermark table.
    """
    tls = _tls_context(address.tls)
    with source_errors(f"connecting to {address}"):
        connection = _open(address, tls)
        if read_only:
            connection.query("SET SESSION TRANSACTION READ ONLY")
        return connection


@contextmanager
def source_errors(attempt: str) -> Iterator[None]:
    """Turn every failure of the driver or the socket into ours; `attempt` says what was tried."""
    try:
        yield
    except pymysql.err.Error as error:
        raise _translate(attempt, error) from error
    except OSError as error:
        raise SourceLostError(f"connection lost while {attempt}", detail=str(error)) from error


class _Client(Connection):
    """The driver's connection, except that "encrypt if the server can" does not load the system's authorities each time: nobody is
    checked against them in this mode, and reading them takes 0.05 CPU-seconds, three times an epoch."""

    def _create_ssl_ctx(self, sslp: ssl.SSLContext | dict[str, str]) -> ssl.SSLContext:
        return sslp if isinstance(sslp, ssl.SSLContext) else _trusting_context()


@functools.cache
def _trusting_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _open(address: SourceAddress, tls: ssl.SSLContext | None) -> Connection:
    try:
        return _Client(
            host=address.host,
            port=address.port,
            user=address.user,
            # Bytes, because the client would take text for Latin-1.
            password=address.password.encode(),
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=address.connect_timeout,
            read_timeout=address.read_timeout,
            write_timeout=address.read_timeout,
            program_name="vnode-backfill",
            init_command=_SESSION_SETTINGS,
            ssl_disabled=address.tls.mode is TlsMode.DISABLED,
            ssl=tls,
        )
    except RuntimeError as error:
        # The driver's word for a password that must be encrypted by itself because the connection is not.
        hint = "Turn `mysql.tls` on, or install the package `cryptography`."
        raise SourceError(f"cannot log in to {address}", detail=str(error), hint=hint) from error


def _tls_context(tls: TlsOptions) -> ssl.SSLContext | None:
    """None leaves the driver at "encrypt if the server can", or at plain text where TLS is disabled."""
    if tls.mode in (TlsMode.DISABLED, TlsMode.PREFERRED):
        return None
    try:
        context = ssl.create_default_context(cadata=tls.ca)
        if tls.client is not None:
            # The library reads it from a file only; this one is its owner's alone and goes at once.
            with tempfile.NamedTemporaryFile("w", prefix="vnode-backfill-", suffix=".pem") as file:
                file.write(tls.client)
                file.flush()
                context.load_cert_chain(file.name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"mysql.tls: a certificate or key cannot be used: {error}") from error
    # The certificates a server makes for itself do not pass the strict check.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = tls.mode is TlsMode.VERIFY_IDENTITY
    context.verify_mode = ssl.CERT_NONE if tls.mode is TlsMode.REQUIRED else ssl.CERT_REQUIRED
    return context


def _translate(attempt: str, error: pymysql.err.Error) -> SourceError:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    detail = f"({number}) {error.args[1]}" if len(error.args) > 1 else str(error)
    # A packet out of sequence is the driver's InternalError without a number: the stream is damaged, not the question.
    if number in _LOST or isinstance(error, pymysql.err.InterfaceError):
        return SourceLostError(f"connection lost while {attempt}", detail=detail)
    if number in ERROR_MAX_EXECUTION_TIME:
        hint = "Raise max_execution_time (MariaDB: max_statement_time) for this user, or make the ranges smaller."
        return SourceError(f"the source's time limit ended {attempt}", detail=detail, hint=hint)
    if number in _ACCESS_DENIED:
        hint = "`vnode-backfill plan` lists the privileges this user needs and the GRANT that gives them."
        return SourceError(f"the source denied {attempt}", detail=detail, hint=hint)
    return SourceError(f"the source refused {attempt}", detail=detail)
