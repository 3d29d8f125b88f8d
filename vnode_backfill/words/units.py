"""Reads and prints values with units, as people write them: `30s`, `5m`, `64MB`, `1GiB`.

A number without its unit is refused, because nobody who reads `timeout: 30` later knows of what. So is a unit of the
wrong kind. A duration is at most 3650 days: added to the time of day, or taken from it, the result must be a date.
Decimal units count in thousands (`64MB` is 64,000,000 bytes), binary ones in 1024s (`64MiB` is 67,108,864). Printing
gives text that parses to the same value.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

MB = 1_000_000
LONGEST_DURATION = timedelta(days=3650)

_MICROSECONDS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_PART = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?)\s?([A-Za-z]+)")
_DURATIONS = "must be a duration with its unit: us, ms, s, m, h or d, as in 250ms, 30s, 1h30m"
_SIZES = "must be a size with its unit: B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, as in 64MB, 1GiB"


def parse_duration(value: object) -> timedelta:
    """Read `1h30m`; a value that already is a duration is returned as it is. Raises ValueError with what is allowed."""
    if isinstance(value, timedelta):
        return value
    microseconds = _sum(value, _MICROSECONDS, _DURATIONS)
    if microseconds > LONGEST_DURATION // timedelta(microseconds=1):
        raise ValueError(f"must not be longer than {format_duration(LONGEST_DURATION)}")
    return timedelta(microseconds=microseconds)


def format_duration(value: timedelta) -> str:
    """Print in the largest unit that divides the value."""
    return _format(value // timedelta(microseconds=1), _MICROSECONDS)


def parse_size(value: object) -> int:
    """Read `64MB` as a number of bytes. Raises ValueError with what is allowed."""
    return _sum(value, _BYTES, _SIZES)


def format_size(value: int) -> str:
    """Print in the largest unit that divides the value."""
    return _format(value, _BYTES)


def _sum(value: object, units: dict[str, int], allowed: str) -> int:
    if not isinstance(value, str) or len(value) > 100 or not re.fullmatch(rf"(?:{_PART.pattern})+", value.strip()):
        raise ValueError(allowed)
    total = Decimal(0)
    for number, unit in _PART.findall(value):
        if unit not in units:
            raise ValueError(allowed)
        total += Decimal(number) * units[unit]
    if total != int(total):
        raise ValueError(allowed)
    return int(total)


def _format(value: int, units: dict[str, int]) -> str:
    fitting = [unit for unit, factor in units.items() if value % factor == 0 and value >= factor]
    unit = max(fitting, key=lambda name: units[name], default=next(iter(units)))
    return f"{value // units[unit]}{unit}"
