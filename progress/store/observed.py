"""Stores what only the running driver knows and `status` shows: why it waits, what it tries again, how fast it is.

It changes all the time and nothing depends on it, so it is not part of the state: a small file beside the tables, one
per driver like the heartbeat, written over by the driver and removed at its end. A driver that was killed leaves its
file; nobody reads it, because it is of a generation whose lease is over, and the next driver removes it. A file that
cannot be written or read is as good as none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from progress.state.report import NOTHING_OBSERVED, SET_ASIDE, InHand, JobPhase, Observed, Report, Retry, TableProgress
from progress.state.target_health import TargetHealth
from progress.store.state_table import state_errors
from vnode_backfill.delta.storage import Storage
from vnode_backfill.words.errors import StateError

_EVERY = 5.0
_NOT_DRIVEN = (JobPhase.STOPPED, JobPhase.FAILED, SET_ASIDE)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ObservedFile:
    """The file of one driver generation in the job's folder; written whole or not at all."""

    folder: str
    options: Mapping[str, str]
    generation: int

    def write(self, observed: Observed, tables: Mapping[str, TableSeen] | None = None) -> None:
        with state_errors(f"{self.folder} cannot be written"):
            self._files().write_whole(self._name, _to_json(observed, tables or {}).encode())

    def read(self) -> Observed | None:
        """What the driver noted last; None where it has noted nothing that can be read."""
        found = self.read_with_tables()
        return None if found is None else found[0]

    def read_with_tables(self) -> tuple[Observed, Mapping[str, TableSeen]] | None:
        """The same, with what the driver of many tables noted of each of them."""
        try:
            with state_errors(f"{self.folder} cannot be read"):
                held = self._files().read_note(self._name)
            return None if held is None else _from_json(held)
        except (StateError, ValidationError):
            return None

    def remove(self) -> None:
        with state_errors(f"{self.folder} cannot be written"):
            self._files().remove_file(self._name)

    @property
    def _name(self) -> str:
        return f"observed-{self.generation}"

    def _files(self) -> Storage:
        return Storage.of(self.folder, self.options)


@dataclass(frozen=True, slots=True)
class TableSeen:
    """What only the driver of many tables knows of one: whether it is still driven, how far behind, what is retried,
    and in what shape its target is."""

    driven: bool = True
    lag_seconds: float | None = None
    lake_age_seconds: float | None = None
    retry: str = ""
    lag_bytes: int | None = None
    buffer_bytes: int | None = None
    target: TargetHealth | None = None
    lengthened: int = 1
    lengthened_by: str = ""


def tables_seen(report: Report) -> dict[str, TableSeen]:
    """What a report on many tables says of each that its state does not; empty for a job of one table."""
    return {table.name: _table_seen(table, report.parts.get(table.name)) for table in report.tables}


def _table_seen(table: TableProgress, part: Report | None) -> TableSeen:
    driven = table.phase not in _NOT_DRIVEN
    seen = NOTHING_OBSERVED if part is None else part.observed
    return TableSeen(
        driven=driven,
        lag_seconds=table.lag_seconds,
        lake_age_seconds=table.lake_age_seconds,
        retry=table.error if driven else "",
        lag_bytes=seen.lag_bytes,
        buffer_bytes=seen.buffer_bytes,
        target=seen.target,
        lengthened=seen.lengthened,
        lengthened_by=seen.lengthened_by,
    )


class ObservedReporter:
    """Notes what is shown: every few seconds, and at once when the reason to wait or to try again changes.

    A thread writes, because the storage may be slow and the loop that shows must not wait.
    """

    def __init__(self, file: ObservedFile, every: float = _EVERY) -> None:
        self._file, self._every = file, every
        self._report: Report | None = None
        self._noted: tuple[Observed, dict[str, TableSeen]] = (NOTHING_OBSERVED, {})
        self._wake, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._write, name="observed", daemon=True)
        self._thread.start()

    def show(self, report: Report) -> None:
        before = NOTHING_OBSERVED if self._report is None else self._report.observed
        self._report = report
        if (before.throttled_by, before.retry) != (report.observed.throttled_by, report.observed.retry):
            self._wake.set()

    def close(self) -> None:
        """The driver ends: what it saw is over."""
        self._closed.set()
        self._wake.set()
        self._thread.join()
        _attempt(self._file.remove)

    def _write(self) -> None:
        _attempt(replace(self._file, generation=self._file.generation - 1).remove)
        while not self._closed.is_set():
            self._wake.wait(self._every)
            self._wake.clear()
            report = self._report
            found = self._noted if report is None else (report.observed, tables_seen(report))
            if found != self._noted:
                self._noted = found
                _attempt(lambda: self._file.write(*self._noted))


class _Act(Protocol):
    def __call__(self) -> None: ...


def _attempt(act: _Act) -> None:
    try:
        act()
    except StateError as error:
        _log.warning("what was observed cannot be noted error=%s", error.message)


class _Noted(BaseModel):
    model_config = ConfigDict(defer_build=True)


class _StoredRetry(_Noted):
    attempt: int
    message: str


class _StoredInHand(_Noted):
    rows: int = 0
    ranges: int = 0
    captured: int = 0
    merged: int = 0


class _StoredTable(_Noted):
    """What an earlier release did not note is not known."""

    driven: bool = True
    lag_seconds: float | None = None
    lake_age_seconds: float | None = None
    retry: str = ""
    lag_bytes: int | None = None
    buffer_bytes: int | None = None
    target: TargetHealth | None = None
    lengthened: int = 1
    lengthened_by: str = ""


class _StoredObserved(BaseModel):
    """A later release may note more; what this one does not know it does not show."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    rows_per_second: float | None = None
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    buffer_bytes: int | None = None
    lake_age_seconds: float | None = None
    target: TargetHealth | None = None
    lengthened: int = 1
    lengthened_by: str = ""
    throttled_by: str = ""
    retry: _StoredRetry | None = None
    in_hand: _StoredInHand = Field(default_factory=_StoredInHand)
    task_slots: int | None = None
    reported: tuple[str, ...] = ()
    tables: dict[str, _StoredTable] = {}


def _to_json(observed: Observed, tables: Mapping[str, TableSeen]) -> str:
    retry = observed.retry
    return _StoredObserved(
        rows_per_second=observed.rows_per_second,
        lag_seconds=observed.lag_seconds,
        lag_bytes=observed.lag_bytes,
        buffer_bytes=observed.buffer_bytes,
        lake_age_seconds=observed.lake_age_seconds,
        target=observed.target,
        lengthened=observed.lengthened,
        lengthened_by=observed.lengthened_by,
        throttled_by=observed.throttled_by,
        retry=None if retry is None else _StoredRetry(attempt=retry.attempt, message=retry.message),
        in_hand=_StoredInHand(**asdict(observed.in_hand)),
        task_slots=observed.task_slots,
        reported=observed.reported,
        tables={name: _stored_table(table) for name, table in tables.items()},
    ).model_dump_json(exclude_defaults=True)


def _stored_table(seen: TableSeen) -> _StoredTable:
    return _StoredTable(
        driven=seen.driven,
        lag_seconds=seen.lag_seconds,
        lake_age_seconds=seen.lake_age_seconds,
        retry=seen.retry,
        lag_bytes=seen.lag_bytes,
        buffer_bytes=seen.buffer_bytes,
        target=seen.target,
        lengthened=seen.lengthened,
        lengthened_by=seen.lengthened_by,
    )


def _table_of(stored: _StoredTable) -> TableSeen:
    return TableSeen(
        driven=stored.driven,
        lag_seconds=stored.lag_seconds,
        lake_age_seconds=stored.lake_age_seconds,
        retry=stored.retry,
        lag_bytes=stored.lag_bytes,
        buffer_bytes=stored.buffer_bytes,
        target=stored.target,
        lengthened=stored.lengthened,
        lengthened_by=stored.lengthened_by,
    )


def _from_json(text: bytes) -> tuple[Observed, Mapping[str, TableSeen]]:
    stored = _StoredObserved.model_validate_json(text)
    return _observed(stored), {name: _table_of(table) for name, table in stored.tables.items()}


def _observed(stored: _StoredObserved) -> Observed:
    return Observed(
        rows_per_second=stored.rows_per_second,
        lag_seconds=stored.lag_seconds,
        lag_bytes=stored.lag_bytes,
        buffer_bytes=stored.buffer_bytes,
        lake_age_seconds=stored.lake_age_seconds,
        target=stored.target,
        lengthened=stored.lengthened,
        lengthened_by=stored.lengthened_by,
        throttled_by=stored.throttled_by,
        retry=None if stored.retry is None else Retry(stored.retry.attempt, stored.retry.message),
        in_hand=InHand(**stored.in_hand.model_dump()),
        task_slots=stored.task_slots,
        reported=stored.reported,
    )
