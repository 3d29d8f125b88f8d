"""Waits for XA transactions that are prepared when a job begins: logged already, visible only after the commit.

A job that reads the log from a point after the PREPARE and the table before the COMMIT would get such rows from
neither: all that the log says of the COMMIT is its name. So a job that begins waits for those that are prepared *after*
its first offset was taken. What was prepared below the offset is among them, or has ended and is seen by every read
that follows.

MySQL shows them only to an account with XA_RECOVER_ADMIN. It also lists them as transactions without a connection, for
which PROCESS is enough. A job whose account has neither right cannot see them and cannot wait; `plan` warns of it.
"""

from __future__ import annotations

import time

from pymysql.connections import Connection

from consume_upstream.mysql.server import Cell, ask
from vnode_backfill.words.errors import PlanRefusedError, SourceError, SourceLostError
from vnode_backfill.words.hints import THEN_RUN

__all__ = ["wait_for_prepared"]

_POLL_SECONDS = 0.2
_ORPHANS = """
    SELECT trx_id AS data FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id = 0 AND trx_rows_modified > 0"""


def wait_for_prepared(connection: Connection, seconds: float) -> None:
    """Return once every transaction that is prepared now has ended; raises if one is left."""
    deadline = time.monotonic() + seconds
    left = _prepared(connection)
    while left:
        if time.monotonic() > deadline:
            raise PlanRefusedError(
                f"{len(left)} XA transactions are prepared at the source, e.g. {min(left)!r}",
                detail="Their changes are in the log before the job's beginning. "
                "If they are committed later, the job would miss them.",
                hint=f"End them: XA RECOVER lists them, XA COMMIT or XA ROLLBACK ends them. {THEN_RUN}",
            )
        time.sleep(_POLL_SECONDS)
        left &= _prepared(connection)


def _prepared(connection: Connection) -> frozenset[str]:
    for question in ("XA RECOVER", _ORPHANS):
        try:
            return frozenset(_name(row["data"]) for row in ask(connection, question))
        except SourceLostError:
            raise
        except SourceError:
            continue
    return frozenset()


def _name(data: Cell) -> str:
    """As XA COMMIT takes it, where it is text: MariaDB returns bytes."""
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)
