"""Says which rows are in a partition, by a condition on one column that the target can check exactly.

What must be true: the condition holds for exactly the rows that the server keeps in the partition. So only these are
taken, and everything else is `Unknown`, which makes a new copy:

| partitioned by                                   | column         | condition                                     |
|--------------------------------------------------|----------------|-----------------------------------------------|
| RANGE, LIST (c), RANGE COLUMNS, LIST COLUMNS (c) | INT types      | the numbers                                   |
| RANGE COLUMNS, LIST COLUMNS (c)                  | DATE, DATETIME | the moments, not finer than the column        |
| RANGE, LIST (TO_DAYS(c)), (YEAR(c))              | DATE, DATETIME | the days: both functions rise with the column |
| RANGE, LIST (UNIX_TIMESTAMP(c))                  | TIMESTAMP      | the seconds, of a column without a fraction   |
| LIST COLUMNS (c)                                 | text           | equal texts, under a binary collation that    |
|                                                  |                | ignores spaces at the end                     |

The server demands the column in every unique key. So it is in the key that identifies the rows, is never NULL, and
holds no zero date: those stop a job in a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from consume_upstream.mysql.schema.column_steps import Unknown
from consume_upstream.mysql.statements.text import folded
from vnode_backfill.words.columns import Column, Kind, TableDefinition
from vnode_backfill.words.partitioning import Partition, Partitioning
from vnode_backfill.words.schema_change import DeleteRows

__all__ = ["rows_of"]

Range = tuple[str | None, str | None]
_EXPRESSION = re.compile(r"(?:(to_days|year|unix_timestamp)\()?(`(?:[^`]|``)+`|[\w$]+)(\))?", re.IGNORECASE)
_LISTED = re.compile(r"(-?\d+|'(?:[^'\\]|'')*')(?:,|$)")
_MOMENT = re.compile(r"'(\d{4}-\d\d-\d\d)(?: (\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?)?'")
_FIRST_DAY = 365
"""TO_DAYS counts from the year 0, and Python's ordinals from the year 1."""
_MAXVALUE = "MAXVALUE"


def rows_of(definition: TableDefinition, names: Sequence[str]) -> DeleteRows:
    """The rows in these partitions of the table; raises `Unknown` with the reason where that is not certain."""
    partitioning = definition.partitioning
    if partitioning is None or not partitioning.partitions:
        raise Unknown("the bounds of the partition are not known")
    function, column = _expression(partitioning, definition)
    method = partitioning.method.upper()
    places = [_place(partitioning.partitions, name) for name in names]
    if method == "LIST COLUMNS" and column.kind is Kind.STRING:
        values = (_text(value, column) for at in places for value in _listed(partitioning.partitions[at]))
        return DeleteRows(column.name, values=tuple(values))
    if method not in ("RANGE", "LIST", "RANGE COLUMNS", "LIST COLUMNS"):
        raise Unknown(f"rows are in partitions by {partitioning.method}")
    scale = _Scale.of(function, column)
    ranges: list[Range] = []
    for at in places:
        ranges += [_range(partitioning.partitions, at, scale)] if method.startswith("RANGE") else [
            (scale.at(value), scale.above(value)) for value in _listed(partitioning.partitions[at])
        ]  # fmt: skip
    return DeleteRows(column.name, ranges=tuple(ranges))


def _expression(partitioning: Partitioning, definition: TableDefinition) -> tuple[str, Column]:
    found = _EXPRESSION.fullmatch(partitioning.expression.strip())
    if found is None or bool(found[1]) is not bool(found[3]):
        raise Unknown(f"rows are in partitions by {partitioning.expression}")
    name = folded(found[2][1:-1].replace("``", "`") if found[2].startswith("`") else found[2])
    columns = [column for column in definition.columns if folded(column.name) == name]
    if len(columns) != 1 or columns[0].name not in definition.key:
        raise Unknown(f"column {found[2]} of the partitions is not in the key")
    if found[1] and partitioning.method.upper() not in ("RANGE", "LIST"):
        raise Unknown(f"rows are in partitions by {partitioning.expression}")
    return (found[1] or "").lower(), columns[0]


def _place(partitions: Sequence[Partition], name: str) -> int:
    places = [at for at, each in enumerate(partitions) if folded(each.name) == folded(name)]
    if len(places) != 1:
        raise Unknown(f"the bounds of partition {name} are not known")
    return places[0]


def _range(partitions: Sequence[Partition], at: int, scale: _Scale) -> Range:
    """From the upper bound of the partition before it to its own."""
    low = scale.at(_upper(partitions[at - 1])) if at else None
    own = _upper(partitions[at])
    return low, None if own.upper() == _MAXVALUE else scale.at(own)


def _upper(partition: Partition) -> str:
    if partition.values is None:
        raise Unknown(f"the bounds of partition {partition.name} are not known")
    return partition.values


def _listed(partition: Partition) -> Iterator[str]:
    text, at = _upper(partition), 0
    while at < len(text):
        found = _LISTED.match(text, at)
        if found is None:
            raise Unknown(f"partition {partition.name} holds {text[:80]}")
        yield found[1]
        at = found.end()


def _text(value: str, column: Column) -> str:
    collation = column.collation.lower()
    if not value.startswith("'") or not collation.endswith("_bin") or "nopad" in collation or "0900" in collation:
        raise Unknown(f"the collation {column.collation} of column {column.name} decides which texts are equal")
    return value[1:-1].replace("''", "'")


@dataclass(frozen=True, slots=True)
class _Scale:
    """Turns what the server says into values of the column; both raise `Unknown` for what they do not understand."""

    at: Callable[[str], str]
    """The first value of the column that the number or text stands for."""
    above: Callable[[str], str]
    """The first one beyond it."""

    @classmethod
    def of(cls, function: str, column: Column) -> _Scale:
        kind = column.kind
        if function == "" and kind is Kind.INT:
            return cls(lambda text: str(_number(text)), lambda text: str(_number(text) + 1))
        if function == "" and kind in (Kind.DATE, Kind.DATETIME):
            return cls(
                lambda text: _shown(_moment(text, column), kind),
                lambda text: _shown(_later(_moment(text, column), kind), kind),
            )
        days = {"to_days": _day, "year": _new_year}.get(function)
        if days is not None and kind in (Kind.DATE, Kind.DATETIME):
            return cls(
                lambda text: _shown(days(_number(text)), kind), lambda text: _shown(days(_number(text) + 1), kind)
            )
        if function == "unix_timestamp" and kind is Kind.TIMESTAMP and not column.scale:
            return cls(lambda text: _instant(_number(text)), lambda text: _instant(_number(text) + 1))
        raise Unknown(f"rows are in partitions by {function or 'values'} of column {column.name}")


def _number(text: str) -> int:
    if not re.fullmatch(r"-?\d+", text):
        raise Unknown(f"a partition has the bound {text[:80]}")
    return int(text)


def _moment(text: str, column: Column) -> datetime:
    """As the server keeps it: a bound that is finer than the column was rounded."""
    found = _MOMENT.fullmatch(text)
    if found is None or (column.kind is Kind.DATE and found[2]) or len(found[3] or "") > column.scale:
        raise Unknown(f"a partition has the bound {text[:80]}")
    try:
        return datetime.fromisoformat(f"{found[1]} {found[2] or '00:00:00'}.{found[3] or '0':0<6}")
    except ValueError:
        raise Unknown(f"a partition has the bound {text[:80]}") from None


def _later(moment: datetime, kind: Kind) -> datetime:
    try:
        return moment + (timedelta(days=1) if kind is Kind.DATE else timedelta(microseconds=1))
    except OverflowError:
        raise Unknown(f"nothing is later than {moment}") from None


def _day(number: int) -> datetime:
    try:
        return datetime.combine(date.fromordinal(number - _FIRST_DAY), datetime.min.time())
    except (ValueError, OverflowError):
        raise Unknown(f"day {number} is no date") from None


def _new_year(year: int) -> datetime:
    try:
        return datetime(year, 1, 1)
    except ValueError:
        raise Unknown(f"year {year} is no year") from None


def _instant(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        raise Unknown(f"second {seconds} is no time") from None


def _shown(moment: datetime, kind: Kind) -> str:
    return moment.date().isoformat() if kind is Kind.DATE else moment.isoformat(" ", "microseconds")
