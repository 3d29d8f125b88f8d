"""Judges the server's facts: what allows the job, and what must be changed first.

Every check is a pure function of facts that were read before. It reports what it saw even if nothing is wrong, so that
the whole list is a record of what the job relied on. A check refuses only what would make the copy wrong or certain to
fail; what merely makes it fragile is a warning. A fact that the account is not allowed to see never counts as a good
one: the privilege that shows it is asked for instead.

A fix is one SQL statement per line, or the YAML key to change, or the line of the server's configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from consume_upstream.mysql.connection import Encryption, TlsMode
from consume_upstream.mysql.preflight.facts import ServerFacts
from consume_upstream.mysql.sql import quoted
from vnode_backfill.config.job import Config
from vnode_backfill.words.finding import Finding, Level
from vnode_backfill.words.units import format_duration, format_size

__all__ = [
    "OF_EACH_TABLE",
    "ServerDetails",
    "Watermark",
    "check_clock",
    "check_encryption",
    "check_server",
    "grant",
    "version_of",
]

OF_EACH_TABLE = frozenset({"privileges.select", "binlog.filter"})
"""Checks of the server that depend on which table is asked for; all others are the same for every table."""

_DAY = 86_400
_THIS_MACHINE = re.compile(r"localhost|127\.[0-9.]+|::1")
_CLOCK_SHARE = 12
_IN_CONFIGURATION = "in [mysqld] of the server's configuration, then restart it"


@dataclass(frozen=True, slots=True)
class Watermark:
    """The configured watermark table as this account sees it."""

    table: str
    """Quoted, with its database."""
    seen: bool
    writable: bool


@dataclass(frozen=True, slots=True)
class ServerDetails:
    """What the checks must know of the server and the account beyond `ServerFacts`."""

    account: str
    """The account that was logged in to, quoted as GRANT takes it."""
    replicates: bool | None
    """Whether the server is itself a replica; None if the account may not know."""
    logs_replicated: bool
    """Whether changes that come from its primary are written to its own log."""
    log_encrypted: bool
    tagged_gtids: bool
    watermark: Watermark | None


@dataclass(frozen=True, slots=True)
class _Seen:
    config: Config
    facts: ServerFacts
    details: ServerDetails
    estimated_seconds: float | None


def check_server(
    config: Config,
    facts: ServerFacts,
    details: ServerDetails,
    *,
    estimated_seconds: float | None,
) -> Iterator[Finding]:
    """Everything that can be judged without looking at the table."""
    seen = _Seen(config, facts, details, estimated_seconds)
    for check in _CHECKS:
        yield from check(seen)


def check_encryption(found: Encryption | None, host: str) -> Finding:
    """By the connection that is used for the checks; all connections of a job are opened in the same way."""
    if found is None:
        fact = f"the connection to {host} is not encrypted: rows can be read and changed on their way"
        level = Level.INFO if _THIS_MACHINE.fullmatch(host) else Level.WARNING
        return Finding(level, "server.tls", fact, "mysql.tls.enabled: true")
    how = f"the connection is encrypted ({found.version}, {found.cipher})"
    if found.checked is TlsMode.REQUIRED:
        fact = f"{how}, and the server's certificate is not checked: another server could answer in its place"
        return Finding(Level.INFO, "server.tls", fact, "mysql.tls.enabled: true, with verify: identity or ca")
    checked = "issuer and name" if found.checked is TlsMode.VERIFY_IDENTITY else "the issuer, not the name,"
    return Finding(Level.OK, "server.tls", f"{how}, after {checked} in the server's certificate were checked")


def check_clock(lease: timedelta, skew: float) -> Finding:
    """Whether two drivers whose clocks are as far from the source's as this one's would keep apart.

    A task that writes to IoTDB ends a sixth of the lease early. Two machines that are each within a twelfth of the
    source's clock differ by no more than that.
    """
    allowed = lease.total_seconds() / _CLOCK_SHARE
    fact = f"this machine's clock is {abs(skew):.3g} s {'ahead of' if skew > 0 else 'behind'} the source's"
    promise = "only clocks keep two drivers of one job apart where the target is IoTDB"
    if abs(skew) > allowed:
        wrong = f"{fact}; {promise}, and state.lease {format_duration(lease)} allows {allowed:.3g} s"
        return Finding(Level.REFUSED, "clock", wrong, _set_clock(skew))
    if abs(skew) > allowed / 2:
        near = f"{fact}; {promise}, and more than {allowed:.3g} s would be refused"
        return Finding(Level.WARNING, "clock", near, _set_clock(skew))
    return Finding(Level.OK, "clock", f"this machine's clock is within {allowed / 2:.3g} s of the source's")


def _set_clock(skew: float) -> str:
    longer = f"or state.lease: {ceil(2 * _CLOCK_SHARE * abs(skew))}s\n" if abs(skew) * 2 * _CLOCK_SHARE < _DAY else ""
    return f"set both clocks by one time server (NTP)\n{longer}".rstrip()


def grant(privileges: str, level: str, account: str) -> str:
    return f"GRANT {privileges} ON {level} TO {account};"


def version_of(facts: ServerFacts) -> tuple[int, ...]:
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", facts.version)
    return tuple(int(part) for part in found.groups()) if found else (0, 0, 0)


def _privileges(seen: _Seen) -> Iterator[Finding]:
    """SELECT, and what a replica needs. The rest is asked for only where it is used."""
    held, account = seen.facts.privileges, seen.details.account
    database, table = seen.config.mysql.database, seen.config.mysql.table
    monitor = "BINLOG MONITOR" if seen.facts.flavour == "mariadb" else "REPLICATION CLIENT"
    wanted = (
        (held.may_select, "select", "SELECT", f"{quoted(database)}.{quoted(table)}", "read the table"),
        (held.may_read_log, "log", "REPLICATION SLAVE", "*.*", "receive the binary log"),
        (held.may_ask_position, "position", monitor, "*.*", "ask for the end of the binary log"),
    )
    for granted, name, privilege, level, purpose in wanted:
        if granted:
            yield Finding(Level.OK, f"privileges.{name}", f"{account} may {purpose}")
        else:
            fact = f"{account} may not {purpose}: {privilege} on {level} is missing"
            yield Finding(Level.REFUSED, f"privileges.{name}", fact, grant(privilege, level, account))


def _prepared(seen: _Seen) -> Iterator[Finding]:
    """MariaDB shows prepared transactions to everybody. A job that cannot see them cannot wait for them."""
    account = seen.details.account
    if seen.facts.flavour == "mariadb" or seen.facts.privileges.may_see_prepared:
        yield Finding(Level.OK, "privileges.prepared", f"{account} may see prepared XA transactions")
    else:
        fact = (
            f"{account} may not see prepared XA transactions: "
            "the changes of one that is prepared when the job begins and committed later would be missed"
        )
        yield Finding(Level.WARNING, "privileges.prepared", fact, grant("XA_RECOVER_ADMIN", "*.*", account))


def _log_bin(seen: _Seen) -> Iterator[Finding]:
    if seen.facts.log_bin:
        yield Finding(Level.OK, "binlog.enabled", "the binary log is on")
    else:
        fix = f"log_bin = binlog   {_IN_CONFIGURATION}"
        yield Finding(Level.REFUSED, "binlog.enabled", "the server writes no binary log", fix)


def _log_settings(seen: _Seen) -> Iterator[Finding]:
    """Only whole rows show what a row was before and is now."""
    facts = seen.facts
    note = "sessions that are already connected keep the old value"
    for name, value, right in (
        ("format", facts.binlog_format, "ROW"),
        ("row_image", facts.binlog_row_image, "FULL"),
    ):
        setting = f"binlog_{name}"
        if value is None or value.upper() == right:
            yield Finding(Level.OK, f"binlog.{name}", f"{setting} is {value or right}")
        else:
            fact = f"{setting} is {value}; only {right} logs every column of every changed row ({note})"
            yield Finding(Level.REFUSED, f"binlog.{name}", fact, f"SET GLOBAL {setting} = '{right}';")
    if "PARTIAL_JSON" in (facts.binlog_row_value_options or "").upper():
        fact = f"binlog_row_value_options is PARTIAL_JSON, which logs parts of JSON values ({note})"
        yield Finding(Level.REFUSED, "binlog.partial_json", fact, "SET GLOBAL binlog_row_value_options = '';")


def _log_filter(seen: _Seen) -> Iterator[Finding]:
    """Names are compared so that a doubt refuses: a database that is filtered out is silently missing from the log."""
    facts, database = seen.facts, seen.config.mysql.database
    if not facts.privileges.may_ask_position:
        return
    done, ignored = facts.log_do_databases, facts.log_ignore_databases
    if done and database not in done:
        fact = f"binlog_do_db keeps {database} out of the log; it logs {', '.join(done)} only"
        yield Finding(Level.REFUSED, "binlog.filter", fact, f"binlog-do-db = {database}   {_IN_CONFIGURATION}")
    elif not done and database.casefold() in (name.casefold() for name in ignored):
        fact = f"binlog_ignore_db keeps {database} out of the log"
        fix = f"remove binlog-ignore-db = {database}   {_IN_CONFIGURATION}"
        yield Finding(Level.REFUSED, "binlog.filter", fact, fix)
    else:
        yield Finding(Level.OK, "binlog.filter", f"changes of {database} are not filtered out of the log")


def _retention(seen: _Seen) -> Iterator[Finding]:
    """The log is captured from the end of planning on, so it must outlast planning, lag and pauses, not the copy."""
    kept, estimated = seen.facts.log_retention_seconds, seen.estimated_seconds or 0
    if kept is None:
        yield Finding(Level.OK, "binlog.retention", "log files are not removed by age")
    else:
        may = f"log files are removed after {_about(kept)}: the job may plan, lag or be stopped for so long, no longer"
        expected = f"; the copy is estimated to take {_about(estimated)}" if estimated else ""
        if kept < max(_DAY, estimated):
            wanted = max(3 * _DAY, 2 * ceil(estimated))
            yield Finding(Level.WARNING, "binlog.retention", may + expected, _keep_logs(seen, wanted))
        else:
            yield Finding(Level.OK, "binlog.retention", may + expected)
    limit = seen.facts.log_total_size_limit
    if limit is not None:
        held = sum(file.size for file in seen.facts.log_files or ())
        fact = (
            f"log files are removed when they exceed {format_size(limit)} together, whatever their age; now {held:,} B"
        )
        yield Finding(Level.WARNING, "binlog.size_limit", fact, "SET GLOBAL max_binlog_total_size = 0;")


def _keep_logs(seen: _Seen, seconds: int) -> str:
    if seen.facts.flavour == "mysql" or version_of(seen.facts) >= (10, 6):
        return f"SET GLOBAL binlog_expire_logs_seconds = {seconds};"
    return f"SET GLOBAL expire_logs_days = {ceil(seconds / _DAY)};"


def _log_form(seen: _Seen) -> Iterator[Finding]:
    """Things of the log that look as if they mattered."""
    facts = seen.facts
    yield from _metadata(facts.binlog_row_metadata)
    if facts.log_compressed:
        yield Finding(Level.INFO, "binlog.compression", "the log is compressed: it is unpacked while it is read")
    if seen.details.log_encrypted:
        yield Finding(Level.INFO, "binlog.encryption", "log files are encrypted: the server sends them decrypted")
    if facts.semi_sync:
        fact = "semi-sync replication is on: a change is logged before it is visible, and both are sampled apart"
        yield Finding(Level.INFO, "server.semi_sync", fact)


def _metadata(value: str | None) -> Iterator[Finding]:
    """Any value will do. With FULL each table in the log can be compared with more of the stored definition."""
    if value is None:
        return
    if value.upper() == "FULL":
        fact = (
            "binlog_row_metadata is FULL: the log holds names of columns and labels of ENUM and SET, which are checked"
        )
        yield Finding(Level.OK, "binlog.metadata", fact)
    else:
        fact = (
            f"binlog_row_metadata is {value}; FULL is recommended: only then the log holds names of columns and "
            "labels of ENUM and SET, and the job checks its definition by them"
        )
        yield Finding(Level.WARNING, "binlog.metadata", fact, "SET GLOBAL binlog_row_metadata = FULL;")


def _gtid(seen: _Seen) -> Iterator[Finding]:
    facts = seen.facts
    if facts.gtid_mode == "ON":
        yield Finding(Level.OK, "gtid.mode", "transactions have GTIDs: a job can follow a failover")
    else:
        fact = f"gtid_mode is {facts.gtid_mode or 'OFF'}: the job cannot follow a failover to another server"
        yield Finding(Level.WARNING, "gtid.mode", fact, "\n".join(_gtid_steps(facts.gtid_mode)))
    if facts.gtid_mode == "ON" and not seen.details.tagged_gtids:
        return
    watermark = seen.details.watermark
    if watermark is not None and facts.order_commits:
        yield from _watermark(seen, watermark)
    else:
        yield from _waiting(seen)


def _gtid_steps(mode: str | None) -> list[str]:
    """The server lets the mode be changed by one step at a time only."""
    modes = ["OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"]
    left = modes[modes.index(mode) + 1 :] if mode in modes else modes[1:]
    return ["SET GLOBAL enforce_gtid_consistency = ON;", *(f"SET GLOBAL gtid_mode = {step};" for step in left)]


def _watermark(seen: _Seen, watermark: Watermark) -> Iterator[Finding]:
    """Without GTIDs a committed row shows that everything logged before it is visible."""
    name = watermark.table
    fixes = []
    if not watermark.seen:
        columns = "id TINYINT PRIMARY KEY, sampled BIGINT UNSIGNED NOT NULL"
        fixes.append(f"CREATE TABLE IF NOT EXISTS {name} ({columns});")
    if not watermark.writable:
        fixes.append(grant("SELECT, INSERT, UPDATE", name, seen.details.account))
    if fixes:
        fact = f"{seen.details.account} cannot write to the watermark table {name}, or it does not exist"
        yield Finding(Level.REFUSED, "gtid.watermark", fact, "\n".join(fixes))
    elif seen.facts.read_only:
        fact = f"the server is read_only, so nothing can be written to the watermark table {name}"
        yield Finding(Level.REFUSED, "gtid.watermark", fact, "remove mysql.watermark_table")
    else:
        fact = f"without GTIDs what is visible is asked by a write to {name}"
        yield Finding(Level.INFO, "gtid.watermark", fact)


def _waiting(seen: _Seen) -> Iterator[Finding]:
    """Without a watermark table the transactions in flight are watched until they are gone, which needs PROCESS."""
    if seen.facts.privileges.may_see_transactions:
        fact = (
            "without GTIDs each epoch waits until the transactions in flight have ended: one that stays open for "
            f"{seen.config.mysql.visibility_timeout.total_seconds():g} s stops the job"
        )
        yield Finding(Level.WARNING, "gtid.visibility", fact, "mysql.watermark_table: DATABASE.TABLE")
    else:
        fact = f"without GTIDs the transactions in flight must be seen, and {seen.details.account} may not: no PROCESS"
        fix = grant("PROCESS", "*.*", seen.details.account)
        yield Finding(Level.REFUSED, "privileges.process", fact, fix)


def _server_id(seen: _Seen) -> Iterator[Finding]:
    if seen.facts.server_id == 0:
        fact = "server_id is 0, with which a server sends its log to nobody"
        yield Finding(Level.REFUSED, "server.id", fact, "SET GLOBAL server_id = 1;")
    else:
        yield Finding(Level.OK, "server.id", f"server_id is {seen.facts.server_id}")


def _server_id_range(seen: _Seen) -> Iterator[Finding]:
    """The server ends the older of two readers with one id, so a shared id would cut off a replica."""
    ids, replicas = seen.config.mysql.server_id_range, seen.facts.replica_server_ids
    taken = sorted({seen.facts.server_id, *(replicas or ())} - {0})
    clashes = [number for number in taken if ids.low <= number <= ids.high]
    if clashes:
        fact = f"mysql.server_id_range {ids} holds ids of this server or its replicas: {', '.join(map(str, clashes))}"
        low = _free_low(ids.low, ids.count, taken)
        fix = f"mysql.server_id_range: {low}-{low + ids.count - 1}"
        yield Finding(Level.REFUSED, "server.id_range", fact, fix)
    elif replicas is None:
        fact = f"the ids of replicas cannot be seen by this account; none may be in mysql.server_id_range {ids}"
        yield Finding(Level.INFO, "server.id_range", fact)
    else:
        fact = f"mysql.server_id_range {ids} is free of the ids of this server and its replicas"
        yield Finding(Level.OK, "server.id_range", fact)


def _free_low(low: int, count: int, taken: list[int]) -> int:
    """Where the next free stretch of `count` ids begins; from 1 again if the numbers end before."""
    while clashes := [number for number in taken if low <= number < low + count]:
        low = max(clashes) + 1
        if low + count > 2**32:
            low = 1
    return low


def _replica(seen: _Seen) -> Iterator[Finding]:
    """A replica that does not log what it applies has a log without the table's changes."""
    details, renamed = seen.details, seen.facts.flavour == "mysql" and version_of(seen.facts) >= (8, 0, 26)
    setting = "log_replica_updates" if renamed else "log_slave_updates"
    fix = f"{setting} = ON   {_IN_CONFIGURATION}"
    if details.replicates and not details.logs_replicated:
        fact = f"the server is a replica and {setting} is OFF: what it applies is not in its own log"
        yield Finding(Level.REFUSED, "server.replica", fact, fix)
    elif details.replicates:
        yield Finding(Level.INFO, "server.replica", "the server is a replica: it is copied as far as it has applied")
    elif details.replicates is None and not details.logs_replicated:
        fact = f"it cannot be seen whether the server is a replica; if it is, {setting} must not be OFF"
        privilege = "SLAVE MONITOR" if seen.facts.flavour == "mariadb" else "REPLICATION CLIENT"
        level = Level.REFUSED if seen.facts.read_only else Level.WARNING
        yield Finding(level, "server.replica", fact, grant(privilege, "*.*", details.account))


def _about(seconds: float) -> str:
    for unit, size in (("d", _DAY), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g}{unit}"
    return f"{seconds:.3g}s"


_CHECKS: tuple[Callable[[_Seen], Iterator[Finding]], ...] = (
    _privileges,
    _prepared,
    _log_bin,
    _log_settings,
    _log_filter,
    _retention,
    _log_form,
    _gtid,
    _server_id,
    _server_id_range,
    _replica,
)
