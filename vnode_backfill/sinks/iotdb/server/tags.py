"""Names a device of the table model by the condition over its tags that selects it, and reads such a name.

What must be true: two rows have one device only if their tag columns have the same text or are both NULL, and the
condition selects that device and no other, whatever the texts hold. Why it is: a text is a literal in quotes with its
own quotes doubled, and only a quote ends one (tried with quotes, backslashes, line feeds, NUL, `*` and `%`). NULL is
asked for by IS NULL, and differs from the empty text.

    tags [region, sensor]     eu, 7         "region" = 'eu' AND "sensor" = '7'
                              it's, NULL    "region" = 'it''s' AND "sensor" IS NULL

A question with `= '*'` is answered with other devices too (seen with 2.0.1-beta; a deletion does not make this
mistake), so the caller must look at the answer. The server folds names to lower case, so names are in lower case here.
Everything here is pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vnode_backfill.config.iotdb import TABLE_NAME, IotdbSinkConfig
from vnode_backfill.words.errors import ConfigError

_VALUE = r"(?: = '((?:[^']|'')*)'| IS (NULL))"


def identifier(name: str) -> str:
    """A name as it is written in a statement."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Tag:
    """A column of the source as a tag."""

    name: str
    column: str


@dataclass(frozen=True, slots=True)
class TagNaming:
    """The devices of one table."""

    takes_null = True

    database: str
    table: str
    tags: tuple[Tag, ...]

    @classmethod
    def of(cls, config: IotdbSinkConfig, source_table: str) -> TagNaming:
        """Raises ConfigError if the source's table has a name that the target's cannot have."""
        table = config.table or source_table
        if re.fullmatch(TABLE_NAME, table) is None:
            raise ConfigError(
                f"sink.iotdb.table: the server cannot write to a table called {table!r}",
                detail="Without this key the table is called as the source's.",
                hint="Give a name of letters, digits and _ as `sink.iotdb.table`.",
            )
        tags = tuple(Tag(config.rename.get(column, column).lower(), column) for column in config.tags)
        return cls((config.database or "").lower(), table.lower(), tags)

    @property
    def text(self) -> str:
        return f"{self.place} of {', '.join(tag.name for tag in self.tags)}"

    @property
    def place(self) -> str:
        """The table as statements name it."""
        return f"{identifier(self.database)}.{identifier(self.table)}"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(tag.column for tag in self.tags)

    @property
    def told(self) -> frozenset[str]:
        return frozenset(self.columns)

    def device(self, values: Sequence[str | None]) -> str:
        """The condition that selects the device of a row whose `columns` have these texts."""
        return " AND ".join(map(_condition, self.tags, values))

    def values_of(self, device: str) -> dict[str, str | None] | None:
        """The texts of the tag columns; None if it is not a device of these tags."""
        wanted = " AND ".join(re.escape(identifier(tag.name)) + _VALUE for tag in self.tags)
        found = re.fullmatch(wanted, device, re.DOTALL)
        if found is None:
            return None
        texts = (None if text is None else text.replace("''", "'") for text in found.groups()[::2])
        return dict(zip(self.columns, texts, strict=True))


def _condition(tag: Tag, value: str | None) -> str:
    if value is None:
        return f"{identifier(tag.name)} IS NULL"
    return f"{identifier(tag.name)} = '{value.replace(chr(39), chr(39) * 2)}'"
