"""Holds points of the source's log, and what a read that starts now is certain to see.

These are two different things, because a server writes its log *before* the engine commits:

- `CdcOffset` is a point of the log between two events: a *boundary*. Offsets of one server are totally ordered by file
  **number** and position: `binlog.1000000` follows `binlog.999999`. A change's position is the *end* of its event, so
  the half-open slice `(w[N-1], w[N]]` holds exactly the changes whose position is in it. Many changes may have one
  position, and it may be the end of their transaction: MySQL packs a whole transaction into one event
  (`binlog_transaction_compression`). So a boundary has no row: it is compared with a change by file number and position
  alone. Row and half order the changes of one event, and nothing else.
- Visibility is what a read that starts now is certain to see. MariaDB reports a position (`VisibleAt`). MySQL reports a
  set of transactions (`VisibleGtids`), which need not be a prefix of the log: transactions can become visible out of
  log order. It may only be used as the longest prefix of the log that it contains, because a set with a hole must not
  drop a later change of a key whose earlier change is outside it. `resolve` finds that prefix while the log is read.

Worked example: the log holds t1 t2 t3, the set is {t1, t3}. The prefix ends before t2. A row read now shows t1 and
t3; t2 and t3 are kept and applied again, in order: the later one wins, as it did at the source.

Offsets of different servers raise when compared: after a failover a file name means nothing. A job may still continue
in another log: by GTID on a replica, or after everything was read again. Such a job counts its logs. Each is an *era*,
kept in the upper part of the file number, and everything in a later era comes after everything in an earlier one. The
example is a failover after binlog.000007:

    era 0, first server    binlog.000007:880  →  number 7
    era 1, second server   binlog.000002:154  →  number 2³² + 2, and so above
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from consume_upstream.log.gtid import GtidSet, MariaDbGtidPosition, parse_gtids
from vnode_backfill.words.errors import OffsetError

SHORT_STRETCH_BYTES = 16 * 1024 * 1024
"""The driver reads a stretch up to this long by itself: starting a Spark job would take longer than reading it."""
_VERSION = 1
_ERA = 1 << 32
"""More files than a server ever numbers."""
_FILE = re.compile(r"(?P<prefix>.+)\.(?P<number>\d+)\Z")


@dataclass(frozen=True, slots=True)
class CdcOffset:
    """A point of a log. `number` holds the era and the file's number; `gtids` travels along and is not compared.

    Neither is `log`, the identity of the offset's file (see `identity`), empty where nobody has taken it.
    """

    server: str
    prefix: str
    number: int
    pos: int
    gtids: str = field(default="", compare=False)
    log: str = field(default="", compare=False)

    @classmethod
    def at(cls, server: str, file: str, pos: int, *, gtids: str = "", era: int = 0) -> CdcOffset:
        found = _FILE.match(file)
        if found is None or pos < 0:
            raise OffsetError(f"{file!r}:{pos} is not a log position", hint="Expected e.g. binlog.000003 and 4.")
        return cls(server, found["prefix"], era * _ERA + int(found["number"]), pos, gtids)

    @property
    def file(self) -> str:
        return f"{self.prefix}.{self.file_number:06d}"

    @property
    def file_number(self) -> int:
        return self.number % _ERA

    @property
    def era(self) -> int:
        return self.number // _ERA

    def in_era(self, era: int) -> CdcOffset:
        """The same point of the same log, counted as that era."""
        return replace(self, number=era * _ERA + self.file_number)

    @property
    def order(self) -> tuple[int, int]:
        return (self.number, self.pos)

    def _comparable(self, other: CdcOffset) -> None:
        if (self.server != other.server or self.prefix != other.prefix) and self.era == other.era:
            raise OffsetError(
                f"offsets {self} and {other} are of different servers",
                detail=f"The first is of {self.server}, the second of {other.server}.",
                hint="Positions mean nothing on another server; continue by GTID.",
            )

    def __lt__(self, other: CdcOffset) -> bool:
        self._comparable(other)
        return (self.number, self.pos) < (other.number, other.pos)

    def __le__(self, other: CdcOffset) -> bool:
        self._comparable(other)
        return (self.number, self.pos) <= (other.number, other.pos)

    def __gt__(self, other: CdcOffset) -> bool:
        return other < self

    def __ge__(self, other: CdcOffset) -> bool:
        return other <= self

    def __str__(self) -> str:
        return f"{self.file}:{self.pos}"

    def to_json(self) -> str:
        """`row` is always 0: earlier releases wrote and demand it."""
        era = {"era": self.era} if self.era else {}
        log = {"log": self.log} if self.log else {}
        return json.dumps(
            {"v": _VERSION, "server": self.server, "file": self.file, "pos": self.pos, "row": 0,
             "gtids": self.gtids, **era, **log},
            sort_keys=True,
        )  # fmt: skip

    @classmethod
    def from_json(cls, text: str) -> CdcOffset:
        try:
            stored = json.loads(text)
            if stored["v"] != _VERSION:
                raise OffsetError(f"offset has the unknown version {stored['v']!r}", detail=text)
            offset = cls.at(
                str(stored["server"]), str(stored["file"]), int(stored["pos"]),
                gtids=str(stored["gtids"]), era=int(stored.get("era", 0)),
            )  # fmt: skip
            return replace(offset, log=str(stored.get("log", "")))
        except (ValueError, KeyError, TypeError) as error:
            raise OffsetError(f"{text[:80]!r} is not a stored offset", detail=str(error)) from error


def era_shift(era: int) -> int:
    """What is added to a file's own number in this era."""
    return era * _ERA


def is_short_stretch(after: CdcOffset, upto: CdcOffset) -> bool:
    """Whether `(after, upto]` is short by its ends alone. Those of a stretch over several files do not say how long it
    is, so it counts as long."""
    return after.number == upto.number and upto.pos - after.pos <= SHORT_STRETCH_BYTES


@dataclass(frozen=True, slots=True)
class VisibleAt:
    """Every change whose event ends at or below `position` is seen by any read that starts later."""

    position: CdcOffset


@dataclass(frozen=True, slots=True)
class VisibleGtids:
    """The transactions seen by any read that starts later; not yet a prefix of the log."""

    executed: GtidSet

    def covers_transaction(self, gtid: str) -> bool:
        return self.executed.holds(gtid)


Visibility = VisibleAt | VisibleGtids


@dataclass(frozen=True, slots=True)
class LoggedTransaction:
    """A transaction of the log; all its changes are above `start`."""

    gtid: str
    start: CdcOffset


def resolve(
    visibility: Visibility,
    missing: Iterable[LoggedTransaction],
    logged: Iterable[LoggedTransaction],
    written: CdcOffset,
) -> tuple[VisibleAt, tuple[LoggedTransaction, ...]]:
    """The longest prefix of the log up to `written` that is visible, and the transactions that end it.

    `missing` is what the previous call left over (a transaction can stay invisible over several epochs), `logged` what
    was read since, both in log order. A transaction once visible stays so; hence it is enough to remember the missing.
    """
    if isinstance(visibility, VisibleAt):
        return visibility, ()
    left = tuple(
        transaction
        for source in (missing, logged)
        for transaction in source
        if not visibility.covers_transaction(transaction.gtid)
    )
    return VisibleAt(min((t.start for t in left), default=written, key=lambda start: start.order)), left


def visibility_to_json(visibility: Visibility) -> str:
    if isinstance(visibility, VisibleAt):
        return json.dumps({"v": _VERSION, "at": visibility.position.to_json()})
    return json.dumps({"v": _VERSION, "gtids": str(visibility.executed)})


def visibility_from_json(text: str) -> Visibility:
    try:
        stored = json.loads(text)
        if stored["v"] != _VERSION:
            raise OffsetError(f"visibility has the unknown version {stored['v']!r}", detail=text)
        if "at" in stored:
            return VisibleAt(CdcOffset.from_json(stored["at"]))
        parsed = parse_gtids(stored["gtids"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OffsetError(f"{text[:80]!r} is not a stored visibility", detail=str(error)) from error
    if isinstance(parsed, MariaDbGtidPosition):
        raise OffsetError("a MariaDB GTID position is not a visibility", detail=text)
    return VisibleGtids(parsed)
