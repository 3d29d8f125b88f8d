"""Certificates travel with the address of the source: a worker on another machine has none of the driver's files."""

from __future__ import annotations

import pickle
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from consume_upstream.mysql.connection import TlsMode, TlsOptions, _tls_context
from vnode_backfill.words.errors import ConfigError


def write_certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "backfill")])
    now = datetime.now(UTC)
    unsigned = x509.CertificateBuilder(name, name, key.public_key(), 7, now, now + timedelta(days=1))
    certificate = unsigned.sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(secret)
    return paths


def test_options_work_where_the_files_are_not(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    sent = pickle.dumps(TlsOptions.from_files(TlsMode.VERIFY_CA, ca=str(cert), cert=str(cert), key=str(key)))
    cert.unlink()
    key.unlink()
    context = _tls_context(pickle.loads(sent))
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.cert_store_stats()["x509"] == 1


def test_the_key_is_in_no_repr(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    options = TlsOptions.from_files(TlsMode.VERIFY_CA, cert=str(cert), key=str(key))
    assert "PRIVATE" not in repr(options)
    assert "PRIVATE" in (options.client or "")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"mysql.tls: .*/nowhere/ca\.pem"):
        TlsOptions.from_files(TlsMode.VERIFY_CA, ca="/nowhere/ca.pem")
