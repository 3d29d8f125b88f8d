"""Shows what `run` would do with a job of many tables: the server once, then every table, refused ones with the reason.

A table that is refused does not refuse the job, unless that was asked for or no table is left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vnode_backfill.commands.plan import plan_facts, policies, policy_text, start_facts
from vnode_backfill.commands.say import say
from vnode_backfill.commands.stored_job import with_room_for_workers
from vnode_backfill.config.job import Config, NewTables
from vnode_backfill.job.open.writable import check_state_writable
from vnode_backfill.job.tables.parts import tables_store
from vnode_backfill.spark.slots import check_planned_slots
from vnode_backfill.words.finding import Level, render, to_json

if TYPE_CHECKING:
    from vnode_backfill.job.tables.examine import ExaminedTable, ExaminedTables

_QUIET_FOR = 1.0
_NAMED = 8


def plan_tables(
    config: Config, *, master: str | None, as_json: bool, only: Sequence[str] = (), strict: bool = False
) -> int:
    """Check, cut and estimate every table; writes nothing.

    Exit code 2 if the job would be refused: by the server, because no table can be copied, or with `strict` because of
    one table.
    """
    found = examined_tables(config, master=master, only=only)
    if as_json:
        print(json.dumps(_document(config, found)))
    else:
        print(render(found.findings))
        print("\n".join(_lines(config, found, whole=bool(only))))
    refused = len(found.refused)
    return 2 if found.server_is_refused or refused == len(found.tables) or (strict and refused) else 0


def examined_tables(config: Config, *, master: str | None, only: Sequence[str]) -> ExaminedTables:
    """Look at the places that the job writes to, at the server, and at every table."""
    from progress.faces.web import check_web
    from vnode_backfill.job.tables.examine import examine_tables

    check_state_writable(config)
    check_web(config.ui.host, config.ui.port)
    found = examine_tables(config, only=only, progress=_Progress().show)
    slots = check_planned_slots(with_room_for_workers(config), master)
    return replace(found, findings=(*found.findings, slots))


@dataclass(slots=True)
class _Progress:
    """Says how far it is, once a second; nothing where it takes no longer."""

    said: float = field(default_factory=time.monotonic)

    def show(self, done: int, tables: int) -> None:
        if time.monotonic() - self.said >= _QUIET_FOR and done < tables:
            self.said = time.monotonic()
            say(f"looked at {done:,} of {tables:,} tables")


def _document(config: Config, found: ExaminedTables) -> dict[str, object]:
    return {
        "version": 1,
        "findings": to_json(found.findings),
        "tables": [_table_facts(table) for table in found.tables],
        "refused": len(found.refused),
        "start": start_facts(found.beginning),
        "statements": policies(config),
        "new_tables": config.mysql.new_tables,
    }


def _table_facts(table: ExaminedTable) -> dict[str, object]:
    return {
        "table": str(table.name),
        "refused": table.is_refused,
        "priority": table.priority,
        "target": table.target,
        "key": list(table.key),
        "plan": plan_facts(table.examined),
        "statements": policies(table.config) if table.config else None,
        "findings": to_json(table.examined.findings),
    }


def _lines(config: Config, found: ExaminedTables, *, whole: bool) -> Iterator[str]:
    if found.server_is_refused:
        yield "refused: nothing was planned"
        return
    width = max((len(str(table.name)) for table in found.tables), default=0)
    for table in found.tables:
        yield from _table_lines(table, width, whole=whole)
    if found.refused:
        yield f"{len(found.refused):,} of {len(found.tables):,} tables are refused"
    yield from _by_hand(config)
    yield _total(config, found)
    if found.beginning is not None:
        from vnode_backfill.job.open.handoff import starting_lines

        yield f"the log is followed from {found.beginning.first}"
        yield from starting_lines(found.beginning.start)
    yield from policy_lines(config, found.tables)
    if any(entry.table.exact is None for entry in config.mysql.tables):
        added = "added" if config.mysql.new_tables is NewTables.ADD else "reported, and not copied"
        yield f"tables that appear later and that a pattern matches are {added}"


def policy_lines(config: Config, tables: Sequence[ExaminedTable]) -> Iterator[str]:
    """What becomes of statements: the job's policy, then those of tables whose entries say otherwise."""
    usual = policy_text(config)
    yield usual
    differing: dict[str, list[str]] = {}
    for table in tables:
        own = policy_text(table.config) if table.config else usual
        if own != usual:
            differing.setdefault(own, []).append(str(table.name))
    for own, names in differing.items():
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        yield f"of {', '.join(names[:_NAMED])}{more}: {own}"


def _table_lines(table: ExaminedTable, width: int, *, whole: bool) -> Iterator[str]:
    """One line, and below it what must be known; all that was found where the table was asked for."""
    facts = plan_facts(table.examined)
    if facts is None:
        yield f"{table.name!s:<{width}}  refused"
    else:
        yield (
            f"{table.name!s:<{width}}  about {facts['estimated_rows']:,} rows in {facts['ranges']:,} ranges "
            f"by ({', '.join(table.key)}) to {table.target}"
        )
    grave = (Level.REFUSED, Level.WARNING)
    shown = [finding for finding in table.examined.findings if whole or finding.level in grave]
    if shown:
        yield from (f"    {line}" for line in render(shown).splitlines()[:-1])


def _by_hand(config: Config) -> Iterator[str]:
    """What `tables add` and `tables remove` have changed."""
    for choice in tables_store(config).choices.all():
        by = f"by {choice.who} on {choice.host}"
        yield f"{choice.table} was added {by}" if choice.wanted else f"{choice.table} was removed {by}: not copied"


def _total(config: Config, found: ExaminedTables) -> str:
    planned = [table.examined.plan for table in found.tables if table.examined.plan is not None]
    rows = sum(table.rows for table in found.tables)
    ranges = sum(len(plan.ranges) for plan in planned)
    return (
        f"{len(planned):,} tables with about {rows:,} rows in {ranges:,} ranges, hashed into {config.vnodes} vnodes, "
        f"read by {config.workers} workers"
    )
