"""The words of `scripts/benchmark`, and what they become."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.__main__ import main, sink_key


@pytest.mark.parametrize(
    ("word", "expected"),
    [("retention=6h", ("retention", "6h")), ("compact_small_files=0", ("compact_small_files", 0)), ("a=b=c", ("a", "b=c"))],
)  # fmt: skip
def test_key_of_the_sink_has_the_type_that_yaml_gives_it(word: str, expected: tuple[str, object]) -> None:
    assert sink_key(word) == expected


def test_key_without_a_value_is_refused() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="merge is not KEY=VALUE"):
        sink_key("merge")


def test_case_that_does_not_exist_is_refused_with_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "folowing"]) == 2
    assert "unknown: folowing; there are snapshot," in capsys.readouterr().err
