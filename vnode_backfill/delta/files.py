"""Describes the files of a Delta table as its log knows them.

A data file never changes. What changes is which of its rows count: a deletion vector names the positions of those that
are gone. So a file of a version is the pair (path, vector), never the path alone. Whoever removes a file or gives it
another vector must name the vector it has; a removal that names another one has no effect, and its rows appear twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TypeAlias

Value: TypeAlias = bool | int | float | Decimal | str | bytes | date | datetime


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """Where the positions of a file's deleted rows are stored, and how many they are.

    `storage` is `u` (a file of the table, `place` holds an encoded UUID after an optional folder), `p` (an absolute
    path) or `i` (`place` holds the vector itself). `size` is in bytes.
    """

    storage: str
    place: str
    offset: int | None
    size: int
    cardinality: int

    @property
    def id(self) -> str:
        """What distinguishes it from every other vector of the same file."""
        return f"{self.storage}{self.place}" + ("" if self.offset is None else f"@{self.offset}")

    def to_action(self) -> dict[str, str | int]:
        """The form it has in the log."""
        action: dict[str, str | int] = {"storageType": self.storage, "pathOrInlineDv": self.place}
        if self.offset is not None:
            action["offset"] = self.offset
        return {**action, "sizeInBytes": self.size, "cardinality": self.cardinality}

    @classmethod
    def from_action(cls, action: Mapping[str, object]) -> DeletionVector:
        offset = action.get("offset")
        return cls(
            str(action["storageType"]),
            str(action["pathOrInlineDv"]),
            None if offset is None else int(str(offset)),
            int(str(action["sizeInBytes"])),
            int(str(action["cardinality"])),
        )


@dataclass(frozen=True, slots=True)
class FileReceipt:
    """A data file that was written and is not visible yet; `stats` is the JSON its `add` action will carry.

    `vector` names rows of it that went while it was written.
    """

    path: str
    size: int
    rows: int
    stats: str = ""
    vector: DeletionVector | None = None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the table with the bounds of some columns; None where they are not known.

    `rows` counts the deleted ones too. The bounds are those of all rows, so with a vector they are no longer exact.
    `vector_bytes` is the size of all vectors together that were written for it so far.
    """

    path: str
    size: int
    rows: int | None
    low: tuple[Value | None, ...]
    high: tuple[Value | None, ...]
    vector: DeletionVector | None = None
    vector_bytes: int = 0

    @property
    def identity(self) -> tuple[str, str | None]:
        return self.path, None if self.vector is None else self.vector.id

    @property
    def live_rows(self) -> int | None:
        """How many of its rows count; None if the log does not say."""
        gone = 0 if self.vector is None else self.vector.cardinality
        return None if self.rows is None else self.rows - gone


@dataclass(frozen=True, slots=True)
class Masked:
    """A file of the table, with the vector it has, and the vector it gets: all rows that are gone, old ones
    included."""

    file: DataFile
    vector: DeletionVector
