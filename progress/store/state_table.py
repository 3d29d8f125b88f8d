"""One Delta table of a job's state, written without a JVM and never by two at once.

`replace` is the write that everything rests on: it takes the handle whose content was looked at, and lands only if
nobody wrote since. `deltalake` is asked to try once, so that it never merges our write with somebody else's; and
afterwards the table is opened again, because a handle that was left alone for longer than the log is kept may write an
old version number into the gap, which nobody will ever read. A write that is not found on top has not happened.

    handle at version 7   replace → 8        returned: the handle at 8
    handle at version 7   replace → refused  `OvertakenError`: somebody wrote 8 before
    handle at version 7   replace → 8, and the table is at 900 already: `OvertakenError`

Old files and log entries are kept for a while (`Retention`), so that a reader who opened the table a moment ago can
finish.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import pyarrow as pa
from deltalake import ColumnProperties, CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from vnode_backfill.delta.storage import Storage
from vnode_backfill.words.errors import (
    BuriedError,
    OvertakenError,
    SinkError,
    SinkUnavailableError,
    StateUnavailableError,
)

_FILES = WriterProperties(
    compression="ZSTD", compression_level=1, default_column_properties=ColumnProperties(dictionary_enabled=False)
)
"""Ordinals of ranges are all different and in order: a dictionary of them doubles what each commit writes."""
_COLOURS = re.compile("\x1b\\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what was replaced is kept, and after how many commits it is looked for."""

    hours: int = 1
    commits: int = 100
    log_checkpoint_commits: int = 25

    @property
    def configuration(self) -> dict[str, str | None]:
        return {
            "delta.checkpointInterval": str(self.log_checkpoint_commits),
            "delta.logRetentionDuration": f"interval {self.hours} hours",
            "delta.deletedFileRetentionDuration": f"interval {self.hours} hours",
            "delta.enableExpiredLogCleanup": "true",
            # Nobody filters these tables by file; statistics would only make the log longer.
            "delta.dataSkippingNumIndexedCols": "0",
        }


DEFAULT_RETENTION = Retention()


@dataclass(frozen=True, slots=True)
class StateTable:
    """A table at `uri`, which need not exist yet; it is made by the first write."""

    uri: str
    schema: pa.Schema
    options: Mapping[str, str]
    retention: Retention

    def open(self) -> DeltaTable | None:
        """The table as it is now, or None if there is none."""
        with state_errors(f"{self.uri} cannot be opened"):
            try:
                return DeltaTable(self.uri, storage_options=dict(self.options))
            except TableNotFoundError:
                return None

    def read(self, handle: DeltaTable | None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows at the handle's version, in any order; none without a table."""
        if handle is None:
            return self.schema.empty_table()
        with state_errors(f"{self.uri} cannot be read"):
            stored = pa.schema(handle.schema().to_arrow())
            names = stored.names if columns is None else list(columns)
            asked = pa.schema([stored.field(name) for name in names])
            # The library's own reader needs nothing of pyarrow that a command would have to load first.
            return pa.RecordBatchReader.from_stream(handle.scan(columns=names), schema=asked).read_all()

    def rows(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows as they are now, in any order; none without a table. Cheap in a process that writes Parquet."""
        found = self._read_here(columns) if "pyarrow.parquet" in sys.modules else None
        return self.read(self.open(), columns) if found is None else found

    def _read_here(self, columns: Sequence[str] | None) -> pa.Table | None:
        """None where the library must be asked: it says what is wrong, and reads what is read in no other way."""
        from vnode_backfill.delta.small_table import read_small_table

        try:
            return read_small_table(Storage.of(self.uri, self.options), columns, "a table of the state")
        except SinkError:
            return None

    def replace(
        self, handle: DeltaTable | None, rows: pa.Table, transactions: Mapping[str, int] | None = None
    ) -> DeltaTable:
        """Make `rows` the whole content in one transaction, or raise `OvertakenError` and change nothing.

        The columns become those of the rows: a job of another kind that was dropped may have left its own.
        """
        properties = _once(transactions or {})
        with state_errors(f"{self.uri} cannot be written"):
            if handle is None:
                self._create(rows, properties)
            else:
                try:
                    write_deltalake(
                        handle, rows, mode="overwrite", schema_mode=_schema_mode(handle, rows),
                        commit_properties=properties, writer_properties=_FILES,
                    )  # fmt: skip
                except CommitFailedError as error:
                    raise OvertakenError(str(error)) from error
        landed = self.open()
        expected = 0 if handle is None else handle.version()
        if landed is None:
            raise OvertakenError(f"wrote version {expected}, found no table")
        if landed.version() != expected:
            raise BuriedError(f"wrote version {expected}, found {landed.version()}")
        return landed

    def transaction_version(self, handle: DeltaTable, app_id: str) -> int | None:
        """The last application transaction of this id at the handle's version.

        A handle answers from the log, so one that is older than what is kept of the log cannot: it was overtaken.
        """
        try:
            return handle.transaction_version(app_id)
        except (DeltaError, OSError) as error:
            raise OvertakenError(str(error)) from error

    def add(self, rows: pa.Table) -> None:
        """Add rows whatever others add at the same time; cheap where there is no table yet, which it makes."""
        if not self._made_of(rows):
            self.append(rows)

    def _made_of(self, rows: pa.Table) -> bool:
        """Whether there was no table, and now there is one of these rows."""
        from vnode_backfill.delta.small_table import make_small_table

        configuration = {name: value or "" for name, value in self.retention.configuration.items()}
        try:
            return make_small_table(Storage.of(self.uri, self.options), rows, configuration, "a table of the state")
        except SinkUnavailableError as error:
            # It may have been made.
            raise _unavailable(f"{self.uri} cannot be written", error.detail) from error
        except SinkError:
            # A store that needs a lock of `deltalake`'s, or one that cannot be written. That library says which.
            return False

    def append(self, rows: pa.Table) -> None:
        """Add rows whatever others add at the same time."""
        with state_errors(f"{self.uri} cannot be written"):
            write_deltalake(
                self.uri,
                rows,
                mode="append",
                storage_options=dict(self.options),
                configuration=self.retention.configuration,
                writer_properties=_FILES,
            )

    def discard_rows(self, *, all_rows: bool) -> None:
        """Delete the files of rows that were replaced, at once; with `all_rows` of every row. No table: nothing to do.

        Only files that the log says were replaced go: whatever somebody is writing just now is left alone.
        """
        handle = self.open()
        if handle is None:
            return
        with state_errors(f"{self.uri} cannot be cleared"):
            if all_rows:
                write_deltalake(handle, self.schema.empty_table(), mode="overwrite")
            handle.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def tidy(self, handle: DeltaTable) -> None:
        """Delete files that no version within the retention refers to, those of refused commits included."""
        with state_errors(f"{self.uri} cannot be tidied up"):
            handle.vacuum(
                retention_hours=self.retention.hours, dry_run=False, enforce_retention_duration=False, full=True
            )
            handle.cleanup_metadata()

    def tidy_sometimes(self, handle: DeltaTable) -> None:
        """Tidy up after every so many versions, where nobody counts commits."""
        if handle.version() and handle.version() % self.retention.commits == 0:
            self.tidy(handle)

    def _create(self, rows: pa.Table, properties: CommitProperties) -> None:
        try:
            write_deltalake(
                self.uri,
                rows,
                mode="error",
                storage_options=dict(self.options),
                configuration=self.retention.configuration,
                commit_properties=properties,
                writer_properties=_FILES,
            )
        except DeltaError as error:
            # That somebody else made the table first has no error class.
            if self.open() is not None:
                raise OvertakenError(str(error)) from error
            raise


def _schema_mode(handle: DeltaTable, rows: pa.Table) -> Literal["overwrite"] | None:
    return None if [field.name for field in handle.schema().fields] == rows.schema.names else "overwrite"


def rows_where(rows: pa.Table, kept: Iterable[bool]) -> pa.Table:
    """The rows that are kept, one answer per row. Most tables have few stretches of them, which are not copied.

    pyarrow would do it by `pyarrow.compute`, which takes longer to load than a command should take.
    """
    stretches, first = [], 0
    for keep, group in groupby(kept):
        count = sum(1 for _ in group)
        stretches += [rows.slice(first, count)] if keep else []
        first += count
    return pa.concat_tables(stretches) if stretches else rows.slice(0, 0)


def as_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly this schema; they are converted only if theirs is another one."""
    return rows if rows.schema.equals(schema) else rows.cast(schema)


@contextmanager
def state_errors(what: str) -> Iterator[None]:
    """Turn whatever the storage says into a `StateUnavailableError` that names the place: it may pass."""
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        reason = _COLOURS.sub("", str(error)).strip()
        raise _unavailable(what, f"{type(error).__name__}: {reason[:1000]}") from error


def _unavailable(what: str, detail: str) -> StateUnavailableError:
    return StateUnavailableError(
        f"state in {what}",
        detail=detail,
        hint="Check that `state.path` is right, reachable and writable, and that its disk is not full.",
    )


def _once(transactions: Mapping[str, int]) -> CommitProperties:
    return CommitProperties(
        max_commit_retries=0,
        app_transactions=[Transaction(app_id, version) for app_id, version in transactions.items()],
    )
