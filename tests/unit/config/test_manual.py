"""conf/backfill.yaml is the manual: it has every key, no other, each with a sentence and its true default.

A key written out is required or shows its default; a key after a `#` without a space is not set unless somebody sets
it. Taking those signs away gives a file with every key there is, which is compared with the models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, create_model
from pydantic.fields import FieldInfo

from vnode_backfill.config.job import Config
from vnode_backfill.config.yaml_file import YamlValue, read_yaml, section_of

MANUAL = Path(__file__).parents[3] / "conf" / "backfill.yaml"
UNSET: tuple[object, ...] = (None, (), {})
ONE_TABLE = {("mysql", "database"), ("mysql", "table")}
"""Keys of one of two forms: the manual shows that form, and neither has a default."""
Documented = dict[str, YamlValue]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Documented:
    path = tmp_path_factory.mktemp("manual") / "complete.yaml"
    path.write_text(re.sub(r"(?m)^(\s*)#(?=[^\s#])", r"\1", MANUAL.read_text()))
    return read_yaml(path, {"AWS_SECRET_ACCESS_KEY": "x"})


@pytest.fixture(scope="module")
def active() -> Documented:
    return read_yaml(MANUAL, {})


def fields(model: type[BaseModel], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    for name, info in model.model_fields.items():
        yield (*at, name), info
        section = section_of(info.annotation)
        if section is not None:
            yield from fields(section, (*at, name))


def find(values: YamlValue, path: tuple[str, ...]) -> YamlValue:
    """The value at a path, the first item of a list for all of it; KeyError if there is none."""
    for part in path:
        values = values[0] if isinstance(values, list) else values
        if not isinstance(values, dict):
            raise KeyError(path)
        values = values[part]
    return values


def has(values: YamlValue, path: tuple[str, ...]) -> bool:
    try:
        find(values, path)
    except KeyError:
        return False
    return True


def default_of(info: FieldInfo) -> object:
    return info.get_default(call_default_factory=True, validated_data={})


FIELDS = [pytest.param(path, info, id=".".join(path)) for path, info in fields(Config)]


@pytest.mark.parametrize(("path", "info"), FIELDS)
def test_every_key_is_documented(complete: Documented, path: tuple[str, ...], info: FieldInfo) -> None:
    assert has(complete, path)


@pytest.mark.parametrize(("path", "info"), FIELDS)
def test_every_documented_default_is_the_true_one(
    complete: Documented, active: Documented, path: tuple[str, ...], info: FieldInfo
) -> None:
    if section_of(info.annotation) is not None or info.is_required() or path in ONE_TABLE:
        return
    default = default_of(info)
    if default in UNSET:
        assert not has(active, path)
    else:
        documented = find(complete, path)
        assert info.annotation is not None
        key = create_model("Key", value=(info.annotation, info))
        assert dict(key(value="null" if documented is None else documented))["value"] == default


@pytest.mark.parametrize(("path", "info"), FIELDS)
def test_every_key_says_in_a_sentence_what_it_is_and_whether_it_is_required(
    path: tuple[str, ...], info: FieldInfo
) -> None:
    sentences = re.findall(rf"(?m)^\s*#?(?:- )?{path[-1]}:.*?\s# (.+)$", MANUAL.read_text())
    assert sentences
    if info.is_required():
        assert any(sentence.startswith("required") for sentence in sentences)


def test_nothing_is_documented_that_does_not_exist(complete: Documented) -> None:
    known = {path for path, _ in fields(Config)}
    free = {("storage", "options"), ("spark",), ("sink", "iotdb", "rename"), ("sink", "iotdb", "types")}
    free |= {("mysql", "tables", "iotdb", "rename"), ("mysql", "tables", "iotdb", "types")}
    assert [path for path in paths_of(complete) if path not in known and path[:-1] not in free] == []


def paths_of(values: YamlValue, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(values, list):
        for item in values:
            yield from paths_of(item, at)
    elif isinstance(values, dict):
        for key, value in values.items():
            yield (*at, key)
            yield from paths_of(value, (*at, key))
