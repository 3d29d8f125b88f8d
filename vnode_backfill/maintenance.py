"""How a target is kept in shape: small files are joined when a job goes live and whenever there are many again, old ones are swept.

By the job itself beside its epochs while it is live (`Upkeep`), and on request from any process, whether the job runs or not
(`compact`). Neither changes a row; see `sinks.delta_compaction` for why that is safe beside a running job.

What must be true of `Upkeep` besides: it gets done, epochs hardly wait for it, and a stop does not wait at all. Files are joined in a
thread of its own while epochs go on; only what was joined is put in place between two commits of the sink, and what an epoch has changed
meanwhile is left out. Where that is everything, because each epoch changes all files, brief steps follow for which the merge waits, and
with it the next epoch (32 MB, or 50 files into one, at most).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from consume_upstream.buffer import ChangeBuffer
from progress.state import BackfillState
from progress.store import Loaded
from vnode_backfill.config import Config, DeltaSinkConfig, Executor
from vnode_backfill.config_values import reveal
from vnode_backfill.errors import PlanRefusedError, StateError
from vnode_backfill.places import buffer_path, state_store
from vnode_backfill.sinks import Sink
from vnode_backfill.sinks.delta import DeltaSink
from vnode_backfill.sinks.delta_compaction import Compacted, CompactionPolicy, always

log = logging.getLogger(__name__)

SWEEP_EVERY_SECONDS = 24 * 3600.0
_VAIN_STEPS = 3
_WHOLE_STEPS = 3


class Upkeep:
    """One driver's care for its target. Other sinks than Delta need none."""

    def __init__(self, sink: Sink, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink if isinstance(sink, DeltaSink) else None
        self._clock = clock
        self._next_sweep = clock()
        self._in_vain = False
        self._seen: int | None = None
        # A job that goes live joins what its snapshot has left, however little; later on there must be many small files.
        self._joining = True
        delta = config.sink.delta
        self._policy = CompactionPolicy(delta.target_file_size, delta.compact_small_files) if delta else None

    def maybe_compact(self, state: BackfillState, goes_on: Callable[[], bool] = always) -> Compacted | None:
        """Join a bounded number of small files if that is due, and sweep once a day; None where nothing was joined.

        Nothing is looked at again before something was committed. Everything is let go once `goes_on` says no.
        """
        if self._sink is None or self._policy is None or not state.is_live or state.revision == self._seen:
            return None
        self._sweep(self._sink)
        if not self._policy.small_files or not goes_on():
            return None
        policy = CompactionPolicy.on_request(self._policy.target_size) if self._joining else self._policy
        done = self._sink.compact(policy, goes_on=goes_on, alone=self._in_vain)
        self._seen = state.revision if done is None else None
        if done is None:
            self._in_vain = False
        # New small files come with every epoch: what was there when it began is joined, not what comes meanwhile.
        self._joining = self._joining and done is not None and (done.left > 0 or not done.removed)
        if done is not None:
            self._in_vain = self._in_vain or not done.removed
            log.info("target compacted removed=%d added=%d bytes=%d", done.removed, done.added, done.bytes)
        return done

    def _sweep(self, sink: DeltaSink) -> None:
        if self._clock() >= self._next_sweep:
            self._next_sweep = self._clock() + SWEEP_EVERY_SECONDS
            log.info("target swept files=%d", len(sink.sweep()))


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
        """A running job makes new small files all the time: those that were there at the beginning are joined, what they have become too."""
        return self.vain >= _VAIN_STEPS or self.whole >= _WHOLE_STEPS or self.removed > 2 * self.begun_with


def compact(config: Config, *, sweep_only: bool = False, say: Callable[[str], None] = print) -> int:
    """Join all small files of the target, then sweep target and buffer. The job may run meanwhile, and need not."""
    delta, loaded = _delta(config), _job(config)
    if not sweep_only:
        _check_walked(loaded)
    record = loaded.record
    options = reveal(config.storage.options)
    sink = DeltaSink(
        delta.path, record.definition, record.id, storage_options=options,
        target_file_size=delta.target_file_size, retention=delta.retention,
    )  # fmt: skip
    if not sweep_only:
        say(_compacted(join_all(sink, CompactionPolicy.on_request(delta.target_file_size))))
    buffer = ChangeBuffer(buffer_path(config), record.definition, record.id, options, retention=config.buffer.retention)
    say(f"swept {len(sink.sweep()):,} files of the target and {len(buffer.sweep()):,} of the change buffer")
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


def _compacted(tally: Tally) -> str:
    none = "nothing was joined" if tally.vain else "no files to join"
    done = f"joined {tally.removed:,} files into {tally.added:,}" if tally.removed else none
    left = f"; {tally.left:,} are left, which the running job rewrites faster than they can be joined; when live it joins them itself"
    return done + (left if tally.vain else "")


def _delta(config: Config) -> DeltaSinkConfig:
    if config.sink.delta is None:
        raise PlanRefusedError("only a Delta target can be compacted", hint="IoTDB compacts its own files.")
    return config.sink.delta


def _job(config: Config) -> Loaded:
    loaded = state_store(config).load()
    if loaded is None:
        raise StateError(f"there is no job {config.job} in {config.state.path}", hint="Check job and state.path.")
    return loaded


def _check_walked(loaded: Loaded) -> None:
    """The files of a walk are where a killed driver's cursor is found again, so they stay until it has ended."""
    if loaded.record.executor == Executor.SINGLE and not loaded.state.backfill_finished:
        raise PlanRefusedError(
            f"job {loaded.record.name} walks its table still; its files are joined when it has ended",
            hint="Run it to the end first, or delete old files only: `vnode-backfill compact --sweep-only`.",
        )
