"""Holds what a comparison of source and target found, and shows it to a person and to a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from itertools import groupby
from typing import TypeAlias

__all__ = ["Difference", "DifferenceKind", "Value", "Verification", "render", "to_json"]

Value: TypeAlias = bool | int | float | Decimal | str | bytes | date | datetime | None

_SHOWN_CHARACTERS = 80


class DifferenceKind(StrEnum):
    MISSING = "missing"
    """The source has the row, the target has not."""
    EXTRA = "extra"
    """The target has a row the source has not, or has it more than once."""
    DIFFERENT = "different"
    """Both have the row and a column differs.

    With an empty key the column's type differs, or one has no such column.
    """


@dataclass(frozen=True, slots=True)
class Difference:
    """One key, or one column of it. Of a missing or extra row `source` and `target` are how often each side has it.

    `column` is None for a row that differed when it was hashed but no longer when it was fetched: the source moved.
    """

    kind: DifferenceKind
    key: tuple[Value, ...]
    column: str | None = None
    source: Value = None
    target: Value = None


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found. `missing`, `extra` and `different` count all keys; `differences` shows the first, in key order.

    `rows_compared` are the keys found on both sides. `ranges` counts the planned ranges and the stretches outside them.
    `columns` counts columns that only one side has, or that have another type in the target. `rechecked` counts the
    comparisons of keys that were changed while the source was read. `changed_since` counts keys that were changed at
    the source and that the target does not show yet, or that went on changing: whether they are equal is not known.
    """

    rows_source: int
    rows_target: int
    rows_compared: int
    ranges: int
    missing: int
    extra: int
    different: int
    columns: int
    differences: tuple[Difference, ...]
    source_moved: bool
    target_version: int
    seconds: float
    changed_since: int = 0
    rechecked: int = 0

    @property
    def total(self) -> int:
        return self.missing + self.extra + self.different + self.columns

    @property
    def equal(self) -> bool:
        return self.total == 0


def to_json(verification: Verification) -> str:
    """One object; later versions only add to it.

        version                                  1
        equal, source_moved                      true or false
        rows_source, rows_target, rows_compared, ranges, target_version    numbers
        total, missing, extra, different, columns                          numbers of differing keys or columns
        changed_since, rechecked                 numbers of keys
        seconds                                  number
        differences                              [{kind, key: [value], column, source, target}], the first ones

    A value is text (numbers in full, bytes as 0x…, times in ISO form) or null for NULL; `source` and `target` of a
    missing or extra row are how often each side has it.
    """
    counted = {
        name: getattr(verification, name)
        for name in ("equal", "source_moved", "rows_source", "rows_target", "rows_compared", "ranges",
                     "target_version", "total", "missing", "extra", "different", "columns", "changed_since",
                     "rechecked")
    }  # fmt: skip
    shown = [
        {"kind": each.kind, "key": [_plain(value) for value in each.key], "column": each.column,
         "source": _plain(each.source), "target": _plain(each.target)}
        for each in verification.differences
    ]  # fmt: skip
    return json.dumps({"version": 1, **counted, "seconds": round(verification.seconds, 3), "differences": shown})


def render(verification: Verification) -> str:
    """The result for a person: a line per differing key, and a last line with the verdict."""
    lines = [_line(list(group)) for _, group in groupby(verification.differences, _one_line)]
    if verification.source_moved:
        lines.append(
            f"the source was written to meanwhile: {verification.rechecked:,} changed keys were compared again"
        )
    if verification.changed_since:
        lines.append(
            f"{verification.changed_since:,} keys were changed at the source since the offset the target has reached, "
            "and are not compared: let the job continue, and verify again"
        )
    rows, ranges = f"{verification.rows_compared:,} rows", f"{verification.ranges:,} ranges"
    if verification.equal:
        return "\n".join([*lines, f"verified: {rows} in {ranges}, 0 differences"])
    counts = f"{verification.missing:,} missing, {verification.extra:,} extra, {verification.different:,} different"
    lines.append(
        f"compared: {rows} in {ranges}; source {verification.rows_source:,} rows, target "
        f"{verification.rows_target:,} rows; {counts}"
    )
    shown = len({_one_line(each) for each in verification.differences})
    cut = f" (first {shown:,} shown)" if shown < verification.total else ""
    return "\n".join([*lines, f"{verification.total:,} differences{cut}"])


def _one_line(difference: Difference) -> tuple[object, ...]:
    return (difference.kind, difference.key, "" if difference.key else difference.column)


def _line(group: Sequence[Difference]) -> str:
    first = group[0]
    if not first.key:
        source, target = _plain(first.source) or "none", _plain(first.target) or "none"
        return f"column     {first.column}: source {source}, target {target}"
    key = ", ".join(_shown(value, value) for value in first.key)
    if first.kind is DifferenceKind.EXTRA and first.source:
        return f"extra      ({key}): {_plain(first.target)} rows in the target"
    if first.kind is not DifferenceKind.DIFFERENT:
        return f"{first.kind:<10} ({key})"
    if first.column is None:
        return f"different  ({key}): changed while it was compared"
    told = [f"{d.column}: source {_shown(d.source, d.target)}, target {_shown(d.target, d.source)}" for d in group]
    return f"different  ({key}): {'; '.join(told)}"


def _shown(value: Value, other: Value) -> str:
    """A value on one line; of a long text the part where it begins to differ from `other`."""
    text = repr(value) if isinstance(value, str) else _plain(value) or "NULL"
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    compared = repr(other) if isinstance(other, str) else _plain(other) or "NULL"
    shorter = 0 if text == compared else min(len(text), len(compared))
    apart = next((i for i, (a, b) in enumerate(zip(text, compared, strict=False)) if a != b), shorter)
    start = max(0, apart - _SHOWN_CHARACTERS // 2)
    part = text[start : start + _SHOWN_CHARACTERS]
    return f"{'…' if start else ''}{part}{'…' if start + len(part) < len(text) else ''} ({len(text):,} characters)"


def _plain(value: Value) -> str | None:
    match value:
        case None:
            return None
        case bytes():
            return "0x" + value.hex()
        case datetime() | date():
            return value.isoformat()
        case bool():
            return str(value).lower()
        case Decimal():
            return format(value, "f")
        case _:
            return str(value)
