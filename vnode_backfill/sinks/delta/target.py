"""Decides whether a Delta table may become a job's target, and makes it one.

What must be true: a job writes only into a table that holds no row of anybody else, and whose shape and features let
the job rewrite its files exactly. The commit that makes a table the job's carries the job's id (`prepare`), so that the
question is asked once. A job taken up again finds this mark, also where `replace` is set, and never empties what it has
written itself.

A job that follows the log after another one's copy writes into a table full of rows that are not its own. It may do so
if the table is that job's and nobody has taken it over before (`take_over`). The commit that says so also ends the
copying job's right to write, for good.

Every column is nullable, because a NOT NULL column beside a `timestamp_ntz` needs one table feature more. No column
mapping. A table without deletion vectors can be read by every reader of Delta, one with them by those that know
vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa

from vnode_backfill.config.job import TARGET_RETENTION, VECTORS_RETENTION, MergeMode
from vnode_backfill.delta.commits import DeltaLog
from vnode_backfill.delta.log.actions import USES_VECTORS, VECTORS
from vnode_backfill.delta.log.protocol import append_only, unwritable
from vnode_backfill.delta.log.replay import TableVersion
from vnode_backfill.delta.parquet import FileLayout
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import OvertakenError, SinkError, SinkUnavailableError
from vnode_backfill.words.hints import FOLLOWS_COLUMNS

PREPARE, _ONCE = "prepare", Epoch(1)
_TRIES = 10
FOR_GOOD = 2**53
"""The generation of a driver that no other can follow: of a job whose table was handed over."""
_SWEPT_WITHIN_HOURS = 1
"""A job sweeps a table with vectors several times in so long."""
OWN_COLUMNS = "vnodeBackfill.columns"
"""A property of a table whose columns the job has changed: says which columns it has set, so that others are
noticed."""
_NOT_IN_NAMES = frozenset(" ,;{}()\n\t=")


def fence(log: DeltaLog) -> None:
    """Fence until it lands: a driver that is being replaced, and a compaction, may commit once or twice before."""
    for _ in range(_TRIES):
        with suppress(OvertakenError):
            log.fence(log.open())
            return
    log.fence(log.open())


def columns_of(table: TableVersion) -> pa.Schema:
    """The columns of a version by name and type, all of them nullable, as files of it are read and written."""
    return pa.schema([pa.field(field.name, field.type) for field in table.schema])


@dataclass(frozen=True, slots=True)
class Target:
    """What a target table has to be."""

    log: DeltaLog
    schema: pa.Schema
    layout: FileLayout
    retention: timedelta | None
    replace: bool
    creates: MergeMode = MergeMode.REWRITE
    """How a table that is made here is changed."""
    asked: MergeMode | None = None
    """How a table that is there must be changed; None leaves it as it is."""

    def prepare(self) -> None:
        """Create the table, or take one that is empty, already this job's, or may be replaced.

        With `replace`, one commit removes somebody else's rows and schema and makes the table this job's. A second call
        changes nothing.
        """
        check_names(self.schema.names)
        table = self.log.find()
        with overtaken_is_retryable():
            if table is None or not self.log.landed(table, PREPARE, _ONCE):
                table = self._take(table)
            else:
                if not self.is_own(table):
                    self._check_shape(table)
                self._check_mode(table)
                self.log.check_store()
            fence(self.log)
            self._set_properties()

    def is_own(self, table: TableVersion) -> bool:
        """Whether the job itself has given the table the columns that it has, by a change of its columns."""
        return table.metadata.configuration.get(OWN_COLUMNS) == digest_of(table.metadata.schema_text)

    def check_columns(self, table: TableVersion) -> None:
        """Refuse to write rows of an earlier definition into a table that has the columns of a later one."""
        difference = self._other_columns(table) if self.is_own(table) else ""
        if difference:
            raise SinkError(
                f"the table at {self.log.storage.path} has the columns of another definition than the rows to be "
                "written",
                detail=difference,
                hint=FOLLOWS_COLUMNS,
            )

    def _set_properties(self) -> None:
        """What the file says of retention holds for the table too: its checkpoints forget removals by it."""
        table = self.log.open()
        wanted = mode_properties(mode_of(table), self.retention)
        if any(table.metadata.configuration.get(name) != value for name, value in wanted.items()):
            self.log.redefine(table, table.protocol, wanted)

    def check(self) -> None:
        """Raise what `prepare` would raise for a job that does not exist yet; writes nothing."""
        check_names(self.schema.names)
        table = self.log.find()
        if table is not None and self.replace:
            self._check_replaceable(table)
        elif table is not None:
            self._check_free(table)

    def check_mode(self) -> None:
        """Raise if rows of the table that is there are changed in another way than is asked for; writes nothing."""
        table = self.log.find()
        if table is not None:
            self._check_mode(table)

    def _take(self, table: TableVersion | None) -> TableVersion:
        if table is None:
            return self._create(None)
        if self.replace and (self.log.files(table, ()) or self._difference(table)):
            self._check_replaceable(table)
            return self._create(table)
        self._check_free(table)
        self.log.check_store()
        return self.log.commit(table, PREPARE, _ONCE, ())

    def _create(self, over: TableVersion | None) -> TableVersion:
        features = frozenset({VECTORS}) if self.creates is MergeMode.VECTORS else frozenset[str]()
        return self.log.create(
            self.schema, self._configuration(), landed=(PREPARE, _ONCE), over=over, features=features
        )

    def _check_replaceable(self, table: TableVersion) -> None:
        if append_only(table.metadata):
            raise SinkError(
                f"the table at {self.log.storage.path} cannot be replaced",
                detail="Its property delta.appendOnly says that no row of it may be removed.",
                hint="Unset the property, or choose another path.",
            )

    def _check_free(self, table: TableVersion) -> None:
        """Refuse a table that holds rows, or cannot take those of the source."""
        foreign = len(self.log.files(table, ()))
        if foreign:
            raise SinkError(
                f"{self.log.storage.path} holds rows that this job did not write",
                detail=f"The table has {foreign:,} data files.",
                hint="Set `sink.delta.replace: true` to have them removed, or choose another path.",
            )
        self._check_shape(table)
        self._check_mode(table)

    def _check_mode(self, table: TableVersion) -> None:
        found = mode_of(table)
        if self.asked not in (None, found):
            raise SinkError(
                f"the table at {self.log.storage.path} is changed by {found}, not by {self.asked}",
                detail="How a table is changed is fixed when it is created, because not every reader knows vectors.",
                hint=f"Set `sink.delta.merge: {found}`, or turn it over with `vnode-backfill upgrade --merge {self.asked}` "
                "if the job exists.",
            )

    def _configuration(self) -> dict[str, str]:
        return {**column_properties(self.layout), **mode_properties(self.creates, self.retention)}

    def _check_shape(self, table: TableVersion) -> None:
        difference = self._difference(table)
        if difference:
            raise SinkError(
                f"the table at {self.log.storage.path} cannot take the rows of the source table",
                detail=difference,
                hint=f"Set the table's property {USES_VECTORS} to true again."
                if _is_switched_off(table)
                else "Set `sink.delta.replace: true` to have it made again, or choose another path.",
            )

    def _difference(self, table: TableVersion) -> str:
        """Why the table cannot take this job's rows; empty if it can."""
        partitions = table.metadata.partition_columns
        if partitions:
            return f"It is partitioned by {', '.join(partitions)}."
        if _is_switched_off(table):
            return f"It may have deletion vectors, but its property {USES_VECTORS} is not true."
        reason = unwritable(table.protocol, table.metadata)
        if reason:
            return reason
        return self._other_columns(table)

    def _other_columns(self, table: TableVersion) -> str:
        old = {field.name: field.type for field in table.schema}
        new = {field.name: field.type for field in self.schema}
        wrong = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        return "; ".join(f"column {name} is {old.get(name)} there and {new.get(name)} here" for name in wrong)


def check_names(columns: Sequence[str]) -> None:
    """Refuse columns whose names Delta cannot hold."""
    wrong = [name for name in columns if _NOT_IN_NAMES & set(name) or "`" in name]
    if wrong:
        raise SinkError(
            f"Delta cannot hold the column names {', '.join(map(repr, wrong))}",
            detail="A space and any of , ; { } ( ) = ` are not allowed in them.",
            hint="Rename the columns at the source.",
        )


def _is_switched_off(table: TableVersion) -> bool:
    """Whether files may have vectors, but no new ones may be written."""
    return table.has_vectors and table.metadata.configuration.get(USES_VECTORS) != "true"


def mode_of(table: TableVersion) -> MergeMode:
    """How rows of a table are changed."""
    return MergeMode.VECTORS if table.has_vectors else MergeMode.REWRITE


def column_properties(layout: FileLayout) -> dict[str, str]:
    """The properties of a table that depend on its columns."""
    return {"delta.dataSkippingStatsColumns": ",".join(f"`{name}`" for name in layout.statistics)}


def digest_of(schema_text: str) -> str:
    return hashlib.sha256(schema_text.encode()).hexdigest()[:16]


def mode_properties(mode: MergeMode, retention: timedelta | None) -> dict[str, str]:
    """The properties of a table that depend on how it is changed.

    A table with vectors gets a commit with every merge, and each leaves entries for superseded vectors. So they are
    kept for hours, and a checkpoint, which repeats them all, is made less often. A checkpoint leaves entries out once
    they are older than the table says. A sweep must find them before: a file that no entry names may be one that is
    about to be committed, and is left alone for a day. So the entries stay for longer than the files.
    """
    vectors = mode is MergeMode.VECTORS
    hours = whole_hours(kept_for(retention, vectors=vectors))
    return {
        USES_VECTORS: "true" if vectors else "false",
        "delta.deletedFileRetentionDuration": f"interval {hours + (_SWEPT_WITHIN_HOURS if vectors else 0)} hours",
        "delta.logRetentionDuration": f"interval {hours} hours",
        "delta.checkpointInterval": "250" if vectors else "25",
    }


def kept_for(retention: timedelta | None, *, vectors: bool) -> timedelta:
    """How long superseded files stay: as the file says, else as suits the table."""
    return retention if retention is not None else VECTORS_RETENTION if vectors else TARGET_RETENTION


def add_vectors(log: DeltaLog, retention: timedelta | None) -> bool:
    """Let rows of the job's table be deleted by vectors from now on; False if they are already. No row changes."""

    def add(table: TableVersion) -> bool:
        if table.has_vectors and table.metadata.configuration.get(USES_VECTORS) == "true":
            return False
        log.redefine(table, table.protocol.with_feature(VECTORS), mode_properties(MergeMode.VECTORS, retention))
        return True

    return _changed(log, add)


def drop_vectors(log: DeltaLog, retention: timedelta | None) -> bool:
    """Let every reader read the job's table again; False if a file has a vector still. A second call changes nothing.

    Then a checkpoint is made. So a reader of the newest version never meets a commit that it does not understand: such
    commits stay behind the checkpoint until the log's retention is over, for those who go back in time and know
    vectors.
    """

    def drop(table: TableVersion) -> bool:
        if any(file.vector is not None for file in table.files.values()):
            return False
        if table.has_vectors:
            properties = mode_properties(MergeMode.REWRITE, retention)
            table = log.redefine(table, table.protocol.without_feature(VECTORS), properties)
        if table.checkpoint < table.version:
            log.checkpoint(table)
        return True

    return _changed(log, drop)


def _changed(log: DeltaLog, change: Callable[[TableVersion], bool]) -> bool:
    """Change the job's own table, again from its newest version where somebody was faster."""
    for _ in range(_TRIES):
        table = log.open()
        if not log.landed(table, PREPARE, _ONCE):
            raise SinkError(
                f"the table at {log.storage.path} is not the one that this job writes to",
                hint="Check `sink.delta.path`.",
            )
        with suppress(OvertakenError):
            return change(table)
    raise SinkUnavailableError(f"a change of {log.storage.path} was overtaken by other commits {_TRIES} times")


def can_take_over(log: DeltaLog, before: str, successor: str) -> bool:
    """Whether the table is that of job `before`; raises if another job than `successor` has it. Writes nothing."""
    table = log.find()
    theirs = _for_good(log, before)
    if table is None or not theirs.landed(table, PREPARE, _ONCE):
        return False
    if table.transactions.get(f"{before}/driver") == FOR_GOOD and not theirs.landed(table, _handover(successor), _ONCE):
        raise SinkError(
            f"{log.storage.path} was handed over to another job already",
            detail=f"Job {successor} would be the second one to write to it.",
            hint="Continue with the job that has it; two jobs must not write to one target.",
        )
    return True


def take_over(log: DeltaLog, before: str, successor: str) -> bool:
    """Make the table of job `before` this job's, rows included; False if it is not that job's.

    A second call changes nothing. `successor` names the job beyond its id: a job that was killed before it was created
    tries again with another id.
    """
    if not can_take_over(log, before, successor):
        return False
    table, theirs = log.open(), _for_good(log, before)
    if not theirs.landed(table, _handover(successor), _ONCE):
        with overtaken_is_retryable():
            theirs.commit(table, _handover(successor), _ONCE, (), note=successor)
        table = log.open()
    if not log.landed(table, PREPARE, _ONCE):
        with overtaken_is_retryable():
            log.commit(table, PREPARE, _ONCE, ())
    return True


def _for_good(log: DeltaLog, before: str) -> DeltaLog:
    return replace(log, job_id=before, generation=FOR_GOOD)


def _handover(successor: str) -> str:
    return f"handover-{hashlib.sha256(successor.encode()).hexdigest()[:16]}"


def whole_hours(retention: timedelta) -> int:
    return max(1, int(retention.total_seconds() // 3600))


@contextmanager
def overtaken_is_retryable() -> Iterator[None]:
    """For commits whose content depends on the version they were computed from: the whole epoch is tried again."""
    try:
        yield
    except OvertakenError as error:
        raise SinkUnavailableError(
            "the target table was changed by somebody else in the meantime",
            detail=str(error),
            hint="Nobody else may write to the target while the job runs; a compaction is tried around.",
        ) from error
