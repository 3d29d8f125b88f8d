"""Makes the path of a device from a row's values, so that any text is safe, and takes it apart again.

What must be true: two rows have one path only if their device columns have the same text; no value can leave its node,
match as a wildcard, or be refused by the server for the way it is spelt. Why it is:

- Every node is quoted with backticks, and backticks in it are doubled. In quotes, dots, spaces, `*`, the empty text and
  nodes of digits have no special meaning to the server (tried).
- The server refuses, even quoted, a tab, a line feed, and the names `time` and `timestamp` in any case; with a device
  called `root` its own listings fail. Those are written as `%09`, `%0A`, `%74ime`, and a percent sign in a value as
  `%25`, so that nothing else reads like them.

    template root.shop.{region}.s{sensor}      eu, 7         root.`shop`.`eu`.`s7`
                                               `a.b`, 7      root.`shop`.```a.b```.`s7`
                                               time, 1       root.`shop`.`%74ime`.`s1`

The values of two columns in one node, `{a}{b}`, cannot be read back from it; see `DeviceTemplate.told`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

Nodes = tuple[str, ...]

_REFUSED = {"time", "timestamp", "root"}
_ESCAPED = re.compile(r"[%\t\n]")
_DATABASE = re.compile(r"[A-Za-z0-9_\u4e00-\u9fff]+")
_PARTS = re.compile(r"\{([^{}]+)\}|([^.{}]+)|(\.)")
_STORED_NODE = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")


def quoted(node: str) -> str:
    """A node or measurement as it is written in a path or statement."""
    return "`" + node.replace("`", "``") + "`"


def path_of(nodes: Nodes) -> str:
    """The path in the one spelling used here; the first node is `root`."""
    return ".".join((nodes[0], *map(quoted, nodes[1:])))


def split_path(path: str) -> Nodes:
    """The nodes of a path in any spelling the server uses."""
    nodes: list[str] = []
    place = 0
    while place <= len(path):
        found = _STORED_NODE.match(path, place)
        if found is None:
            raise ValueError(f"{path!r} is not a path")
        nodes.append(found[1].replace("``", "`") if found[1] is not None else found[2])
        place = found.end() + 1
    return tuple(nodes)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a node: fixed text, or the value of a column."""

    text: str
    is_column: bool


@dataclass(frozen=True, slots=True)
class DeviceTemplate:
    """A device path with columns in it; `nodes` are those after `root`."""

    takes_null = False

    text: str
    nodes: tuple[tuple[Part, ...], ...]

    @classmethod
    def parse(cls, text: str) -> DeviceTemplate:
        nodes: list[list[Part]] = [[]]
        for found in _PARTS.finditer(text):
            if found[3]:
                nodes.append([])
            else:
                nodes[-1].append(Part(found[1] or found[2], is_column=found[1] is not None))
        return cls(text, tuple(tuple(node) for node in nodes[1:]))

    @property
    def columns(self) -> tuple[str, ...]:
        """Each column once, in order of its first use."""
        return tuple(dict.fromkeys(part.text for node in self.nodes for part in node if part.is_column))

    @property
    def told(self) -> frozenset[str]:
        """The columns whose values can be read from the path: alone in a node, beside fixed text at most."""
        alone = ([part.text for part in node if part.is_column] for node in self.nodes)
        return frozenset(columns[0] for columns in alone if len(columns) == 1)

    @property
    def pattern(self) -> str:
        """What matches every device of the template, and maybe others: ask `values_of`."""
        fixed = (any(part.is_column for part in node) for node in self.nodes)
        texts = ("".join(part.text for part in node) for node in self.nodes)
        return ".".join(["root", *("*" if has else quoted(text) for has, text in zip(fixed, texts, strict=True))])

    @property
    def database(self) -> str | None:
        """The node below `root`, which names the database; None if it depends on a column or cannot name one."""
        first = self.nodes[0]
        name = "".join(part.text for part in first)
        return name if not any(part.is_column for part in first) and _DATABASE.fullmatch(name) else None

    def device(self, values: Sequence[str | None]) -> str:
        """The path of the device of a row whose `columns` have these texts."""
        by_name = {name: value or "" for name, value in zip(self.columns, values, strict=True)}
        nodes = ("".join(escaped(by_name[p.text]) if p.is_column else p.text for p in node) for node in self.nodes)
        return path_of(("root", *map(_not_refused, nodes)))

    def values_of(self, device: str) -> dict[str, str | None] | None:
        """The texts of `told` columns in a device's path, or None if it is not a device of this template."""
        nodes = split_path(device)
        if len(nodes) != len(self.nodes) + 1:
            return None
        values: dict[str, str | None] = {}
        for node, parts in zip(nodes[1:], self.nodes, strict=True):
            wanted = "".join("(.*)" if part.is_column else re.escape(part.text) for part in parts)
            found = re.fullmatch(wanted, _restored(node), re.DOTALL)
            if found is None:
                return None
            columns = [part.text for part in parts if part.is_column]
            if len(columns) == 1:
                values[columns[0]] = unquote(found[1])
        return values


def escaped(value: str) -> str:
    """A value without the characters that the server refuses in names."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", value)


def _not_refused(node: str) -> str:
    return f"%{ord(node[0]):02X}{node[1:]}" if node.casefold() in _REFUSED else node


def _restored(node: str) -> str:
    """Undo `_not_refused` only: the columns' own escapes stay until the node is taken apart."""
    whole = unquote(node)
    return whole if whole.casefold() in _REFUSED else node
