"""Keeps points that are written where others were deleted, when the server is killed before it has flushed them.

What must be true: when an epoch is committed, every point of it survives a kill of the server. With `wal_mode=SYNC`
that holds for what was only written, and for what was only deleted. But server 2.0.1-beta, when it recovers from its
log, applies a deletion to the whole file that it recovers, later points of the same series and time included:

    delete s1 @10, write s1 @10, kill, start             @10 is gone, though both calls were acknowledged
    delete s1 @10, write s1 @10, flush, kill, start      @10 is there
    delete s1 @10, flush, write s1 @10, kill, start      @10 is there

So before a commit the server is flushed if a slot that was emptied since the last flush may have been written. Slots
that a merge empties are remembered, and few merges write one of them again. Reads are not looked through: they flush if
any slot is remembered. What a driver has emptied is unknown to the next one. So the next one flushes before it writes
anything, when little waits to be flushed.

A flush protects only what the server still has. If the server was restarted since the writing began, its connection to
this process is a new one. Then the epoch is not committed but repeated.

What breaks it: an account that may not flush (server 2.0.1-beta lets only administrators), and several DataNodes: only
a restart of the one that is connected to is seen.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from vnode_backfill.sinks.iotdb.mapping import PointMapping, Points, Slot
from vnode_backfill.sinks.iotdb.server.paths import DeviceTemplate, path_of, split_path
from vnode_backfill.sinks.iotdb.server.session import IotdbSession
from vnode_backfill.words.errors import SinkUnavailableError

log = logging.getLogger(__name__)

_MOST = 200_000
"""More slots than this are not remembered; then every slot counts as emptied until the next flush."""


class Rewrites:
    """What one driver has emptied since the server was flushed last. The session must be used by nobody else."""

    def __init__(self, session: IotdbSession, mapping: PointMapping) -> None:
        self._session, self._mapping = session, mapping
        self._lock = threading.Lock()
        self._emptied: set[Slot] | None = None
        self._rewritten = self._told = self._begun = False

    def begin(self) -> int:
        """To be called before points are written; its answer is for `secure`."""
        with self._lock:
            if self._begun:
                self._session.ask("SHOW VERSION")
            else:
                self._flush()
                self._emptied, self._begun = set(), True
            return self._session.connections

    def emptied(self, slots: Collection[Slot]) -> None:
        with self._lock:
            if self._emptied is not None:
                self._emptied.update(slots)
            if self._emptied is not None and len(self._emptied) > _MOST:
                self._emptied = None

    def rewritten(self) -> None:
        """A slot was emptied and written again."""
        self._rewritten = True

    def secure(self, begun: int, written: Collection[Slot] | None = None) -> None:
        """Flush if that is needed for what was written since `begun`; None for slots that are not known.

        Raises a retryable error if the server was restarted meanwhile: what was written may be lost.
        """
        with self._lock:
            if not self._endangered(written):
                return
            self._flush()
            self._emptied, self._rewritten = set(), False
            if self._session.connections != begun:
                self._emptied = None
                raise SinkUnavailableError(
                    "the server was restarted while points were written where others had been deleted",
                    detail="It may have lost them; they are written again.",
                )

    def close(self) -> None:
        self._session.close()

    def _endangered(self, written: Collection[Slot] | None) -> bool:
        if self._rewritten or self._emptied is None:
            return True
        return bool(self._emptied) if written is None else not self._emptied.isdisjoint(written)

    def _flush(self) -> None:
        if not self._session.flush(self._databases()) and not self._told:
            self._told = True
            log.warning(
                "the account may not flush: a killed server can lose points that were deleted and written again"
            )

    def _databases(self) -> list[str]:
        """The template's databases; for tables none, which means all: the session knows trees only."""
        naming = self._mapping.naming
        if not isinstance(naming, DeviceTemplate):
            return []
        there = (split_path(row[0] or "") for row in self._session.ask("SHOW DATABASES"))
        return [path_of(nodes) for nodes in there if nodes[:2] == ("root", naming.database)]


def slots_of(points: Points) -> list[Slot]:
    """The slot of each point."""
    return list(zip((points.devices[number] for number in points.device), points.times.tolist(), strict=True))
