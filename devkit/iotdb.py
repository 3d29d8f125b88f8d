"""Starts a private Apache IoTDB: one ConfigNode and one DataNode with small heaps, in a temporary folder.

    with IotdbServer(precision="us") as server:
        session = Session(server.host, str(server.port), server.user, server.password, zone_id="UTC")

Ready means that a session was opened and a statement answered. `wal_mode` is SYNC unless given: with ASYNC, the
server's own default, a killed server loses writes it had acknowledged. Precision is fixed by the first start. However
the owner ends, both nodes end with it.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from iotdb.Session import Session
from iotdb.table_session import TableSession, TableSessionConfig
from iotdb.utils.exception import IoTDBConnectionException
from thrift.transport.TTransport import TTransportException

from devkit.commands import require_program
from devkit.errors import DevkitError
from devkit.fetch import fetch_iotdb
from devkit.process import GuardedProcess, free_ports

START_SECONDS = 240
OPENED_PACKAGES = ("util.concurrent", "lang", "util", "nio", "io", "net")
SIMPLE_CONSENSUS = "org.apache.iotdb.consensus.simple.SimpleConsensus"


@dataclass(frozen=True, slots=True)
class Heaps:
    """Sizes in MB; a DataNode of 256 took a million rows."""

    config_node: int = 64
    data_node: int = 256
    direct: int = 64


class IotdbServer:
    """`properties` are further lines of `iotdb-system.properties` and override the ones set here.

    `ca` is the issuer of the server's certificate, if its properties turn TLS on.
    """

    host = "127.0.0.1"
    user = "root"
    password = "root"

    def __init__(
        self,
        *,
        precision: Literal["ms", "us", "ns"] = "ms",
        wal_mode: Literal["SYNC", "ASYNC", "DISABLE"] = "SYNC",
        heaps: Heaps | None = None,
        properties: Mapping[str, str] | None = None,
        ca: Path | None = None,
    ) -> None:
        self._own_properties = {"timestamp_precision": precision, "wal_mode": wal_mode, **(properties or {})}
        self._heaps = heaps or Heaps()
        self._tls = {"use_ssl": True, "ca_certs": str(ca)} if ca else {}
        self._ports = free_ports(7)
        self._folder: Path | None = None
        self._config_node: GuardedProcess | None = None
        self._data_node: GuardedProcess | None = None

    @property
    def port(self) -> int:
        """The clients' port, the same for all restarts."""
        return self._ports[0]

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise DevkitError("iotdb server was not started")
        return self._folder

    @property
    def running(self) -> bool:
        return self._data_node is not None and self._data_node.running

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(node.pid for node in (self._config_node, self._data_node) if node is not None)

    def start(self) -> Self:
        """Start both nodes and wait until they answer; on old data after `stop` or `kill`."""
        if self.running:
            raise DevkitError(f"iotdb server is already running on port {self.port}")
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="vb-iotdb-"))
            _write_configuration(self._folder, self._ports, self._own_properties)
        self._config_node = self._launch("ConfigNode", "org.apache.iotdb.confignode.service.ConfigNode", self._small())
        self._config_node.wait_until(self._config_node_listens, seconds=START_SECONDS, what="iotdb ConfigNode")
        self._data_node = self._launch("DataNode", "org.apache.iotdb.db.service.DataNode", self._large())
        self._data_node.wait_until(self._answers, seconds=START_SECONDS, what=f"iotdb DataNode on port {self.port}")
        return self

    def stop(self) -> None:
        """Shut down in order and keep the data. A second call does nothing."""
        for node in (self._data_node, self._config_node):
            if node is not None:
                node.stop()

    def kill(self) -> None:
        """End both nodes with SIGKILL, as a crash would, and keep the data."""
        for node in (self._data_node, self._config_node):
            if node is not None:
                node.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop and remove the data. A second call does nothing."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def session(self) -> Session:
        """An open session; the caller closes it."""
        session = Session(self.host, str(self.port), self.user, self.password, zone_id="UTC", **self._tls)
        session.open(False)
        return session

    def table_session(self, database: str) -> TableSession:
        """An open session that speaks the table model's language; the caller closes it."""
        urls = [f"{self.host}:{self.port}"]
        return TableSession(TableSessionConfig(urls, self.user, self.password, database, time_zone="UTC"))

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _small(self) -> list[str]:
        heap = self._heaps.config_node
        return [f"-Xms{heap}m", f"-Xmx{heap}m", "-XX:MaxDirectMemorySize=32m", "-Dname=iotdb.ConfigNode"]

    def _large(self) -> list[str]:
        heap, direct = self._heaps.data_node, self._heaps.direct
        limits = [f"-Xms{heap}m", f"-Xmx{heap}m", f"-XX:MaxDirectMemorySize={direct}m", f"-DOFF_HEAP_MEMORY={direct}M"]
        return [*limits, f"-Djdk.nio.maxCachedBufferSize={direct * 1024}", "-Dname=iotdb.IoTDB"]

    def _launch(self, node: str, main_class: str, memory: list[str]) -> GuardedProcess:
        java = require_program("java", hint="install Java 17, for example `apt-get install openjdk-17-jre-headless`")
        command = [str(java), *memory, *_java_words(self.folder, node), "-cp", f"{fetch_iotdb()}/*", main_class, "-s"]
        environment = {"MALLOC_ARENA_MAX": "2"}
        return GuardedProcess(command, log=self.folder / f"{node}.log", environment=environment, remove=self.folder)

    def _config_node_listens(self) -> bool:
        return _listens(self.host, self._ports[1])

    def _answers(self) -> bool:
        if not _listens(self.host, self.port):
            return False
        try:
            session = self.session()
        except (IoTDBConnectionException, TTransportException, OSError):
            return False
        try:
            session.execute_query_statement("SHOW DATABASES").close_operation_handle()
        finally:
            session.close()
        return True


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError:
        return False
    return True


def _java_words(folder: Path, node: str) -> list[str]:
    homes = ("IOTDB_HOME", "IOTDB_DATA_HOME", "CONFIGNODE_HOME", "CONFIGNODE_DATA_HOME", "TSFILE_HOME")
    return [
        *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED_PACKAGES),
        *("-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError", "-Xss512k", "-XX:ReservedCodeCacheSize=64m"),
        *("-Dfile.encoding=UTF-8", "-Dsun.jnu.encoding=UTF-8", "-Diotdb.jmx.local=true", "-Diotdb-foreground=yes"),
        *(f"-D{name}={folder}" for name in homes),
        *(f"-D{name}={folder}/conf" for name in ("IOTDB_CONF", "CONFIGNODE_CONF", "TSFILE_CONF")),
        *(f"-D{name}={folder}" for name in ("IOTDB_LOG_DIR", "CONFIGNODE_LOGS")),
        f"-Dlogback.configurationFile={folder}/conf/logback.xml",
        f"-Dnode={node}",
    ]


def _write_configuration(folder: Path, ports: tuple[int, ...], own: Mapping[str, str]) -> None:
    conf = folder / "conf"
    conf.mkdir()
    properties = {**_addresses(ports), **_folders(folder / "data"), **_savings(), **own}
    (conf / "iotdb-system.properties").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    (conf / "logback.xml").write_text(
        '<configuration scan="false"><appender name="out" class="ch.qos.logback.core.ConsoleAppender">'
        "<encoder><pattern>%d [%t] %-5p %C{0} - %m%n</pattern></encoder></appender>"
        '<root level="WARN"><appender-ref ref="out"/></root></configuration>'
    )


def _addresses(ports: tuple[int, ...]) -> dict[str, str]:
    client, config, consensus, internal, exchange, schema, data = map(str, ports)
    return {
        "cluster_name": "defaultCluster",
        "cn_seed_config_node": f"127.0.0.1:{config}",
        "dn_seed_config_node": f"127.0.0.1:{config}",
        "cn_internal_address": "127.0.0.1",
        "cn_internal_port": config,
        "cn_consensus_port": consensus,
        "dn_rpc_address": "127.0.0.1",
        "dn_rpc_port": client,
        "dn_internal_address": "127.0.0.1",
        "dn_internal_port": internal,
        "dn_mpp_data_exchange_port": exchange,
        "dn_schema_region_consensus_port": schema,
        "dn_data_region_consensus_port": data,
    }


def _folders(data: Path) -> dict[str, str]:
    config, node = data / "confignode", data / "datanode"
    folders = {
        "cn_system_dir": config / "system",
        "cn_consensus_dir": config / "consensus",
        "cn_pipe_receiver_file_dir": config / "system/pipe/receiver",
        "dn_system_dir": node / "system",
        "dn_data_dirs": node / "data",
        "dn_consensus_dir": node / "consensus",
        "dn_wal_dirs": node / "wal",
        "dn_tracing_dir": node / "tracing",
        "dn_sync_dir": node / "sync",
        "sort_tmp_dir": node / "tmp",
        "dn_pipe_receiver_file_dirs": node / "system/pipe/receiver",
    }
    return {name: str(folder) for name, folder in folders.items()}


def _savings() -> dict[str, str]:
    """One replica, few threads and small buffers: what makes it fit beside everything else."""
    return {
        "config_node_consensus_protocol_class": SIMPLE_CONSENSUS,
        "schema_region_consensus_protocol_class": SIMPLE_CONSENSUS,
        "data_region_consensus_protocol_class": SIMPLE_CONSENSUS,
        "schema_replication_factor": "1",
        "data_replication_factor": "1",
        "default_data_region_group_num_per_database": "1",
        "data_region_group_extension_policy": "CUSTOM",
        "schema_region_group_extension_policy": "CUSTOM",
        "dn_join_cluster_retry_interval_ms": "500",
        "wal_buffer_size_in_byte": "4194304",
        "load_active_listening_enable": "false",
        "compaction_thread_count": "2",
        "sub_compaction_thread_count": "1",
        "compaction_schedule_thread_num": "1",
        "query_thread_count": "2",
        "mpp_data_exchange_core_pool_size": "2",
        "mpp_data_exchange_max_pool_size": "4",
        "dn_metric_level": "OFF",
        "cn_metric_level": "OFF",
    }
