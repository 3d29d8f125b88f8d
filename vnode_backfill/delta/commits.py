"""Commits to a Delta table for one job: each commit at most once, and none by a driver that another one has replaced.

A commit is computed from one version of the table and becomes the next version, or nothing. What has landed is looked
up in that version, what to write is computed from it, and the commit is written as a file that must not be there yet.

    version 7: append of epoch 3 not there   → commit → 8
    version 7, somebody wrote 8              → refused; open again: is epoch 3 there now?
    version 8: append of epoch 3 there       → nothing to do; its note says what it held

Every commit carries a random number. A store may repeat a request by itself and then say that the file is there
already: if it holds this number, the commit has landed. Any other failure leaves it open, and is retryable: whoever
tries again looks the transaction up first. A driver that slept for longer than the log is kept finds no file where it
writes, though the table has gone on: a checkpoint above its commit says so, and the commit counts for nothing.

A version that readers were told of (`keep`) stays whole: the sweep keeps its files and vectors, and the log's upkeep
everything from a checkpoint before it on.

What a commit says of itself is its note. It is in the commit information. A job looks only for the notes of its newest
epoch. The log's upkeep keeps those, and every entry of the last days.

A driver that lost its lease is kept out by its generation: a takeover commits the new one (`fence`), and every later
commit carries and checks it. A driver that slept through the takeover either holds an old version or sees the higher
generation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Lock
from uuid import uuid4

import pyarrow as pa

from vnode_backfill import __version__
from vnode_backfill.delta.files import DataFile, FileReceipt, Masked
from vnode_backfill.delta.log.actions import (
    NOTE,
    NOTES,
    TXN_ID,
    VECTORS,
    Action,
    LiveFile,
    Metadata,
    Protocol,
    commit_text,
    note_of,
    transaction_id,
)
from vnode_backfill.delta.log.commit_actions import file_actions, milliseconds, replacing_actions, transaction
from vnode_backfill.delta.log.names import LOG, commit_name
from vnode_backfill.delta.log.protocol import check_writable
from vnode_backfill.delta.log.removals import removals
from vnode_backfill.delta.log.replay import (
    TableVersion,
    at_version,
    backwards,
    checkpoint_behind,
    created,
    newest,
)
from vnode_backfill.delta.log.schema import schema_text
from vnode_backfill.delta.log.upkeep import checkpoint_due, clean, make_checkpoint, waits_since
from vnode_backfill.delta.storage import Storage, storage_errors
from vnode_backfill.delta.store_check import check_store
from vnode_backfill.delta.sweep import Sweep, lost_parts, swept
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import FencedError, LawBrokenError, OvertakenError, SinkError, StateError

_DRIVER, _SCHEMA = "driver", "schema"
_PREPARED = "/prepare"
_SEARCHED_COMMITS = 4096
_WRITE: Action = {"operation": "WRITE", "operationParameters": {"mode": "Append", "partitionBy": "[]"}}


@dataclass(slots=True)
class HeldVersion:
    """The version of a table that was seen last; whoever looks again begins there."""

    table: TableVersion | None = None
    lock: Lock = field(default_factory=Lock)
    told: int | None = None
    """The version that readers were told of, and that is kept."""


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """The log of the table in `storage`, as one job writes it; `what` names the table in messages."""

    storage: Storage
    job_id: str
    what: str
    generation: int = 0
    held: HeldVersion = field(default_factory=HeldVersion, repr=False, compare=False)

    def find(self) -> TableVersion | None:
        """The newest version, or None if there is no table."""
        with storage_errors(f"{self.what} cannot be opened at {self.storage.path}"), self.held.lock:
            self.held.table = newest(self.storage, self.held.table)
            return self.held.table

    def open(self) -> TableVersion:
        """The newest version."""
        table = self.find()
        if table is None:
            raise SinkError(
                f"{self.what} is gone from {self.storage.path}",
                hint="Restore the table, or create the job again under another name.",
            )
        return table

    def last_seen(self) -> TableVersion:
        """The version that was opened or committed last; the storage is asked only if there is none."""
        return self.held.table or self.open()

    def create(
        self,
        schema: pa.Schema,
        configuration: Mapping[str, str],
        *,
        landed: tuple[str, Epoch] | None = None,
        over: TableVersion | None = None,
        features: frozenset[str] = frozenset(),
        added: Sequence[FileReceipt] = (),
    ) -> TableVersion:
        """Make the table with the files `added`. `over` replaces a table and all its rows.

        OvertakenError if somebody was faster. The commit counts as the one that `landed` names, and fences earlier
        drivers. `features` are demanded of readers and writers beyond those that the columns' types need.
        """
        if over is not None:
            self.check_generation(over)
        text = schema_text(schema)
        now = milliseconds()
        metadata = Metadata(str(uuid4()), text, configuration=configuration, created=now)
        files = () if over is None else over.files.values()
        actions: list[tuple[str, Action]] = [
            ("protocol", Protocol.of(text, features).to_action()),
            ("metaData", metadata.to_action()),
            *self._transactions(dict([landed] if landed else [])),
            *(("remove", file.to_remove(now, data_change=True)) for file in files),
            *(("add", LiveFile.added(receipt, now).to_add(data_change=True)) for receipt in added),
        ]
        with storage_errors(f"{self.what} cannot be created at {self.storage.path}"):
            self.storage.make_folder()
        self.check_store()
        operation = {"operation": "CREATE TABLE" if over is None else "CREATE OR REPLACE TABLE"}
        return self._put(over, actions, {**operation, "operationParameters": {}})

    def check_store(self) -> None:
        """Refuse a store that would let two commits make the same version. Demands the folder."""
        check_store(self.storage, self.what)

    def landed(self, table: TableVersion, kind: str, epoch: Epoch) -> bool:
        """Whether this epoch's commit of this kind is in the table; FencedError if a later epoch's is."""
        found = table.transactions.get(self._app(kind))
        if found is not None and found > epoch:
            raise FencedError(
                f"{kind} of epoch {epoch} cannot be committed: {self.what} holds epoch {found} already",
                hint="Another driver runs this job; let it, or stop it first.",
            )
        return found == epoch

    def version_of(self, table: TableVersion, kind: str) -> int:
        """The newest version of this kind that has landed, 0 if none has."""
        return table.transactions.get(self._app(kind), 0)

    def commit(
        self,
        table: TableVersion,
        kind: str,
        epoch: Epoch,
        added: Sequence[FileReceipt],
        removed: Sequence[DataFile] = (),
        note: str = "",
        masked: Sequence[Masked] = (),
    ) -> TableVersion:
        """Change files as this epoch's commit, right on top of `table`, or raise `OvertakenError`. The new version."""
        self.check_generation(table)
        told = {"app": self._app(kind), "epoch": epoch, "note": note}
        files = file_actions(table, added, removed, masked, data_change=True)
        return self._write(table, [*self._transactions({kind: epoch}), *files], json.dumps(told))

    def remove(self, table: TableVersion, files: Sequence[DataFile]) -> TableVersion:
        """Remove files, in a commit that belongs to no epoch. The caller must not remove what is gone already."""
        self.check_generation(table)
        return self._write(
            table, [*self._transactions({}), *file_actions(table, (), files, (), data_change=True)], "{}"
        )

    def rearrange(
        self,
        table: TableVersion,
        added: Sequence[FileReceipt],
        removed: Sequence[DataFile],
        masked: Sequence[Masked] = (),
    ) -> TableVersion:
        """Replace files by others that hold the same rows. Readers of changes see none.

        The commit belongs to no epoch and no driver, because the rows stay the same whichever process makes it.
        """
        return self._write(table, file_actions(table, added, removed, masked, data_change=False), "{}")

    def redefine(self, table: TableVersion, protocol: Protocol, properties: Mapping[str, str]) -> TableVersion:
        """Change what the table demands of readers and writers, and its properties. No row changes.

        Right on top of `table`, or `OvertakenError`. Features that files still need cannot be dropped.
        """
        self.check_generation(table)
        configuration = {**table.metadata.configuration, **properties}
        metadata = replace(table.metadata, configuration=configuration)
        check_writable(protocol, metadata, self.storage.path)
        masked = sum(file.vector is not None for file in table.files.values())
        if masked and VECTORS not in protocol.features:
            raise LawBrokenError(
                f"{masked} files of version {table.version} have vectors, and a commit would drop them"
            )
        actions = [*self._transactions({}), ("protocol", protocol.to_action()), ("metaData", metadata.to_action())]
        told = {"operation": "SET TBLPROPERTIES", "operationParameters": {"properties": json.dumps(dict(properties))}}
        return self._put(table, actions, told)

    def redefine_files(
        self,
        table: TableVersion,
        mark: tuple[str, Epoch],
        defined: tuple[Protocol, Metadata],
        added: Sequence[FileReceipt],
        removed: Sequence[DataFile],
    ) -> TableVersion:
        """Change what the table is and its files at once, as the commit that `mark` names.

        Right on top of `table`, or `OvertakenError`.
        """
        self.check_generation(table)
        protocol, metadata = defined
        check_writable(protocol, metadata, self.storage.path)
        actions = [
            *self._transactions(dict([mark])),
            *([("protocol", protocol.to_action())] if protocol != table.protocol else []),
            ("metaData", metadata.to_action()),
            *file_actions(table, added, removed, (), data_change=True),
        ]
        return self._put(table, actions, {"operation": "CHANGE COLUMNS", "operationParameters": {}})

    def take_in(
        self, table: TableVersion | None, copy: TableVersion, folder: str, notes: Mapping[str, str], ended: int
    ) -> TableVersion:
        """Replace everything that the table holds by what its copy in `folder` holds, right on top of `table`.

        What this job has committed to the copy counts as committed here, with the `notes` of these applications. Every
        other job that this table was prepared for gets the driver generation `ended`, so that it commits no more.
        Properties that somebody else has set stay.
        """
        marks = {app: version for app, version in copy.transactions.items() if app.startswith(f"{self.job_id}/")}
        if table is not None:
            self.check_generation(table)
            marks |= {f"{job}/{_DRIVER}": ended for job in prepared_jobs(table) - {self.job_id}}
        if self.generation:
            marks[self._app(_DRIVER)] = self.generation
        actions = replacing_actions(table, copy, folder, marks)
        told = json.dumps({NOTES: [{"app": app, "epoch": marks[app], "note": note} for app, note in notes.items()]})
        return self._put(table, actions, {"operation": "REPLACE TABLE", "operationParameters": {}, NOTE: told})

    def newest_notes(self, table: TableVersion) -> dict[str, str]:
        """What the commits of this job's newest epoch said of themselves, by application."""
        epoch = self._newest_epoch(table)
        apps = [app for app, version in self._own(table).items() if version == epoch]
        found = {app: self._told(table, app, Epoch(epoch)) for app in apps}
        return {app: note for app, note in found.items() if note is not None}

    def maintain(self, table: TableVersion, at_latest: timedelta | None = None) -> int:
        """Make a checkpoint if one is due, and delete commits that nobody needs. The checkpoint's size, 0 without one.

        One is due after as many commits as the table says, or `at_latest` so long after the first of them. Others may
        commit meanwhile.
        """
        with storage_errors(f"the log of {self.what} cannot be tidied at {self.storage.path}"):
            due = checkpoint_due(table) or (
                at_latest is not None and waits_since(self.storage, table, datetime.now(UTC) - at_latest)
            )
        return self.checkpoint(table) if due else 0

    def checkpoint(self, table: TableVersion) -> int:
        """Make a checkpoint of this version, and delete commits that nobody needs. The checkpoint's size."""
        with storage_errors(f"the log of {self.what} cannot be tidied at {self.storage.path}"):
            size = make_checkpoint(self.storage, table)
            clean(self.storage, table, self._needed_from(table), datetime.now(UTC))
        with self.held.lock:
            if self.held.table is not None and self.held.table.version >= table.version:
                self.held.table = self.held.table.with_checkpoint(table.version)
        return size

    def keep(self, version: int | None) -> None:
        """Let this version be read until another one is named, or None. It is not stored: every process must be told.

        A version that is gone already keeps nothing.
        """
        self.held.told = version

    def is_readable(self, version: int) -> bool:
        """Whether the log leads to this version, and every file that it is made of is there."""
        with storage_errors(f"version {version} of {self.what} cannot be looked at in {self.storage.path}"):
            found = at_version(self.storage, version)
            return found is not None and not lost_parts(found, self.storage.list_files(without=LOG))

    def superseded_at(self, version: int) -> datetime | None:
        """When the commit behind this version was made; None if the log has none."""
        with storage_errors(f"version {version} of {self.what} cannot be looked at in {self.storage.path}"):
            return self.storage.modified(commit_name(version + 1))

    def sweep(self, retention: timedelta, begun: datetime | None = None) -> list[str]:
        """Delete files that no version within the retention refers to, and files never committed that are a day old.

        What the version that readers were told of is made of stays, however long ago it was superseded. A task writes a
        file before it is committed, and its epoch may last for days: files of an epoch that has not ended are wanted,
        however old they are. Those from before the job was created, at `begun`, are not its own.
        """
        with storage_errors(f"{self.storage.path} cannot be swept"):
            table = self.open()
            newest, placed = self._newest_epoch(table), prepared_jobs(table)
            sweep = Sweep(datetime.now(UTC), retention, newest, begun=begun, placed=placed)
            told = self.held.told
            kept = None if told is None or told >= table.version else at_version(self.storage, told)
            removed = partial(removals, self.storage)
            gone = sweep.unneeded(self.storage.list_files(without=LOG), self.open, removed, kept)
            return swept(self.storage, gone)

    def note(self, table: TableVersion, kind: str, epoch: Epoch) -> str | None:
        """What this epoch's commit of this kind said of itself, or None if it has not landed."""
        if not self.landed(table, kind, epoch):
            return None
        found = self._told(table, self._app(kind), epoch)
        if found is not None:
            return found
        raise StateError(
            f"{self.what} holds the {kind} of epoch {epoch}, but the commit with its note is no longer in the log",
            detail=f"The newest commits of {self.storage.path} were searched, {_SEARCHED_COMMITS:,} at most.",
            hint="Re-snapshot the table, and keep its log for longer.",
        )

    def _told(self, table: TableVersion, app: str, epoch: Epoch) -> str | None:
        with storage_errors(f"the history of {self.what} cannot be read"):
            for version, data in self._commits_with(table, app):
                found = note_of(data, app, epoch, commit_name(version))
                if found is not None:
                    return found
        return None

    def fence(self, table: TableVersion) -> None:
        """Make this driver's generation the only one that may commit. A second call changes nothing."""
        self.check_generation(table)
        if self.generation and table.transactions.get(self._app(_DRIVER)) != self.generation:
            self._write(table, self._transactions({}), "{}")

    def files(self, table: TableVersion, columns: Sequence[str]) -> list[DataFile]:
        """The files of the version with the bounds of `columns`."""
        return table.described(columns)

    def _app(self, kind: str) -> str:
        return f"{self.job_id}/{kind}"

    def check_generation(self, table: TableVersion) -> None:
        """FencedError if a later driver has taken the table over."""
        found = table.transactions.get(self._app(_DRIVER))
        if found is not None and found > self.generation:
            raise FencedError(
                f"{self.what} is written by driver generation {found}, this one is {self.generation}",
                hint="Another driver took this job over.",
            )

    def _transactions(self, epochs: Mapping[str, int]) -> list[tuple[str, Action]]:
        """The marks of a commit: those of its epoch, and of this driver where drivers may replace each other."""
        marks = {**epochs, **({_DRIVER: self.generation} if self.generation else {})}
        now = milliseconds()
        return [("txn", transaction(self._app(kind), version, now)) for kind, version in marks.items()]

    def _commits_with(self, table: TableVersion, app: str) -> Iterable[tuple[int, bytes]]:
        """The commit that has set the application's transaction if it is known, else the newest ones backwards."""
        place = table.places.get(app)
        known = None if place is None else self.storage.read_whole(commit_name(place))
        if place is not None and known is not None:
            return [(place, known)]
        return backwards(self.storage, table.version, _SEARCHED_COMMITS)

    def _needed_from(self, table: TableVersion) -> int:
        """The first commit whose note may be asked for, of this job's newest epoch, whatever the kind; or that of the
        version that readers were told of, if it comes before and is still there."""
        newest_epoch, told = self._newest_epoch(table), self.held.told
        apps = [app for app, epoch in self._own(table).items() if epoch == newest_epoch]
        noted = min((self._place(table, app) for app in apps), default=table.version)
        if told is None or told >= noted or self.storage.tag_of(commit_name(told)) is None:
            return noted
        return told

    def _newest_epoch(self, table: TableVersion) -> int:
        """The newest epoch of this job that has landed, of whatever kind; 0 if none has."""
        return max(self._own(table).values(), default=0)

    def _own(self, table: TableVersion) -> dict[str, int]:
        """This job's transactions, except those that count drivers or versions of the definition."""
        others = {self._app(kind) for kind in (_DRIVER, _SCHEMA)}
        own = table.transactions.items()
        return {app: epoch for app, epoch in own if app.startswith(f"{self.job_id}/") and app not in others}

    def _place(self, table: TableVersion, app: str) -> int:
        if app in table.places:
            return table.places[app]
        found = backwards(self.storage, table.version, _SEARCHED_COMMITS)
        needle = json.dumps(app, ensure_ascii=False).encode()
        return next((version for version, data in found if needle in data), table.version)

    def _write(self, table: TableVersion, actions: Sequence[tuple[str, Action]], told: str) -> TableVersion:
        check_writable(table.protocol, table.metadata, self.storage.path)
        return self._put(table, actions, {**_WRITE, NOTE: told})

    def _put(
        self, table: TableVersion | None, actions: Sequence[tuple[str, Action]], information: Action
    ) -> TableVersion:
        """Write the commit behind `table`, or the first one, and hold the version that it makes."""
        number = str(uuid4())
        version = 0 if table is None else table.version + 1
        engine = {"timestamp": milliseconds(), "engineInfo": f"vnode-backfill/{__version__}", TXN_ID: number}
        text = commit_text([("commitInfo", {**engine, **information}), *actions])
        with storage_errors(f"{self.what} cannot be committed to at {self.storage.path}"):
            tag = self._put_once(version, text, number)
            checkpoint = checkpoint_behind(self.storage, table, version)
        self._check_not_past(version, checkpoint)
        size = len(text)
        if table is None:
            made = created(actions, tag=tag, size=size)
        else:
            made = table.after(actions, tag=tag, checkpoint=checkpoint, size=size)
        with self.held.lock:
            if self.held.table is None or self.held.table.version <= made.version:
                self.held.table = made
        return made

    def _put_once(self, version: int, text: bytes, number: str) -> str | None:
        name = commit_name(version)
        try:
            return self.storage.put_new(name, text)
        except FileExistsError:
            there = self.storage.read_tagged(name)
        if there is None or transaction_id(there.data, name) != number:
            raise OvertakenError(f"version {version} of {self.storage.path} was committed by somebody else")
        return there.tag

    def _check_not_past(self, version: int, checkpoint: int) -> None:
        """Whoever wrote behind an old version may have written where the log was cleaned already."""
        if checkpoint > version:
            with self.held.lock:
                self.held.table = None
            raise OvertakenError(
                f"the commit of version {version} of {self.storage.path} is behind a checkpoint of {checkpoint}"
            )


def prepared_jobs(table: TableVersion) -> frozenset[str]:
    """The jobs that the table was ever made ready for."""
    return frozenset(app.removesuffix(_PREPARED) for app in table.transactions if app.endswith(_PREPARED))
