"""Reads what the log of a server holds, and finds where in it a job may begin.

What must be true: a job begins between two transactions. A position inside an event would be read as garbage. One
inside a transaction would lose its beginning. The server checks neither reliably, so the file is walked from its start,
which is a boundary, and the position must be met exactly while no transaction is open. Nothing is decoded on the way:
what comes before a job's beginning does not concern it, DDL of the table included.

- By time: a file's first event says when the file was begun, and everything in the files before was logged earlier. So
  a binary search finds the one file that may hold the moment, and only transactions from there on are looked at. The
  log has whole seconds, and a transaction carries the time its statement began. A moment is rounded down, so that none
  is left out.
- By GTID: MySQL finds the first transaction outside a set itself. MariaDB reports the GTID position at the start of a
  file; the last file that begins within the wanted position is walked. Transactions of the set that are after the point
  found are applied again, in order. That does not change what a key is in the end.
What the log holds of the table behind the point is looked at afterwards (`ahead`).

Tables may be opened side by side, and beside readers at work. So nothing here is read under an id that another dump may
have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from consume_upstream.log.batch import Transaction
from consume_upstream.log.gtid import GtidSet, MariaDbGtidPosition, parse_gtids
from consume_upstream.log.offset import CdcOffset
from consume_upstream.log.source_log import FIRST_POSITION, LogFile, SourceLog
from consume_upstream.mysql.binlog.dump import NO_REPLICA, DumpStream
from consume_upstream.mysql.binlog.events import EventKind, LogPosition
from consume_upstream.mysql.binlog.reader import read_log
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.positions.file_identity import identity_now
from consume_upstream.mysql.positions.first_missing import first_missing_transaction
from consume_upstream.mysql.server import ask
from vnode_backfill.words.errors import LogFormatError, SourceError

__all__ = [
    "boundary_fault",
    "file_began_at",
    "file_now",
    "position_after_gtids",
    "position_at_time",
    "read_source_log",
    "unknown_gtids",
]


def read_source_log(table: KnownTable, *, with_time: bool = False, stored: CdcOffset | None = None) -> SourceLog:
    """What the log holds now, counted as era 0; when its oldest file was begun only `with_time`: that takes a dump.

    `stored` is an offset that a job may continue from; the identity of its file is then read too.
    """
    newest = table.written_offset().in_era(0)
    with table.lent() as connection:
        now = ask(connection, "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR) AS now")[0]["now"]
        rows = ask(connection, "SHOW BINARY LOGS")
    files = tuple(LogFile(str(row["Log_name"]), int(row["File_size"] or 0)) for row in rows)
    return SourceLog(
        server=table.identity.server,
        files=files,
        newest=newest,
        now=datetime.fromisoformat(str(now)).replace(tzinfo=UTC),
        purged_gtids=_purged(table, files),
        oldest_at=file_began_at(table, files[0].name) if with_time and files else None,
        last_gtids=_last_gtids(table),
        file_now=file_now(table, files, stored) if stored is not None else "",
    )


def boundary_fault(table: KnownTable, offset: CdcOffset, log: SourceLog) -> str:
    """Why a position that the log holds is not between two transactions, with the boundaries around it.

    The text is empty if it is.
    """
    start, at = LogPosition(offset.file, FIRST_POSITION), LogPosition(offset.file, offset.pos)
    try:
        for _ in _transactions(table, start, at):
            pass
    except LogFormatError:
        # Where the log itself is damaged, walking past the position fails too, and says so.
        return _surroundings(table, offset, log)
    return ""


def position_at_time(table: KnownTable, moment: datetime, log: SourceLog) -> CdcOffset:
    """Where the first transaction of that second or later begins; the end of the log if there is none yet."""
    second = int(moment.timestamp())

    def only_before(index: int) -> bool:
        """Whether everything in the file was logged before the moment."""
        return file_began_at(table, log.files[index + 1].name).timestamp() < second

    first = _first_false(len(log.files) - 1, only_before)
    return _first_transaction(table, log, log.files[first], lambda found: found.timestamp >= second)


def position_after_gtids(table: KnownTable, text: str, log: SourceLog) -> CdcOffset:
    """Where the first transaction outside the given ones begins; the end of the log if there is none."""
    wanted = parse_gtids(text)
    if isinstance(wanted, MariaDbGtidPosition):
        held = _first_false(len(log.files) - 1, lambda index: _begins_within(table, log.files[index + 1], wanted))
        return _first_transaction(table, log, log.files[held], lambda found: not wanted.holds(found.gtid))
    return _after_gtid_set(table, wanted, log)


def unknown_gtids(table: KnownTable, text: str, log: SourceLog) -> str:
    """Those of the given GTIDs that the log around their sequence numbers does not hold; empty if it holds all.

    A MySQL set was compared with the executed one. A MariaDB position says which server wrote the last transaction of a
    domain, and two servers that went separate ways give one sequence number to different transactions.
    """
    wanted = parse_gtids(text)
    if not isinstance(wanted, MariaDbGtidPosition):
        return ""
    return ",".join(str(MariaDbGtidPosition((gtid,))) for gtid in wanted.domains if not _is_logged(table, log, gtid))


def file_began_at(table: KnownTable, file: str) -> datetime:
    """When the file was begun, from its first event."""
    stream = DumpStream(table.connect, NO_REPLICA, table.identity.flavour, LogPosition(file, FIRST_POSITION))
    try:
        for block in stream.blocks():
            for index in range(len(block.offsets)):
                event = block.event(index)
                if event[4] == EventKind.FORMAT_DESCRIPTION:
                    return datetime.fromtimestamp(int.from_bytes(event[:4], "little"), UTC)
    finally:
        stream.close()
    raise LogFormatError(f"binlog file {file} does not begin with its description")


def _purged(table: KnownTable, files: Sequence[LogFile]) -> str:
    """The transactions whose events are gone."""
    if table.identity.flavour == "mariadb":
        return str(_position_at_start(table, files[0])) if files else ""
    with table.lent() as connection:
        gtids = ask(connection, "SELECT @@global.gtid_purged AS gtids")[0]["gtids"]
    return str(gtids or "").replace("\n", "")


def file_now(table: KnownTable, files: Sequence[LogFile], stored: CdcOffset) -> str:
    """The identity of the file that has the name of the stored offset's file now, where both are known."""
    ours = stored.server == table.identity.server and any(file.name == stored.file for file in files)
    return str(identity_now(table.connect, table.identity.flavour, stored)) if ours and stored.log else ""


def _last_gtids(table: KnownTable) -> tuple[str, ...]:
    """The last transaction of each domain and writer that the log ever held."""
    if table.identity.flavour != "mariadb":
        return ()
    with table.lent() as connection:
        told = str(ask(connection, "SELECT @@global.gtid_binlog_state AS gtids")[0]["gtids"] or "")
    return tuple(gtid for gtid in told.split(",") if gtid)


def _after_gtid_set(table: KnownTable, wanted: GtidSet, log: SourceLog) -> CdcOffset:
    if any(":" in source for source, _ in wanted.sources):
        raise SourceError(
            f"the point after {wanted} cannot be found in the log",
            detail="Tagged GTIDs cannot be searched for.",
            hint="Give mysql.cdc.specific.file and pos instead.",
        )
    with table.lent() as connection:
        missing = first_missing_transaction(connection, wanted)
    if missing is None:
        return log.newest
    found = CdcOffset.at(log.server, missing.file, missing.pos)
    return min(log.newest, found, key=lambda offset: offset.order)


def _is_logged(table: KnownTable, log: SourceLog, wanted: tuple[int, int, int]) -> bool:
    """Whether a transaction is in the log, or was the last one of its domain when the oldest file began."""
    domain, _, sequence = wanted

    def begins_before(index: int) -> bool:
        return all(
            last <= sequence for d, _, last in _position_at_start(table, log.files[index]).domains if d == domain
        )

    file = log.files[_first_false(len(log.files) - 1, lambda index: begins_before(index + 1))]
    if wanted in _position_at_start(table, file).domains:
        return True
    start, end = LogPosition(file.name, FIRST_POSITION), LogPosition(log.newest.file, log.newest.pos)
    for transactions in _transactions(table, start, end):
        for found in transactions:
            if found.gtid == str(MariaDbGtidPosition((wanted,))):
                return True
            if _comes_after(found.gtid, domain, sequence):
                return False
    return False


def _comes_after(gtid: str, domain: int, sequence: int) -> bool:
    return any(d == domain and at > sequence for d, _, at in MariaDbGtidPosition.parse(gtid).domains)


def _begins_within(table: KnownTable, file: LogFile, wanted: MariaDbGtidPosition) -> bool:
    return wanted.holds_all(_position_at_start(table, file))


def _position_at_start(table: KnownTable, file: LogFile) -> MariaDbGtidPosition:
    """Every transaction of the files before this one."""
    with table.lent() as connection:
        asked = ask(connection, "SELECT BINLOG_GTID_POS(%s, %s) AS gtids", (file.name, FIRST_POSITION))
    return MariaDbGtidPosition.parse(str(asked[0]["gtids"] or ""))


def _first_false(count: int, holds: Callable[[int], bool]) -> int:
    """The first of `count` indices for which a condition that never comes back no longer holds.

    It is `count` if the condition always holds.
    """
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle + 1
        else:
            high = middle
    return low


def _first_transaction(
    table: KnownTable, log: SourceLog, file: LogFile, chosen: Callable[[Transaction], bool]
) -> CdcOffset:
    start, end = LogPosition(file.name, FIRST_POSITION), LogPosition(log.newest.file, log.newest.pos)
    for transactions in _transactions(table, start, end):
        for found in transactions:
            if chosen(found):
                return _offset(log, found.start)
    return log.newest


def _surroundings(table: KnownTable, offset: CdcOffset, log: SourceLog) -> str:
    """The boundaries before and after a position that is not a boundary."""
    before = replace(offset, pos=FIRST_POSITION)
    start, end = LogPosition(offset.file, FIRST_POSITION), LogPosition(log.newest.file, log.newest.pos)
    for transactions in _transactions(table, start, end):
        for found in transactions:
            begin, close = (_offset(log, point) for point in (found.start, found.end or found.start))
            if begin >= offset:
                return f"It is inside an event; the boundaries around it are {before} and {begin}."
            if close > offset:
                return f"It is inside a transaction; the boundaries around it are {begin} and {close}."
            before = close
    return f"It is inside an event; the boundaries around it are {before} and {log.newest}."


def _offset(log: SourceLog, point: tuple[int, int]) -> CdcOffset:
    return replace(log.newest, number=point[0], pos=point[1], gtids="", log="")


def _transactions(table: KnownTable, start: LogPosition, stop: LogPosition) -> Iterator[Sequence[Transaction]]:
    """Every transaction of the slice, in log order; rows and statements are left alone."""
    batches = read_log(
        table.connect, NO_REPLICA, table.definition, table.identity.flavour, start, stop,
        skip_gtids=lambda _: True,
    )  # fmt: skip
    for batch in batches:
        yield batch.transactions
