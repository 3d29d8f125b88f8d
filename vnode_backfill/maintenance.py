"""How a target is kept in shape: small files are joined when a job goes live and whenever there are many again, old ones are swept.

By the job itself between two epochs while it is live (`Upkeep`), and on request from any process, whether the job runs or not
(`compact`). Neither changes a row; see `sinks.delta_compaction` for why that is safe beside a running job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from consume_upstream.buffer import ChangeBuffer
from progress.job_rows import JobRecord
from progress.state import BackfillState
from vnode_backfill.config import Config, DeltaSinkConfig
from vnode_backfill.config_values import reveal
from vnode_backfill.errors import PlanRefusedError, StateError
from vnode_backfill.places import buffer_path, state_store
from vnode_backfill.sinks import Sink, TaskRunner
from vnode_backfill.sinks.delta import DeltaSink
from vnode_backfill.sinks.delta_compaction import Compacted, CompactionPolicy

log = logging.getLogger(__name__)

SWEEP_EVERY_SECONDS = 24 * 3600.0
_VAIN_STEPS = 3


class Upkeep:
    """One driver's care for its target. Other sinks than Delta need none."""

    def __init__(self, sink: Sink, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink if isinstance(sink, DeltaSink) else None
        self._clock = clock
        self._next_sweep = clock() + SWEEP_EVERY_SECONDS
        # A job that goes live joins what its snapshot has left, however little; later on there must be many small files.
        self._joining = True
        delta = config.sink.delta
        self._policy = CompactionPolicy(delta.target_file_size, delta.compact_small_files) if delta else None

    def maybe_compact(self, state: BackfillState, tasks: TaskRunner | None = None) -> Compacted | None:
        """Join a bounded number of small files if that is due, and sweep once a day; None where nothing was joined.

        To be called while no sink commit of an epoch is under way. Calling it at another time costs work, never rows.
        """
        if self._sink is None or self._policy is None or not self._policy.small_files or not state.is_live:
            return None
        if self._clock() >= self._next_sweep:
            self._next_sweep = self._clock() + SWEEP_EVERY_SECONDS
            log.info("target swept files=%d", len(self._sink.sweep()))
        policy = CompactionPolicy.on_request(self._policy.target_size) if self._joining else self._policy
        done = self._sink.compact(policy, tasks)
        # New small files come with every epoch: what was there when it began is joined, not what comes meanwhile.
        self._joining = done is not None and done.left > 0
        if done is not None:
            log.info("target compacted removed=%d added=%d bytes=%d", done.removed, done.added, done.bytes)
        return done


@dataclass
class Tally:
    """What a request has done so far, and how often in vain."""

    removed: int = 0
    added: int = 0
    vain: int = 0

    def count(self, step: Compacted) -> None:
        self.removed, self.added = self.removed + step.removed, self.added + step.added
        self.vain = 0 if step.removed else self.vain + 1


def compact(config: Config, *, sweep_only: bool = False, say: Callable[[str], None] = print) -> int:
    """Join all small files of the target, then sweep target and buffer. The job may run meanwhile, and need not."""
    delta, record = _delta(config), _record(config)
    options = reveal(config.storage.options)
    sink = DeltaSink(
        delta.path, record.definition, record.id, storage_options=options,
        target_file_size=delta.target_file_size, retention=delta.retention,
    )  # fmt: skip
    if not sweep_only:
        say(_compacted(_join_all(sink, CompactionPolicy.on_request(delta.target_file_size))))
    buffer = ChangeBuffer(buffer_path(config), record.definition, record.id, options, retention=config.buffer.retention)
    say(f"swept {len(sink.sweep()):,} files of the target and {len(buffer.sweep()):,} of the change buffer")
    return 0


def _join_all(sink: DeltaSink, policy: CompactionPolicy) -> Tally:
    """Step by step, a commit each, until nothing is left or a running job is faster several times on end."""
    tally = Tally()
    while tally.vain < _VAIN_STEPS:
        step = sink.compact(policy)
        if step is None:
            break
        tally.count(step)
    return tally


def _compacted(tally: Tally) -> str:
    done = f"joined {tally.removed:,} files into {tally.added:,}" if tally.removed else "no files to join"
    left = "; the rest is rewritten by the running job faster than it can be joined, which it does itself when live"
    return done + (left if tally.vain else "")


def _delta(config: Config) -> DeltaSinkConfig:
    if config.sink.delta is None:
        raise PlanRefusedError("only a Delta target can be compacted", hint="IoTDB compacts its own files.")
    return config.sink.delta


def _record(config: Config) -> JobRecord:
    loaded = state_store(config).load()
    if loaded is None:
        raise StateError(f"there is no job {config.job} in {config.state.path}", hint="Check job and state.path.")
    return loaded.record
