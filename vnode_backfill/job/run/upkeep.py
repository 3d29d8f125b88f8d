"""Keeps a job's target in shape beside its epochs: joins and folds files, tidies the log, sweeps, and looks at it.

It changes no row; see `sinks.delta.compaction` and `sinks.delta.reshape` for why that is safe beside a running job.
`vnode-backfill compact` does the same on request (`commands.compact`).

What must be true besides: it gets done, epochs hardly wait for it, and a stop does not wait at all.

- `maybe_compact` has a thread of its own. It joins files when the job goes live and whenever there are many small ones
  again, and folds those that are worn. Only what was written is put in place between two commits of the sink. In a
  table without vectors, what an epoch has changed meanwhile is left out. Where that is everything, because each epoch
  changes all files, brief steps follow for which the merge waits, and with it the next epoch (32 MB, or 50 files into
  one, at most).
- `tidy` has another one, because a fold may take minutes. A table with vectors gets its checkpoints here, whatever the
  job's phase. A job that commits nothing writes nothing here.
- Where both do not keep up with the epochs, these get longer (`pace_of_epochs`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from progress.state.backfill_state import BackfillState
from progress.state.target_health import TargetHealth
from vnode_backfill.config.job import Config
from vnode_backfill.job.run.pace_of_epochs import AS_CONFIGURED
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.sinks import Sink
from vnode_backfill.sinks.delta.compaction import Compacted, CompactionPolicy, always
from vnode_backfill.sinks.delta.sink import DeltaSink

log = logging.getLogger(__name__)

SWEEP_EVERY_SECONDS = 24 * 3600.0
SWEEP_VECTORS_EVERY_SECONDS = 600.0
"""Every merge supersedes vectors, so there is something to delete all the time."""


class Upkeep:
    """One driver's care for its target. Other sinks than Delta need none."""

    def __init__(self, sink: Sink, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink if isinstance(sink, DeltaSink) else None
        self._clock = clock
        self._next_sweep = clock()
        self._in_vain = False
        self._seen: int | None = None
        # A job that goes live joins what its snapshot has left, however little; later on there must be many small
        # files.
        self._joining = True
        self._policy = configured_sink(config).compaction
        self.health: TargetHealth | None = None
        self.lengthening = AS_CONFIGURED

    def maybe_compact(self, state: BackfillState, goes_on: Callable[[], bool] = always) -> Compacted | None:
        """Write a bounded number of files again if that is due; None where nothing was written.

        Nothing is looked at again before something was committed. Everything is given up once `goes_on` returns False.
        """
        if self._sink is None or self._policy is None or state.revision == self._seen or not state.is_live:
            return None
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

    def tidy(self, state: BackfillState) -> None:
        """Sweep and make a checkpoint where these are due, and look at the shape of the target."""
        if self._sink is None:
            return
        vectors = self._sink.has_vectors
        if (vectors or state.is_live) and self._clock() >= self._next_sweep:
            self._next_sweep = self._clock() + (SWEEP_VECTORS_EVERY_SECONDS if vectors else SWEEP_EVERY_SECONDS)
            log.info("target swept files=%d", len(self._sink.sweep()))
        self._sink.tidy()
        self.health = self._sink.health()
        self.judge_pace()

    def judge_pace(self) -> None:
        """Judge how long epochs take by what is known of the target; nothing is read for it."""
        if self.health is None:
            return
        before, self.lengthening = self.lengthening, self.lengthening.after(self._clock(), self.health)
        if self.lengthening.factor != before.factor:
            log.info("epochs take longer factor=%d reason=%s", self.lengthening.factor, self.lengthening.reason)
