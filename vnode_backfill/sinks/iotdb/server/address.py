"""Holds where an IoTDB server is, who logs in, and how the connection is encrypted.

What must be true: with TLS nothing is sent, the password least of all, before the server's certificate was checked:
issuer and host name, which the client always does. Certificates travel with the address as texts, because a worker on
another machine has no such files.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vnode_backfill.config.small_files import read_small_text
from vnode_backfill.config.values import TlsSection
from vnode_backfill.words.errors import ConfigError, SinkError


@dataclass(frozen=True, slots=True)
class IotdbTls:
    """Authorities that are trusted besides the system's; and the client's certificate and key, one after the other."""

    ca: str | None = field(default=None, repr=False)
    client: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, tls: TlsSection) -> IotdbTls | None:
        if not tls.enabled:
            return None
        tried = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if tls.ca:
                tried.load_verify_locations(tls.ca)
            if tls.cert:
                tried.load_cert_chain(tls.cert, tls.key)
            own = "\n".join(read_small_text(Path(path)) for path in (tls.cert, tls.key) if path) or None
            return cls(read_small_text(Path(tls.ca)) if tls.ca else None, own)
        except (OSError, ValueError) as error:
            raise ConfigError(f"sink.iotdb.tls: a certificate or key cannot be used: {error}") from error


@dataclass(frozen=True, slots=True)
class IotdbAddress:
    """Where a server is and how to log in; the password is never shown."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    timeout: float = 60.0
    tls: IotdbTls | None = None
    """None for plain text."""

    @contextmanager
    def tls_options(self) -> Iterator[dict[str, str | bool]]:
        """The client's options for opening a session. It takes names of files, which exist in this block only."""
        if self.tls is None:
            yield {}
            return
        with ExitStack() as stack:
            texts = (self.tls.ca, self.tls.client)
            ca, client = (stack.enter_context(_written(text)) if text else "" for text in texts)
            yield {"use_ssl": True, "ca_certs": ca, "client_cert": client, "client_key": client}


def refuse_certificate(address: IotdbAddress, error: Exception) -> None:
    """Raise if that was the reason: a certificate that does not fit will not fit the next time either."""
    transport = error.args[0] if error.args else None
    for cause in (error, getattr(transport, "inner", None)):
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise SinkError(
                f"the certificate of {address.host}:{address.port} is not accepted",
                detail=str(cause),
                hint="Give its issuer in `sink.iotdb.tls.ca`, and a name or address it holds in `sink.iotdb.host`.",
            ) from error


@contextmanager
def _written(text: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", prefix="vnode-backfill-", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name
