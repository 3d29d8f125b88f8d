"""Takes one guard away at a time, in a copy of the tree, and shows that a test notices each time.

A guard that no test misses can be lost in any change, and nobody will know. So each entry of the lists beside this file
names a text of the code, the text without the guard, and the tests that must fail then. `scripts/test mutants` runs it;
CI does not.

What must be true: the named tests pass before anything is taken away. Each of them fails when the guard is gone, as a
test and not while it is collected. Each text is found exactly once; otherwise the list is out of date. The checkout
itself is never changed.

    scripts/test mutants                 every entry
    scripts/test mutants --fast          those that tests without servers and Java catch
    scripts/test mutants lane throttle   those with one of these words in their name
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).parent
NEEDS_SERVERS = "tests/system/"
_PASSED, _FAILED = 0, 1
_ANY_MARK = ("-m", "", "-q", "-p", "no:cacheprovider", "--tb=short")
_NO_SERVERS = "--noconftest"
"""For tests that need none: what starts servers takes seconds to import."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One guard: where it is, the code without it, and the tests of which each must fail without it."""

    name: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]

    @property
    def is_fast(self) -> bool:
        return not any(test.startswith(NEEDS_SERVERS) for test in self.tests)


class Outcome(StrEnum):
    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    BROKEN = "DOES NOT RUN"
    """The test did not run to a verdict: the mutant is not a program, or the test is not there."""


def load_mutants() -> list[Mutant]:
    """All entries, in the order of the lists."""
    found = [entry for path in sorted(LISTS.glob("*.toml")) for entry in tomllib.loads(path.read_text())["mutant"]]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in found]


def not_applying(mutants: Sequence[Mutant], tree: Path) -> list[str]:
    """Why entries cannot be used any more, a line each."""
    return [reason for mutant in mutants for reason in _reasons(mutant, tree)]


def _reasons(mutant: Mutant, tree: Path) -> Iterator[str]:
    file = tree / mutant.file
    times = file.read_text().count(mutant.text) if file.is_file() else 0
    if times != 1:
        yield f"{mutant.name}: mutant does not apply any more: its text is found {times} times in {mutant.file}"
    for test in mutant.tests:
        path, _, function = test.partition("::")
        if not (tree / path).is_file() or f"def {function.partition('[')[0]}" not in (tree / path).read_text():
            yield f"{mutant.name}: there is no test {test}"


@contextmanager
def copied_tree() -> Iterator[Path]:
    """The files of the checkout, as they are now, in a folder that is removed afterwards."""
    line = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(line, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    # Compiled kernels come along: making them again takes a minute, and they know their source by its time and size.
    compiled = (str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("consume_upstream/**/__pycache__/*.nb?"))
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        tree = Path(name)
        for path in (*filter(None, listed.split("\0")), *compiled):
            if (REPOSITORY / path).is_file():
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / path, tree / path)
        yield tree


@contextmanager
def applied(mutant: Mutant, tree: Path) -> Iterator[None]:
    file = tree / mutant.file
    whole = file.read_text()
    file.write_text(whole.replace(mutant.text, mutant.replacement))
    try:
        yield
    finally:
        file.write_text(whole)


def run_tests(tests: Sequence[str], tree: Path, log: Path) -> int:
    """Pytest's exit code; what it printed is added to `log`."""
    # No byte code is kept: a file that changes twice within a second would be taken from the cache.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    plain = () if any(test.startswith(NEEDS_SERVERS) for test in tests) else (_NO_SERVERS,)
    line = [sys.executable, "-m", "pytest", *_ANY_MARK, *plain, *tests]
    with log.open("a") as file:
        return subprocess.run(line, cwd=tree, env=environment, stdout=file, stderr=file, check=False).returncode


def outcome(mutant: Mutant, tree: Path, log: Path) -> Outcome:
    with applied(mutant, tree):
        codes = [run_tests([test], tree, log) for test in mutant.tests]
    if _PASSED in codes:
        return Outcome.SURVIVED
    return Outcome.CAUGHT if set(codes) == {_FAILED} else Outcome.BROKEN


def main(words: Sequence[str] | None = None) -> int:
    arguments = _arguments(words)
    mutants = [each for each in load_mutants() if _chosen(each, arguments)]
    log = Path(tempfile.mkdtemp(prefix="mutants-log-")) / "pytest.log"
    print(f"{len(mutants)} mutants, output in {log}", flush=True)
    with copied_tree() as tree:
        if reasons := not_applying(mutants, tree):
            print("\n".join(reasons))
            return 2
        if run_tests(sorted({test for each in mutants for test in each.tests}), tree, log) != _PASSED:
            print("the tests do not pass before anything is taken away")
            return 2
        found = [_judged(mutant, tree, log) for mutant in mutants]
    left = [each for each in found if each is not Outcome.CAUGHT]
    print(f"{len(found) - len(left)} of {len(found)} mutants are caught")
    return 1 if left else 0


def _judged(mutant: Mutant, tree: Path, log: Path) -> Outcome:
    began = time.monotonic()
    found = outcome(mutant, tree, log)
    print(f"{found:<12} {time.monotonic() - began:5.0f} s  {mutant.name}", flush=True)
    return found


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/test mutants", description="Take guards away; tests must notice.")
    parser.add_argument("names", nargs="*", help="words of the names of mutants to run")
    parser.add_argument("--fast", action="store_true", help="only those whose tests need no server and no Java")
    return parser.parse_args(words)


def _chosen(mutant: Mutant, arguments: argparse.Namespace) -> bool:
    named = not arguments.names or any(word in mutant.name for word in arguments.names)
    return named and (mutant.is_fast or not arguments.fast)


if __name__ == "__main__":
    sys.exit(main())
