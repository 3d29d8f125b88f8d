"""A tier that is run in parts is run whole."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from tests.parts import files_of_part, part

_FILES = [Path(f"test_{name}.py") for name, tests in (("a", 9), ("b", 4), ("c", 4), ("d", 1)) for _ in range(tests)]


@pytest.mark.parametrize("of", [1, 2, 3, 7])
def test_all_parts_together_are_all_files_and_each_file_is_in_one(of: int) -> None:
    parts = [files_of_part(_FILES, which, of) for which in range(1, of + 1)]
    assert sorted(chain(*parts)) == sorted(set(_FILES))


def test_parts_have_about_as_many_tests() -> None:
    counts = [sum(file in files_of_part(_FILES, which, 2) for file in _FILES) for which in (1, 2)]
    assert counts == [9, 9]


@pytest.mark.parametrize("word", ["0/2", "3/2", "1", "a/b", "1/2/3"])
def test_a_part_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"not a part|unpack|invalid literal"):
        part(word)
