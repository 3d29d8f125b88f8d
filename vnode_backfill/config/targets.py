"""Finds the target of each table of a job, and the tables whose targets are in each other's way.

A target is a folder (of a Delta table, or of dead letters), or the devices or the table of IoTDB. Two tables must not
have one target, and no folder may be inside another: vacuuming one table would delete the files of the other. Names of
IoTDB's tables are compared without upper and lower case, as that server does; device paths without the names of their
columns, because only values tell devices apart.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vnode_backfill.config.iotdb import TABLE_NAME, IotdbModel
from vnode_backfill.config.table_entries import IotdbTableConfig, TableEntry
from vnode_backfill.config.templates import filled_folder, filled_series
from vnode_backfill.words.table_name import TableName

if TYPE_CHECKING:
    from vnode_backfill.config.job import SinkConfig

__all__ = ["Clash", "Template", "clashes_of", "filled", "filled_database", "folder_of", "templates_of"]


@dataclass(frozen=True, slots=True)
class Template:
    """A place that depends on the table: `key` is that of the sink, `own` says that the table's entry gives it."""

    key: str
    text: str
    own: bool
    is_folder: bool = True


@dataclass(frozen=True, slots=True)
class Clash:
    """A table that cannot be copied because another one has its target, or a folder above or below it."""

    table: TableName
    other: TableName
    target: str

    def __str__(self) -> str:
        return f"{self.table} and {self.other} have one target, or one inside the other's: {self.target}"


def templates_of(sink: SinkConfig, entry: TableEntry) -> tuple[Template, ...]:
    """The places of a table of this entry that must differ from those of every other table."""
    if sink.delta is not None:
        return (_template("path", sink.delta.path, entry.delta.path if entry.delta else None),)
    iotdb, own = sink.iotdb, entry.iotdb or IotdbTableConfig()
    if iotdb is None:
        return ()
    if iotdb.model is IotdbModel.TREE:
        series = _template("device", iotdb.device or "", own.device, is_folder=False)
    else:
        series = _template("table", iotdb.table or "{table}", own.table, is_folder=False)
    letters = _template("dead_letter", iotdb.dead_letter or "", own.dead_letter)
    return (series, letters) if letters.text else (series,)


def filled(template: Template, name: TableName) -> str:
    """The place of one table."""
    if template.is_folder:
        return filled_folder(template.text, name)
    place = filled_series(template.text, name)
    # A name that begins with a digit, or is a word of the server's own.
    return place if template.key == "device" or re.fullmatch(TABLE_NAME, place) else f"_{place}"


def filled_database(template: str, name: TableName) -> str:
    """The database of IoTDB's table model in which a table is kept."""
    return filled(Template("database", template, own=False, is_folder=False), name)


def clashes_of(sink: SinkConfig, entries: Mapping[TableName, TableEntry]) -> tuple[Clash, ...]:
    """Tables whose target an earlier one has. Those that are named come before those that a pattern matches."""
    taken = _Taken({}, {})
    found = []
    for name in sorted(entries, key=lambda name: (entries[name].table.exact is None, name)):
        for kind, place in _places(sink, entries[name], name):
            other = taken.holder(kind, place)
            if other is not None and other != name:
                found.append(Clash(name, other, place))
                break
        else:
            for kind, place in _places(sink, entries[name], name):
                taken.take(kind, place, name)
    return tuple(found)


def folder_of(path: str) -> str:
    """A folder in one spelling, with a slash at its end."""
    scheme, sign, rest = path.rpartition("://")
    return f"{scheme}{sign}{posixpath.normpath(rest).rstrip('/')}/"


def _template(key: str, text: str, own: str | None, *, is_folder: bool = True) -> Template:
    return Template(key, own or text, own is not None, is_folder)


def _places(sink: SinkConfig, entry: TableEntry, name: TableName) -> Iterable[tuple[str, str]]:
    """Each target as its kind and its one spelling."""
    for template in templates_of(sink, entry):
        place = filled(template, name)
        if template.is_folder:
            yield "folder", folder_of(place)
        elif template.key == "device":
            yield "device", re.sub(r"\{[^{}]*\}", "{}", place)
        elif sink.iotdb is not None:
            database = (entry.iotdb and entry.iotdb.database) or sink.iotdb.database or ""
            yield "table", f"{filled_database(database, name)}.{place}".lower()


@dataclass(frozen=True, slots=True)
class _Taken:
    """Targets that tables have, and the folders that are above one of them."""

    places: dict[tuple[str, str], TableName]
    above: dict[str, TableName]

    def holder(self, kind: str, place: str) -> TableName | None:
        """The table that has this target, or one above or below it."""
        if kind != "folder":
            return self.places.get((kind, place))
        held = (self.places.get(("folder", folder)) for folder in _self_and_above(place))
        return self.above.get(place) or next((name for name in held if name is not None), None)

    def take(self, kind: str, place: str, name: TableName) -> None:
        self.places.setdefault((kind, place), name)
        if kind == "folder":
            for folder in _self_and_above(place):
                self.above.setdefault(folder, name)


def _self_and_above(folder: str) -> Iterable[str]:
    """`/lake/shop/`, `/lake/` and `/`."""
    return (folder[: found.end()] for found in re.finditer("/", folder))
