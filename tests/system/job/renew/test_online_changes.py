"""Tools change a table online, by a copy that is put in its place: their statements are replayed under a writer.

The statements are those of pt-online-schema-change (triggers, copied chunks, a swap by RENAME) and of gh-ost (a ghost
table, copied and applied rows, a lock and a sentry, the swap). A job follows meanwhile, and makes a new copy once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.waiting import wait_for
from tests.system.job_case import JobCase, execute, fetch
from vnode_backfill.job.run.loop import Until

ROWS, CHUNK = 2_000, 250
PT_BEFORE = (
    "CREATE TABLE _t_new LIKE t", "ALTER TABLE _t_new ADD c INT NOT NULL DEFAULT 7",
    ("CREATE TRIGGER pt_osc_online_t_del AFTER DELETE ON t FOR EACH ROW DELETE IGNORE FROM _t_new"
    " WHERE _t_new.id <=> OLD.id"),
    ("CREATE TRIGGER pt_osc_online_t_upd AFTER UPDATE ON t FOR EACH ROW BEGIN DELETE IGNORE FROM _t_new"
    " WHERE !(OLD.id <=> NEW.id) AND _t_new.id <=> OLD.id; REPLACE INTO _t_new (id, a) VALUES (NEW.id, NEW.a); END"),
    ("CREATE TRIGGER pt_osc_online_t_ins AFTER INSERT ON t FOR EACH ROW REPLACE INTO _t_new (id, a)"
    " VALUES (NEW.id, NEW.a)"),
)  # fmt: skip
PT_AFTER = (
    "ANALYZE TABLE _t_new /* pt-online-schema-change */", "RENAME TABLE t TO _t_old, _t_new TO t",
    "DROP TABLE IF EXISTS _t_old", "DROP TRIGGER IF EXISTS pt_osc_online_t_del",
    "DROP TRIGGER IF EXISTS pt_osc_online_t_upd", "DROP TRIGGER IF EXISTS pt_osc_online_t_ins",
)  # fmt: skip


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    with {"mysql": MySqlServer, "mariadb": MariaDbServer}[request.param]({}) as started:
        yield started


@pytest.fixture
def case(server: SqlServer, tmp_path: Path) -> JobCase:
    execute(
        server, None, "CREATE DATABASE online", "CREATE TABLE online.t (id INT PRIMARY KEY, a INT)",
        "INSERT INTO online.t SELECT n, n * 2 FROM (WITH RECURSIVE k AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM k"
        " WHERE n < 1000) SELECT n FROM k) k", f"INSERT INTO online.t SELECT id + {ROWS // 2}, a FROM online.t",
    )  # fmt: skip
    return JobCase(server, tmp_path, "online", "t", settings={"limits": {"range_rows": 200}})


class Writer:
    """Inserts, updates and deletes by the columns that both tables have, until it is told to end."""

    def __init__(self, server: SqlServer) -> None:
        self._server, self._number = server, 0
        self._ends, self._may_write = threading.Event(), threading.Event()
        self._rests = threading.Event()
        self.failed: list[BaseException] = []

    @contextmanager
    def writing(self) -> Iterator[None]:
        thread = threading.Thread(target=self._write)
        self._may_write.set()
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            self._may_write.set()
            thread.join()
            assert not self.failed, self.failed

    @contextmanager
    def resting(self) -> Iterator[None]:
        """No write is under way during the block."""
        self._rests.clear()
        self._may_write.clear()
        assert self._rests.wait(60)
        try:
            yield
        finally:
            self._may_write.set()

    def _write(self) -> None:
        try:
            with self._server.connect("online") as connection, connection.cursor() as cursor:
                while not self._ends.is_set():
                    if not self._may_write.is_set():
                        self._rests.set()
                        self._may_write.wait(60)
                    self._number += 1
                    key = self._number * 37 % (2 * ROWS)
                    cursor.execute(f"INSERT INTO t (id, a) VALUES ({key}, 1) ON DUPLICATE KEY UPDATE a = a + 1")
                    cursor.execute(f"UPDATE t SET a = a + 1 WHERE id BETWEEN {key} AND {key + 3}")
                    cursor.execute(f"DELETE FROM t WHERE id = {key * 11 % (2 * ROWS)}")
        except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
            self.failed.append(error)


def copied(case: JobCase, into: str, comment: str) -> None:
    """The chunks that both tools copy, in the order of the key."""
    for low in range(0, 2 * ROWS, CHUNK):
        execute(
            case.server, "online",
            f"INSERT /* {comment} */ IGNORE INTO {into} (id, a) SELECT id, a FROM t FORCE INDEX (PRIMARY)"
            f" WHERE id >= {low} AND id < {low + CHUNK} LOCK IN SHARE MODE",
        )  # fmt: skip


def pt_online_schema_change(case: JobCase, _writer: Writer) -> None:
    execute(case.server, "online", *PT_BEFORE)
    copied(case, "_t_new", "pt-online-schema-change 1 copy nibble")
    execute(case.server, "online", *PT_AFTER)


def gh_ost(case: JobCase, writer: Writer) -> None:
    """Rows are applied from the log there. Here they are applied at once, while nobody writes."""
    execute(
        case.server, "online", "CREATE TABLE _t_ghc (id BIGINT AUTO_INCREMENT PRIMARY KEY, hint VARCHAR(64))",
        "CREATE /* gh-ost */ TABLE _t_gho LIKE t", "ALTER /* gh-ost */ TABLE _t_gho ADD c INT NOT NULL DEFAULT 7",
        "INSERT INTO _t_ghc (hint) VALUES ('heartbeat')",
    )  # fmt: skip
    copied(case, "_t_gho", "gh-ost `online`.`t`")
    with writer.resting(), case.server.connect("online") as locking, locking.cursor() as cursor:
        execute(
            case.server, "online", "DELETE FROM _t_gho WHERE id NOT IN (SELECT id FROM t)",
            "REPLACE /* gh-ost `online`.`_t_gho` */ INTO _t_gho (id, a) SELECT id, a FROM t",
            "CREATE /* gh-ost */ TABLE _t_del (id INT AUTO_INCREMENT PRIMARY KEY) COMMENT='ghost-cut-over-sentry'",
        )  # fmt: skip
        cursor.execute("LOCK /* gh-ost */ TABLES t WRITE, _t_del WRITE")
        swap = "RENAME /* gh-ost */ TABLE t TO _t_del, _t_gho TO t"
        renaming = threading.Thread(target=execute, args=(case.server, "online", swap))
        renaming.start()
        wait_for(lambda: waits(case.server, "RENAME"), "the swap to wait for the lock", seconds=30)
        cursor.execute("DROP /* gh-ost */ TABLE IF EXISTS _t_del")
        cursor.execute("UNLOCK TABLES")
        renaming.join()
    execute(case.server, "online", "DROP TABLE IF EXISTS _t_ghc", "DROP TABLE IF EXISTS _t_del")


def waits(server: SqlServer, word: str) -> bool:
    asked = fetch(server, None, "SELECT info FROM information_schema.processlist WHERE state LIKE 'Waiting%'")
    return any(str(info).startswith(word) for (info,) in asked)


@pytest.mark.long
@pytest.mark.parametrize("tool", [pt_online_schema_change, gh_ost])
def test_table_that_a_tool_changes_online_is_copied_again(
    case: JobCase, spark: SparkSession, tool: Callable[[JobCase, Writer], None]
) -> None:
    job, writer = case.here(spark), Writer(case.server)
    with job.running(Until.STOPPED):
        wait_for(lambda: job.state.is_live, "live", seconds=180)
        with writer.writing():
            tool(case, writer)
            wait_for(lambda: job.ended or job.copies == 2, "a new copy", seconds=180)
            wait_for(lambda: job.ended or job.state.is_live, "live again", seconds=180)
    assert job.failure is None, job.failure
    assert job.copies == 2
    again = case.here(spark)
    assert again.run() is None
    assert again.copies == 1
    assert case.differences() == []
