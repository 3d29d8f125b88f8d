"""Checks, before a job writes to IoTDB, the server's settings and whether the table fits them.

Nothing is written. Every finding is returned, the good ones too; the caller decides. What the server does not say is
reported as unknown, not assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vnode_backfill.config.iotdb import Duplicates, IotdbSinkConfig
from vnode_backfill.sinks.iotdb.mapping import PointMapping
from vnode_backfill.sinks.iotdb.server.session import IotdbSession
from vnode_backfill.sinks.iotdb.server.tags import TagNaming
from vnode_backfill.sinks.iotdb.sink import address_of, settings_of
from vnode_backfill.sinks.iotdb.values import Precision
from vnode_backfill.sinks.iotdb.writing import open_store
from vnode_backfill.words.columns import Kind, TableDefinition
from vnode_backfill.words.errors import ConfigError, SinkError
from vnode_backfill.words.finding import Finding, Level

_DIGITS = {Precision.MILLISECONDS: 3, Precision.MICROSECONDS: 6, Precision.NANOSECONDS: 9}
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_WAL_MODE, _WAL_DEFAULT, _WAL_SAFE = "wal_mode", "ASYNC", "SYNC"


def inspect_iotdb(config: IotdbSinkConfig, definition: TableDefinition, password: str) -> tuple[Finding, ...]:
    """Ask the server and judge. A server that cannot be reached is a finding too."""
    session = IotdbSession(address_of(config, password))
    try:
        return tuple(_inspect(session, config, definition, password))
    except SinkError as error:
        fact = f"{error.message}: {error.detail}"
        return (Finding(Level.REFUSED, "iotdb.server", fact, error.hint or "correct sink.iotdb and try again"),)
    finally:
        session.close()


def _inspect(
    session: IotdbSession, config: IotdbSinkConfig, definition: TableDefinition, password: str
) -> Iterator[Finding]:
    version = (session.ask("SHOW VERSION") or [("unknown",)])[0][0]
    yield Finding(Level.OK, "iotdb.server", f"IoTDB {version} answers at {config.host}:{config.port}")
    yield _encryption(config)
    nodes = _data_nodes(session)
    yield _account(config, nodes)
    yield _wal_mode(session, nodes)
    precision = session.precision()
    try:
        mapping = PointMapping.of(config, definition, precision)
    except ConfigError as error:
        yield Finding(Level.REFUSED, "iotdb.mapping", error.message, error.hint or error.detail)
        return
    yield _shown(mapping)
    yield from _times(mapping)
    yield _identity(mapping, config)
    yield _types(config, mapping, password)
    yield _alignment(config, mapping)


def _encryption(config: IotdbSinkConfig) -> Finding:
    if config.tls.enabled:
        fact = "the connection is encrypted, after issuer and name in the server's certificate were checked"
        return Finding(Level.OK, "iotdb.tls", fact)
    fact = f"the connection to {config.host} is not encrypted: password and points can be read on their way"
    level = Level.INFO if config.host in _THIS_MACHINE else Level.WARNING
    return Finding(level, "iotdb.tls", fact, "enable_thrift_ssl=true at the server, and sink.iotdb.tls.enabled: true")


def _data_nodes(session: IotdbSession) -> list[int]:
    """Their numbers, which the server shows to administrators only."""
    try:
        return [int(row[0] or 0) for row in session.ask("SHOW DATANODES")]
    except SinkError:
        return []


def _account(config: IotdbSinkConfig, nodes: Sequence[int]) -> Finding:
    if nodes:
        return Finding(Level.OK, "iotdb.account", f"{config.user} is an administrator of the server and may flush")
    fact = (
        f"{config.user} is not an administrator of the server and may not flush: points that were deleted and written "
        "again can be lost when the server is killed soon afterwards"
    )
    return Finding(Level.WARNING, "iotdb.account", fact, "let sink.iotdb.user be an administrator")


def _wal_mode(session: IotdbSession, nodes: Sequence[int]) -> Finding:
    """By the settings' file of each DataNode, which only an administrator may read."""
    settings = {node: session.configuration(node) for node in nodes}
    modes = {node: found.get(_WAL_MODE, _WAL_DEFAULT).upper() for node, found in settings.items() if found is not None}
    weak = [f"{mode} at DataNode {node}" for node, mode in modes.items() if mode != _WAL_SAFE]
    if weak:
        fact = f"wal_mode is {', '.join(weak)}: a killed server loses points it had acknowledged"
        fix = "set wal_mode=SYNC in iotdb-system.properties and restart the DataNodes"
        return Finding(Level.WARNING, "iotdb.wal_mode", fact, fix)
    if len(modes) == len(nodes) > 0:
        return Finding(Level.OK, "iotdb.wal_mode", "wal_mode is SYNC")
    fact = (
        "wal_mode could not be looked up, only an administrator of the server may; this is not a fault. See that "
        "iotdb-system.properties of each DataNode has wal_mode=SYNC: with ASYNC, the default, a killed server loses "
        "points it had acknowledged"
    )
    return Finding(Level.INFO, "iotdb.wal_mode", fact)


def _shown(mapping: PointMapping) -> Finding:
    names = ", ".join(f"{each.name} {each.kind.upper()}" for each in mapping.measurements)
    return Finding(Level.OK, "iotdb.mapping", f"rows become {mapping.naming.text} at {mapping.time} with {names}")


def _times(mapping: PointMapping) -> Iterator[Finding]:
    """Columns that can hold more digits than the server keeps; their values are checked when they are written."""
    digits = _DIGITS[mapping.precision]
    yield Finding(Level.OK, "iotdb.precision", f"the server counts time in {mapping.precision}")
    instants = {mapping.time, *(each.column for each in mapping.measurements if each.kind == "timestamp")}
    for column in mapping.definition.columns:
        finer = column.kind in (Kind.DATETIME, Kind.TIMESTAMP) and column.scale > digits
        if finer and column.name in instants:
            fact = (
                f"column {column.name} can hold {column.scale} digits of a second, the server keeps {digits}; "
                "rows that use more are rejected"
            )
            fix = (
                f"a server with timestamp_precision=us, or sink.iotdb.types: {{{column.name}: text}} for a measurement"
            )
            yield Finding(Level.WARNING, "iotdb.precision", fact, fix)


def _identity(mapping: PointMapping, config: IotdbSinkConfig) -> Finding:
    if not mapping.owner:
        return Finding(Level.OK, "iotdb.identity", "device and time show the key of a row")
    names = ", ".join(each.name for each in mapping.owner)
    policy = "stop the job" if config.duplicates is Duplicates.ERROR else "let the last one win"
    fact = f"the key of a point is shown by {names}; two keys on one device and time {policy}"
    return Finding(Level.OK, "iotdb.identity", fact)


def _types(config: IotdbSinkConfig, mapping: PointMapping, password: str) -> Finding:
    store = open_store(settings_of(config, mapping, password))
    try:
        return Finding(Level.OK, "iotdb.types", store.check())
    except SinkError as error:
        if error.retryable:
            raise
        fact = f"{error.message}: {error.detail}"
        if config.replace:
            return Finding(Level.WARNING, "iotdb.types", fact, "nothing: sink.iotdb.replace has them removed first")
        return Finding(Level.REFUSED, "iotdb.types", fact, error.hint)
    finally:
        store.close()


def _alignment(config: IotdbSinkConfig, mapping: PointMapping) -> Finding:
    if isinstance(mapping.naming, TagNaming):
        return Finding(Level.OK, "iotdb.aligned", "rows of the table are emptied before they lose a field")
    if not config.aligned:
        return Finding(Level.OK, "iotdb.aligned", "devices are not aligned")
    fact = (
        "devices are aligned: servers were seen to return stale values of aligned devices after rows were rewritten "
        "with NULLs"
    )
    return Finding(Level.WARNING, "iotdb.aligned", fact, "sink.iotdb.aligned: false")
