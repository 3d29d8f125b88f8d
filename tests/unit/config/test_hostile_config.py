"""A hostile value at any key of a job's file ends `plan` with exit code 2 and one clear message.

Nothing is written, and no secret is shown.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile_values import FILES, VALUES, Bench, Case, case, keys

_SAMPLED = 8


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.close()


def check(bench: Bench, cases: list[Case]) -> None:
    faults = [(fault, each.at, each.text[-400:]) for each in cases if (fault := bench.judge(each))]
    shown = "\n".join(f"{'.'.join(at[0]) if at else 'file'}: {fault}\n{text!r}" for fault, at, text in faults[:20])
    assert not faults, f"{len(faults)} of {len(cases)}:\n{shown}"


def test_the_file_that_values_are_put_into_is_a_good_one(bench: Bench) -> None:
    for key, value in (
        (("job",), "orders"),
        (("sink", "iotdb", "timeout"), "1s"),
        (("mysql", "cdc", "specific", "pos"), "4"),
    ):
        code, told = bench.plan(case((key, value)))
        assert (code, "while connecting to" in told) == (1, True), told


@pytest.mark.timeout(180)
def test_a_hostile_value_at_any_key_is_refused_or_harmless(bench: Bench) -> None:
    chosen = random.Random(20)
    check(bench, [case((key, value)) for key in keys() for value in chosen.sample(VALUES, _SAMPLED)])


@pytest.mark.timeout(180)
def test_a_hostile_file_is_refused(bench: Bench) -> None:
    check(bench, [Case(text) for text in FILES])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_hostile_value_at_every_key_and_pairs_of_them(bench: Bench) -> None:
    seed = int(os.environ.get("HOSTILE_SEED") or random.SystemRandom().randrange(2**32))
    print(f"HOSTILE_SEED={seed}")
    chosen, known = random.Random(seed), list(keys())
    check(bench, [case((key, value)) for key in known for value in VALUES])
    pairs = [(chosen.sample(known, 2), chosen.choices(VALUES, k=2)) for _ in range(3000)]
    check(bench, [case(*zip(two, values, strict=True)) for two, values in pairs])
