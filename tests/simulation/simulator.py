"""Runs one random history of a job: traffic, crashes at every action, failures, other logs, requests; checks it
throughout.

Checked after every commit: each live vnode's rows in the sink are the source's rows at the vnode's applied offset. An
epoch that merged its own slice has left nothing to merge.
Checked at the end, when the traffic has stopped and the job has stopped at a SyncCheckpoint: sink and source are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from consume_upstream.log.gtid import GtidSet
from consume_upstream.log.offset import CdcOffset, LoggedTransaction, VisibleAt
from progress.state.backfill_state import BackfillState, Phase, Request, RequestKind, new_state
from progress.state.barriers import CdcTableBackfillProgress, CreateMviewProgress, LocalBarrierManager
from tests.simulation.actors import Driver, Steps, extended, places, planned
from tests.simulation.requests import draining_request, some_request
from tests.simulation.source import Flavour, ModelSource, Row
from tests.simulation.statements import statement_of
from tests.simulation.world import ModelSink, ModelStore, WrongError
from vnode_backfill.decide import log_switch
from vnode_backfill.decide.coordinator import Coordinator, Stage, decide
from vnode_backfill.decide.log_switch import begun_again, moved_to, seen_beyond, tiles
from vnode_backfill.decide.protocol import (
    Action,
    ChangesBuffered,
    ChangeSink,
    Ending,
    EpochMerged,
    EpochRestarted,
    Event,
    InjectBarrier,
    RangesRead,
    RequestArrived,
    RestartEpoch,
    Sampled,
    Started,
    Stop,
    event_of,
)
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.epoch import Actor, Barrier, BarrierKind
from vnode_backfill.words.errors import BackfillError, SourceLostError, SparkLostError
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.schema_change import NewCopy

PROGRESS = (CdcTableBackfillProgress, CreateMviewProgress)
UNEXPLAINED = "the source does not read the table"
"""Every statement of the source is in its log, so no job may end with this."""
ACTORS: dict[type[Event], Actor] = {
    RangesRead: Actor.SNAPSHOT, ChangesBuffered: Actor.UPSTREAM, EpochMerged: Actor.MERGE,
}  # fmt: skip


@dataclass(eq=False)
class Outstanding:
    """An order that is being carried out; a restart of the epoch ends those that were `begun_before` it."""

    action: Action
    steps: Steps
    begun_before: tuple[Outstanding, ...] = ()


@dataclass
class Simulation:
    """A whole run from one seed. `story` is what happened, printed when it fails."""

    seed: int
    make_driver: type[Driver] = Driver
    story: list[str] = field(default_factory=list)
    crashes: int = 0
    commits: int = 0
    changed_logs: int = 0
    ended: int = 0
    own_slices: int = 0
    slices: int = 0
    drained_slices: int = 0
    versions: int = 0
    renewed: int = 0
    columns: int = 1
    with_statements: ClassVar[bool] = True
    recreates: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        flavour: Flavour = "mysql" if self.random.random() < 0.5 else "mariadb"
        self.source = self._make_source(flavour, self.random.choice((12, 30, 60)))
        self.vnode_count = self.random.choice((1, 2, 4, 7))
        if self.with_statements and self.random.random() < 0.6:
            self.source.statements = self.random.choice((0.03, 0.1))
            self.source.recreates = self.recreates
        self.sink, self.store = ModelSink(), ModelStore()
        self.quiet = False
        """No more traffic: the job is to end at what the source holds."""
        self.outstanding: list[Outstanding] = []
        self.requests: list[Request] = []

    def _make_source(self, flavour: Flavour, keys: int) -> ModelSource:
        return ModelSource(self.random, flavour, keys)

    def run(self) -> None:
        """Raises `WrongError` or a law's error with the story attached."""
        try:
            self._traffic(self.random.randrange(40))
            self._recreate_once_more()
            self._create("job-2")
            self._live_through(self.random.randrange(60, 320))
            if self.random.random() < 0.3:
                self._go_live()
                self._follow(self.random.randrange(40, 160))
            self._finish()
        except (WrongError, BackfillError, AssertionError, KeyError, IndexError) as error:
            tail = "\n".join(self.story[-120:])
            raise WrongError(f"seed {self.seed}: {type(error).__name__}: {error}\n{tail}") from error

    def _traffic(self, steps: int) -> None:
        for _ in range(steps):
            self._say(self.source.step())

    def _recreate_once_more(self) -> None:
        """Sometimes a job of the same name ran before, was dropped, and its target emptied."""
        if self.random.random() < 0.2:
            self._create("job-1")
            self._live_through(60)
            self.sink.rows.clear()
            self.sink.applied.clear()
            self.store = ModelStore()
            self.outstanding.clear()
            self.requests.clear()

    def _create(self, job: str) -> None:
        self.job, self.columns = job, self.source.columns
        self.sink.columns, self.sink.followed = self.columns, []
        first = self._first_offset()
        if self.random.random() < 0.7 and not self.quiet:
            self._traffic(self.random.randrange(4))
        if self.source.statements and self.random.random() < 0.1 and not self.quiet:
            # A vnode without ranges is complete from the start, but not at the point before the rows went.
            self._say(self.source.statement("comment"))
            self._say(self.source.statement("truncate"))
        if self.source.columns != self.columns:
            self._create(job)
            return
        plan = planned(self.source, self.vnode_count, self.random.choice((1, 3, 6)))
        workers = self.random.randrange(1, self.vnode_count + 1)
        self.store.plans[0] = plan
        self.store.commit(new_state(first, plan, split_evenly(self.vnode_count, workers)))
        self._say(f"created {job}: {len(plan.ranges)} ranges, {self.vnode_count} vnodes, first {first.position}")
        self._recover()

    def _first_offset(self) -> VisibleAt:
        return self.source.visible_prefix()

    def _plan_of(self, state: BackfillState) -> SplitPlan:
        known = [g for g in self.store.plans if g <= state.plan_generation]
        return self.store.plans[max(known)]

    def _recover(self) -> None:
        self.outstanding.clear()
        self._open(self._loaded())
        acknowledged = {a.request for a in self.coordinator.saved.acknowledged}
        for request in self.requests:
            if request.id not in acknowledged and request.kind is not RequestKind.STOP:
                self._happen(RequestArrived(request))
        if self.random.random() < 0.03:
            self._fail()
        self._happen(Started())

    def _loaded(self) -> BackfillState:
        return self.store.state

    def _open(self, state: BackfillState) -> None:
        plan = self._plan_of(state)
        self.driver = self.make_driver(
            self.random, self.source, self.sink, self.store, self.job, state, plan, self.columns
        )
        self.coordinator = Coordinator(saved=state, plan=plan, attempts_allowed=1000)
        self.barriers: LocalBarrierManager[Event] = LocalBarrierManager()

    def _happen(self, event: Event) -> None:
        before = self.coordinator.saved
        self.coordinator, actions = decide(self.coordinator, event)
        if isinstance(event, PROGRESS) and (actions or self.coordinator.saved is not before):
            raise WrongError(f"{event} was decided on: {actions}")
        self._say(f"{type(event).__name__} -> {self.coordinator.stage} {[type(a).__name__ for a in actions]}")
        if isinstance(event, Sampled) and event.sample.slice_end is not None:
            pending = self.coordinator.pending
            intent = pending.intent if pending is not None else None
            if intent is not None and intent.written is event.sample.slice_end:
                self.slices += 1
                self.drained_slices += intent.kind is BarrierKind.SYNC_CHECKPOINT
        if self.coordinator.saved is not before:
            self.driver.saved, self.driver.plan = self.coordinator.saved, self.coordinator.plan
            self.commits += 1
            self.versions += self.coordinator.saved.schema.newest > before.schema.newest
            if self.coordinator.saved.failure is None and self.coordinator.saved.schema.cascaded is None:
                # A reason is stored in the middle of an epoch, whose effects the sink may hold already. A copy whose
                # rows were changed outside the log is known to be another than its source.
                self._check_live_vnodes()
            self._check_bitmaps(before)
            self._check_own_slice(before)
        for action in actions:
            if isinstance(action, Stop) and action.failure and action.failure.message.startswith(UNEXPLAINED):
                raise WrongError(f"a read was refused, and the log should have explained it: {action.failure.detail}")
            if isinstance(action, Stop) and action.ending is not None:
                self._renew(action.ending)
                return
            if isinstance(action, InjectBarrier):
                self.barriers.inject(action.barrier)
            self.outstanding.append(Outstanding(action, self.driver.perform(action), self._ended_by(action)))

    def _renew(self, ending: Ending) -> None:
        """The table is copied again, by another job id; here nobody reads the old copy meanwhile."""
        self.renewed += 1
        self._say("RENEWED")
        self.sink.rows.clear()
        self.sink.applied.clear()
        self.store = ModelStore()
        self.requests = []
        self._copy_again(f"{self.job}+", ending)

    def _copy_again(self, job: str, ending: Ending) -> None:  # noqa: ARG002 - see `recreated`
        self._create(job)

    def _ended_by(self, action: Action) -> tuple[Outstanding, ...]:
        """What a failed attempt has begun continues, and may report, until the restart has ended it.

        A change of the sink is not ended.
        """
        if not isinstance(action, RestartEpoch):
            return ()
        return tuple(each for each in self.outstanding if not isinstance(each.action, RestartEpoch | ChangeSink))

    def _live_through(self, steps: int) -> None:
        for _ in range(steps):
            dice = self.random.random()
            if dice < 0.35:
                self._say(self.source.step())
            elif dice < 0.37:
                self._crash()
            elif dice < 0.375:
                self._change_log()
            elif dice < 0.385:
                self._fail()
            elif dice < 0.41:
                self._ask(self._request())
            else:
                self._step()

    def _follow(self, steps: int) -> None:
        """A live job that is not asked to read again: traffic, crashes, failures, and what a SyncCheckpoint is for."""
        self.quiet = False
        for _ in range(steps):
            dice = self.random.random()
            if dice < 0.2:
                self._say(self.source.step())
            elif dice < 0.24:
                self._crash()
            elif dice < 0.25:
                self._fail()
            elif dice < 0.28:
                self._ask(self._drain())
            else:
                self._step()

    def _step(self) -> None:
        if not self.outstanding:
            self._crash()
            return
        chosen = self.random.choice(self.outstanding)
        try:
            event = next(chosen.steps)
        except StopIteration:
            self.outstanding.remove(chosen)
            return
        if event is not None:
            if not isinstance(event, PROGRESS):
                self.outstanding.remove(chosen)
            if isinstance(event, EpochRestarted):
                self.outstanding = [each for each in self.outstanding if each not in chosen.begun_before]
            self._report(event)

    def _report(self, event: Event) -> None:
        """Everything that actors say goes through the barrier manager, as it does in a driver."""
        match event:
            case CdcTableBackfillProgress():
                self.barriers.report_cdc_table_backfill_progress(event)
            case CreateMviewProgress():
                self.barriers.report_create_mview_progress(event)
            case RangesRead(attempt=attempt) | ChangesBuffered(attempt=attempt) | EpochMerged(attempt=attempt):
                barrier = Barrier(event.epoch, self.coordinator.intent.kind, attempt)
                self.barriers.collect(ACTORS[type(event)], barrier, event)
            case _:
                self.barriers.tell(event)
        while (taken := self.barriers.next_event(0)) is not None:
            self._happen(event_of(taken))

    def _crash(self) -> None:
        self.crashes += 1
        self._say("CRASH")
        self._recover()

    def _change_log(self) -> None:
        """The driver dies and continues with another log: of a replica that has what the job has seen, or of a reset
        server.

        A replica on which the last statement would be met again makes a new copy necessary.
        """
        state = self._loaded()
        if self.random.random() < 0.7 and state.written.gtids:
            self.source.fail_over(self._needed_of_log(state))
            self._move(state)
        elif self._may_begin_again(state):
            self.source.reset_log()
            self._begin_again(state)

    def _needed_of_log(self, state: BackfillState) -> frozenset[str]:
        """The transactions that the job has seen."""
        known = [GtidSet.parse(gtids) for gtids in (state.written.gtids, *seen_beyond(state, self._buffered(state)))]
        return frozenset(t.gtid for t in self.source.log if any(each.holds(t.gtid) for each in known))

    def _buffered(self, state: BackfillState) -> tuple[LoggedTransaction, ...]:
        intent = state.intent
        landed = self.store.buffered.get((self.driver.app("buffer"), intent.epoch)) if intent else None
        return landed.missing if landed else ()

    def _move(self, state: BackfillState) -> None:
        there = self.source.gtids_before(self.source.written_offset())
        if log_switch.meets_statement_again(state, there):
            self.changed_logs += 1
            self._renew(NewCopy("a statement would come again"))
            return
        start = self.source.position_after(state.written.gtids)
        self._continue_with(moved_to(state, start, self._plan_of(state), self._buffered(state)))

    def _may_begin_again(self, state: BackfillState) -> bool:
        return tiles(self._plan_of(state).at(state.plan_generation)) and not self._knows_statements(state)

    def _begin_again(self, state: BackfillState) -> None:
        # A table that is another by now is copied again instead.
        often, self.source.statements = self.source.statements, 0.0
        self._traffic(self.random.randrange(4))
        self.source.statements = often
        plan = extended(self._plan_of(state).at(state.plan_generation), self.source, self.sink, tiling=True)
        self.store.plans[plan.generation] = plan
        self._continue_with(begun_again(state, self._first_offset().position, plan))

    def _continue_with(self, moved: BackfillState) -> None:
        self._say(f"ANOTHER LOG from {moved.written}, epoch {moved.epoch}")
        self.changed_logs += 1
        self.store.commit(moved)
        self._recover()

    def _knows_statements(self, state: BackfillState) -> bool:
        """A log that is lost with a statement in it: in production the table is copied again."""
        lost = any(t.statement for t in self.source.log if t.end > state.written)
        return lost or state.schema.newest > state.schema.in_sink

    def _fail(self) -> None:
        """A failure that passes, or one that does not: a lost JVM or lease ends the driver in every stage, also a
        retry."""
        stage = self.coordinator.stage
        if stage is Stage.STOPPED:
            return
        definite = self.random.random() < (0.7 if stage is Stage.RETRYING else 0.2)
        error = SparkLostError("gone") if definite else SourceLostError("lost")
        self.barriers.notify_failure(Actor.DRIVER, self.coordinator.attempt, error)
        taken = self.barriers.next_event(0)
        assert taken is not None
        self._happen(event_of(taken))
        self.ended += definite
        if definite and not self.coordinator.is_failing and self.coordinator.stage is not Stage.STOPPED:
            raise WrongError(f"{error!r} in {stage} was passed over")
        if not definite and stage is not Stage.FAILING and self.random.random() < 0.5:
            # Trouble comes together: the next failure finds the driver while it tries again.
            self._fail()

    def _ask(self, request: Request) -> None:
        """Requests are durable: one that was not acknowledged is found again after a crash."""
        self.requests.append(request)
        self._say(str(request))
        self._happen(RequestArrived(request))

    def _request(self) -> Request:
        return some_request(self.random, len(self.requests) + 1, self.vnode_count)

    def _drain(self) -> Request:
        return draining_request(self.random, len(self.requests) + 1, self.vnode_count)

    def _finish(self) -> None:
        """Stop the traffic, let the job go live, stop it, and compare."""
        self._go_live()
        self._ask(Request(len(self.requests) + 1, RequestKind.STOP))
        self._until(lambda: self.coordinator.stage is Stage.STOPPED)
        state = self.coordinator.saved
        if not state.is_live or state.vnodes[0].applied != self.source.written_offset():
            raise WrongError(f"stopped at {state.vnodes[0].applied}, the source is at {self.source.written_offset()}")
        if self.sink.rows != self.source.visible:
            raise WrongError(f"sink {self.sink.rows}\nsource {self.source.visible}")

    def _go_live(self) -> None:
        self.source.settle()
        self.quiet = True
        for kind in (RequestKind.RESUME, RequestKind.RATE_LIMIT):
            self._ask(Request(len(self.requests) + 1, kind))
        self._until(self._is_settled)

    def _is_settled(self) -> bool:
        """Live and idle, and every statement is met: a stop does not wait to find out what one has done."""
        state, stage = self.coordinator.saved, self.coordinator.stage
        return state.is_live and stage is Stage.IDLE and state.written == self.source.written_offset()

    def _until(self, done: Callable[[], bool]) -> None:
        for _ in range(20_000):
            if done():
                return
            if self.coordinator.stage is Stage.STOPPED:
                self._crash()
            self._step()
        raise WrongError(f"never got there: {self.coordinator.stage} {self.coordinator.saved}")

    def _check_live_vnodes(self) -> None:
        state, plan = self.coordinator.saved, self.coordinator.current_plan
        live = {v.vnode: self._expected(state, v.applied) for v in state.vnodes if v.phase is Phase.LIVE}
        for key, vnode in enumerate(places(plan, range(self.source.keys))[1].tolist()):
            if vnode in live and self.sink.rows.get(key) != live[vnode].get(key):
                raise WrongError(
                    f"key {key} of live vnode {vnode}: sink {self.sink.rows.get(key)}, source at "
                    f"{state.vnodes[vnode].applied} {live[vnode].get(key)}"
                )

    def _expected(self, state: BackfillState, applied: CdcOffset) -> dict[int, Row]:
        """What the source held there, as it is under the version that the sink has followed to."""
        rows = self.source.table_at(applied)
        for version in state.schema.versions:
            if version.number in self.sink.followed and version.before >= applied:
                statement = statement_of(version.statement)
                rows = {key: statement.carried_out(row) for key, row in rows.items() if statement.leaves(row)}
        return rows

    def _check_bitmaps(self, before: BackfillState) -> None:
        """Bitmaps change with the commit that ends a SyncCheckpoint: every vnode that can be merged is, up to one
        offset."""
        after = self.coordinator.saved
        if after.assignment_generation == before.assignment_generation:
            return
        applied = {v.applied for v in after.vnodes if v.phase is Phase.LIVE}
        bounds = {after.written, *(v.before for s in (before, after) for v in s.schema.versions)}
        bounds |= {note.at for note in after.schema.notes}
        if before.intent is None or before.intent.kind is not BarrierKind.SYNC_CHECKPOINT or applied - bounds:
            raise WrongError(f"bitmaps changed after {before.intent}: applied {applied}, written {after.written}")

    def _check_own_slice(self, before: BackfillState) -> None:
        after = self.coordinator.saved
        if before.intent is None or not before.intent.own_slice or after.epoch == before.epoch:
            return
        self.own_slices += 1
        applied = {v.applied for v in after.vnodes}
        if after.schema.newest > before.schema.newest or after.schema.notes[-1:] != before.schema.notes[-1:]:
            return
        if applied != {after.written}:
            raise WrongError(f"epoch {after.epoch} merged its own slice: applied {applied}, written {after.written}")

    def _say(self, line: str) -> None:
        self.story.append(line)
