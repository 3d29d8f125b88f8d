"""Reads a YAML file as plain values, and reports every mistake in it.

What must be true: nothing in the file is overlooked or guessed. A key written twice, a tag, a second document or a
variable that is not set is refused with its path. All mistakes are reported at once, because a person who starts a job
on a cluster wants one round, not seven. Scalars follow YAML 1.2: only `true` and `false` are booleans (`off` is text),
digits are decimal, and dates stay text, so that no value changes its type unnoticed.

`${NAME}` and `${NAME:-default}` are replaced inside scalars after the YAML was parsed: a variable's content can never
add keys or lines. An unquoted scalar gets its type from the result (`port: ${PORT}` is a number), a quoted one stays
text. `$${` is a literal `${`. An empty variable counts as not set.

Reading ends whatever the file holds: its length, its nesting and the number of its values are bounded, those that
aliases repeat included. A message never shows text of the file that may be a secret: of a syntax error it names the
line and the column only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import TypeAlias, get_args

import yaml
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from vnode_backfill.config.small_files import read_small_text
from vnode_backfill.words.errors import ConfigError
from vnode_backfill.words.units import format_duration

YamlValue: TypeAlias = "str | int | float | bool | list[YamlValue] | dict[str, YamlValue] | None"
Location: TypeAlias = tuple[int | str, ...]

_NULL = re.compile(r"|~|null|Null|NULL")
_INTEGER = re.compile(r"[-+]?[0-9]{1,40}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_REFERENCE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_DEFAULT_TAGS = {
    yaml.ScalarNode: "tag:yaml.org,2002:str",
    yaml.SequenceNode: "tag:yaml.org,2002:seq",
    yaml.MappingNode: "tag:yaml.org,2002:map",
}
_LONGEST_FILE = 256 * 1024
_DEEPEST = 32
_MOST_VALUES = 20_000
_MOST_LISTED = 20
_LONGEST_SHOWN = 80
# Quoted parts of a message of the YAML library: names of tokens in angle brackets and signs are the library's, other
# words are the file's.
_QUOTED = re.compile(r"""\s?(?:'(<[^']*|[],}:])'|'[^']*'|"[^"]*")""")
# A password before a host, whatever letters it has (keys of S3 hold `/`), or a token among the parameters of an
# address.
_CREDENTIALS = re.compile(r":(?!//)[^@]+@|[?&;][\w-]+=")
# What people put there may be a secret, so a mistake beside it must not print it.
_HIDDEN = frozenset({"storage", "spark", "password", "password_env", "password_file"})
_WRONG_TYPE = {
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "int_type": "must be a whole number",
    "string_type": "must be text; quote it if it looks like a number",
    "tuple_type": "must be a list",
    "mapping_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong at one place; printed it starts with the YAML path."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path} {self.text}"


def read_yaml(path: Path, env: Mapping[str, str]) -> dict[str, YamlValue]:
    """Read one YAML mapping with `env` substituted; a file that is not exactly that raises ConfigError."""
    root = _compose(path)
    reader = _Reader(env)
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path} must hold a mapping of keys to values", hint=_HINT)
    values = reader.mapping(root, ())
    if reader.mistakes:
        raise config_error(reader.mistakes, path)
    return values


def override(values: Mapping[str, YamlValue], overrides: Mapping[str, object]) -> dict[str, object]:
    """Return `values` with each dotted path replaced, as command line flags do; a None is a flag that was not given."""
    result: dict[str, object] = dict(values)
    for path, value in overrides.items():
        if value is not None:
            _place(result, path.split("."), value)
    return result


def explain(error: ErrorDetails, root: type[BaseModel]) -> list[Mistake]:
    """Say in the file's words what was found; `root` is the model of the whole file."""
    location, path = error["loc"], yaml_path(error["loc"])
    kind, value = error["type"], error["input"]
    if kind == "missing":
        return [Mistake(path, "is missing; it has no default")]
    if kind == "extra_forbidden":
        return [Mistake(path, _unknown_key(str(location[-1]), _keys_at(root, location[:-1])))]
    if kind == "pairs":
        return [Mistake(at, text) for at, text in error["ctx"]["pairs"]]
    if kind == "default_factory_not_called":
        return []  # The default depends on a key whose mistake is reported already.
    shown = _show(value) if _HIDDEN.isdisjoint(location) else "is (hidden)"
    return [Mistake(path, f"{shown}; {_demand(error)}")]


def config_error(mistakes: Sequence[Mistake], path: Path | str) -> ConfigError:
    """Make one error of all mistakes: the first is the message, the whole list the detail."""
    if len(mistakes) == 1:
        return ConfigError(str(mistakes[0]), detail=f"in {path}", hint=_HINT)
    listed = "".join(f"\n    {mistake}" for mistake in mistakes[:_MOST_LISTED])
    more = f"\n    and {len(mistakes) - _MOST_LISTED:,} more" if len(mistakes) > _MOST_LISTED else ""
    return ConfigError(str(mistakes[0]), detail=f"{len(mistakes):,} mistakes in {path}:{listed}{more}", hint=_HINT)


def yaml_path(location: Location) -> str:
    """Print `("limits", "throttle", "queries", 0, "max")` as `limits.throttle.queries[0].max`."""
    text = ""
    for part in location:
        name = f"[{part}]" if isinstance(part, int) else _clipped(part if part.isprintable() else json.dumps(part))
        text += f".{name}" if text and isinstance(part, str) else name
    return text


def section_of(annotation: object) -> type[BaseModel] | None:
    """Find the model in `Tls`, `Specific | None` or `tuple[Check, ...]`; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for item in get_args(annotation) if (found := section_of(item)) is not None), None)


_HINT = "conf/backfill.yaml documents every key, its default and its unit"


def _compose(path: Path) -> yaml.Node:
    try:
        text = read_small_text(path, _LONGEST_FILE)
        _check_extent(path, text)
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.BaseLoader)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read", detail=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text", detail=f"{error.reason} at byte {error.start}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML", detail=_syntax_fault(error), hint=_HINT) from None
    if root is None:
        raise ConfigError(f"{path} is empty", hint=_HINT)
    return root


def _check_extent(path: Path, text: str) -> None:
    """Refuse a file on which the recursive composer would end in a RecursionError, or would take minutes."""
    depth = 0
    for values, event in enumerate(yaml.parse(text, Loader=yaml.BaseLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            line = event.start_mark.line + 1
            raise ConfigError(f"{path} is nested more than {_DEEPEST} levels deep in line {line}", hint=_HINT)
        if values > _MOST_VALUES:
            raise ConfigError(f"{path} holds more than {_MOST_VALUES:,} values", hint=_HINT)


def _syntax_fault(error: yaml.YAMLError) -> str:
    """Where and what, never the line itself: it may hold a secret, and so may a word that the library quotes."""
    if isinstance(error, yaml.MarkedYAMLError):
        what = ", ".join(
            _QUOTED.sub(lambda found: found[0] if found[1] else "", part)
            for part in (error.context, error.problem)
            if part
        )
        mark = error.problem_mark or error.context_mark
        return f"{what}, in line {mark.line + 1}, column {mark.column + 1}" if mark else what
    if isinstance(error, yaml.reader.ReaderError):
        return f"the character at position {error.position + 1} is not allowed in YAML"
    return "it cannot be parsed"


@dataclass(slots=True)
class _Reader:
    """Turns parsed nodes into values and gathers mistakes on the way."""

    env: Mapping[str, str]
    mistakes: list[Mistake] = field(default_factory=list)
    _open: list[yaml.Node] = field(default_factory=list)
    _values: int = 0

    def mapping(self, node: yaml.MappingNode, at: Location) -> dict[str, YamlValue]:
        values: dict[str, YamlValue] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
            if key in values:
                self._refuse((*at, key), f"is given twice; again in line {key_node.start_mark.line + 1}")
            values[key] = self._value(value_node, (*at, key))
        return values

    def _value(self, node: yaml.Node, at: Location) -> YamlValue:
        self._values += 1
        if node in self._open:
            self._refuse(at, "is an alias of what holds it; write the value out")
            return None
        if len(self._open) >= _DEEPEST or self._values > _MOST_VALUES:
            raise ConfigError(
                f"{yaml_path(at)} repeats too much by aliases",
                detail=f"With what they repeat, a file may hold {_MOST_VALUES:,} values, {_DEEPEST} levels deep.",
                hint="Write the values out instead of repeating them by aliases.",
            )
        if node.tag != _DEFAULT_TAGS[type(node)]:
            self._refuse(at, "has a tag; tags are not allowed, and text that begins with ! needs quotes")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, at)
        self._open.append(node)
        if isinstance(node, yaml.MappingNode):
            value: YamlValue = self.mapping(node, at)
        else:
            value = [self._value(item, (*at, number)) for number, item in enumerate(node.value)]
        self._open.pop()
        return value

    def _scalar(self, node: yaml.ScalarNode, at: Location) -> YamlValue:
        text = _VARIABLE.sub(lambda found: self._variable(found, at), node.value)
        return text if node.style else _plain(text)

    def _variable(self, found: re.Match[str], at: Location) -> str:
        if found[0] == "$${":
            return "${"
        reference = _REFERENCE.fullmatch(found[1]) if found[0].endswith("}") else None
        if reference is None:
            self._refuse(
                at,
                "holds ${ that does not begin a reference; allowed: ${NAME}, ${NAME:-default}, $${ for a literal ${",
            )
            return ""
        name, default = reference.groups()
        value = self.env.get(name) or default
        if value is None:
            self._refuse(at, f"needs the environment variable {name}, which is not set or empty")
        return value or ""

    def _refuse(self, at: Location, text: str) -> None:
        self.mistakes.append(Mistake(yaml_path(at), text))


def _plain(text: str) -> YamlValue:
    if _NULL.fullmatch(text):
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _place(values: dict[str, object], parts: Sequence[str], value: object) -> None:
    """Put `value` at `parts`, on copies; a value that is not a mapping stays, so that this mistake is reported."""
    name, *rest = parts
    if not rest:
        values[name] = value
        return
    inner = values.get(name) or {}
    if isinstance(inner, Mapping):
        values[name] = copy = dict(inner)
        _place(copy, rest, value)


def _keys_at(root: type[BaseModel], location: Location) -> list[str]:
    section: type[BaseModel] | None = root
    for part in location:
        if isinstance(part, str) and section is not None:
            section = section_of(section.model_fields[part].annotation)
    return [] if section is None else list(section.model_fields)


def _unknown_key(key: str, allowed: Sequence[str]) -> str:
    if key == "password":
        return "is not allowed: a password is never in the file; use password_env or password_file"
    close = get_close_matches(key, allowed, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"is not a known key; {meant}allowed: {', '.join(allowed)}"


def _show(value: object) -> str:
    if value is None:
        return "is missing"
    if isinstance(value, Mapping):
        return f"holds {_clipped(', '.join(map(str, value))) or 'nothing'}"
    if isinstance(value, str) and _CREDENTIALS.search(value):
        return "is (hidden)"
    if isinstance(value, (bool, int, float, str)):
        text = json.dumps(value, ensure_ascii=not str(value).isprintable())
        return f"is {_clipped(text)}"
    if isinstance(value, timedelta):
        return f"is {format_duration(value)}"
    if isinstance(value, (list, tuple)):
        return "is a list" if value else "is empty"
    return f"is {_clipped(str(value))}"


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def _demand(error: ErrorDetails) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "enum":
        return f"allowed: {error['ctx']['expected']}".replace("'", "").replace(" or ", ", ")
    return _WRONG_TYPE.get(error["type"], error["msg"])
