"""Whether the source is too busy for a snapshot, and why: checked every few seconds, beside the job.

While a check is over its limit the snapshot waits and the log goes on being captured: the log is what must not be late. A check that
cannot be made counts as over its limit, because not knowing is no reason to push harder; the reason says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pymysql.connections import Connection

from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.driver_source import DriverSource
from consume_upstream.mysql.load import query_number, replica_lag, threads_running
from consume_upstream.mysql.server import MySqlTable
from vnode_backfill.config import ThrottleConfig
from vnode_backfill.errors import SourceError


class SourceThrottle:
    """The configured checks, asked over one of the driver's own connections; replicas are asked over one each, opened for each round."""

    def __init__(self, config: ThrottleConfig, table: MySqlTable) -> None:
        self._config, self._table = config, table

    @property
    def has_checks(self) -> bool:
        config = self._config
        return bool(config.threads_running or config.flag_file or config.queries or config.replicas)

    def reason(self, source: DriverSource) -> str:
        """The first check that is over its limit, in words; empty if the snapshot may go on."""
        try:
            return next(self._over(source), "")
        except SourceError as error:
            return f"a throttle check failed: {error.message}"

    def _over(self, source: DriverSource) -> Iterator[str]:
        flag = self._config.flag_file
        if flag and Path(flag).exists():
            yield f"the flag file {flag} exists"
        if self._config.threads_running or self._config.queries:
            with source.connection() as connection:
                found = tuple(self._over_on_source(connection))
            yield from found
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
