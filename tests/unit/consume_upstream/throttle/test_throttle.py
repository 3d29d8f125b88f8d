"""A throttle names the first check that is over its limit: a label without its reading, and a sentence with it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from consume_upstream.log.offset import CdcOffset, Visibility
from consume_upstream.throttle import SourceThrottle, ThrottledBy
from consume_upstream.upstream_table import HeldLog, UpstreamQuestions, UpstreamSession, UpstreamTable
from vnode_backfill.config.job import ThrottleConfig
from vnode_backfill.words.errors import SourceError

CHECKS = {
    "threads_running": 40,
    "queries": [{"name": "open orders", "sql": "SELECT open", "max": 5}],
    "replicas": [{"host": "r1", "port": 3307, "max_lag": "10s"}],
}


@dataclass
class NumberedSource:
    """A source whose numbers are given, and which answers nothing else."""

    threads: float = 0
    numbers: dict[str, float] = field(default_factory=dict)
    lag: float | None = 0

    def threads_running(self) -> float:
        return self.threads

    def query_number(self, query: str) -> float:
        return self.numbers.get(query, 0)

    def replica_lag(self, host: str, port: int) -> float:
        if self.lag is None:
            raise SourceError(f"the replica at {host}:{port} is not replicating")
        return self.lag

    def of(self, table: UpstreamTable) -> UpstreamQuestions:
        raise NotImplementedError

    def session(self) -> AbstractContextManager[UpstreamSession]:
        raise NotImplementedError

    def written_offset(self, last: CdcOffset) -> CdcOffset:
        raise NotImplementedError

    def visible_offset(self) -> Visibility:
        raise NotImplementedError

    def slice_end(self, after: CdcOffset, upto: CdcOffset, length: int) -> CdcOffset | None:
        raise NotImplementedError

    def held_log(self) -> HeldLog | None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


def reason(source: NumberedSource, **more: object) -> ThrottledBy | None:
    return SourceThrottle(ThrottleConfig.model_validate(CHECKS | more)).reason(source)


def test_source_within_its_limits_is_not_throttled(tmp_path: Path) -> None:
    assert reason(NumberedSource(40, {"SELECT open": 5}, 10), flag_file=str(tmp_path / "hold")) is None


def test_label_names_the_check_and_the_sentence_its_reading() -> None:
    assert reason(NumberedSource(41)) == ThrottledBy("Threads_running", "Threads_running is 41, limit 40")
    busy = reason(NumberedSource(numbers={"SELECT open": 6.5}))
    assert busy == ThrottledBy("open orders", "open orders is 6.5, limit 5")
    late = reason(NumberedSource(lag=11))
    assert late == ThrottledBy("replica r1:3307", "replica r1:3307 is 11 s behind, limit 10 s")


def test_flag_file_throttles_while_it_exists(tmp_path: Path) -> None:
    flag = tmp_path / "hold is on"
    flag.touch()
    found = reason(NumberedSource(), flag_file=str(flag))
    assert found is not None
    assert found.label == f"the flag file {flag} exists"


def test_check_that_cannot_be_made_counts_as_over_its_limit() -> None:
    found = reason(NumberedSource(lag=None))
    told = "a throttle check failed: the replica at r1:3307 is not replicating"
    assert found == ThrottledBy("a throttle check failed", told)


def test_throttle_without_checks_says_so() -> None:
    assert not SourceThrottle(ThrottleConfig()).has_checks
    assert SourceThrottle(ThrottleConfig.model_validate(CHECKS)).has_checks
