"""Opens connections to the source, and turns their failures into our errors.

Every session reads in UTC, speaks utf8mb4 and cannot write, so that a value does not depend on the server's settings
and a mistake cannot touch production data. Every socket has a connect and a read timeout: nothing waits for ever.

After connecting, the socket itself is asked whether it is encrypted, whatever was configured: a server that offers no
TLS is refused where TLS is demanded. A password is sent as it is only over TLS that was demanded: a server, or one that
pretends to be it, may ask for it (`mysql_clear_password`, `dialog`).

Errors are distinguished by the server's number, never by text. What may help when tried again (a lost or killed
connection, a server that is restarting, too many connections) is `SourceLostError`; everything else is `SourceError`.
"""

from __future__ import annotations

import ssl
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from socket import socket

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CR

from vnode_backfill.config.small_files import read_small_text
from vnode_backfill.words.errors import ConfigError, SchemaChangedError, SourceError, SourceLostError
from vnode_backfill.words.hints import RUN_ENDS

__all__ = [
    "TABLE_GONE_HINT", "Encryption", "SourceAddress", "TlsMode", "TlsOptions", "asked_for_file",
    "connect", "encryption_of", "source_errors",
]  # fmt: skip

ERROR_MAX_EXECUTION_TIME = frozenset({1969, 3024})
"""MariaDB's `max_statement_time` and MySQL's `max_execution_time`."""

_ACCESS_DENIED = frozenset({1044, 1142, 1143, 1227, 1410})
_LOGIN_DENIED = frozenset({1045, 1130, 1698, 1820, 1862, 3118, 3955, 4151})
_TABLE_GONE = frozenset({1049, 1051, 1146})
_TABLE_CHANGED = frozenset({1054, 1176, 1412})
"""An unknown column, an index that is gone, a definition that changed under a read."""
_NO_ROOM = frozenset({1040, 1203, 1226})
_LOST = frozenset({
    0, 1040, 1042, 1043, 1047, 1053, 1077, 1078, 1079, 1080, 1152, 1153, 1154, 1155, 1156, 1157, 1158, 1159, 1160, 1161,
    1184, 1189, 1190, 1203, 1205, 1213, 1226, 1317, 1927, 2002, 2003, 2006, 2013, 2014, 2026, 2027, 2055, 3169, 4031,
})  # fmt: skip
_CLEAR_TEXT = frozenset({"mysql_clear_password", "dialog"})
TABLE_GONE_HINT = f"It was dropped or renamed, or the account may no longer see it. {RUN_ENDS}"
# An explicit sql_mode: PAD_CHAR_TO_FULL_LENGTH, ANSI_QUOTES or NO_BACKSLASH_ESCAPES would change values or our SQL. The
# net timeouts are how long the server waits for a reader that is busy writing what it has read.
_SESSION_SETTINGS = (
    "SET SESSION time_zone = '+00:00', SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION', "
    "SESSION net_write_timeout = 600, SESSION net_read_timeout = 600 "
    # A key that MySQL has generated is a key, also where its users are not shown it. MariaDB does not read this
    # comment.
    "/*!80030 , SESSION show_gipk_in_create_table_and_information_schema = ON */"
)


class TlsMode(StrEnum):
    """The same words as the `--ssl-mode` of the servers' own clients."""

    DISABLED = "disabled"
    PREFERRED = "preferred"
    REQUIRED = "required"
    VERIFY_CA = "verify-ca"
    VERIFY_IDENTITY = "verify-identity"

    @property
    def asked_for(self) -> bool:
        """Whether plain text is refused."""
        return self not in (TlsMode.DISABLED, TlsMode.PREFERRED)


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Whether the connection is encrypted, and whom it trusts; without `ca` the system's authorities.

    Holds the certificates themselves, not where they are: a worker on another machine has no such files. `client` is
    its own certificate and key, one after the other.
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
    try:
        with source_errors(f"connecting to {address}"):
            connection = _open(address, tls)
            if address.tls.mode.asked_for and encryption_of(connection) is None:
                connection.close()
                raise _not_encrypted(address, "The server went on in plain text.")
            if read_only:
                connection.query("SET SESSION TRANSACTION READ ONLY")
            return connection
    except SourceLostError as error:
        hint = error.hint or (
            f"Check that mysql.host ({address.host}) and mysql.port ({address.port}) are those of the server, "
            "that it runs and listens on that "
            "address (bind_address), and that no firewall is between."
        )
        raise SourceLostError(error.message, detail=error.detail, hint=hint) from error


@dataclass(frozen=True, slots=True)
class Encryption:
    """How a connection is encrypted, and what of the server's certificate was checked."""

    version: str
    cipher: str
    checked: TlsMode


def encryption_of(connection: Connection) -> Encryption | None:
    """As the connection's own socket says; None for plain text."""
    context = connection.ctx if isinstance(connection, _Client) else None
    return context.encryption if context is not None else None


@contextmanager
def source_errors(attempt: str) -> Iterator[None]:
    """Turn every failure of the driver or the socket into ours; `attempt` says what was tried."""
    try:
        yield
    except pymysql.err.Error as error:
        raise _translate(attempt, error) from error
    except OSError as error:
        raise SourceLostError(f"connection lost while {attempt}", detail=str(error)) from error
    except struct.error as error:
        raise SourceError(f"the source's answer while {attempt} is not what it must be", detail=str(error)) from error
    except RuntimeError as error:
        # The driver's word for a server that wants a file of ours. It has sent none, and sends none.
        raise asked_for_file(attempt) from error


def asked_for_file(attempt: str) -> SourceError:
    """For a server that answers a question by asking for a file (LOAD DATA LOCAL)."""
    return SourceError(
        f"the source asked for a file of this machine while {attempt}; it got none",
        detail="The answer was a LOCAL INFILE request, which no question of this program allows.",
        hint="No honest server does that. Check that mysql.host is the server you mean, "
        "and set mysql.tls.enabled: true, so that nobody "
        "answers in its place.",
    )


class _Context(ssl.SSLContext):
    """Of one connection: remembers that it has encrypted its socket, and how."""

    encryption: Encryption | None = None

    def wrap_socket(
        self,
        sock: socket,
        server_side: bool = False,
        do_handshake_on_connect: bool = True,
        suppress_ragged_eofs: bool = True,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLSocket:
        wrapped = super().wrap_socket(
            sock, server_side, do_handshake_on_connect, suppress_ragged_eofs, server_hostname, session
        )
        cipher = wrapped.cipher()
        self.encryption = Encryption(wrapped.version() or "TLS", cipher[0] if cipher else "unknown", self._checked())
        return wrapped

    def _checked(self) -> TlsMode:
        if self.verify_mode is ssl.CERT_NONE:
            return TlsMode.REQUIRED
        return TlsMode.VERIFY_IDENTITY if self.check_hostname else TlsMode.VERIFY_CA


class _Client(Connection):
    """The client's connection, except that "encrypt if the server can" does not load the system's authorities each time.

    Nobody is checked against them in this mode, and reading them takes 0.05 CPU-seconds, three times an epoch.
    """

    ctx: _Context | None = None

    def _create_ssl_ctx(self, sslp: _Context | dict[str, str]) -> _Context:
        return sslp if isinstance(sslp, _Context) else _context(TlsMode.REQUIRED)


class _GuardedPlugins(dict[str, Callable[[Connection], object]]):
    """Looked at by the driver whenever a server names the way it wants the password; knows no way."""

    def __init__(self, address: SourceAddress) -> None:
        super().__init__()
        self._address = address

    def __bool__(self) -> bool:
        return True

    def get(self, plugin: str | bytes, default: object = None) -> None:  # type: ignore[override]  # noqa: ARG002 - a dict's form
        name = plugin.decode(errors="replace") if isinstance(plugin, bytes) else plugin
        if name in _CLEAR_TEXT and not self._address.tls.mode.asked_for:
            raise SourceError(
                f"{self._address} was asked for its password in clear text, and got none",
                detail=f"The server wants it by {name}, and TLS is not asked for.",
                hint="Set mysql.tls.enabled: true, with verify: identity or ca.",
            )


def _open(address: SourceAddress, tls: _Context | None) -> Connection:
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
            auth_plugin_map=_GuardedPlugins(address),
        )
    except RuntimeError as error:
        if find_spec("cryptography") is not None:
            raise
        # The driver's word for a password that must be encrypted by itself because the connection is not.
        hint = "Turn `mysql.tls` on, or install the package `cryptography`."
        raise SourceError(f"cannot log in to {address}", detail=str(error), hint=hint) from error
    except pymysql.err.OperationalError as error:
        if error.args[0] == CR.CR_SSL_CONNECTION_ERROR:
            raise _not_encrypted(address, str(error.args[1])) from error
        if isinstance(getattr(error, "original_exception", None), ssl.SSLCertVerificationError):
            raise SourceError(
                f"the certificate of {address.host}:{address.port} is not accepted",
                detail=str(error.args[1]),
                hint="Give the issuer of the server's certificate in mysql.tls.ca, and a name it holds in mysql.host.",
            ) from error
        raise


def _not_encrypted(address: SourceAddress, detail: str) -> SourceError:
    return SourceError(
        f"the connection to {address} is not encrypted, and mysql.tls.enabled is true",
        detail=detail,
        hint="Turn TLS on at the server, or set mysql.tls.enabled: false to send everything in plain text.",
    )


def _tls_context(tls: TlsOptions) -> _Context | None:
    """None leaves the driver at "encrypt if the server can", or at plain text where TLS is disabled."""
    if not tls.mode.asked_for:
        return None
    try:
        context = _context(tls.mode, tls.ca)
        if tls.client is not None:
            # The library reads it from a file only; this one is its owner's alone and goes at once.
            with tempfile.NamedTemporaryFile("w", prefix="vnode-backfill-", suffix=".pem") as file:
                file.write(tls.client)
                file.flush()
                context.load_cert_chain(file.name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"mysql.tls: a certificate or key cannot be used: {error}") from error
    return context


def _context(mode: TlsMode, ca: str | None = None) -> _Context:
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    # The certificates a server makes for itself do not pass the strict check.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode is TlsMode.VERIFY_IDENTITY
    if mode is TlsMode.REQUIRED:
        context.verify_mode = ssl.CERT_NONE
    if ca is not None:
        context.load_verify_locations(cadata=ca)
    elif mode is not TlsMode.REQUIRED:
        context.load_default_certs()
    return context


def _translate(attempt: str, error: pymysql.err.Error) -> SourceError:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    detail = f"({number}) {error.args[1]}" if len(error.args) > 1 else str(error)
    # A packet out of sequence is the driver's InternalError without a number: the stream is damaged, not the question.
    if number in _LOST or isinstance(error, pymysql.err.InterfaceError):
        hint = (
            "Raise max_connections or the account's own limit at the source, or lower `workers`."
            if number in _NO_ROOM
            else ""
        )
        return SourceLostError(f"connection lost while {attempt}", detail=detail, hint=hint)
    if number in ERROR_MAX_EXECUTION_TIME:
        hint = "Raise max_execution_time (MariaDB: max_statement_time) for this user, or make the ranges smaller."
        return SourceError(f"the source's time limit ended {attempt}", detail=detail, hint=hint)
    if number in _LOGIN_DENIED:
        hint = (
            "The detail names the account as the server sees it: "
            "mysql.user at the host that this machine connects from. "
            "Check mysql.user and the password in mysql.password_env or mysql.password_file "
            "(`using password: NO`: neither is set or it is empty), and at the server "
            "`SELECT user, host, plugin FROM mysql.user`: an account of another host has its own password."
        )
        return SourceError(f"the source denied {attempt}", detail=detail, hint=hint)
    if number in _TABLE_CHANGED:
        return SchemaChangedError(f"the source refused {attempt}: the table is not what it was", detail=detail)
    if number in _TABLE_GONE:
        return SchemaChangedError(
            f"a table or database is not there any more: the source refused {attempt}",
            detail=detail,
            hint=TABLE_GONE_HINT,
        )
    if number in _ACCESS_DENIED:
        hint = "`vnode-backfill plan` lists the privileges this user needs and the GRANT that gives them."
        return SourceError(f"the source denied {attempt}", detail=detail, hint=hint)
    return SourceError(f"the source refused {attempt}", detail=detail)
