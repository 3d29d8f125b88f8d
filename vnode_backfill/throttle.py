"""Whether the source is too busy for a snapshot, and why: checked every few seconds, beside the job.

While a check is over its limit the snapshot waits and the log goes on being captured: the log is what must not be late. A check that
cannot be made counts as over its limit, because not knowing is no reason to push harder; the reason says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from pymysql.connections import Connection

from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.load import held_log_bytes, query_number, replica_lag, threads_running
from consume_upstream.mysql.server import MySqlTable
from vnode_backfill.config import ThrottleConfig
from vnode_backfill.errors import SourceError


class SourceThrottle:
    """The configured checks; one connection at a time, opened for each round."""

    def __init__(self, config: ThrottleConfig, table: MySqlTable) -> None:
        self._config, self._table = config, table

    @property
    def has_checks(self) -> bool:
        config = self._config
        return bool(config.threads_running or config.flag_file or config.queries or config.replicas)

    def reason(self) -> str:
        """The first check that is over its limit, in words; empty if the snapshot may go on."""
        try:
            return next(self._over(), "")
        except SourceError as error:
            return f"a throttle check failed: {error.message}"

    def held_log_bytes(self) -> int | None:
        """How many bytes of log the source holds now."""
        with closing(self._table.connect()) as connection:
            return held_log_bytes(connection)

    def _over(self) -> Iterator[str]:
        flag = self._config.flag_file
        if flag and Path(flag).exists():
            yield f"the flag file {flag} exists"
        if self._config.threads_running or self._config.queries:
            with closing(self._table.connect()) as connection:
                yield from self._over_on_source(connection)
        for replica in self._config.replicas:
            address: SourceAddress = replace(self._table.address, host=replica.host, port=replica.port)
            lag = replica_lag(address)
            if lag > replica.max_lag.total_seconds():
                yield f"replica {replica.host}:{replica.port} is {lag:.0f} s behind, limit {replica.max_lag.total_seconds():.0f} s"

    def _over_on_source(self, connection: Connection) -> Iterator[str]:
        limit = self._config.threads_running
        if limit and (running := threads_running(connection)) > limit:
            yield f"Threads_running is {running:.0f}, limit {limit}"
        for check in self._config.queries:
            number = query_number(connection, check.sql)
            if number > check.max:
                yield f"{check.name} is {number:g}, limit {check.max:g}"
