"""Describes a sink to the rest of a job: everything that depends on which sink the configuration names.

There is one description per sink (`delta`, `iotdb`), and `configured` is the one place that chooses. A new sink is one
more description and one more case there.

A description is cheap to import and to make, because commands ask it before the JVM starts. What a method needs is
imported in the method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from consume_upstream.upstream_table import UpstreamTable
    from progress.store.lease import Lease
    from progress.store.rows.job_rows import JobRecord
    from progress.store.store import Loaded
    from vnode_backfill.config.job import MergeMode
    from vnode_backfill.delta.commits import DeltaLog
    from vnode_backfill.sinks import Sink
    from vnode_backfill.sinks.delta.compaction import CompactionPolicy
    from vnode_backfill.sinks.delta.sink import DeltaSink
    from vnode_backfill.verify.pace import SourcePace
    from vnode_backfill.verify.table import JobProgress
    from vnode_backfill.verify.tasks import TaskRunner
    from vnode_backfill.words.columns import TableDefinition
    from vnode_backfill.words.finding import Finding
    from vnode_backfill.words.plan import TableFacts


@dataclass(frozen=True, slots=True)
class WritingJob:
    """The job that writes to a target: its record, its source, and the lease that its driver holds in `folder`."""

    record: JobRecord
    table: UpstreamTable
    lease: Lease
    folder: str


@dataclass(frozen=True, slots=True)
class Owner:
    """The job that a target belongs to, or is to belong to; `generation` counts its drivers."""

    job: str
    id: str
    writer_id: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Comparing:
    """What a comparison of source and target works with. A sink that reads its target itself runs no tasks."""

    loaded: Loaded
    tasks: Callable[[], AbstractContextManager[TaskRunner]]
    source: Callable[[], AbstractContextManager[tuple[UpstreamTable, SourcePace]]]
    progress: Callable[[], JobProgress]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a comparison, to be printed as text or as JSON."""

    equal: bool
    text: str
    json: str


class SinkDescription(Protocol):
    @property
    def target(self) -> str:
        """The target as job records name it. It is stored, so its form stays."""
        ...

    @property
    def folders(self) -> Mapping[str, str]:
        """The folders that the sink writes to, by their YAML keys."""
        ...

    @property
    def fences_drivers(self) -> bool:
        """Whether the target refuses what a replaced driver and its tasks write.

        Where it does not, each task looks at the lease before each call, a new driver waits until the old lease has run
        out, and the clocks must agree.
        """
        ...

    @property
    def keeps_cursor(self) -> bool:
        """Whether a walk's cursor can be found again in the target after a crash, as `executor: single` needs it."""
        ...

    @property
    def daemon_module(self) -> str:
        """The module that Spark forks its workers from, on one machine."""
        ...

    @property
    def compaction(self) -> CompactionPolicy | None:
        """When a live job joins small files of its target; None if it never does."""
        ...

    def findings(self, definition: TableDefinition) -> tuple[Finding, ...]:
        """What the target says about taking the table, for `plan` and before a job is created. Reads only."""
        ...

    def outlook(self, facts: TableFacts, *, exists: bool, follows: bool) -> tuple[Finding, ...]:
        """How the target will be changed, who can read it, and the disk it needs, for `plan`. Reads only.

        `exists` says whether the job does, `follows` whether it goes on after the copy.
        """
        ...

    def check_free(self, definition: TableDefinition) -> None:
        """Refuse a target that holds rows of somebody else. Writes nothing."""
        ...

    def check_left(self, definition: TableDefinition) -> None:
        """Refuse a target that another job has filled and that this one's file does not fit. Writes nothing."""
        ...

    def ownership(self, owner: Owner) -> DeltaLog:
        """The log in which it is written whose the target is."""
        ...

    def open(self, job: WritingJob) -> Sink:
        """The sink as the driver that holds the lease writes it: the target, or this job's copy beside it."""
        ...

    def prepare_new(self, job: WritingJob, *, taken_over: bool) -> bool:
        """Make the target ready for a job that does not exist yet. Taken over, it keeps the rows of the other job.

        Returns whether its rows may be deleted by vectors.
        """
        ...

    @property
    def copies_beside(self) -> bool:
        """Whether a new copy can be made beside the old one; otherwise it replaces the old one from its first row
        on."""
        ...

    def prepare_beside(self, job: WritingJob) -> bool:
        """Make a new copy's own table beside the target, which stays as it is until `Sink.put_in_place`.

        Returns whether rows of the copy may be deleted by vectors. Raises where the target can have no copy beside it.
        `open` finds the copy by itself. A second call changes nothing.
        """
        ...

    def discard_copies(self, job_id: str) -> None:
        """Delete copies beside the target that were begun and never put in place, except that of `job_id`."""
        ...

    def last_words(self, sink: Sink) -> tuple[str, ...]:
        """What the user should know of a sink at the end of a run."""
        ...

    def verify(self, asked: Comparing) -> Verdict:
        """Compare source and target."""
        ...

    def compacted_by_request(self, record: JobRecord) -> tuple[DeltaSink, CompactionPolicy]:
        """The target as `compact` works on it, without a lease, and which files it joins.

        Raises where none can be joined.
        """
        ...

    def readable_until(self, target: str, version: int) -> datetime | None:
        """Until when a version of a target stays for its readers if no cut keeps it; None if it cannot be read any more.

        `target` is named as in job records. Reads only.
        """
        ...

    def turned_over(self, record: JobRecord, lease: Lease, mode: MergeMode) -> DeltaSink:
        """The target as `upgrade` works on it, with the lease held. Raises where it cannot become one of this mode."""
        ...
