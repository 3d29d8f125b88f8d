"""Answers the planner's questions by asking the source, and extends a plan over keys that came since.

The planner itself is pure (`plan`); this is the one place where its questions meet a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from consume_upstream.key_order import KeyOrder
from consume_upstream.upstream_table import UpstreamSession, UpstreamTable
from progress.state.planning import BegunPlan
from vnode_backfill.config.job import Config
from vnode_backfill.sinks import Sink
from vnode_backfill.words.errors import PlanRefusedError, SourceError
from vnode_backfill.words.key import KeyKind
from vnode_backfill.words.key_range import Bound, Bounds, SplitPlan, bound_of
from vnode_backfill.words.plan import (
    MAX_TARGET_ROWS,
    Cuts,
    EstimateRows,
    FirstBeyond,
    NextBound,
    TableFacts,
    extend_plan,
    make_plan,
    plan_bounds,
    target_rows,
)
from vnode_backfill.words.units import format_size
from vnode_backfill.words.whole_plan import whole_plan

Settled: TypeAlias = Callable[[TableFacts, int, Cuts], None]
"""Is called after each answer of the source: with the facts, how many rows a range should hold, and what is settled."""


def _unwatched(facts: TableFacts, target: int, cuts: Cuts) -> None:
    """What is done with settled ranges where nobody asks for them."""


def plan_table(
    table: UpstreamTable, config: Config, *, begun: BegunPlan | None = None, settled: Settled = _unwatched
) -> tuple[TableFacts, SplitPlan]:
    """Cut the table as it is now into ranges; the first offset must have been sampled before.

    With `begun` that plan is continued: from its minimum and maximum, which were read when it began. A table of a job
    of many whose keys cannot be ordered here is one range, if it fits into one.
    """
    if config.among_many and (reason := table.unordered_key()):
        return _one_range(table, config, reason)
    with table.session() as session:
        facts = session.table_facts() if begun is None else begun.facts
        cuts = None if begun is None else Cuts(list(begun.bounds))
        bounds = _ask(session, facts, rows_per_range(facts, config), cuts, settled)
    return facts, make_plan(facts.parts, bounds, config.vnodes)


def first_plan(
    table: UpstreamTable, config: Config, *, begun: BegunPlan | None = None, settled: Settled = _unwatched
) -> tuple[TableFacts, SplitPlan]:
    """As `plan_table`, for a job of which nothing is written yet: what the source refuses for good refuses the job."""
    try:
        return plan_table(table, config, begun=begun, settled=settled)
    except SourceError as error:
        if error.retryable:
            raise
        raise PlanRefusedError(error.message, detail=error.detail, hint=error.hint) from error


def orders_as_before(table: UpstreamTable, begun: BegunPlan) -> bool:
    """Whether the server still puts every bound of a plan where it was: a new release may sort text otherwise."""
    known = [bound for bound, _ in begun.bounds]
    known += [bound for bound in (begun.facts.minimum, begun.facts.maximum) if bound is not None]
    with table.session() as session:
        return session.order_bounds([bound.key for bound in known]) == known


def rows_per_range(facts: TableFacts, config: Config) -> int:
    """How many rows a range of a table with these facts should hold."""
    limits = config.limits
    return limits.range_rows or target_rows(
        facts.estimated_rows, config.vnodes, facts.average_row_bytes, limits.range_bytes
    )


def extended_plan(table: UpstreamTable, sink: Sink, plan: SplitPlan, config: Config) -> SplitPlan:
    """The plan with one more generation over keys outside it, as source and sink hold them now.

    Keys that only the sink holds count too: they are gone at the source, and reading their stretch again removes them.
    """
    if not plan.compares_keys:
        return plan
    with table.session() as session, KeyOrder(table, plan) as order:
        facts = session.table_facts()
        held = session.order_bounds(sink.key_extremes(order.weights))
        known = sorted(bound for bound in (facts.minimum, facts.maximum, *held) if bound is not None)
        if not known:
            return plan
        target = rows_per_range(facts, config)
        if not plan.ranges:
            return extend_plan(plan, above=_stretch(session, facts, known[0], known[-1], target))
        first, last = plan.ranges[0].range.low, plan.ranges[-1].range.high
        if first is None or last is None:
            return plan
        below = _stretch(session, facts, known[0], first, target) if known[0] < first else ()
        beyond = _beyond(session, plan, last, known)
        above = _stretch(session, facts, beyond, max(beyond, known[-1]), target) if beyond else ()
        return extend_plan(plan, below=below, above=above)


def _one_range(table: UpstreamTable, config: Config, reason: str) -> tuple[TableFacts, SplitPlan]:
    """The whole table as one range: no larger than the largest that is ever planned, by the server's statistics."""
    table.check_walkable()
    size, limits, key = table.estimated_size(), config.limits, table.definition.key
    most = limits.range_rows or MAX_TARGET_ROWS
    if size.rows > most or size.rows * size.row_bytes > limits.range_bytes or config.sink.delta is None:
        raise PlanRefusedError(
            f"{reason}; such a table is copied as one range into a Delta table, of at most {most:,} rows and "
            f"{format_size(limits.range_bytes)}",
            detail=f"It has about {size.rows:,} rows of {size.row_bytes} bytes.",
            hint="Raise `range_rows` of its entry in mysql.tables, give it another key, or give it a job of its own "
            "with `executor: single`.",
        )
    plan = whole_plan(key, config.vnodes, size.rows)
    return TableFacts(plan.parts, None, None, size.rows, size.row_bytes), plan


def _beyond(session: UpstreamSession, plan: SplitPlan, last: Bound, known: list[Bound]) -> Bound | None:
    """Where keys above the plan begin: of a single integer right after its maximum, else at the first one that is
    known."""
    (part, *others) = plan.parts
    if known[-1] <= last:
        return None
    value = last.key[0]
    if not others and part.kind in (KeyKind.INT, KeyKind.UINT) and isinstance(value, int):
        return bound_of(plan.parts, (value + 1,))
    following = session.next_bound(last, 1)
    return min(bound for bound in (following, *known) if bound is not None and bound > last)


def _stretch(session: UpstreamSession, facts: TableFacts, low: Bound, high: Bound, target: int) -> Bounds:
    part = TableFacts(facts.parts, low, high, facts.estimated_rows, facts.average_row_bytes)
    return _ask(session, part, target)


def _ask(
    session: UpstreamSession, facts: TableFacts, target: int, cuts: Cuts | None = None, settled: Settled = _unwatched
) -> Bounds:
    if cuts is None and facts.minimum is not None:
        cuts = Cuts.none_from(facts.minimum)
    asking = plan_bounds(facts, target, cuts)
    scale: float | None = None
    try:
        question = next(asking)
        while True:
            if isinstance(question, EstimateRows):
                scale = scale or _scale(session, facts, target)
                estimates = session.estimate_rows(question.bounds)
                question = asking.send(tuple(round(rows / scale) for rows in estimates))
            elif isinstance(question, NextBound):
                question = asking.send(session.next_bound(question.after, question.rows))
            elif isinstance(question, FirstBeyond):
                question = asking.send(session.first_beyond(question.key))
            else:
                question = asking.send(session.last_before(question.bound))
            if cuts is not None:
                settled(facts, target, cuts)
    except StopIteration as stop:
        bounds: Bounds = stop.value
        return bounds


def _scale(session: UpstreamSession, facts: TableFacts, target: int) -> float:
    """By how much the optimiser overestimates: InnoDB doubles what it cannot count exactly.

    One stretch is counted to find out.
    """
    low = facts.minimum
    counted = session.next_bound(low, target) if low is not None else None
    if low is None or counted is None:
        return 1.0
    (estimate,) = session.estimate_rows((low, counted))
    return min(max(estimate / target, 0.5), 4.0) if estimate else 1.0
