"""Makes a replica of a private server: by GTID where there are any, else by file and position."""

from __future__ import annotations

from pymysql.cursors import DictCursor

from devkit.mysql import MariaDbServer, SqlServer
from devkit.waiting import wait_for


def replicate(server: SqlServer, replica: SqlServer) -> None:
    """Let a new, empty replica follow a server that has just been started."""
    place = (
        f"MASTER_HOST='{server.host}', MASTER_PORT={server.port}, MASTER_USER='{server.user}', MASTER_CONNECT_RETRY=1"
    )
    if isinstance(server, MariaDbServer):
        how = "MASTER_USE_GTID=slave_pos"
    elif ask(server, "SELECT @@global.gtid_mode AS mode")[0]["mode"] == "ON":
        how = "MASTER_AUTO_POSITION=1, GET_MASTER_PUBLIC_KEY=1"
    else:
        (status,) = ask(server, "SHOW MASTER STATUS")
        how = f"MASTER_LOG_FILE='{status['File']}', MASTER_LOG_POS={status['Position']}, GET_MASTER_PUBLIC_KEY=1"
    ask(replica, f"CHANGE MASTER TO {place}, {how}")
    ask(replica, "START SLAVE")


def caught_up(server: SqlServer, replica: SqlServer, *, seconds: float = 120) -> None:
    """Return once the replica has done everything the server has logged so far."""
    (status,) = ask(server, "SHOW MASTER STATUS")
    asked = f"SELECT MASTER_POS_WAIT('{status['File']}', {status['Position']}, 1) AS done"

    def done() -> bool:
        answer = ask(replica, asked)[0]["done"]
        return answer is not None and int(str(answer)) >= 0

    wait_for(done, "the replica to catch up", seconds=seconds, state=lambda: ask(replica, "SHOW SLAVE STATUS"))


def pause_replication(replica: SqlServer) -> None:
    """From now on the replica takes nothing more, as one that is promoted."""
    ask(replica, "STOP SLAVE")


def ask(server: SqlServer, statement: str) -> list[dict[str, object]]:
    with server.connect(cursorclass=DictCursor) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return [dict(row) for row in cursor.fetchall()]
