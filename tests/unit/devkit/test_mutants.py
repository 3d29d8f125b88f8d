"""The mutation run judges rightly: a test that fails catches a mutant, and one that passes or cannot run does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import REPOSITORY, Mutant, Outcome, load_mutants, not_applying, outcome

GUARD = "def checked(number: int) -> int:\n    assert number > 0\n    return number\n"
TEST = """
from guard import checked

def test_guard():
    try:
        checked(-1)
    except AssertionError:
        return
    raise ValueError("accepted")

def test_else():
    assert checked(1) == 1
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "guard.py").write_text(GUARD)
    (tmp_path / "test_guard.py").write_text(TEST)
    return tmp_path


def mutant(replacement: str, *tests: str, text: str = "    assert number > 0\n") -> Mutant:
    return Mutant("no guard", "guard.py", text, replacement, tuple(f"test_guard.py::{test}" for test in tests))


@pytest.mark.parametrize(
    ("replacement", "tests", "expected"),
    [
        ("", ("test_guard",), Outcome.CAUGHT),
        ("", ("test_guard", "test_else"), Outcome.SURVIVED),
        ("    assert (\n", ("test_guard",), Outcome.BROKEN),
    ],
)
def test_each_named_test_must_fail_as_a_test(
    tree: Path, replacement: str, tests: tuple[str, ...], expected: Outcome
) -> None:
    assert outcome(mutant(replacement, *tests), tree, tree / "log") is expected
    assert (tree / "guard.py").read_text() == GUARD


def test_text_that_is_not_found_once_is_an_error(tree: Path) -> None:
    (reason,) = not_applying([mutant("", "test_guard", text="assert number > 1")], tree)
    assert reason == "no guard: mutant does not apply any more: its text is found 0 times in guard.py"
    (reason,) = not_applying([mutant("", "test_guard", text="number")], tree)
    assert "is found 3 times" in reason
    (reason,) = not_applying([mutant("", "test_gone")], tree)
    assert reason == "no guard: there is no test test_guard.py::test_gone"


def test_names_of_the_list_are_different() -> None:
    names = [each.name for each in load_mutants()]
    assert len(names) == len(set(names)) > 50


def test_every_entry_of_the_lists_applies_to_the_code_as_it_is() -> None:
    assert not_applying(load_mutants(), REPOSITORY) == []
