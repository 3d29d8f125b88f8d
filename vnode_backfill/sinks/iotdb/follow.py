"""Says what a change of the source's columns means for points that are there, or refuses it.

What must be true: after a change every point that is there is one that the new mapping would make of its row. IoTDB can
neither rename a series nor change its type, and what a row had before is not to be had from its points alone. So:

| statement                          | effect                                                                         |
|------------------------------------|--------------------------------------------------------------------------------|
| ADD without a value                | a new measurement; rows that are there have no point of it                     |
| ADD with a value                   | refused: every row that is there would need a point                            |
| DROP, columns are kept             | the measurement ends; its points stay                                          |
| DROP, columns are dropped          | the series, or the table's column, is removed                                  |
| RENAME, the measurement stays      | none: `rename` gives the new column the name that the points have              |
| RENAME otherwise                   | refused: the points stay under the old name                                    |
| another type                       | refused if the measurement has another type then; else nothing                 |
| any of them on a device, time or key column whose points show it | refused                                          |

Columns that are no measurements (`include`, `exclude`) can be added, dropped, renamed and widened without effect.

The file may name columns of every version (`fitting`). So an operator can say what to do with a column before the
target has followed to it: that is how a refused statement is passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from vnode_backfill.config.iotdb import IotdbSinkConfig
from vnode_backfill.sinks.iotdb.mapping import PointMapping
from vnode_backfill.words.columns import TableDefinition
from vnode_backfill.words.errors import ConfigError, SinkError
from vnode_backfill.words.hints import CHANGE_OPTIONS, NEW_COPY_IN_PLACE
from vnode_backfill.words.schema_change import AddColumn, ColumnStep, RenameColumn, TableShape

_MESSAGE = "a change of the table's columns cannot be followed in IoTDB"


@dataclass(frozen=True, slots=True)
class PointChange:
    """What becomes of points: the measurements whose points go before the new mapping is used."""

    gone: tuple[str, ...]

    @classmethod
    def of(
        cls,
        before: PointMapping,
        after: PointMapping,
        shapes: tuple[TableShape, TableShape],
        steps: Sequence[ColumnStep],
    ) -> PointChange:
        """SinkError if the change cannot be followed. Nothing is asked of the server."""
        renamed = {step.old: step.new for step in steps if isinstance(step, RenameColumn)}
        _refuse_renames(before, after, renamed)
        _refuse_values(after, steps)
        _refuse_types(before, after)
        old, new = shapes
        stays = {column.name.casefold() for column in new.kept}
        dropped = [
            each.name
            for each in before.measurements
            if each.column is not None
            and renamed.get(each.column, each.column) not in {other.column for other in after.measurements}
            and each.column.casefold() not in stays
        ]
        return cls((*dropped, *_of_kept_names(after, old)))


def refuse_lost_place(before: PointMapping, definition: TableDefinition) -> None:
    """Refuse a version without a column that gives points their device or time: only a new copy has them elsewhere."""
    known = {column.name for column in definition.columns}
    for name in (*before.naming.columns, before.time):
        if name not in known:
            raise SinkError(
                _MESSAGE,
                detail=f"Column {name} gives points their device or time, and is not there any more.",
                hint=f"Name another column in its place in sink.iotdb, and make a new copy. {NEW_COPY_IN_PLACE}",
            )


def fitting(config: IotdbSinkConfig, definition: TableDefinition) -> IotdbSinkConfig:
    """The configuration without columns that this version does not have, where that changes nothing for the others.

    They are of an earlier or a later version. A name that no version has is refused when the job is created.
    """
    known = {column.name for column in definition.columns}
    if config.include and not known & set(config.include):
        raise _refused("every column of `sink.iotdb.include` is gone")
    return config.model_copy(
        update={
            "include": tuple(name for name in config.include if name in known),
            "exclude": tuple(name for name in config.exclude if name in known),
            "rename": {name: to for name, to in config.rename.items() if name in known},
            "types": {name: kind for name, kind in config.types.items() if name in known},
        }
    )


@contextmanager
def misfits_refused() -> Iterator[None]:
    """Turn what the mapping says of columns that no longer fit the configuration into a refusal of the change."""
    try:
        yield
    except ConfigError as error:
        raise _refused(error.message) from error


def _of_kept_names(after: PointMapping, old: TableShape) -> list[str]:
    """Measurements whose series still hold points of a column that was dropped and kept, and has a namesake now."""
    kept = {column.name.casefold() for column in old.kept}
    return [each.name for each in after.measurements if each.column is not None and each.column.casefold() in kept]


def _refuse_renames(before: PointMapping, after: PointMapping, renamed: Mapping[str, str]) -> None:
    """Names that are exchanged are refused too: each series would hold points of both columns."""
    measured = {each.column: each for each in before.measurements}
    measures = {each.column: each for each in after.measurements}
    fixed = {*before.naming.columns, before.time, *(renamed.keys() & set(renamed.values()))}
    for old, new in renamed.items():
        was, now = measured.get(old), measures.get(new)
        same = (was and (was.name, was.kind)) == (now and (now.name, now.kind))
        if same and not fixed & {old, new}:
            continue
        name = old if was is None else was.name
        hint = "" if was is None or fixed & {old, new} else f"Keep the measurement with `rename: {{{new}: {name}}}`, "
        raise _refused(f"column {old} was renamed to {new}, and points stay under the name {name}", hint)


def _refuse_values(after: PointMapping, steps: Sequence[ColumnStep]) -> None:
    measured = {each.column for each in after.measurements}
    for step in steps:
        if isinstance(step, AddColumn) and step.value is not None and step.column.name in measured:
            raise _refused(
                f"column {step.column.name} was added with the value {step.value!r}, "
                "and every row that is there would need a point with it"
            )


def _refuse_types(before: PointMapping, after: PointMapping) -> None:
    if before.owner != after.owner:
        raise _refused("the key of a point would be shown by other measurements than before")
    kinds = {each.column: each for each in before.measurements}
    for each in after.measurements:
        old = kinds.get(each.column)
        if old is not None and (old.name, old.kind) != (each.name, each.kind):
            raise _refused(f"measurement {old.name} is {old.kind.upper()} and would be {each.kind.upper()}")


def _refused(detail: str, first: str = "") -> SinkError:
    without = "or `exclude` the column (both its names)" if first else "`exclude` the column to continue without it"
    return SinkError(
        _MESSAGE,
        detail=f"{detail[0].upper()}{detail[1:]}.",
        hint=f"{first}{without}{CHANGE_OPTIONS} {NEW_COPY_IN_PLACE}",
    )
