"""Gives each order the version of the table's definition that it works with, and finds out what a statement has done.

The log is captured by the newest version, rows are merged and read by the version that the sink holds. Both come from
the committed state that travels with the order. Version 0 is the definition that the job was created with.

What the operator has set (`schema_changes`, `dropped_columns`, `dropped_partitions`) is applied here, so that the
protocol knows effects only. With `schema_changes: stop` a statement that has an effect ends the job before it, once
what it does is known. `resume --accept` names the statement that the job may pass. The acceptance counts as soon as it
is asked for: the driver that finds it meets the statement again before its first commit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from consume_upstream.buffer import buffer_schema
from consume_upstream.log.offset import CdcOffset
from consume_upstream.log.statement import FoundStatement
from consume_upstream.upstream_table import UpstreamTable
from vnode_backfill.config.job import DroppedColumns, Executor, SchemaChanges
from vnode_backfill.job.run.services import Committed, Services
from vnode_backfill.words.columns import TableDefinition, relabelled
from vnode_backfill.words.errors import PlanRefusedError, SchemaChangedError
from vnode_backfill.words.hints import NEW_COPY, accept
from vnode_backfill.words.key_range import SplitPlan
from vnode_backfill.words.schema_change import (
    AddColumn,
    Carried,
    ColumnStep,
    DeleteRows,
    DropColumn,
    Emptied,
    Ended,
    NewCopy,
    NoEffect,
    RenameColumn,
    RetypeColumn,
    SetAside,
    StatementEffect,
    StatementOutcome,
    TableShape,
    deletes_rows,
)

_TEXT_SHOWN = 500


@dataclass(frozen=True, slots=True)
class SeenTable:
    """The table by one version of its definition: how it is read, what the target holds of it, how its key is cut."""

    table: UpstreamTable
    shape: TableShape
    plan: SplitPlan


class TableVersions:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._behind: tuple[TableDefinition | None, CdcOffset | None] | None = None
        """A definition of the source that the log has not shown, and the end of the log that must explain it."""

    def newest(self, committed: Committed) -> SeenTable:
        return self._seen(committed, committed.state.schema.newest)

    def in_sink(self, committed: Committed) -> SeenTable:
        return self._seen(committed, committed.state.schema.in_sink)

    def are_behind(self, committed: Committed, written: CdcOffset) -> bool:
        """Whether the source has another definition than the newest that the log has shown; asked while ranges are
        unread.

        `written` is the end of the log, asked for before. A definition is explained by what the log holds when it is
        seen. So one that was seen before this end was asked for raises once the job has captured the log up to here.
        """
        newest, (seen, explained_by) = self.newest(committed).table, self._behind or (None, None)
        complete = all(vnode.complete is not None for vnode in committed.state.vnodes)
        now = newest.definition if complete else _definition_now(newest)
        if now is not None and relabelled(newest.definition, now) is not None:
            self._behind = None
            return False
        if self._behind is None or now != seen:
            self._behind = now, None
        elif explained_by is None:
            self._behind = now, written
        elif committed.state.written >= explained_by:
            raise SchemaChangedError(
                f"{newest.definition.table} has another definition than the job knows",
                detail=f"The log up to {explained_by} holds no statement that explains it.",
                hint=f"A session may have changed the table with sql_log_bin = 0. {NEW_COPY}",
            )
        return True

    def resolve(self, found: FoundStatement, committed: Committed) -> tuple[StatementOutcome, TableShape | None] | None:
        """What the statement did, and what the target will hold; None if that cannot be said yet."""
        newest, config = self.newest(committed), self._services.config
        outcome = self._partitioned(newest.table, committed).effect_of(found, gone=config.dropped_partitions.value)
        if outcome is None:
            return None
        effect, shape = self._followed(newest, outcome.effect)
        if config.schema_changes is SchemaChanges.STOP and not isinstance(effect, NoEffect):
            self._check_accepted(found, effect, committed)
        return StatementOutcome(effect, outcome.partitioning), shape

    def _partitioned(self, table: UpstreamTable, committed: Committed) -> UpstreamTable:
        """The table with the partitions that it has after the newest statement that the job has met."""
        created = self._services.table.definition.partitioning
        known = committed.state.schema.partitioning or created
        return table.with_definition(replace(table.definition, partitioning=known))

    def _followed(self, newest: SeenTable, effect: StatementEffect) -> tuple[StatementEffect, TableShape | None]:
        if self._services.config.executor is Executor.SINGLE and isinstance(effect, Carried | Emptied):
            return NewCopy("a walk of the whole table cannot follow a statement"), None
        if isinstance(effect, Carried) and self._services.sink.needs_window and deletes_rows(effect.steps):
            return NewCopy("rows of a partition cannot be found among points"), None
        if isinstance(effect, Carried):
            return self._carried(newest.shape, effect)
        return effect, TableShape(effect.definition, newest.shape.kept) if isinstance(effect, Emptied) else None

    def _carried(self, shape: TableShape, effect: Carried) -> tuple[StatementEffect, TableShape | None]:
        try:
            buffer_schema(effect.definition)
        except PlanRefusedError as error:
            return SetAside(error.message), None
        keeps = self._services.config.dropped_columns is DroppedColumns.KEEP
        return effect, shape.after(effect, keep_dropped=keeps)

    def _check_accepted(self, found: FoundStatement, effect: StatementEffect, committed: Committed) -> None:
        """Refuse to pass a statement that nobody has accepted, in the job's state or by a request that waits."""
        at, state = str(found.before), committed.state
        asked = {request.accept for request in self._services.store.unacknowledged(state)}
        if at not in {state.controls.accepted, *asked}:
            raise SchemaChangedError(
                f"the job stops before the statement at {at}: {found.text[:_TEXT_SHOWN]}",
                detail=f"schema_changes is stop. Followed, the statement has this effect: {effect_text(effect)}.",
                hint=accept(at),
            )

    def _seen(self, committed: Committed, number: int) -> SeenTable:
        shape = committed.state.schema.shape_at(number, self._services.table.definition)
        table = self._services.table
        if shape.definition != table.definition:
            table = table.with_definition(shape.definition)
        return SeenTable(table, shape, _named(committed.plan, shape))


def _definition_now(table: UpstreamTable) -> TableDefinition | None:
    """None if it cannot be copied, or is gone: the log says why."""
    try:
        return table.current_definition()
    except (PlanRefusedError, SchemaChangedError):
        return None


def effect_text(effect: StatementEffect) -> str:
    """What following the statement does, for the operator who decides about it."""
    match effect:
        case NoEffect():
            return "none"
        case Carried(steps=steps):
            return ", ".join(map(_step_text, steps)) or "the target stays as it is"
        case Emptied():
            return "the target is emptied"
        case NewCopy(reason, created):
            return f"a new copy of the table{', by the log alone' if created else ''}, because {reason}"
        case Ended(how):
            return f"the table was {how}, and the job ends"
        case SetAside(reason):
            return f"the table is set aside, because {reason}"


def _step_text(step: ColumnStep) -> str:
    match step:
        case AddColumn(column, value):
            return f"column {column.name} is added" + (f" with {value!r} in existing rows" if value is not None else "")
        case DropColumn(name):
            return f"column {name} is dropped"
        case RenameColumn(old, new):
            return f"column {old} is renamed to {new}"
        case RetypeColumn(column):
            return f"column {column.name} is widened to {column.type_name}"
        case DeleteRows(name, ranges, values):
            bounds = [f"from {low or 'the lowest'} to below {high or 'the highest'}" for low, high in ranges]
            return f"rows are deleted whose {name} is {' or '.join((*bounds, *values))}"


def _named(plan: SplitPlan, shape: TableShape) -> SplitPlan:
    """The plan with the key's names: a renamed key column orders and hashes as before."""
    key = shape.definition.key
    if tuple(part.name for part in plan.parts) == key:
        return plan
    parts = (replace(part, name=name) for part, name in zip(plan.parts, key, strict=True))
    return replace(plan, parts=tuple(parts))
