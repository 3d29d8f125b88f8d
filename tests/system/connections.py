"""Counts the connections that a job has to its source."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from devkit.mysql import SqlServer
from tests.system.job_case import COPIER


class Connections:
    """The most connections of the job's account that the server showed at any moment."""

    def __init__(self, server: SqlServer) -> None:
        self._server = server
        self._done = threading.Event()
        self.most = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        thread = threading.Thread(target=self._count)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def _count(self) -> None:
        with self._server.connect() as connection, connection.cursor() as cursor:
            while not self._done.wait(0.02):
                cursor.execute(f"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = '{COPIER}'")
                (row,) = cursor.fetchall()
                self.most = max(self.most, int(str(row[0])))
