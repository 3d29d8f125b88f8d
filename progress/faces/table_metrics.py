"""Exposes each table of a job of many to Prometheus: gauges with the label `table`.

Labels are bounded: at most 1,000 tables, the largest of them, and one phase for each. `ui.table_metrics: false` leaves
these metrics out. A table that the job no longer has loses its series. A gauge is NaN while its value is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Gauge

from progress.state.report import TableProgress

__all__ = ["MOST_TABLES", "TableMetrics"]

MOST_TABLES = 1000


class TableMetrics:
    """The gauges of a job's tables in a registry. Only what has changed is set again."""

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"{prefix}{name}", what, ("table", *labels), registry=registry)

        self._rows = gauge("table_rows", "Rows read by the snapshot of a table")
        self._percent = gauge("table_progress_ratio", "How much of a table is done, 0 to 1")
        self._lag = gauge("table_lag_seconds", "Age of the newest change of the log that is captured for a table")
        self._age = gauge("table_lake_age_seconds", "Age of the newest change that is merged into a table")
        self._phase = gauge("table_phase", "1 for the phase that a table is in", "phase")
        self._shown: dict[str, TableProgress] = {}

    def observe(self, tables: Sequence[TableProgress]) -> None:
        """Set what the tables of a report determine."""
        found = {table.name: table for table in tables[:MOST_TABLES]}
        for name in [name for name in self._shown if name not in found]:
            self._forget(self._shown.pop(name))
        for name, table in found.items():
            if table != self._shown.get(name):
                self._set(table, self._shown.get(name))
                self._shown[name] = table

    def _set(self, table: TableProgress, before: TableProgress | None) -> None:
        name = table.name
        self._rows.labels(name).set(table.rows)
        self._percent.labels(name).set(table.percent / 100)
        self._lag.labels(name).set(_known(table.lag_seconds))
        self._age.labels(name).set(_known(table.lake_age_seconds))
        if before is not None and before.phase != table.phase:
            self._phase.remove(name, before.phase)
        self._phase.labels(name, table.phase).set(1)

    def _forget(self, table: TableProgress) -> None:
        for gauge in (self._rows, self._percent, self._lag, self._age):
            gauge.remove(table.name)
        self._phase.remove(table.name, table.phase)


def _known(value: float | None) -> float:
    return math.nan if value is None else value
