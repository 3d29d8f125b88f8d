"""Holds what a check before a job finds, of the source and of the sink alike, and turns findings into text.

Every check returns a finding, the good ones too, because a list of what was relied on is worth keeping. `refuse` is the
gate: it raises if one finding refuses the job, and names them all, so that a server is set right in one round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from vnode_backfill.words.errors import PlanRefusedError

__all__ = ["Finding", "Level", "refuse", "render", "to_json"]


class Level(StrEnum):
    """What a finding means for the job, the gravest first."""

    REFUSED = "refused"
    WARNING = "warning"
    INFO = "info"
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result. `check` is a stable name; `fix` is empty if nothing is to be done."""

    level: Level
    check: str
    fact: str
    fix: str = ""


def refuse(findings: Sequence[Finding], what: str = "the source cannot be copied exactly") -> None:
    """Raise if one finding refuses the job, naming every one that does with its fix."""
    refusals = [finding for finding in findings if finding.level is Level.REFUSED]
    if refusals:
        raise PlanRefusedError(
            f"{what}: {len(refusals)} of {len(findings)} checks refuse it",
            detail="\n" + "\n".join(_lines(refusals)),
            hint="Apply each fix and run `vnode-backfill plan` again.",
        )


def render(findings: Sequence[Finding]) -> str:
    """Aligned plain text, the gravest first, with a last line that counts."""
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    summary = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
    return "\n".join([*_lines(findings), summary or "nothing was checked"])


def to_json(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """As `render` orders them: level, check, fact, fix."""
    return [
        {"level": finding.level.value, "check": finding.check, "fact": finding.fact, "fix": finding.fix}
        for finding in _by_gravity(findings)
    ]


def _by_gravity(findings: Sequence[Finding]) -> list[Finding]:
    order = list(Level)
    return sorted(findings, key=lambda finding: order.index(finding.level))


def _lines(findings: Sequence[Finding]) -> list[str]:
    lines = []
    mark = max((len(finding.level) for finding in findings), default=0)
    check = max((len(finding.check) for finding in findings), default=0)
    for finding in _by_gravity(findings):
        lines.append(f"{finding.level:<{mark}}  {finding.check:<{check}}  {finding.fact}")
        indent = " " * (mark + 2)
        lines.extend(
            f"{indent}{'fix: ' if not n else '     '}{line}" for n, line in enumerate(finding.fix.splitlines())
        )
    return lines
