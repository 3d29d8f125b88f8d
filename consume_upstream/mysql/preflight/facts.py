"""Reads what preflight needs to know of the server, the table and the account, in a few queries.

Nothing here decides: a setting that is missing on a server is None, and so is an answer the user is not allowed to
have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pymysql.connections import Connection

from consume_upstream.log.source_log import LogFile
from consume_upstream.mysql.preflight.grants import Privileges, read_privileges
from consume_upstream.mysql.server import Cell, Flavour, ServerIdentity, ask
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import SourceError, SourceLostError

__all__ = [
    "ForeignKey",
    "ServerFacts",
    "TableProfile",
    "has_packed_transactions",
    "log_kept_seconds",
    "read_server_facts",
    "read_table_profile",
]

_SETTINGS = (
    "version", "server_id", "log_bin", "binlog_format", "binlog_row_image", "binlog_row_value_options",
    "binlog_row_metadata", "gtid_mode", "binlog_expire_logs_seconds", "expire_logs_days", "max_binlog_total_size",
    "binlog_expire_logs_auto_purge", "max_allowed_packet", "time_zone", "system_time_zone",
    "binlog_transaction_compression", "log_bin_compress", "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_source_enabled", "read_only", "binlog_order_commits", "lower_case_table_names",
)  # fmt: skip
_RETENTION = ("binlog_expire_logs_seconds", "expire_logs_days", "binlog_expire_logs_auto_purge")
_PACKING = ("binlog_transaction_compression",)
_PACKED = """
    SELECT TRANSACTION_COUNTER AS packed FROM performance_schema.binary_log_transaction_compression_stats
    WHERE LOG_TYPE = 'BINARY' AND COMPRESSION_TYPE <> 'NONE' AND TRANSACTION_COUNTER > 0"""
_TABLE = """
    SELECT ENGINE AS engine, TABLE_ROWS AS `rows`, AVG_ROW_LENGTH AS row_bytes, DATA_LENGTH AS bytes
    FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"""
_TRIGGERS = """
    SELECT TRIGGER_NAME AS name FROM information_schema.TRIGGERS
    WHERE EVENT_OBJECT_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s ORDER BY TRIGGER_NAME"""
_FOREIGN_KEYS = """
    SELECT CONSTRAINT_NAME AS name, REFERENCED_TABLE_NAME AS parent, DELETE_RULE AS on_delete, UPDATE_RULE AS on_update
    FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s
    ORDER BY CONSTRAINT_NAME"""
_GENERATED = """
    SELECT COLUMN_NAME AS name FROM information_schema.COLUMNS
    WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND GENERATION_EXPRESSION <> '' ORDER BY ORDINAL_POSITION"""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """One server's settings as they are now."""

    flavour: Flavour
    version: str
    server: str
    server_id: int
    log_bin: bool
    binlog_format: str | None
    binlog_row_image: str | None
    binlog_row_value_options: str | None
    binlog_row_metadata: str | None
    gtid_mode: str | None
    """MySQL: OFF, ON and the steps between; MariaDB writes GTIDs always: ON."""
    log_retention_seconds: int | None
    """None if files are never removed by age."""
    log_total_size_limit: int | None
    """Files are removed when together they are larger; None if not."""
    log_files: tuple[LogFile, ...] | None
    max_allowed_packet: int
    time_zone: str
    log_do_databases: tuple[str, ...]
    log_ignore_databases: tuple[str, ...]
    log_compressed: bool
    semi_sync: bool
    read_only: bool
    order_commits: bool
    replica_server_ids: tuple[int, ...] | None
    privileges: Privileges


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key of the table as the child; what its parent's changes do to its rows."""

    name: str
    parent: str
    on_delete: str
    on_update: str

    @property
    def changes_rows(self) -> bool:
        """Whether rows change without their changes being in the log."""
        return any(rule in ("CASCADE", "SET NULL", "SET DEFAULT") for rule in (self.on_delete, self.on_update))


@dataclass(frozen=True, slots=True)
class TableProfile:
    """The table as the server's dictionary and statistics describe it; the numbers are hints."""

    engine: str
    estimated_rows: int
    average_row_bytes: int
    data_bytes: int
    triggers: tuple[str, ...]
    foreign_keys: tuple[ForeignKey, ...]
    generated_columns: tuple[str, ...]


def read_server_facts(connection: Connection, identity: ServerIdentity, definition: TableDefinition) -> ServerFacts:
    settings = _settings(connection)
    status = _if_allowed(connection, identity.log_status)
    log = status[0] if status else {}
    files = _if_allowed(connection, "SHOW BINARY LOGS")
    return ServerFacts(
        flavour=identity.flavour,
        version=settings.get("version", ""),
        server=identity.server,
        server_id=int(settings["server_id"]),
        log_bin=_on(settings, "log_bin"),
        binlog_format=settings.get("binlog_format"),
        binlog_row_image=settings.get("binlog_row_image"),
        binlog_row_value_options=settings.get("binlog_row_value_options"),
        binlog_row_metadata=settings.get("binlog_row_metadata"),
        gtid_mode="ON" if identity.flavour == "mariadb" else settings.get("gtid_mode"),
        log_retention_seconds=_retention(settings),
        log_total_size_limit=int(settings.get("max_binlog_total_size", "0")) or None,
        log_files=None if files is None else tuple(_log_file(row) for row in files),
        max_allowed_packet=int(settings["max_allowed_packet"]),
        time_zone=_time_zone(settings),
        log_do_databases=_names(log.get("Binlog_Do_DB")),
        log_ignore_databases=_names(log.get("Binlog_Ignore_DB")),
        log_compressed=_on(settings, "binlog_transaction_compression") or _on(settings, "log_bin_compress"),
        semi_sync=_on(settings, "rpl_semi_sync_master_enabled") or _on(settings, "rpl_semi_sync_source_enabled"),
        read_only=_on(settings, "read_only"),
        order_commits=_on(settings, "binlog_order_commits") or identity.flavour == "mariadb",
        replica_server_ids=_replicas(connection, identity),
        privileges=read_privileges(connection, definition.database, definition.table),
    )


def read_table_profile(connection: Connection, identity: ServerIdentity, definition: TableDefinition) -> TableProfile:
    where = (definition.database, definition.table)
    if identity.flavour == "mysql":
        # MySQL answers from a cache that is up to a day old unless asked otherwise.
        ask(connection, "SET SESSION information_schema_stats_expiry = 0")
    rows = ask(connection, _TABLE, where)
    if not rows:
        raise SourceError(f"table {definition.database}.{definition.table} does not exist or cannot be seen")
    table = rows[0]
    return TableProfile(
        engine=str(table["engine"]),
        estimated_rows=int(table["rows"] or 0),
        average_row_bytes=int(table["row_bytes"] or 0),
        data_bytes=int(table["bytes"] or 0),
        triggers=tuple(str(row["name"]) for row in ask(connection, _TRIGGERS, where)),
        foreign_keys=tuple(_foreign_key(row) for row in ask(connection, _FOREIGN_KEYS, where)),
        generated_columns=tuple(str(row["name"]) for row in ask(connection, _GENERATED, where)),
    )


def has_packed_transactions(connection: Connection) -> bool:
    """Whether the log of this MySQL server holds, or may hold, transactions that are one compressed event each.

    Sessions set the option for themselves, so the server is also asked what it has compressed since it started. Only a
    user who may read that table is answered. MariaDB never packs a transaction: `log_bin_compress` compresses each
    event on its own.
    """
    if _on(_settings(connection, _PACKING), _PACKING[0]):
        return True
    return bool(_if_allowed(connection, _PACKED))


def log_kept_seconds(connection: Connection) -> int | None:
    """For how long the server keeps a file of its log; None if files are never removed by age."""
    return _retention(_settings(connection, _RETENTION))


def _settings(connection: Connection, wanted: Sequence[str] = _SETTINGS) -> dict[str, str]:
    names = ", ".join(["%s"] * len(wanted))
    rows = ask(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})", wanted)
    return {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}


def _if_allowed(connection: Connection, statement: str) -> list[Mapping[str, Cell]] | None:
    try:
        return ask(connection, statement)
    except SourceLostError:
        raise
    except SourceError:
        return None


def _on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "OFF").upper() not in ("OFF", "0", "")


def _retention(settings: Mapping[str, str]) -> int | None:
    if settings.get("binlog_expire_logs_auto_purge", "ON").upper() == "OFF":
        return None
    seconds = int(float(settings.get("binlog_expire_logs_seconds", "0")))
    return seconds or int(float(settings.get("expire_logs_days", "0")) * 86_400) or None


def _time_zone(settings: Mapping[str, str]) -> str:
    zone = settings.get("time_zone", "SYSTEM")
    return settings.get("system_time_zone", zone) if zone == "SYSTEM" else zone


def _names(listed: Cell) -> tuple[str, ...]:
    return tuple(name for name in str(listed or "").split(",") if name)


def _log_file(row: Mapping[str, Cell]) -> LogFile:
    return LogFile(str(row["Log_name"]), int(row["File_size"] or 0))


def _replicas(connection: Connection, identity: ServerIdentity) -> tuple[int, ...] | None:
    renamed = identity.flavour == "mysql" and identity.version >= (8, 0, 22)
    rows = _if_allowed(connection, "SHOW REPLICAS" if renamed else "SHOW SLAVE HOSTS")
    return None if rows is None else tuple(int(next(iter(row.values())) or 0) for row in rows)


def _foreign_key(row: Mapping[str, Cell]) -> ForeignKey:
    return ForeignKey(str(row["name"]), str(row["parent"]), str(row["on_delete"]), str(row["on_update"]))
