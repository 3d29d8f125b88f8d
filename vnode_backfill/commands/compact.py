"""Joins small files of a Delta target on request and deletes old ones, whether the job runs or not.

No row changes; `sinks.delta.compaction` argues why that is safe beside a running job. A live job does the same by
itself (`job.run.upkeep`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from consume_upstream.buffer import ChangeBuffer
from progress.store.store import Loaded
from vnode_backfill.commands.stored_job import stored_job
from vnode_backfill.commands.tables.asked import check_one_table
from vnode_backfill.commands.tables.upkeep import KeptVersion, compact_tables, none_kept
from vnode_backfill.config.job import Config, Executor
from vnode_backfill.config.values import reveal
from vnode_backfill.job.open.known_table import shape_in_sink
from vnode_backfill.job.open.locations import buffer_path
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.sinks.delta.compaction import Compacted, CompactionPolicy
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.errors import PlanRefusedError

_VAIN_STEPS = 3
_WHOLE_STEPS = 3


def compact(
    config: Config,
    *,
    sweep_only: bool = False,
    only: Sequence[str] = (),
    kept: KeptVersion = none_kept,
    say: Callable[[str], None] = print,
) -> int:
    """Join all small files of the target, sweep target and buffer, and tidy the target's log.

    The job may run meanwhile, and need not. `only` are the tables of a job of many whose targets are meant.
    """
    if config.many:

        def one(own: Config, kept: KeptVersion, tell: Callable[[str], None]) -> int:
            return compact(own, sweep_only=sweep_only, kept=kept, say=tell)

        return compact_tables(config, only, one, say)
    check_one_table(config, only)
    _, loaded = stored_job(config)
    record = loaded.record
    sink, policy = configured_sink(config).compacted_by_request(record)
    sink.use(shape_in_sink(loaded))
    sink.keep(kept(record.sink))
    if not sweep_only:
        check_walked(loaded)
        say(_compacted(join_all(sink, policy)))
    buffer = ChangeBuffer(
        buffer_path(config), record.definition, record.id, reveal(config.storage.options),
        retention=config.buffer.retention,
    )  # fmt: skip
    say(f"swept {len(sink.sweep()):,} files of the target and {len(buffer.sweep()):,} of the change buffer")
    # After the sweep: a checkpoint leaves out what was removed long ago, and a sweep goes by what is in it.
    sink.tidy()
    return 0


def join_all(sink: DeltaSink, policy: CompactionPolicy) -> Tally:
    """Step by step, a commit each, until nothing is left or a running job is faster several times on end."""
    tally = Tally()
    while not tally.is_enough:
        step = sink.compact(policy)
        if step is None:
            break
        tally.count(step)
    return tally


@dataclass
class Tally:
    """What a request has done so far, how often on end in vain, and how often it has tried all that was left."""

    removed: int = 0
    added: int = 0
    vain: int = 0
    whole: int = 0
    left: int = 0
    begun_with: int = 0

    def count(self, step: Compacted) -> None:
        self.begun_with = self.begun_with or step.removed + step.left
        self.removed, self.added, self.left = self.removed + step.removed, self.added + step.added, step.left
        self.vain = 0 if step.removed else self.vain + 1
        self.whole += step.left == step.overtaken

    @property
    def is_enough(self) -> bool:
        """A running job makes new small files all the time.

        Those that were there at the beginning are joined, what they have become too.
        """
        return self.vain >= _VAIN_STEPS or self.whole >= _WHOLE_STEPS or self.removed > 2 * self.begun_with


def _compacted(tally: Tally) -> str:
    none = "nothing was joined" if tally.vain else "no files to join"
    done = f"joined {tally.removed:,} files into {tally.added:,}" if tally.removed else none
    left = f"; {tally.left:,} are left, which the running job rewrites faster than they can be joined; when live it joins them itself"
    return done + (left if tally.vain else "")


def check_walked(loaded: Loaded) -> None:
    """The files of a walk are where a killed driver's cursor is found again, so they stay until it has ended."""
    if loaded.record.executor == Executor.SINGLE and not loaded.state.backfill_finished:
        raise PlanRefusedError(
            f"job {loaded.record.name} walks its table still; its files are joined when it has ended",
            hint="Run it to the end first, or delete old files only: `vnode-backfill compact --sweep-only`.",
        )
