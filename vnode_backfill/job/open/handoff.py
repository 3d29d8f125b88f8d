"""Hands the target of a job that only copies over to one that follows the log: no gap, no row twice.

What must be true: the job that follows begins exactly where the copy is complete, and from then on nobody else writes.
Why it is:

- A job in startup_mode `snapshot` ends with a SyncCheckpoint: every vnode is live at one offset X, in one commit. That
  commit *is* the handoff; there is no second record that could disagree with it. A job killed before it continues
  copying; one killed after it has ended. `handoff.json` beside the state tables says the same to people and scripts, is
  written afterwards, and again by every later run; nothing is decided by it.
- A job that has ended so never runs again: run a second time it says where it ended, and exits. Its driver is also
  fenced out of the target by the job that takes over (see `sinks.delta.target`).
- The job that follows reads the log from X. It may be killed before it exists, and is then created again from the same
  X; once it exists, its own progress counts. If the log after X is gone, it is refused.

How a job began (its mode) is written once, before its first checkpoint, into the table `starts` of its state folder.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.fs as pafs

from consume_upstream.log.offset import CdcOffset
from progress.state.backfill_state import BackfillState
from progress.store.reader import folder_name
from progress.store.rows.job_rows import JobRecord
from progress.store.state_table import DEFAULT_RETENTION, StateTable, state_errors
from progress.store.walk_store import store_of
from vnode_backfill.config.job import Config, StartupMode
from vnode_backfill.config.values import reveal
from vnode_backfill.decide.start_point import Handoff, StartPlan
from vnode_backfill.delta.storage import Storage
from vnode_backfill.job.open import notices
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.errors import ConfigError

FILE_NAME = "handoff.json"
_VERSION = 1
_FROM_JOB = "mysql.cdc.specific.from_job"
_STARTS = pa.schema([("id", pa.string()), ("mode", pa.string()), ("first", pa.string()), ("from_job", pa.string())])


@dataclass(frozen=True, slots=True)
class StoredHandoff:
    """Where a job's copy is complete, and of what and into what it is a copy."""

    job: str
    id: str
    server: str
    table: str
    target: str
    definition: str
    """Fingerprint of the table's definition."""
    offset: CdcOffset
    created_at: datetime
    kept: tuple[Column, ...] = ()
    """Columns of the target that the source has dropped."""

    @property
    def point(self) -> Handoff:
        return Handoff(self.job, self.offset)

    def to_json(self) -> str:
        stored = {
            "version": _VERSION, "job": self.job, "id": self.id, "server": self.server, "table": self.table,
            "target": self.target, "definition": self.definition, "gtids": self.offset.gtids,
            "offset": json.loads(self.offset.to_json()),
        }  # fmt: skip
        return json.dumps(stored, indent=2) + "\n"


def fingerprint(definition: TableDefinition) -> str:
    """The same for two definitions exactly if they are equal, whatever their partitions."""
    stored = replace(definition, partitioning=None, primary=False).to_json()
    return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()


def is_complete(mode: StartupMode, state: BackfillState) -> bool:
    """Whether a job that only copies has ended: stopped with every vnode live at one offset."""
    return mode is StartupMode.SNAPSHOT and state.stopped and state.is_live and state.failure is None


def record_start(config: Config, job_id: str, first: CdcOffset, handoff: StoredHandoff | None) -> None:
    """Keep how a job begins, before it exists; a row of a job that never came to exist is read by nobody.

    What is to be said of the job whose target it takes over is to be said of it too.
    """
    cdc = config.mysql.cdc
    from_job = cdc.specific.from_job if cdc.specific else None
    _store_start(config, job_id, cdc.startup_mode, first, from_job)
    if handoff is None or notices.is_settled(config, handoff.job, handoff.id):
        notices.settle(config, config.job, job_id)


def record_start_of(config: Config, job_id: str, mode: StartupMode, first: CdcOffset) -> None:
    """Keep how a new copy of a job's table begins, whatever mode the job itself began in."""
    _store_start(config, job_id, mode, first, None)
    notices.settle(config, config.job, job_id)


def _store_start(config: Config, job_id: str, mode: StartupMode, first: CdcOffset, from_job: str | None) -> None:
    row = {"id": job_id, "mode": str(mode), "first": first.to_json(), "from_job": from_job}
    _starts(config, config.job).add(pa.Table.from_pylist([row], schema=_STARTS))


def mode_of(config: Config, job: str, job_id: str) -> StartupMode:
    """The mode a job was created with; before modes were recorded there was only one."""
    found = [row["mode"] for row in _starts(config, job).rows().to_pylist() if row["id"] == job_id]
    return StartupMode(found[0]) if found else StartupMode.INITIAL


def read_handoff(config: Config, job: str) -> StoredHandoff | None:
    """The handoff of a job under the same state path.

    None if there is no such job or it has not ended as one that copies.
    """
    found = store_of(config.state.path, job, reveal(config.storage.options), single=False).status_snapshot()
    if found is None or not is_complete(mode_of(config, job, found.record.id), found.state):
        return None
    return handoff_of(found.record, found.state)


def handoff_of(record: JobRecord, state: BackfillState) -> StoredHandoff:
    """The handoff that a complete job's last commit is."""
    table, shape = f"{record.database}.{record.table}", state.schema.shape_in_sink(record.definition)
    return StoredHandoff(
        job=record.name, id=record.id, server=state.lowest_applied.server, table=table, target=record.sink,
        definition=fingerprint(shape.definition), offset=state.lowest_applied, created_at=record.created_at,
        kept=shape.kept,
    )  # fmt: skip


def write_handoff(config: Config, handoff: StoredHandoff) -> str:
    """Say it in a file beside the state tables, whole or not at all; the file's path. A second call writes the same."""
    folder = _folder(config, handoff.job)
    with state_errors(f"{folder} cannot be written"):
        Storage.of(folder, reveal(config.storage.options)).write_whole(FILE_NAME, handoff.to_json().encode())
    return f"{folder}/{FILE_NAME}"


def handoff_for(config: Config, definition: TableDefinition) -> StoredHandoff | None:
    """The handoff a new job of this configuration concerns.

    The one it names, or for `latest` one with the same target.
    """
    cdc = config.mysql.cdc
    if cdc.specific is not None and cdc.specific.from_job is not None:
        named = read_handoff(config, cdc.specific.from_job)
        if named is not None:
            _check_fits(config, named, definition)
        return named
    if cdc.startup_mode is not StartupMode.LATEST:
        return None
    found = [each for job in _jobs_with_file(config) if (each := read_handoff(config, job)) is not None]
    same = [
        each
        for each in found
        if each.target == configured_sink(config).target and each.definition == fingerprint(definition)
    ]
    return max(same, key=lambda each: each.created_at, default=None)


def check_copies(config: Config) -> None:
    """Refuse a configuration that is not one of a job that only copies: it would never end."""
    if config.mysql.cdc.startup_mode is not StartupMode.SNAPSHOT:
        raise ConfigError(
            f"mysql.cdc.startup_mode is {config.mysql.cdc.startup_mode}; the job that copies must have snapshot"
        )


def check_pair(copying: Config, following: Config) -> None:
    """Refuse two configurations that are not the two halves of a handoff, before the first half runs for hours."""
    check_copies(copying)
    specific = following.mysql.cdc.specific
    if specific is None or specific.from_job != copying.job:
        raise ConfigError(
            f"{_FROM_JOB} is {specific.from_job if specific else None}; the job that follows must have {copying.job}",
            hint=f"Set startup_mode: specific and specific: {{from_job: {copying.job}}}.",
        )
    if following.job == copying.job:
        raise ConfigError(f"job is {following.job} in both; the job that follows needs a name of its own")
    for path, one, other in _common(copying, following):
        if one != other:
            raise ConfigError(f"{path} is {one} for the job that copies and {other} for the one that follows")


def end_lines(config: Config, handoff: StoredHandoff, path: str) -> tuple[str, ...]:
    """What a job that has copied says at its end, and whenever it is run again."""
    mode = config.mysql.cdc.startup_mode
    unused = f"warning: mysql.cdc.startup_mode {mode} is not used, the job was created with snapshot and has ended"
    return (
        f"job {handoff.job} is complete: {handoff.target} holds {handoff.table} as of {handoff.offset}",
        f"its handoff is stored in {path}; a job with {_FROM_JOB} {handoff.job} follows the log from there",
        *(() if mode is StartupMode.SNAPSHOT else (unused,)),
    )


def starting_lines(start: StartPlan) -> tuple[str, ...]:
    return (*start.notes, *(f"warning: {text}" for text in start.warnings))


def _check_fits(config: Config, handoff: StoredHandoff, definition: TableDefinition) -> None:
    """A handoff counts for the same rows in the same target only."""
    table = f"{config.mysql.database}.{config.mysql.table}"
    for what, theirs, ours in (
        ("target", handoff.target, configured_sink(config).target),
        ("table", handoff.table, table),
    ):
        if theirs != ours:
            raise ConfigError(f"{_FROM_JOB} is {handoff.job}; the {what} of that job is {theirs}, of this one {ours}")
    if handoff.definition != fingerprint(definition):
        raise ConfigError(
            f"{_FROM_JOB} is {handoff.job}; {table} was changed since that job copied it",
            hint="Copy the table again with a new job of startup_mode snapshot or initial, into an empty target.",
        )


def _common(copying: Config, following: Config) -> tuple[tuple[str, str, str], ...]:
    one, other = copying.mysql, following.mysql
    return (
        ("mysql.host", one.host, other.host),
        ("mysql.port", str(one.port), str(other.port)),
        ("mysql.database", one.database, other.database),
        ("mysql.table", one.table, other.table),
        ("sink", configured_sink(copying).target, configured_sink(following).target),
        ("state.path", copying.state.path, following.state.path),
    )


def _jobs_with_file(config: Config) -> list[str]:
    """The jobs under this state path that have written a handoff at some time."""
    files = Storage.of(config.state.path, reveal(config.storage.options)).filesystem()
    with state_errors(f"{config.state.path} cannot be listed"):
        folders = files.get_file_info(pafs.FileSelector("", allow_not_found=True))
        paths = [
            f"{folder.path.rstrip('/')}/{FILE_NAME}" for folder in folders if folder.type == pafs.FileType.Directory
        ]
        found = [info.path for info in files.get_file_info(paths) if info.type == pafs.FileType.File] if paths else []
        texts = [files.open_input_file(path).read().decode() for path in found]
    return [str(json.loads(text)["job"]) for text in texts]


def _starts(config: Config, job: str) -> StateTable:
    return StateTable(f"{_folder(config, job)}/starts", _STARTS, reveal(config.storage.options), DEFAULT_RETENTION)


def _folder(config: Config, job: str) -> str:
    return f"{config.state.path.rstrip('/')}/{folder_name(job)}"
