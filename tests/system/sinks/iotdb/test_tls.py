"""A job writes to an IoTDB server that takes encrypted connections only; the certificate is checked before all else."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from devkit.iotdb import IotdbServer
from devkit.mysql import MySqlServer
from devkit.orders import create_orders_table
from tests.system.job_case import execute
from tests.system.sinks.iotdb.iotdb_job import IotdbJob
from vnode_backfill.config.values import TlsSection
from vnode_backfill.sinks.iotdb.server.address import IotdbAddress, IotdbTls
from vnode_backfill.sinks.iotdb.server.session import IotdbSession
from vnode_backfill.words.errors import ConfigError, SinkError, SinkUnavailableError

pytestmark = pytest.mark.long


def make_certificate(folder: Path, address: str) -> tuple[Path, Path]:
    """One that a server has signed for itself: its text, and the store that Java reads."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "iotdb")])
    now = datetime.now(UTC)
    unsigned = x509.CertificateBuilder(
        name, name, key.public_key(), 7, now - timedelta(hours=1), now + timedelta(days=1)
    )
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    certificate = unsigned.add_extension(names, critical=False).sign(key, hashes.SHA256())
    text, store = folder / f"{address}.pem", folder / f"{address}.p12"
    text.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"iotdb", key, certificate, None, serialization.BestAvailableEncryption(b"changeit")
        )
    )
    return text, store


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificates"), "127.0.0.1")


@pytest.fixture(scope="module")
def server(certificate: tuple[Path, Path]) -> Iterator[IotdbServer]:
    text, store = certificate
    properties = {"enable_thrift_ssl": "true", "key_store_path": str(store), "key_store_pwd": "changeit"}
    with IotdbServer(precision="us", properties=properties, ca=text) as started:
        yield started


def session_of(server: IotdbServer, tls: IotdbTls | None) -> IotdbSession:
    address = IotdbAddress(server.host, server.port, server.user, server.password, 10, tls)
    return IotdbSession(address, wait=lambda _: None)


def test_job_goes_live_over_tls_and_every_point_is_there(
    mysql_server: MySqlServer, server: IotdbServer, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    execute(mysql_server, None, "DROP DATABASE IF EXISTS encrypted", "CREATE DATABASE encrypted")
    with mysql_server.connect() as connection:
        create_orders_table(connection, 500, 3, database="encrypted")
    tls = {"enabled": True, "ca": str(certificate[0])}
    job = IotdbJob(mysql_server, tmp_path, "encrypted", target=server, iotdb={"tls": tls})
    assert "iotdb.tls" in job.command("plan")
    job.to_live()
    assert job.differences() == []
    execute(mysql_server, None, "DROP DATABASE encrypted")


def test_certificate_of_an_unknown_issuer_is_refused_for_good(server: IotdbServer, tmp_path: Path) -> None:
    other, _ = make_certificate(tmp_path, "127.0.0.1")
    for tls in (IotdbTls(), IotdbTls(ca=other.read_text())):
        with pytest.raises(SinkError, match="is not accepted") as failure:
            session_of(server, tls).ask("SHOW VERSION")
        assert not failure.value.retryable
        assert "sink.iotdb.tls.ca" in failure.value.hint


def test_server_that_takes_tls_only_answers_nothing_in_plain_text(server: IotdbServer) -> None:
    with pytest.raises(SinkUnavailableError):
        session_of(server, None).ask("SHOW VERSION")


def test_server_without_tls_is_not_talked_to_where_tls_was_asked_for(iotdb_server: IotdbServer) -> None:
    with pytest.raises(SinkUnavailableError, match="failed"):
        session_of(iotdb_server, IotdbTls()).ask("SHOW VERSION")


def test_file_that_holds_no_certificate_is_named_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for path in (tmp_path / "ca.pem", tmp_path / "missing.pem"):
        with pytest.raises(ConfigError, match="a certificate or key cannot be used"):
            IotdbTls.of(TlsSection(enabled=True, ca=str(path)))
