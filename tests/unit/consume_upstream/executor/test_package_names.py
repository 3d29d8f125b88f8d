"""The package gives the names that a reader of RisingWave looks for, and imports nothing heavy until one is asked
for."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import consume_upstream

HEAVY = {"deltalake", "numpy", "pyarrow", "pymysql", "pyspark"}


def test_importing_the_package_imports_neither_spark_nor_arrow() -> None:
    code = f"import sys, consume_upstream; print(sorted({HEAVY} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("name", consume_upstream.__all__)
def test_each_name_is_that_of_its_module(name: str) -> None:
    found = getattr(consume_upstream, name)
    assert found is getattr(import_module(found.__module__), name)
    assert found.__module__.startswith("consume_upstream.")


def test_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'UpstreamStream'"):
        _ = consume_upstream.UpstreamStream  # type: ignore[attr-defined]
