"""Commits to a Delta table for one job: each commit at most once, and none by a driver that another one has replaced.

`deltalake` applies a repeated application transaction again if its handle is fresh. If its handle is old, it may put a
commit on top of somebody else's. So every commit here goes through one handle: what has landed is looked up on it, what
to write is computed from it, and it is committed without retries. It lands exactly on the version that was looked at,
or not at all.

    handle at 7: append of epoch 3 not there   → commit → 8
    handle at 7, somebody wrote 8              → refused; open again: is epoch 3 there now?
    handle at 8: append of epoch 3 there       → nothing to do; its note says what it held

What a commit says of itself is its note. It is in the commit information and is found by searching the newest commits
backwards. A job looks only for its newest epoch, so its commit is near the end of the log: after it are a few commits
of the same epoch, and what others (a compaction) added since. Log entries of the last days are kept. Only a writer that
is not this job removes entries of a stopped job.

A driver that lost its lease is kept out by its generation: a takeover commits the new one (`fence`), and every later
commit carries and checks it. A driver that slept through the takeover either holds an old handle or sees the higher
generation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake._internal import RemoveAction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction

from vnode_backfill.delta.files import DataFile, FileReceipt, Value
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import FencedError, OvertakenError, SinkError, StateError

_NOTE = "vnodeBackfill"
UNCOMMITTED_HOURS = 24
"""A file that was never committed is left alone for so long, whatever the retention: longer than any epoch lasts."""
_SEARCHED_COMMITS = (16, 256, 4096)


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """The log of the table in `storage`, as one job writes it; `what` names the table in messages."""

    storage: Storage
    job_id: str
    what: str
    generation: int = 0

    def find(self) -> DeltaTable | None:
        """A fresh handle, or None if there is no table."""
        with storage_errors(f"{self.what} cannot be opened at {self.storage.path}"):
            try:
                return DeltaTable(self.storage.path, storage_options=dict(self.storage.options))
            except TableNotFoundError:
                return None

    def open(self) -> DeltaTable:
        """A fresh handle."""
        table = self.find()
        if table is None:
            raise SinkError(
                f"{self.what} is gone from {self.storage.path}",
                hint="Restore the table, or create the job again under another name.",
            )
        return table

    def landed(self, table: DeltaTable, kind: str, epoch: Epoch) -> bool:
        """Whether this epoch's commit of this kind is in the table; FencedError if a later epoch's is."""
        found = table.transaction_version(self._app(kind))
        if found is not None and found > epoch:
            raise FencedError(
                f"{kind} of epoch {epoch} cannot be committed: {self.what} holds epoch {found} already",
                hint="Another driver runs this job; let it, or stop it first.",
            )
        return found == epoch

    def commit(
        self,
        table: DeltaTable,
        kind: str,
        epoch: Epoch,
        added: Sequence[FileReceipt],
        removed: Sequence[DataFile] = (),
        note: str = "",
    ) -> None:
        """Add and remove files as this epoch's commit, right on top of `table`'s version, or raise `OvertakenError`."""
        self._check_generation(table)
        told = {"app": self._app(kind), "epoch": epoch, "note": note}
        self._write(table, added, removed, {self._app(kind): epoch}, json.dumps(told))

    def remove(self, table: DeltaTable, files: Sequence[DataFile]) -> None:
        """Remove files, in a commit that belongs to no epoch. The caller must not remove what is gone already."""
        self._check_generation(table)
        self._write(table, (), files, {}, "{}")

    def rearrange(self, table: DeltaTable, added: Sequence[FileReceipt], removed: Sequence[DataFile]) -> None:
        """Replace files by others that hold the same rows. Readers of changes see none.

        The commit belongs to no epoch and no driver, because the rows stay the same whichever process makes it.
        """
        self._write_actions(table, _actions(added, removed, data_change=False), {}, "{}")

    def sweep(self, retention_hours: int) -> list[str]:
        """Delete files that no version within the retention refers to, and files never committed that are a day old.

        A task writes a file before it is committed, and its epoch may last: a file that no version refers to yet may
        still be wanted.
        """
        table = self.open()
        with storage_errors(f"{self.storage.path} cannot be swept"):
            swept = table.vacuum(retention_hours=retention_hours, dry_run=False, enforce_retention_duration=False)
            hours = max(retention_hours, UNCOMMITTED_HOURS)
            orphans = table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True)
        return [*swept, *orphans]

    def note(self, table: DeltaTable, kind: str, epoch: Epoch) -> str | None:
        """What this epoch's commit of this kind said of itself, or None if it has not landed."""
        if not self.landed(table, kind, epoch):
            return None
        for limit in _SEARCHED_COMMITS:
            with storage_errors(f"the history of {self.what} cannot be read"):
                commits = table.history(limit)
            for commit in commits:
                told = json.loads(commit.get(_NOTE) or "{}")
                if told.get("app") == self._app(kind) and told.get("epoch") == epoch:
                    return str(told["note"])
            if len(commits) < limit:
                break
        raise StateError(
            f"{self.what} holds the {kind} of epoch {epoch}, but the commit with its note is no longer in the log",
            detail=f"The newest {len(commits)} commits of {self.storage.path} were searched.",
            hint="Re-snapshot the table, and keep its log for longer.",
        )

    def fence(self, table: DeltaTable) -> None:
        """Make this driver's generation the only one that may commit. A second call changes nothing."""
        self._check_generation(table)
        if self.generation and table.transaction_version(self._app("driver")) != self.generation:
            self._write(table, (), (), {}, "{}")

    def files(self, table: DeltaTable, columns: Sequence[str]) -> list[DataFile]:
        """The files of the handle's version with the bounds of `columns`."""
        with storage_errors(f"the files of {self.what} cannot be listed"):
            actions = pa.table(table.get_add_actions(flatten=True))
        count = actions.num_rows

        def bounds(side: str) -> list[tuple[Value | None, ...]]:
            names = [f"{side}.{name}" for name in columns]
            known = [actions[name].to_pylist() if name in actions.column_names else [None] * count for name in names]
            return list(zip(*known, strict=True)) if known else [()] * count

        plain = (actions[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
        return [DataFile(*fields) for fields in zip(*plain, bounds("min"), bounds("max"), strict=True)]

    def _app(self, kind: str) -> str:
        return f"{self.job_id}/{kind}"

    def _check_generation(self, table: DeltaTable) -> None:
        found = table.transaction_version(self._app("driver"))
        if found is not None and found > self.generation:
            raise FencedError(
                f"{self.what} is written by driver generation {found}, this one is {self.generation}",
                hint="Another driver took this job over.",
            )

    def _write(
        self,
        table: DeltaTable,
        added: Sequence[FileReceipt],
        removed: Sequence[DataFile],
        transactions: dict[str, int],
        told: str,
    ) -> None:
        if self.generation:
            transactions = {**transactions, self._app("driver"): self.generation}
        self._write_actions(table, _actions(added, removed, data_change=True), transactions, told)

    def _write_actions(
        self, table: DeltaTable, actions: list[AddAction | RemoveAction], transactions: dict[str, int], told: str
    ) -> None:
        properties = CommitProperties(
            max_commit_retries=0,
            custom_metadata={_NOTE: told},
            app_transactions=[Transaction(app, version) for app, version in transactions.items()],
        )
        with storage_errors(f"{self.what} cannot be committed to at {self.storage.path}"):
            try:
                table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)
            except CommitFailedError as error:
                raise OvertakenError(str(error)) from error


def _actions(
    added: Sequence[FileReceipt], removed: Sequence[DataFile], *, data_change: bool
) -> list[AddAction | RemoveAction]:
    now = int(time.time() * 1000)
    return [
        *(AddAction(each.path, each.size, {}, now, data_change=data_change, stats=each.stats) for each in added),
        *(
            RemoveAction(
                path=each.path, data_change=data_change, deletion_timestamp=now, size=each.size, partition_values={}
            )
            for each in removed
        ),
    ]
