"""Holds what a running job works with: everything that has an effect, and what was committed when an order was
given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from consume_upstream.buffer import ChangeBuffer
from consume_upstream.throttle import SourceThrottle
from consume_upstream.upstream_table import UpstreamTable
from progress.faces.metrics import CdcBackfillMetrics
from progress.state.backfill_state import BackfillState, Intent
from progress.store.store import StateStore
from vnode_backfill.config.job import Config
from vnode_backfill.sinks import Sink
from vnode_backfill.spark.tasks import HasContext
from vnode_backfill.words.errors import LawBrokenError, SparkLostError
from vnode_backfill.words.key_range import SplitPlan


class WatchedJvm(Protocol):
    """Knows how the driver's JVM has ended; None if it lives, or was never needed."""

    @property
    def lost(self) -> SparkLostError | None: ...


@dataclass(frozen=True, slots=True)
class Services:
    """Everything with an effect that a running job holds."""

    config: Config
    spark: HasContext
    table: UpstreamTable
    sink: Sink
    buffer: ChangeBuffer
    store: StateStore
    throttle: SourceThrottle | None = None
    metrics: CdcBackfillMetrics = field(default_factory=CdcBackfillMetrics)
    jvm: WatchedJvm | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """What was committed when an order was given.

    It travels with the order, so no thread sees a later state by accident.
    """

    state: BackfillState
    plan: SplitPlan
    attempt: int = 0

    @property
    def intent(self) -> Intent:
        if self.state.intent is None:
            raise LawBrokenError(f"work of an epoch was ordered without an intent after epoch {self.state.epoch}")
        return self.state.intent

    @property
    def planned(self) -> SplitPlan:
        """The plan at the generation of the intent."""
        return self.plan.at(self.intent.plan_generation)
