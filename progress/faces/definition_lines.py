"""Words, for a terminal, how far a job follows the statements about its table, and what it does for them now."""

from __future__ import annotations

from progress.state.definition_report import DefinitionProgress, StatementProgress
from progress.state.schema_state import CopyNote

_STATEMENTS_SHOWN = 5


def definition_facts(found: DefinitionProgress | None) -> list[tuple[str, str]]:
    """Which definition is followed, and the last statements about the table; nothing if there were none."""
    if found is None or not (found.version or found.statements):
        return []
    behind = "" if found.in_target == found.version else f", the target has version {found.in_target}"
    last = found.statements[-_STATEMENTS_SHOWN:]
    shown = [("statement", f"{_where(each)} ({each.effect}): {each.statement}") for each in last]
    return [("definition", f"version {found.version}{behind}"), *shown]


def definition_work(found: DefinitionProgress | None) -> list[tuple[str, str, str]]:
    """What is being done because the table was changed, as label, text and colour."""
    if found is None:
        return []
    said = [] if found.new_copy is None else _copy_lines(found.new_copy)
    if found.pending is not None:
        text = f"the target is being changed for {found.pending.statement} at {_where(found.pending)}"
        said.append(("changing", text, "cyan"))
    if found.ended:
        said.append(("ended", f"the table was {found.ended}; target and state stay", "yellow"))
    return said


def _where(each: StatementProgress) -> str:
    return f"{each.offset} of {each.table}" if each.table else each.offset


def _copy_lines(copy: CopyNote) -> list[tuple[str, str, str]]:
    cause = f" ({copy.offset}: {copy.statement})" if copy.offset else ""
    return [
        ("new copy", f"since {copy.since}: {copy.reason}{cause}", "cyan"),
        ("readers", f"see {copy.readers}", "cyan"),
    ]
