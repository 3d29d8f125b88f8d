"""Says how far a job has followed the statements about its table, and whether a new copy of it is in progress.

The old copy is replaced when the new one is live for the first time, and the highest percentage that the job has
reached says whether it ever was. So a copy that is in progress is one whose percentage is below `WHOLE`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from progress.state.schema_state import CopyNote, SchemaState

WHOLE = 100.0
"""The percentage of a copy that was live."""
_STATEMENT_SHOWN = 500


@dataclass(frozen=True, slots=True)
class StatementProgress:
    """A statement about the table, and what became of it; `effect` is empty while that is not done."""

    offset: str
    statement: str
    effect: str = ""


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
            "pending": None if waits is None else {"offset": waits.offset, "statement": waits.statement},
            "ended": self.ended,
            "new_copy": None if copy is None else asdict(copy),
            "statements": [asdict(each) for each in self.statements],
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


def _cut(statement: str) -> str:
    return statement if len(statement) <= _STATEMENT_SHOWN else f"{statement[:_STATEMENT_SHOWN]} …"
