"""Examines a source for `plan`: what was found and how the table would be cut. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass

from consume_upstream.upstream_table import UpstreamTable
from progress.state.walk_state import walk_plan
from vnode_backfill.config.job import Config, Executor
from vnode_backfill.job.open.begin import Beginning, begin
from vnode_backfill.job.open.create import no_ranges
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.job.open.past import followable
from vnode_backfill.job.open.resume import check_executor, continue_at
from vnode_backfill.job.open.source import look_at_source, open_table
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.snapshot.plan_questions import first_plan
from vnode_backfill.words.finding import Finding, Level
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.plan import TableFacts


@dataclass(frozen=True, slots=True)
class Examined:
    """A source that was looked at: what was found, and how the table would be cut."""

    findings: tuple[Finding, ...]
    facts: TableFacts | None
    plan: SplitPlan | None
    beginning: Beginning | None = None


def examine_source(config: Config) -> Examined:
    """What was found and how the table would be cut; writes nothing. There is no plan where the source was refused."""
    findings = look_at_source(config)
    if any(finding.level is Level.REFUSED for finding in findings):
        return Examined(findings, None, None)
    store = state_store(config)
    check_executor(config, store)
    table, loaded = open_table(config), store.load()
    findings = (*findings, *configured_sink(config).findings(table.definition))
    if any(finding.level is Level.REFUSED for finding in findings):
        return Examined(findings, None, None)
    if loaded is None:
        beginning = followable(config, table, begin(config, table))
    else:
        beginning = continue_at(config, table, loaded)
    facts, plan = (
        _walked_whole(table)
        if config.executor is Executor.SINGLE
        else cut(config, table, snapshot=beginning.start.snapshot)
    )
    start = beginning.start
    findings += configured_sink(config).outlook(facts, exists=loaded is not None, follows=not start.bounded)
    if any(finding.level is Level.REFUSED for finding in findings):
        return Examined(findings, None, None)
    return Examined(findings, facts, plan, beginning)


def _walked_whole(table: UpstreamTable) -> tuple[TableFacts, SplitPlan]:
    """The single executor plans nothing and compares no key: only the server's statistics are asked for."""
    size = table.estimated_size()
    plan = walk_plan(table.definition.key, size.rows)
    return TableFacts(plan.parts, None, None, size.rows, size.row_bytes), plan


def cut(config: Config, table: UpstreamTable, *, snapshot: bool) -> tuple[TableFacts, SplitPlan]:
    """The table's size, and its ranges; none where nothing is copied."""
    if snapshot:
        return first_plan(table, config)
    with table.session() as session:
        return session.table_facts(), no_ranges(config, table)
