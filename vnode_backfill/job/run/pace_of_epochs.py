"""Decides how much longer epochs take than configured, so that a target is not ruined by being followed too closely.

Every epoch that merges adds a commit to the target's log and wears its files. Two things bound how often that may be:

- **The log.** A commit names every file that it touches. Readers replay the commits behind the last checkpoint, and the
  log is kept for hours. More than `LOG_BYTES_A_MINUTE` in the last minute is too much.
- **The folds.** Where more than a quarter of the table waits to be folded, and it gets more, folds do not keep up. A
  longer epoch merges the same changes into fewer vectors.

Then epochs take twice as long, and twice as long again a minute later if that was not enough, up to 16 times. They
never take less time than configured. Where half of the budget would do, and folds have caught up, they get shorter
again in the same steps. Half: with epochs half as long the log grows twice as fast.

    budget 16 MB a minute, epoch.live 1 s, 1,200 files touched by each merge, 1.2 MB a commit
    minute 1   72 MB     → 2 s
    minute 2   36 MB     → 4 s
    minute 3   18 MB     → 8 s
    minute 4    9 MB     → 8 s: at 4 s it would be 18 MB again
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from progress.state.target_health import TargetHealth
from vnode_backfill.words.units import MB

LOG_BYTES_A_MINUTE = 16 * MB
WORN_PART = 4
"""Folds have fallen behind where one in so many bytes of the table waits for one."""
WORN_BYTES = 256 * MB
"""Less than this is folded in one step, so it is no debt."""
MOST = 16
_WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen at a time, in seconds of a steady clock."""

    at: float
    logged_bytes: int
    worn_bytes: int


@dataclass(frozen=True, slots=True)
class Lengthening:
    """How many times as long as configured an epoch takes, and why; `begun` is when the minute began that is judged."""

    factor: int = 1
    reason: str = ""
    begun: _Look | None = None

    def after(self, now: float, health: TargetHealth) -> Lengthening:
        """Judge the minute that has passed, if one has. Looks in between change nothing."""
        look = _Look(now, health.logged_bytes, health.fold_debt_bytes or 0)
        if self.begun is None:
            return replace(self, begun=look)
        seconds = now - self.begun.at
        if seconds < _WINDOW_SECONDS:
            return self
        logged = (look.logged_bytes - self.begun.logged_bytes) * _WINDOW_SECONDS / seconds
        reason = _log_reason(logged) or _fold_reason(health, look.worn_bytes > self.begun.worn_bytes)
        if reason:
            return Lengthening(min(2 * self.factor, MOST), reason, look)
        if self.factor > 1 and 2 * logged <= LOG_BYTES_A_MINUTE and not _falls_behind(health, part=2 * WORN_PART):
            factor = self.factor // 2
            return Lengthening(factor, self.reason if factor > 1 else "", look)
        return replace(self, begun=look)


AS_CONFIGURED = Lengthening()


def _log_reason(logged: float) -> str:
    if logged <= LOG_BYTES_A_MINUTE:
        return ""
    return f"the target's log grew by {logged / MB:,.0f} MB in a minute, and {LOG_BYTES_A_MINUTE // MB} MB are allowed"


def _fold_reason(health: TargetHealth, grows: bool) -> str:
    if not grows or not _falls_behind(health, WORN_PART):
        return ""
    return f"{(health.fold_debt_bytes or 0) / MB:,.0f} MB of {health.bytes / MB:,.0f} MB wait to be folded, and it gets more"


def _falls_behind(health: TargetHealth, part: int) -> bool:
    worn = health.fold_debt_bytes or 0
    return worn * part > health.bytes and worn > WORN_BYTES
