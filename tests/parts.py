"""Divides the tests of a run into parts, for tiers that take longer than somebody has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path


def part(word: str) -> tuple[int, int]:
    """`2/3`, the second of three."""
    which, of = (int(number) for number in word.split("/"))
    if not 1 <= which <= of:
        raise ValueError(f"{word} is not a part")
    return which, of


def files_of_part(files: Iterable[Path], which: int, of: int) -> set[Path]:
    """The files of one part, of a list that names a file once for each of its tests: all parts together are all files.

    A file is never divided: its tests share servers.
    """
    parts: list[list[Path]] = [[] for _ in range(of)]
    tests = Counter(files)
    for file in sorted(tests, key=lambda file: (-tests[file], file)):
        min(parts, key=lambda part: sum(tests[each] for each in part)).append(file)
    return set(parts[which - 1])
