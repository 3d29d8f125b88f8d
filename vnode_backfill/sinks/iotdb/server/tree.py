"""Keeps slots in the tree model: devices are paths, points are values of their series.

Types are looked at per device before its first write, because a series may have been created since the job began.
Deletions are one call per time, over many devices. Where there are many, several sessions share them: the server takes
each by itself, and waits for its disk each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from vnode_backfill.config.iotdb import IotdbType
from vnode_backfill.sinks.iotdb.mapping import Measurement, Points
from vnode_backfill.sinks.iotdb.server.paths import DeviceTemplate, Nodes, path_of, quoted, split_path
from vnode_backfill.sinks.iotdb.server.session import IotdbSession, Series, StoredPoints
from vnode_backfill.sinks.iotdb.server.store import WriterSettings, time_condition, type_conflict
from vnode_backfill.sinks.iotdb.server.tablets import calls
from vnode_backfill.sinks.iotdb.values import Bools, Ints
from vnode_backfill.words.errors import SinkError

Deletion = tuple[list[str], int]
"""Paths, and the time at which they are emptied."""
_DEVICES_PER_DELETION = 200
_DEVICES_PER_SCAN = 50
_MANY_DELETIONS, _DELETING_SESSIONS = 16, 4
_SERIES_PER_QUESTION = 1000


class TreeStore:
    """The devices of one template, over one session."""

    def __init__(self, settings: WriterSettings, template: DeviceTemplate) -> None:
        self._settings, self._template = settings, template
        self._measurements = settings.mapping.measurements
        self._session = IotdbSession(settings.address)
        self._checked: set[str] = set()

    def check(self) -> str:
        series = self._series()
        wanted = {each.name: each.kind for each in self._measurements}
        wrong = [
            (path_of((*each.device, each.measurement)), str(wanted[each.measurement]), each.kind)
            for each in series
            if each.measurement in wanted and each.kind != wanted[each.measurement]
        ]
        if wrong:
            raise type_conflict(wrong)
        return f"{len(series)} series exist below the template, none with another type"

    def make(self) -> None:
        """Nothing is done if the template is in a database already, or databases are below its first node."""
        if self._has_database():
            return
        try:
            self._session.execute(f"CREATE DATABASE root.{quoted(self._template.database or '')}")
        except SinkError:
            # Tables of one job are made side by side, and another one may have been faster.
            if not self._has_database():
                raise

    def _has_database(self) -> bool:
        wanted = ("root", self._template.database or "")
        there = [split_path(row[0] or "") for row in self._session.ask("SHOW DATABASES")]
        return any(database[: len(wanted)] == wanted for database in there)

    def held(self) -> list[str]:
        return [path for path in map(path_of, self._devices()) if self._session.has_points(path)]

    def clear(self) -> None:
        for device in self._devices():
            self._session.delete_series(f"{path_of(device)}.*")

    def drop(self, measurement: str) -> None:
        for series in self._series():
            if series.measurement == measurement:
                self._settings.lease()
                self._session.delete_series(path_of((*series.device, measurement)))

    def check_types(self, devices: Sequence[str]) -> None:
        new = [device for device in devices if device not in self._checked]
        wanted = {each.name: each.kind for each in self._measurements}
        step = max(1, _SERIES_PER_QUESTION // len(wanted))
        for start in range(0, len(new), step):
            for series in self._session.types(new[start : start + step], list(wanted)):
                if series.kind != wanted[series.measurement]:
                    raise type_conflict(
                        [(path_of((*series.device, series.measurement)), wanted[series.measurement], series.kind)]
                    )
        self._checked.update(new)

    def insert(self, points: Points) -> None:
        for call in calls(points, self._measurements, self._settings.tablet_rows):
            self._settings.lease()
            self._session.insert(call, aligned=self._settings.aligned)

    def empty(self, points: Points) -> None:
        """Those of one time in one call."""
        order = np.argsort(points.times, kind="stable")
        times = points.times[order]
        starts = np.concatenate([np.flatnonzero(np.diff(times, prepend=times[:1] - 1)), [len(order)]])
        deletions: list[Deletion] = []
        for start, stop in pairwise(starts.tolist()):
            for first in range(start, stop, _DEVICES_PER_DELETION):
                devices = points.device[order[first : min(first + _DEVICES_PER_DELETION, stop)]]
                deletions.append(([f"{points.devices[number]}.*" for number in devices], int(times[start])))
        self._delete(deletions)

    def empty_cells(self, points: Points, cells: Sequence[Bools]) -> Points:
        deletions: list[Deletion] = []
        for number in range(len(points)):
            device = points.devices[points.device[number]]
            names = [m.name for m, cell in zip(self._measurements, cells, strict=True) if cell[number]]
            deletions.append(([f"{device}.{quoted(name)}" for name in names], int(points.times[number])))
        self._delete(deletions)
        return points.take(np.empty(0, np.int64))

    def points(self, devices: Sequence[str], measurements: Sequence[Measurement], times: Ints) -> list[StoredPoints]:
        return self._session.points(devices, _typed(measurements), f"WHERE {time_condition(times)}")

    def scan(self, measurements: Sequence[Measurement]) -> Iterator[StoredPoints]:
        devices = self._devices()
        for start in range(0, len(devices), _DEVICES_PER_SCAN):
            yield from self._session.scan(devices[start : start + _DEVICES_PER_SCAN], _typed(measurements))

    def close(self) -> None:
        self._session.close()

    def _series(self) -> list[Series]:
        """The series of devices that the template can make."""
        found = self._session.series(f"{self._template.pattern}.*")
        return [each for each in found if self._template.values_of(path_of(each.device)) is not None]

    def _devices(self) -> list[Nodes]:
        return sorted({each.device for each in self._series()})

    def _delete(self, deletions: Sequence[Deletion]) -> None:
        if len(deletions) < _MANY_DELETIONS:
            self._delete_in(self._session, deletions)
            return
        sessions = [IotdbSession(self._settings.address) for _ in range(_DELETING_SESSIONS)]
        try:
            with ThreadPoolExecutor(len(sessions)) as pool:
                shares = [deletions[start :: len(sessions)] for start in range(len(sessions))]
                list(pool.map(self._delete_in, sessions, shares))
        finally:
            for session in sessions:
                session.close()

    def _delete_in(self, session: IotdbSession, deletions: Sequence[Deletion]) -> None:
        for paths, at in deletions:
            self._settings.lease()
            session.delete(paths, at)


def _typed(measurements: Sequence[Measurement]) -> list[tuple[str, IotdbType]]:
    return [(each.name, each.kind) for each in measurements]
