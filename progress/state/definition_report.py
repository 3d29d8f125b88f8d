"""Says how far a job has followed the statements about its table, and whether a new copy of it is in progress.

The old copy is replaced when the new one is live for the first time, and the highest percentage that the job has
reached says whether it ever was. So a copy that is in progress is one whose percentage is below `WHOLE`.

The reports on many tables are summed up as one. Versions add up, so the sum of what the targets have is below the sum
of what the log has shown exactly while one target has to follow. What is said of one table names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from heapq import nlargest

from progress.state.schema_state import CopyNote, SchemaState

WHOLE = 100.0
"""The percentage of a copy that was live."""
_STATEMENT_SHOWN = 500
_STATEMENTS_KEPT = 20
"""Of many tables together, as many statements are shown as the state keeps of one."""
_PLACES_KEPT = 8192


@dataclass(frozen=True, slots=True)
class StatementProgress:
    """A statement about the table, and what became of it; `effect` is empty while that is not done.

    `table` is set among the statements of many tables.
    """

    offset: str
    statement: str
    effect: str = ""
    table: str = ""

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if name != "table" or value}


@dataclass(frozen=True, slots=True)
class DefinitionProgress:
    """Which version of the table's definition the log has shown, and which one the target has.

    `new_copy` is set while a copy is made that is to replace another one.
    """

    version: int = 0
    in_target: int = 0
    pending: StatementProgress | None = None
    ended: str = ""
    statements: tuple[StatementProgress, ...] = ()
    new_copy: CopyNote | None = None

    def to_json(self) -> dict[str, object]:
        waits, copy = self.pending, self.new_copy
        return {
            "version": self.version,
            "in_target": self.in_target,
            "pending": None if waits is None else _pending(waits),
            "ended": self.ended,
            "new_copy": None if copy is None else asdict(copy),
            "statements": [each.to_json() for each in self.statements],
        }


def definition_of(schema: SchemaState, percent: float) -> DefinitionProgress:
    """The report on the definition of a job that has reached `percent`."""
    waits, copy = schema.pending, schema.copy if percent < WHOLE else None
    return DefinitionProgress(
        version=schema.newest,
        in_target=schema.in_sink,
        pending=None if waits is None else StatementProgress(str(waits.before), _cut(waits.statement)),
        ended=schema.ended,
        statements=tuple(StatementProgress(str(note.at), _cut(note.statement), note.effect) for note in schema.notes),
        new_copy=None if copy is None else replace(copy, statement=_cut(copy.statement)),
    )


def definitions_together(found: Mapping[str, DefinitionProgress]) -> DefinitionProgress | None:
    """The reports on the definitions of many tables, by name, as one; None where there is none."""
    if not found:
        return None
    # Most tables of many have never been changed.
    changed = {name: each for name, each in found.items() if each != _UNCHANGED}
    waits = [replace(each.pending, table=name) for name, each in changed.items() if each.pending is not None]
    ended = {name: each.ended for name, each in changed.items() if each.ended}
    copies = {name: each.new_copy for name, each in changed.items() if each.new_copy is not None}
    said = (replace(note, table=name) for name, each in changed.items() for note in each.statements)
    newest = nlargest(_STATEMENTS_KEPT, said, key=lambda note: _place(note.offset))
    return DefinitionProgress(
        version=sum(each.version for each in changed.values()),
        in_target=sum(each.in_target for each in changed.values()),
        pending=waits[0] if waits else None,
        ended=f"{next(iter(ended.values()))} ({_named(tuple(ended))})" if ended else "",
        statements=tuple(reversed(newest)),
        new_copy=_copy_of(copies) if copies else None,
    )


_UNCHANGED = DefinitionProgress()


def _copy_of(copies: Mapping[str, CopyNote]) -> CopyNote:
    """The copy that was begun first, which names the tables."""
    names = sorted(copies, key=lambda name: copies[name].since)
    first = copies[names[0]]
    return replace(first, reason=f"{first.reason} ({_named(names)})")


def _named(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


@lru_cache(maxsize=_PLACES_KEPT)
def _place(offset: str) -> tuple[int, int]:
    """Where an offset that is shown as text is among others; first of all where it is none."""
    file, _, pos = offset.rpartition(":")
    number = file.rpartition(".")[2]
    return (int(number), int(pos)) if number.isdecimal() and pos.isdecimal() else (0, 0)


def _pending(waits: StatementProgress) -> dict[str, object]:
    return {name: value for name, value in waits.to_json().items() if name != "effect"}


def _cut(statement: str) -> str:
    return statement if len(statement) <= _STATEMENT_SHOWN else f"{statement[:_STATEMENT_SHOWN]} …"
