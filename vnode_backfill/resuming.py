"""How a job goes on in a log that is not simply the one it knows: each way is one commit of its state.

- Its log has no stored identity, because an earlier release created it: it takes that of the log it finds.
- Another server has everything that was seen: the job follows it by GTID.
- Its place in the log is gone, or it failed at what the log holds there, and somebody asked to read everything again.
"""

from __future__ import annotations

from dataclasses import replace

from consume_upstream.buffer import BufferNote
from consume_upstream.mysql.server import MySqlTable
from consume_upstream.mysql.start_positions import position_after_gtids, read_source_log
from progress.state import Request, RequestKind
from progress.store import Loaded, StateStore
from vnode_backfill.another_log import begun_again, moved_to, tiles
from vnode_backfill.config import Config, StartupMode
from vnode_backfill.errors import PlanRefusedError
from vnode_backfill.handoff import mode_of
from vnode_backfill.intent import honour
from vnode_backfill.planning import extended_plan
from vnode_backfill.startup import Saved, StartPlan
from vnode_backfill.targets import open_sink

__all__ = ["GapsError", "asked_for_everything", "copy_again", "follow_by_gtids", "with_identity"]


class GapsError(PlanRefusedError):
    """The plan leaves keys between its ranges, which only the log can tell of."""


def with_identity(store: StateStore, table: MySqlTable, loaded: Loaded) -> Loaded:
    """A job of a release that stored no identity of its log takes that of the log it finds."""
    state, intent = loaded.state, loaded.state.intent
    if state.written.log and (intent is None or intent.written.log):
        return loaded
    written = table.identified(state.written)
    if intent is not None:
        same_file = intent.written.number == written.number
        sampled = replace(intent.written, log=written.log) if same_file else table.identified(intent.written)
        intent = replace(intent, written=sampled)
    state = replace(state, revision=state.revision + 1, written=written, intent=intent)
    store.commit(state)
    return replace(loaded, state=state)


def follow_by_gtids(store: StateStore, table: MySqlTable, loaded: Loaded, buffered: BufferNote | None) -> Loaded:
    """Another server has everything this job has seen: go on there, behind the last transaction that was captured."""
    state, log = loaded.state, read_source_log(table)
    found = table.identified(position_after_gtids(table, state.written.gtids, log))
    start = replace(found.in_era(state.written.era + 1), gtids=state.written.gtids)
    moved = moved_to(state, start, loaded.plan, buffered.missing if buffered else ())
    store.commit(moved)
    return replace(loaded, state=moved)


def asked_for_everything(store: StateStore, loaded: Loaded) -> Request | None:
    """The request to read the whole table again that nobody has acted on yet."""
    asked = (request for request in store.unacknowledged(loaded.state) if request.kind is RequestKind.RESNAPSHOT)
    return next((each for each in asked if each.extend and len(each.vnodes) == loaded.record.vnode_count), None)


def copy_again(
    config: Config, store: StateStore, table: MySqlTable, loaded: Loaded, asked: Request
) -> tuple[StartPlan, Loaded]:
    """Begin again at what is visible now and read every range, those of keys outside the plan included."""
    state = loaded.state
    table = replace(table, era=state.written.era + 1)
    first = table.identified(table.beginning())
    sink = open_sink(config, loaded.record, store, table)
    try:
        plan = extended_plan(table, sink, loaded.plan.at(state.plan_generation), config)
    finally:
        sink.close()
    if not tiles(plan):
        raise GapsError(
            f"the saved position {state.written} of job {loaded.record.name} is gone, and keys between its ranges are read by nobody",
            detail="What changed meanwhile in the log cannot be told for such keys.",
            hint="Drop the job and create it anew with `sink.delta.replace: true`.",
        )
    if plan.generation > state.plan_generation:
        store.write_plan(plan, plan.generation)
    moved = begun_again(state, first, plan)
    moved, _ = honour(moved, plan, asked)
    store.commit(moved)
    warning = (
        f"everything up to {first} is read again, as request {asked.id} says; the log since {state.written} is left out"
    )
    bounded = mode_of(config, loaded.record.name, loaded.record.id) is StartupMode.SNAPSHOT
    start = StartPlan(snapshot=True, from_=Saved(first), bounded=bounded, warnings=(warning,))
    return start, replace(loaded, state=moved, plan=plan)
