"""Parses and compares the sets of transactions that a server has: MySQL's GTID sets and MariaDB's GTID positions.

A MySQL set is `uuid:1-5:7,uuid2:1-3` (since 8.3 also `uuid:tag:1-5`); it may have holes. A MariaDB position is one
`domain-server-sequence` per domain, and holds every transaction of that domain up to its sequence number.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from vnode_backfill.words.errors import OffsetError

Interval = tuple[int, int]
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
_MARIADB = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)\Z")
_INTERVAL = re.compile(r"([0-9]+)(?:-([0-9]+))?\Z")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}\Z")


@dataclass(frozen=True, slots=True)
class GtidSet:
    """An immutable set of MySQL transactions: per source id, disjoint ascending closed intervals."""

    sources: tuple[tuple[str, tuple[Interval, ...]], ...] = ()

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        found: dict[str, list[Interval]] = {}
        for item in filter(None, (part.strip() for part in text.replace("\n", "").split(","))):
            uuid, *rest = item.split(":")
            source = uuid.lower()
            if not _UUID.match(uuid) or not rest:
                raise OffsetError(f"{item!r} is not a GTID set", hint="Expected uuid:first-last, e.g. 3e11…:1-77.")
            for part in rest:
                if _TAG.match(part.lower()) and not part[0].isdigit():
                    source = f"{uuid.lower()}:{part.lower()}"
                    continue
                found.setdefault(source, []).append(_interval(part, item))
        return cls(tuple(sorted((source, _normal(intervals)) for source, intervals in found.items())))

    def holds(self, gtid: str) -> bool:
        source, _, number = gtid.lower().rpartition(":")
        return self.holds_interval(source, _interval(number, gtid))

    def holds_interval(self, source: str, interval: Interval) -> bool:
        intervals = dict(self.sources).get(source, ())
        at = bisect_right(intervals, (interval[0], 1 << 64)) - 1
        return at >= 0 and intervals[at][0] <= interval[0] and interval[1] <= intervals[at][1]

    def holds_all(self, other: GtidSet) -> bool:
        return all(self.holds_interval(source, i) for source, intervals in other.sources for i in intervals)

    def union(self, other: GtidSet) -> GtidSet:
        merged: dict[str, list[Interval]] = {}
        for source, intervals in (*self.sources, *other.sources):
            merged.setdefault(source, []).extend(intervals)
        return GtidSet(tuple(sorted((source, _normal(intervals)) for source, intervals in merged.items())))

    def intersection(self, other: GtidSet) -> GtidSet:
        """The transactions that both sets hold."""
        theirs = dict(other.sources)
        both = (
            (source, [(max(a, c), min(b, d)) for a, b in mine for c, d in theirs.get(source, ())])
            for source, mine in self.sources
        )
        held = ((source, _normal([each for each in found if each[0] <= each[1]])) for source, found in both)
        return GtidSet(tuple((source, intervals) for source, intervals in held if intervals))

    def lacks_before(self, gtid: str, other: GtidSet) -> bool:
        """Whether the other set holds a transaction of the same source with a lower number that this one does not."""
        source, _, number = gtid.lower().rpartition(":")
        _, last = _interval(number, gtid)
        earlier = GtidSet(((source, ((1, last - 1),)),)) if last > 1 else GtidSet()
        return not self.holds_all(other.intersection(earlier))

    def __bool__(self) -> bool:
        return bool(self.sources)

    def __str__(self) -> str:
        return ",".join(
            source + "".join(f":{low}-{high}" if high > low else f":{low}" for low, high in intervals)
            for source, intervals in self.sources
        )


@dataclass(frozen=True, slots=True)
class MariaDbGtidPosition:
    """Per domain the last transaction; holds every earlier one of that domain."""

    domains: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> MariaDbGtidPosition:
        found: dict[int, tuple[int, int, int]] = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            match = _MARIADB.match(item)
            if match is None:
                raise OffsetError(
                    f"{item!r} is not a MariaDB GTID", hint="Expected domain-server-sequence, e.g. 0-1-77."
                )
            gtid = (int(match[1]), int(match[2]), int(match[3]))
            if gtid[0] in found:
                raise OffsetError(f"{text!r} names domain {gtid[0]} twice")
            found[gtid[0]] = gtid
        return cls(tuple(sorted(found.values())))

    def holds(self, gtid: str) -> bool:
        ((domain, _, sequence),) = MariaDbGtidPosition.parse(gtid).domains
        return any(d == domain and sequence <= last for d, _, last in self.domains)

    def holds_all(self, other: MariaDbGtidPosition) -> bool:
        return all(self.holds(f"{d}-{s}-{q}") for d, s, q in other.domains)

    def __str__(self) -> str:
        return ",".join(f"{d}-{s}-{q}" for d, s, q in self.domains)


def parse_gtids(text: str) -> GtidSet | MariaDbGtidPosition:
    """Either form, recognised by its shape."""
    first = text.split(",", maxsplit=1)[0].strip()
    return MariaDbGtidPosition.parse(text) if _MARIADB.match(first) else GtidSet.parse(text)


def sampled_of(logged: str, sampled: str) -> str:
    """The logged transactions that a sample of the server holds; MariaDB's samples hold all that are logged.

    MySQL counts a transaction as executed after it has logged it.
    """
    known = parse_gtids(logged)
    return str(known.intersection(GtidSet.parse(sampled))) if isinstance(known, GtidSet) else logged


def _interval(part: str, item: str) -> Interval:
    found = _INTERVAL.match(part)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if low < 1 or high < low:
        raise OffsetError(f"{item!r} is not a GTID set", detail=f"{part!r} is not an interval.")
    return low, high


def _normal(intervals: list[Interval]) -> tuple[Interval, ...]:
    merged: list[Interval] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)
