"""Names tables of a source, and chooses them by patterns.

A name is written `database.table`. A part that holds a dot, a backtick, `*` or `?` is quoted with backticks, as in SQL;
inside backticks every character is itself, and a backtick is doubled. Outside of them `*` stands for any number of
characters and `?` for one. So every table has exactly one plain name, and no table can be mistaken for a pattern:

    shop.orders            one table
    shop.*                 every table of shop
    `my.shop`.orders       one table of the database my.shop
    shop.`a*b`             one table, whose name is a*b

Whether `Orders` and `orders` are one table is the server's rule (`lower_case_table_names`), so whoever compares says
which rule counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["NAME_FORM", "SYSTEM_SCHEMAS", "TableName", "TablePattern"]

NAME_FORM = "database.table, with backticks around a part that holds a dot, and * or ? outside of them for a pattern"
SYSTEM_SCHEMAS = frozenset({"mysql", "information_schema", "performance_schema", "sys"})
"""Databases of the server itself."""
_PART = r"`(?:[^`]|``)+`|[^.`]+"
_NAME = re.compile(rf"({_PART})\.({_PART})")
_PLAIN = re.compile(r"[^.`*?\s]+")


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """One table of the source, as the server spells it."""

    database: str
    table: str

    def __str__(self) -> str:
        """As a configuration names it; `TablePattern.parse` reads it back."""
        return f"{_quoted(self.database)}.{_quoted(self.table)}"

    def folded(self) -> TableName:
        """As a server compares names that does not know upper and lower case."""
        return TableName(self.database.lower(), self.table.lower())


@dataclass(frozen=True, slots=True)
class TablePattern:
    """A name, or a pattern of names; `text` is as it was written."""

    text: str
    database: str
    table: str

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        """Raises ValueError with what is allowed."""
        found = _NAME.fullmatch(text)
        if found is None:
            raise ValueError(f"must be {NAME_FORM}")
        return cls(text, found[1], found[2])

    @property
    def exact(self) -> TableName | None:
        """The one table that is named; None for a pattern."""
        return (
            None if self.databases_vary or _varies(self.table) else TableName(_name(self.database), _name(self.table))
        )

    @property
    def databases_vary(self) -> bool:
        """Whether the part of the database is a pattern."""
        return _varies(self.database)

    def matches(self, name: TableName, *, fold_case: bool) -> bool:
        """Whether `name` is the table, or one of those, that is meant."""
        # The part that differs most comes first: of many named tables most are of one database.
        return _matches(self.table, name.table, fold_case) and _matches(self.database, name.database, fold_case)

    def like(self) -> str:
        """A LIKE pattern, escaped by backslashes, of the databases that can hold what is meant."""
        if not self.databases_vary:
            return _escaped(_name(self.database))
        return "".join({"*": "%", "?": "_"}.get(letter) or _escaped(letter) for letter in self.database)


def _quoted(part: str) -> str:
    return part if _PLAIN.fullmatch(part) else "`" + part.replace("`", "``") + "`"


def _varies(part: str) -> bool:
    return not part.startswith("`") and ("*" in part or "?" in part)


def _name(part: str) -> str:
    return part[1:-1].replace("``", "`") if part.startswith("`") else part


def _matches(part: str, name: str, fold_case: bool) -> bool:
    own = part if _varies(part) else _name(part)
    if fold_case:
        own, name = own.lower(), name.lower()
    return _fits(own, name) if _varies(part) else own == name


def _fits(pattern: str, name: str) -> bool:
    """Match in at most len(pattern) * len(name) steps: only the last star is tried again, which is enough."""
    at = place = 0
    star, after = -1, 0
    while place < len(name):
        if at < len(pattern) and pattern[at] == "*":
            star, after, at = at, place, at + 1
        elif at < len(pattern) and pattern[at] in ("?", name[place]):
            at, place = at + 1, place + 1
        elif star >= 0:
            after += 1
            at, place = star + 1, after
        else:
            return False
    return not pattern[at:].strip("*")


def _escaped(text: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", text)
