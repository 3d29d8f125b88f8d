"""Keeps the checkpoints of all tables of a job in one Delta table, so that one commit covers any number of them.

Each table's rows are those of a job of one table (`checkpoint_rows`), with the table's name beside them. A commit
writes the whole content again, on top of the version that this process wrote last:

    row     table        …   document
    lease   –                who drives the job
    cut     –                the offset at which all live targets were, and the version that each had
    aside   –                the tables that are not copied, and why
    parked  –                how far live tables are that nothing has happened to since their own rows were written
    job     shop.orders      everything of this table that is not per vnode
    vnode   shop.orders  …
    job     shop.items
    live    shop.items       all vnodes of a live table

What must be true is what is true of one table: a driver that was replaced cannot commit, and a commit that is repeated
changes nothing. Both hold, because each table has application transactions of its own, and the lease is the job's: the
process that holds it writes, and every write is refused if somebody else has written since.

While this process holds the lease nobody else writes. So it works on what it wrote last, and looks again only after a
write was refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from threading import RLock
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from progress.state.parked import ParkedDocument
from progress.store.kind_of_job import check_no_walk, rows_of_many
from progress.store.lease import Lease
from progress.store.rows.checkpoint_rows import CHECKPOINT_SCHEMA, LEASE, TABLE, document_of, document_row
from progress.store.rows.packed_rows import PackedRows
from progress.store.state_form import DRIVER, Checkpoint, StateFolder
from progress.store.state_table import StateTable, as_schema, state_errors
from vnode_backfill.words.errors import BackfillError, FencedError, LawBrokenError, OvertakenError, StateError

if TYPE_CHECKING:
    from progress.state.backfill_state import BackfillState
    from progress.store.store import PreparedCommit, StateStore

SHARED_SCHEMA = CHECKPOINT_SCHEMA.append(pa.field(TABLE, pa.string()))
CUT = "cut"
ASIDE = "aside"
PARKED = "parked"
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class OfAll:
    """What a commit says of all tables; what it says nothing about stays as it is."""

    cut: str | None = None
    aside: str | None = None
    parked: ParkedDocument | None = None


_NOTHING_NEW = OfAll()


@dataclass(frozen=True, slots=True)
class _Content:
    """One version of the shared table; the rows of each table are as they are stored."""

    handle: DeltaTable | None
    generation: int
    lease: Lease | None
    tables: Mapping[str, pa.Table]
    cut: str | None = None
    aside: str | None = None
    parked: ParkedDocument | None = None

    def with_rows(self, changed: Mapping[str, pa.Table], lease: Lease, said: OfAll) -> _Content:
        """With other rows of some tables. What is said of all of them ends with the last one."""
        stored = {name: _marked(rows, name) for name, rows in changed.items()}
        held = {name: rows for name, rows in {**self.tables, **stored}.items() if rows.num_rows}
        found = replace(self, lease=lease, generation=lease.generation, tables=held, cut=None, aside=None, parked=None)
        if not held:
            return found
        return replace(
            found,
            cut=said.cut or self.cut,
            aside=said.aside or self.aside,
            parked=said.parked or self.parked,
        )

    def rows(self, packed: PackedRows) -> pa.Table:
        documents = [document_row(LEASE, self.lease.to_json())] if self.lease else []
        documents += [document_row(CUT, self.cut)] if self.cut else []
        documents += [document_row(ASIDE, self.aside)] if self.aside else []
        documents += [document_row(PARKED, self.parked.text)] if self.parked else []
        # In one piece: each table's rows are a piece of their own, and a piece costs more to write than its rows.
        parts = [*(_marked(row, None) for row in documents), *packed.parts(self.tables)]
        return pa.concat_tables(parts).combine_chunks()


_NOTHING = _Content(None, 0, None, {})


class SharedCheckpoints:
    """The commit point of a job of many tables. Safe to use from any thread."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder, self._job = folder, folder.job
        self.commits = folder.table("checkpoints", SHARED_SCHEMA)
        self._lock = RLock()
        self._newest: _Content | None = None
        self._pinned: _Content | None = None
        self._packed = PackedRows()
        self._numbers: dict[str, int | None] = {}
        """The application transactions at the newest version, as far as anybody has asked or written one."""
        self._commits, self._tidy_every = 0, folder.retention.commits

    @property
    def lease(self) -> Lease | None:
        """The lease that this process holds; None if it holds none, or was told that it lost it."""
        newest = self._newest
        return None if newest is None or newest.lease is None or not self._holds else newest.lease

    _holds = False
    _unknown = False
    """Whether a write failed and nobody knows if it has landed."""

    def table_names(self) -> tuple[str, ...]:
        """The tables that have a state."""
        return tuple(sorted(self.current().tables))

    def cut(self) -> str | None:
        """The newest cut, as it was stored."""
        return self.current().cut

    def aside(self) -> str | None:
        """Which tables are not copied and why, as it was stored."""
        return self.current().aside

    def note_aside(self, document: str) -> None:
        """Store which tables are not copied, by the process that holds the lease. The same again changes nothing."""
        with self._lock:
            lease, held = self.lease, self._newest.aside if self._newest else None
            if lease is not None and document != held:
                self.write({}, lease, {}, OfAll(aside=document))

    def note_parked(self, document: ParkedDocument) -> None:
        """Store how far tables are that rest, by the process that holds the lease. The same again changes nothing."""
        with self._lock:
            lease, held = self.lease, self._newest.parked if self._newest else None
            if lease is not None and document != held:
                self.write({}, lease, {}, OfAll(parked=document))

    @contextmanager
    def pinned(self) -> Iterator[Mapping[str, pa.Table]]:
        """Everybody who asks during the block sees one version, which is read once. Holds up those who write."""
        with self._lock:
            self._pinned = self.current()
            try:
                yield self._pinned.tables
            finally:
                self._pinned = None

    def of_table(self, name: str) -> TableCheckpoints:
        return TableCheckpoints(self, name)

    def look(self) -> _Content | None:
        """The newest version; None before the first commit. One of another driver ends what this process holds."""
        with self._lock:
            held, handle = self._newest, self.commits.open()
            # A write whose answer was lost may have moved the handle that is held here, but not what is known of it.
            if self._unknown or not _is_of(held, handle):
                self._newest, self._numbers = self._read(handle), {}
            self._unknown = False
            if self._newest is None or held is None or held.generation != self._newest.generation:
                self._holds = False
            return self._newest

    def landed(self, handle: DeltaTable, app_id: str) -> int | None:
        """The last application transaction of this id; of the newest version it is asked for once."""
        with self._lock:
            if handle is not (self._newest or _NOTHING).handle:
                return self.commits.transaction_version(handle, app_id)
            if app_id not in self._numbers:
                self._numbers[app_id] = self.commits.transaction_version(handle, app_id)
            return self._numbers[app_id]

    def write(
        self,
        changed: Mapping[str, pa.Table],
        lease: Lease,
        numbered: Mapping[str, int],
        said: OfAll = _NOTHING_NEW,
    ) -> DeltaTable:
        """Replace the rows of these tables in one commit, or raise `OvertakenError` and change nothing.

        A table whose rows are empty is gone. Demands that this process holds the lease.
        """
        with self._lock:
            if self._unknown:
                self.look()
            if not self._holds:
                raise self._fenced(lease, self._newest)
            return self._replaced(changed, lease, numbered, said)

    def write_of_table(self, name: str, rows: pa.Table, lease: Lease, numbered: Mapping[str, int]) -> DeltaTable:
        """Replace the rows of one table. A write that was refused leaves the lease as it is, if nobody took over."""
        with self._lock:
            try:
                return self.write({name: rows}, lease, numbered)
            except OvertakenError:
                self.check_held(lease)
                raise

    def write_lease(self, handle: DeltaTable | None, lease: Lease, numbered: Mapping[str, int]) -> DeltaTable:
        """Write a lease that is taken, or given back, on top of the version that was looked at."""
        with self._lock:
            if handle is not (self._newest or _NOTHING).handle:
                raise OvertakenError(f"{self.commits.uri} was looked at again meanwhile")
            return self._replaced({}, lease, numbered)

    def _replaced(
        self,
        changed: Mapping[str, pa.Table],
        lease: Lease,
        numbered: Mapping[str, int],
        said: OfAll = _NOTHING_NEW,
    ) -> DeltaTable:
        with self._lock:
            newest = self._newest or _NOTHING
            content = newest.with_rows(changed, lease, said)
            try:
                landed = self.commits.replace(
                    newest.handle, content.rows(self._packed), {DRIVER: lease.generation, **numbered}
                )
            except OvertakenError:
                self._holds = False
                raise
            except BaseException:
                # It may have landed or not: look before anything else is written or read.
                self._unknown = True
                raise
            self._newest, self._holds = replace(content, handle=landed), not lease.released
            self._numbers.update(numbered)
            self._commits += 1
            if self._commits % self._tidy_every == 0:
                self.commits.tidy(landed)
            return landed

    def commit_together(
        self, commits: Sequence[tuple[StateStore, BackfillState]], said: OfAll = _NOTHING_NEW
    ) -> dict[str, BackfillError]:
        """Make each state that of its table, all in one step. What has landed already is left as it is.

        A state that cannot be made ready is left out, and the others are committed: per such table the reason. A cut is
        of all tables, so none is stored then. Demands that no other thread commits one of these tables meanwhile.
        """
        for _ in range(_ATTEMPTS):
            lease = commits[0][0].renewed_lease()
            prepared, refused = _prepared(commits)
            said = replace(said, cut=None) if refused else said
            if not prepared and said.cut is None:
                return refused
            rows = {each.table: each.rows for each in prepared}
            numbered = {app_id: number for each in prepared for app_id, number in each.numbered.items()}
            with self._lock:
                try:
                    handle = self.write(rows, lease, numbered, said)
                except OvertakenError:
                    self.check_held(lease)
                    continue
            for each in prepared:
                each.landed(handle)
            return refused
        raise StateError(f"a commit of job {self._job!r} could not be written", detail="Others keep writing.")

    def forget(self, *names: str) -> None:
        """Take the rows of tables away, by the process that holds the lease."""
        lease = self.lease
        if lease is None:
            raise FencedError(f"tables of job {self._job!r} cannot be removed without a lease: {', '.join(names)}")
        self.write(dict.fromkeys(names, CHECKPOINT_SCHEMA.empty_table()), lease, {})

    def check_held(self, lease: Lease) -> None:
        """After a refused write: raise if another driver took over; otherwise this process holds the lease still."""
        found = self.look()
        if found is None or found.generation != lease.generation:
            raise self._fenced(lease, found)
        self._holds = True

    def _fenced(self, lease: Lease, found: _Content | None) -> FencedError:
        newer = "none" if found is None or found.lease is None else f"{found.generation}, {found.lease.owner}"
        return FencedError(
            f"another driver took over job {self._job!r}",
            detail=f"This driver has generation {lease.generation}, the newest is {newer}.",
            hint="This driver must end; nothing is lost, the other one continues.",
        )

    def lost(self) -> None:
        """This process no longer holds the lease."""
        self._holds = False

    def current(self) -> _Content:
        """The version that this process works on: what it wrote last while it holds the lease, else the newest."""
        with self._lock:
            if self._pinned is not None:
                return self._pinned
            found = self._newest if self._holds and not self._unknown else self.look()
            return found or _NOTHING

    def _read(self, handle: DeltaTable | None) -> _Content | None:
        if handle is None:
            check_no_walk(self._folder)
            return None
        with state_errors(f"{self.commits.uri} cannot be read"):
            generation = handle.transaction_version(DRIVER) or 0
        rows = self.commits.read(handle)
        rows = rows_of_many(self._job, rows)
        rows = _in_stretches(as_schema(rows.select(SHARED_SCHEMA.names), SHARED_SCHEMA))
        lease, parked = document_of(rows, LEASE), document_of(rows, PARKED)
        stretches = sorted((name, first, count) for name, first, count in _stretches(rows) if name is not None)
        tables = {name: rows.slice(first, count) for name, first, count in stretches}
        if not tables:
            check_no_walk(self._folder)
        return _Content(
            handle,
            generation,
            None if lease is None else Lease.from_json(lease),
            tables,
            document_of(rows, CUT),
            document_of(rows, ASIDE),
            None if parked is None else ParkedDocument(parked),
        )


class TableCheckpoints:
    """One table's part of the shared checkpoints; see `state_form.CommitPoint`."""

    def __init__(self, shared: SharedCheckpoints, name: str) -> None:
        self.shared, self.name = shared, name

    @property
    def commits(self) -> StateTable:
        return self.shared.commits

    @property
    def joined(self) -> Lease | None:
        return self.shared.lease

    def look(self) -> Checkpoint | None:
        found = self.shared.current()
        if found.handle is None:
            return None
        held = found.tables.get(self.name)
        rows = CHECKPOINT_SCHEMA.empty_table() if held is None else held.select(CHECKPOINT_SCHEMA.names)
        return Checkpoint(found.handle, found.generation, rows, found.lease, found.parked)

    def landed(self, handle: DeltaTable, app_id: str) -> int | None:
        return self.shared.landed(handle, app_id)

    def write(self, handle: DeltaTable | None, rows: pa.Table, lease: Lease, numbered: Mapping[str, int]) -> DeltaTable:
        """Whatever version a table's store has seen, its rows are its own: others may have been written since."""
        del handle
        return self.shared.write_of_table(self.name, rows, lease, numbered)


class JobCheckpoints:
    """The job itself, without its tables: what its lease is written through; see `state_form.CommitPoint`."""

    def __init__(self, shared: SharedCheckpoints) -> None:
        self._shared = shared

    @property
    def commits(self) -> StateTable:
        return self._shared.commits

    @property
    def joined(self) -> Lease | None:
        return None

    def look(self) -> Checkpoint | None:
        found = self._shared.look()
        if found is None or found.handle is None:
            return None
        return Checkpoint(found.handle, found.generation, CHECKPOINT_SCHEMA.empty_table(), found.lease)

    def landed(self, handle: DeltaTable, app_id: str) -> int | None:
        return self._shared.landed(handle, app_id)

    def write(self, handle: DeltaTable | None, rows: pa.Table, lease: Lease, numbered: Mapping[str, int]) -> DeltaTable:
        """The tables' rows stay as they are."""
        del rows
        return self._shared.write_lease(handle, lease, numbered)


def _is_of(held: _Content | None, handle: DeltaTable | None) -> bool:
    """Whether nobody has written since: the rows of all tables need not be read again whenever the lease is renewed."""
    known = None if held is None else held.handle
    return known is not None and handle is not None and handle.version() == known.version()


def _prepared(
    commits: Sequence[tuple[StateStore, BackfillState]],
) -> tuple[list[PreparedCommit], dict[str, BackfillError]]:
    """What the commits write, and why some cannot be made ready. What concerns all tables raises."""
    prepared: list[PreparedCommit] = []
    refused: dict[str, BackfillError] = {}
    for store, state in commits:
        try:
            found = store.prepare_commit(state)
        except (FencedError, OvertakenError):
            raise
        except BackfillError as error:
            refused[store.job] = error
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this table alone
            refused[store.job] = LawBrokenError(
                f"the state of {store.job} cannot be written: {type(error).__name__}", detail=str(error)[:1000]
            )
        else:
            prepared += [found] if found is not None else []
    return prepared, refused


def _stretches(rows: pa.Table) -> list[tuple[str | None, int, int]]:
    """Per stretch of rows of one table: its name, the place of its first row, and how many there are."""
    found, first = [], 0
    for name, group in groupby(rows[TABLE].to_pylist()):
        count = sum(1 for _ in group)
        found.append((name, first, count))
        first += count
    return found


def _in_stretches(rows: pa.Table) -> pa.Table:
    """The rows with those of each table together, as they are written; a reader may give them in another order."""
    names = [name for name, _, _ in _stretches(rows)]
    return rows if len(names) == len(set(names)) else rows.sort_by(TABLE)


def _marked(rows: pa.Table, name: str | None) -> pa.Table:
    return rows.append_column(SHARED_SCHEMA.field(TABLE), pa.array([name] * rows.num_rows, pa.string()))
