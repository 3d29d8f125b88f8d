"""Holds how the table's definition changed since the job was created, and how far the sink has followed.

A definition is valid for a stretch of the log. The epoch that meets a statement captures the log up to it. The commit
that ends this epoch moves the job to the point after the statement and holds the new version, so every epoch's changes
have one definition. Captured is not applied: the sink follows by an order of its own (`ChangeSink`), which may take
longer than an epoch. Until it is done, changes are merged up to the point before the statement and no range is read.

    offset  statement              version  captured since  the sink
    100     ALTER TABLE … ADD c    1        epoch 12        has it
    180     ALTER TABLE … DROP b   2        epoch 15        is being changed: merges end at 180

A version is kept while the buffer may hold changes of the version before it. Definitions are not small, and every
commit holds all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from consume_upstream.log.offset import CdcOffset
from consume_upstream.log.statement import FoundStatement
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError
from vnode_backfill.words.lift import Lifts
from vnode_backfill.words.partitioning import Partitioning
from vnode_backfill.words.schema_change import ColumnStep, TableShape

_NOTES_KEPT = 20


@dataclass(frozen=True, slots=True)
class DefinitionVersion:
    """The table from `after` on. Changes captured in epoch `since` and later have this shape.

    `steps` lead here from the version before; `emptied` says that the statement left no row.
    """

    number: int
    before: CdcOffset
    after: CdcOffset
    since: Epoch
    statement: str
    shape: TableShape
    steps: tuple[ColumnStep, ...] = ()
    emptied: bool = False
    gtid: str = ""
    """The statement's own transaction, where the server numbers them."""


@dataclass(frozen=True, slots=True)
class StatementNote:
    """What became of a statement, for those who look."""

    at: CdcOffset
    statement: str
    effect: str


@dataclass(frozen=True, slots=True)
class CopyNote:
    """Why this copy of the table was begun in place of another, when, and what readers see until it is live.

    `statement` is the one at `offset` that made it necessary. Both are empty where somebody asked for the copy.
    """

    since: str
    reason: str
    readers: str
    offset: str = ""
    statement: str = ""


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The versions that still matter, oldest first, and the number of the one that the sink holds.

    Version 0 is the definition that the job was created with.
    """

    versions: tuple[DefinitionVersion, ...] = ()
    in_sink: int = 0
    notes: tuple[StatementNote, ...] = ()
    ended: str = ""
    """How the table ended, where it is gone: `dropped at OFFSET`."""
    partitioning: Partitioning | None = None
    """How the table is partitioned after the newest statement; None if no statement has changed that."""
    copy: CopyNote | None = None
    """Why this copy was begun; None of a job's first."""
    cascaded: CdcOffset | None = None
    """Up to where changes of other tables have changed rows of this one outside the log: another copy has to follow."""

    @property
    def newest(self) -> int:
        return self.versions[-1].number if self.versions else self.in_sink

    @property
    def pending(self) -> DefinitionVersion | None:
        """The next version that the sink has to follow to."""
        return next((version for version in self.versions if version.number > self.in_sink), None)

    def numbered(self, number: int) -> DefinitionVersion | None:
        """The version with this number; None for the one that the job was created with."""
        found = next((version for version in self.versions if version.number == number), None)
        if found is None and number:
            raise LawBrokenError(f"version {number} of the definition is not known any more")
        return found

    def shape_at(self, number: int, created_with: TableDefinition) -> TableShape:
        """What the target holds at this version."""
        found = self.numbered(number)
        return found.shape if found else TableShape(created_with)

    def shape_in_sink(self, created_with: TableDefinition) -> TableShape:
        return self.shape_at(self.in_sink, created_with)

    def lifts(self) -> Lifts:
        """How changes of earlier epochs become rows of the version that the sink holds."""
        held = (version for version in self.versions if version.number <= self.in_sink)
        return Lifts(tuple((version.since, version.steps) for version in held))

    def with_version(self, version: DefinitionVersion) -> SchemaState:
        if version.number != self.newest + 1:
            raise LawBrokenError(f"version {version.number} of the definition cannot follow {self.newest}")
        return replace(self, versions=(*self.versions, version))

    def noted(self, found: FoundStatement, effect: str) -> SchemaState:
        """A statement that is met again, because the job had stopped before it, is noted once."""
        earlier = (note for note in self.notes if note.at != found.before)
        notes = (*earlier, StatementNote(found.before, found.text, effect))
        return replace(self, notes=notes[-_NOTES_KEPT:])

    def with_cascade(self, at: CdcOffset | None) -> SchemaState:
        """Rows were changed outside the log by what is at or below this offset; None changes nothing."""
        if at is None or (self.cascaded is not None and self.cascaded >= at):
            return self
        return replace(self, cascaded=at)

    def without_old(self, applied: CdcOffset) -> SchemaState:
        """Forget versions that no change above `applied` can have, except the one that the sink holds."""
        held = [v for v in self.versions if v.number <= self.in_sink and v.after <= applied]
        old = {version.number for version in held[:-1]}
        return replace(self, versions=tuple(v for v in self.versions if v.number not in old))


NO_CHANGES = SchemaState()
"""Of a job whose table is as it was when the job was created."""
