"""Changes the columns of a Delta table, once per version of the definition.

What must be true: a reader sees the table with the old columns or with the new ones, never a mixture, and no row and no
value is lost on the way. A second call with the same version changes nothing. Why it is:

- Files that must be written again (`carry`) are written first and belong to nobody. One commit then removes every old
  file, adds the new ones, and sets the columns. It carries the application transaction (`schema`, version).
- The commit is made from the newest version. A file that a compaction has made meanwhile is written again, too. Rows
  that a vector has taken meanwhile are gone in the new file, by a vector of its own.
- Whoever has read files with the old columns, a fold in another process, finds them gone, or other columns in the log,
  and ends without effect (`compactor`).

    version 7: files a b, columns id x    → a' b' written, columns id x y
    version 8: a compaction: c for a and b
    commit from 7                         → overtaken; from 8: c' is written, a' and b' are swept up later
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock

from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.files import DataFile, FileReceipt
from vnode_backfill.delta.log.actions import Metadata
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.log.schema import with_columns, with_types
from vnode_backfill.delta.parquet import FileLayout
from vnode_backfill.delta.rows import NO_ROWS, Rows
from vnode_backfill.delta.vectors import read_vector, write_vectors
from vnode_backfill.sinks import TaskRunner
from vnode_backfill.sinks.delta.effect import Effect
from vnode_backfill.sinks.delta.follow.carry import CarriedFile, Carrier, Carry
from vnode_backfill.sinks.delta.follow.delete_rows import RowDeletion
from vnode_backfill.sinks.delta.reshape import lost_on_the_way
from vnode_backfill.sinks.delta.rewrite import REWRITE_IN_TASKS_BYTES, in_threads
from vnode_backfill.sinks.delta.target import OWN_COLUMNS, column_properties, columns_of, digest_of
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import OvertakenError, SinkUnavailableError
from vnode_backfill.words.schema_change import ColumnStep, TableShape

SCHEMA = "schema"
KEPT_COLUMNS = "vnodeBackfill.keptColumns"
"""A property of the table: the columns, as a JSON list, that the source has dropped and the table keeps."""
_TRIES = 5


@dataclass(frozen=True, slots=True, eq=False)
class ColumnChange:
    """The change of one table's columns to `shape`, as version `version` of its definition."""

    log: DeltaLog
    version: int
    shape: TableShape
    layout: FileLayout
    committing: RLock
    """Held while the commit is computed and made: no epoch and no compaction of this process commits meanwhile."""
    _done: dict[str, CarriedFile] = field(default_factory=dict)

    def follow(self, steps: Sequence[ColumnStep], tasks: TaskRunner | None) -> Effect:
        """Carry the table's rows over. What was committed; nothing if this version has landed before."""
        table = self.log.open()
        if self._landed(table):
            return Effect()
        self._write(table, Carry.of(columns_of(table), self.shape, steps), tasks)

        def effect_of(table: TableVersion) -> tuple[Metadata, Effect]:
            carry = Carry.of(columns_of(table), self.shape, steps)
            self._write(table, carry, tasks)
            effect = self._effect(table) if carry.writes_files else Effect()
            return self._metadata(table, dict(carry.before)), effect

        return self._commit(effect_of)

    def empty(self) -> Effect:
        """Take every row away. A second call changes nothing."""

        def effect_of(table: TableVersion) -> tuple[Metadata, Effect]:
            same = {name: name for name in self.shape.schema.names}
            return self._metadata(table, same), Effect(removed=self.log.files(table, ()))

        return self._commit(effect_of)

    def delete(self, deletion: RowDeletion, tasks: TaskRunner | None) -> Effect:
        """Take rows away. The columns stay. A second call changes nothing."""
        with self.committing:
            for _ in range(_TRIES):
                table = self.log.open()
                if self._landed(table):
                    return Effect()
                effect = deletion.effect(table, tasks)
                try:
                    self.log.commit(
                        table, SCHEMA, Epoch(self.version), effect.added, effect.removed, masked=effect.masked
                    )
                except OvertakenError:
                    continue
                return effect
        raise self._overtaken()

    def _landed(self, table: TableVersion) -> bool:
        return self.log.landed(table, SCHEMA, Epoch(self.version))

    def _commit(self, effect_of: Callable[[TableVersion], tuple[Metadata, Effect]]) -> Effect:
        with self.committing:
            for _ in range(_TRIES):
                table = self.log.open()
                if self._landed(table):
                    return Effect()
                metadata, effect = effect_of(table)
                protocol = with_types(table.protocol, metadata.schema_text)
                mark = SCHEMA, Epoch(self.version)
                try:
                    self.log.redefine_files(table, mark, (protocol, metadata), effect.added, effect.removed)
                except OvertakenError:
                    continue
                return effect
        raise self._overtaken()

    def _overtaken(self) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"the change to version {self.version} of the definition was overtaken by other commits {_TRIES} times"
        )

    def _metadata(self, table: TableVersion, before: dict[str, str]) -> Metadata:
        kept = json.dumps([column.name for column in self.shape.kept])
        made = with_columns(
            table.metadata, self.shape.schema, before, {**column_properties(self.layout), KEPT_COLUMNS: kept}
        )
        return replace(made, configuration={**made.configuration, OWN_COLUMNS: digest_of(made.schema_text)})

    def _write(self, table: TableVersion, carry: Carry, tasks: TaskRunner | None) -> None:
        """Write the files of this version again that were not yet; none if they can stay."""
        files = self.log.files(table, ()) if carry.writes_files else []
        new = [file for file in files if not self._is_done(file)]
        run = tasks if tasks and sum(file.size for file in new) > REWRITE_IN_TASKS_BYTES else in_threads
        carrier = Carrier(self.log.storage, carry, self.layout)
        self._done.update({each.file.path: each for each in run(carrier.run, new)})

    def _is_done(self, file: DataFile) -> bool:
        done = self._done.get(file.path)
        if done is None or done.file.identity == file.identity:
            return done is not None
        return done.late(self._gone(done.file), self._gone(file)) is not None

    def _gone(self, file: DataFile) -> Rows:
        return NO_ROWS if file.vector is None else read_vector(self.log.storage, file.vector)

    def _effect(self, table: TableVersion) -> Effect:
        files = self.log.files(table, ())
        arrived = [each for file in files for each in self._arrived(file)]
        kept = [(receipt, rows) for receipt, rows in arrived if rows.count < receipt.rows]
        vectors = iter(write_vectors(self.log.storage, [rows for _, rows in kept if rows.count]))
        added = [replace(receipt, vector=next(vectors)) if rows.count else receipt for receipt, rows in kept]
        return Effect(added, files)

    def _arrived(self, file: DataFile) -> list[tuple[FileReceipt, Rows]]:
        """The new files of a file, each with its rows that went since it was read."""
        done = self._done[file.path]
        if done.file.identity == file.identity:
            return [(receipt, NO_ROWS) for receipt in done.added]
        late = done.late(self._gone(done.file), self._gone(file))
        return list(lost_on_the_way(done.added, late or NO_ROWS))
