"""Asks whether the source is too busy for a snapshot, and why: every few seconds, beside the job.

While a check is over its limit the snapshot waits and the log is still captured: the log is what must not be late. A
check that cannot be made counts as over its limit, because not knowing is no reason to push harder; the sentence says
so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from consume_upstream.upstream_table import UpstreamQuestions
from vnode_backfill.config.job import ThrottleConfig
from vnode_backfill.words.errors import SourceError

__all__ = ["SourceThrottle", "ThrottledBy"]

_FAILED = "a throttle check failed"


@dataclass(frozen=True, slots=True)
class ThrottledBy:
    """Why the source must not be read now. `label` names the check, never its reading; `sentence` has both."""

    label: str
    sentence: str


class SourceThrottle:
    """The configured checks."""

    def __init__(self, config: ThrottleConfig) -> None:
        self._config = config

    @property
    def has_checks(self) -> bool:
        config = self._config
        return bool(config.threads_running or config.flag_file or config.queries or config.replicas)

    def reason(self, source: UpstreamQuestions) -> ThrottledBy | None:
        """The first check that is over its limit; None if the snapshot may continue."""
        try:
            return next(self._over(source), None)
        except SourceError as error:
            return ThrottledBy(_FAILED, f"{_FAILED}: {error.message}")

    def _over(self, source: UpstreamQuestions) -> Iterator[ThrottledBy]:
        config = self._config
        if config.flag_file and Path(config.flag_file).exists():
            sentence = f"the flag file {config.flag_file} exists"
            yield ThrottledBy(sentence, sentence)
        if config.threads_running and (running := source.threads_running()) > config.threads_running:
            yield ThrottledBy("Threads_running", f"Threads_running is {running:.0f}, limit {config.threads_running}")
        for check in config.queries:
            if (number := source.query_number(check.sql)) > check.max:
                yield ThrottledBy(check.name, f"{check.name} is {number:g}, limit {check.max:g}")
        for replica in config.replicas:
            lag, limit = source.replica_lag(replica.host, replica.port), replica.max_lag.total_seconds()
            if lag > limit:
                label = f"replica {replica.host}:{replica.port}"
                yield ThrottledBy(label, f"{label} is {lag:.0f} s behind, limit {limit:.0f} s")
