"""Only clocks keep two drivers apart where the target is IoTDB: a clock too far from the source's is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devkit.mysql import SqlServer
from tests.system.job_case import COPIER, create_copier, execute
from vnode_backfill.config.job import Config, load_config
from vnode_backfill.job.open.open import open_job
from vnode_backfill.job.open.source import look_at_source
from vnode_backfill.words.errors import PlanRefusedError
from vnode_backfill.words.finding import Level

ROWS = "CREATE TABLE orders (id INT PRIMARY KEY, state VARCHAR(9) NOT NULL, created DATETIME(6) NOT NULL, flag INT)"


@contextmanager
def clock_ahead(server: SqlServer, seconds: float) -> Iterator[None]:
    """Sessions of accounts without all rights see the server's clock so far ahead."""
    execute(server, None, f"SET GLOBAL init_connect = 'SET timestamp = UNIX_TIMESTAMP(SYSDATE(6)) + {seconds}'")
    try:
        yield
    finally:
        execute(server, None, "SET GLOBAL init_connect = ''")


def config_of(server: SqlServer, database: str, folder: Path, sink: dict[str, object]) -> Config:
    path = folder / "job.yaml"
    mysql = {"host": server.host, "port": server.port, "user": COPIER, "database": database, "table": "orders"}
    path.write_text(json.dumps({"job": "case", "mysql": mysql, "sink": sink, "state": {"path": str(folder / "state")}}))
    return load_config(path, {})


POINTS: dict[str, object] = {
    "iotdb": {"host": "127.0.0.1", "port": 1, "user": "root", "device": "root.d.{state}",
              "time": {"column": "created"}},
}  # fmt: skip


def levels(config: Config) -> list[Level]:
    return [found.level for found in look_at_source(config) if found.check == "clock"]


def test_a_clock_too_far_from_the_sources_is_refused_before_anything_is_written(
    source_server: SqlServer, database: str, tmp_path: Path
) -> None:
    create_copier(source_server)
    execute(source_server, database, ROWS)
    points = config_of(source_server, database, tmp_path, POINTS)
    assert levels(points) == [Level.OK]
    with clock_ahead(source_server, 2.2):
        assert levels(points) == [Level.WARNING]
    with clock_ahead(source_server, 60):
        assert levels(points) == [Level.REFUSED]
        with pytest.raises(PlanRefusedError, match="this machine's clock is wrong") as refused:
            open_job(points, asked_vnodes=None)
        assert "behind the source's" in refused.value.detail
        assert not (tmp_path / "state").exists()
        delta = config_of(source_server, database, tmp_path, {"delta": {"path": str(tmp_path / "lake")}})
        assert levels(delta) == [], "a Delta table needs no clock"
