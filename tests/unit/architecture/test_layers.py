"""The contract of the layers speaks of every module: one that nobody has put in a layer may import what it likes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
PACKAGES = ("vnode_backfill", "consume_upstream", "progress")


def named(contract: str, key: str) -> set[str]:
    """The modules that one of the import contracts names."""
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (each for each in contracts if each["id"] == contract)
    return {name for line in found[key] for name in re.findall(r"[\w.]+", line)}


def layered() -> set[str]:
    return named("bands", "layers")


def modules() -> set[str]:
    """Every module by its name; the three packages themselves hold a docstring and a version."""
    paths = (path.relative_to(REPOSITORY) for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths}
    return names - set(PACKAGES)


def is_part_of(module: str, layer: str) -> bool:
    return module == layer or module.startswith(f"{layer}.")


def test_every_module_is_in_a_layer() -> None:
    layers = layered()
    assert {module for module in modules() if not any(is_part_of(module, layer) for layer in layers)} == set()


def test_every_layer_names_a_module_that_exists() -> None:
    assert layered() - modules() == set()


def test_every_module_beside_that_of_a_database_is_forbidden_to_know_which_database_it_is() -> None:
    forbidden = named("source", "source_modules") | named("source", "forbidden_modules")
    assert {module for module in modules() if not any(is_part_of(module, name) for name in forbidden)} == set()


def test_nobody_uses_what_deltalake_keeps_for_itself() -> None:
    paths = [path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")]
    assert [path.name for path in paths if "deltalake._" in path.read_text()] == []
