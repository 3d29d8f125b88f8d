"""The Python door: cheap to import, checked like a file, and silent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import vnode_backfill
from devkit.spark import REPOSITORY
from tests.unit.progress.store.tables_folder import stored
from vnode_backfill import Backfill
from vnode_backfill.words.errors import ConfigError, StateError

SETTINGS: dict[str, object] = {
    "job": "orders", "mysql": {"host": "db", "user": "u", "database": "shop", "table": "orders"},
}  # fmt: skip


def settings(folder: Path) -> dict[str, object]:
    return {**SETTINGS, "sink": {"delta": {"path": f"{folder}/lake"}}, "state": {"path": f"{folder}/state"}}


def test_the_package_costs_nothing_until_the_door_is_asked_for() -> None:
    asked = "import sys, vnode_backfill; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", asked], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert {"pyspark", "pydantic", "pyarrow", "yaml", "deltalake"} & set(done.stdout.split()) == set()


def test_the_package_has_no_other_name() -> None:
    with pytest.raises(AttributeError, match="Backfil"):
        vnode_backfill.Backfil  # noqa: B018


def test_arguments_are_checked_like_a_file(tmp_path: Path) -> None:
    assert Backfill(**settings(tmp_path)).config.mysql.table == "orders"
    with pytest.raises(ConfigError, match=r"workers is 0; must be from 1") as caught:
        Backfill(**settings(tmp_path), workers=0)
    assert "the arguments of Backfill" in caught.value.detail


def test_overrides_replace_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(str(settings(tmp_path)))
    job = Backfill.from_yaml(file, workers=2, **{"ui.port": 0})
    assert (job.config.workers, job.config.ui.port) == (2, 0)


def test_a_job_that_does_not_exist_has_no_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StateError, match="there is no job orders"):
        Backfill(**settings(tmp_path)).status()
    assert capsys.readouterr() == ("", "")


def test_status_is_about_the_tables_that_are_named(tmp_path: Path) -> None:
    stored(tmp_path / "state", "orders", "order_lines", "items").release()
    mysql = {"host": "db", "user": "u", "tables": ["shop.*"]}
    given = {**settings(tmp_path), "job": "shop", "mysql": mysql, "sink": {"delta": {"path": f"{tmp_path}/{{table}}"}}}
    job = Backfill(**given)
    assert [table.name for table in job.status().tables] == ["shop.items", "shop.order_lines", "shop.orders"]
    assert [table.name for table in job.status("shop.order*").tables] == ["shop.order_lines", "shop.orders"]
    assert (job.status("shop.items").subject.source, job.status("shop.items").tables) == ("shop.items", ())
    with pytest.raises(ConfigError, match=r"shop\.x: the job has no such table"):
        job.status("shop.items", "shop.x")


def test_nothing_is_compared_where_nothing_may_be_read(tmp_path: Path) -> None:
    job = Backfill(**settings(tmp_path), limits={"rows_per_second": 0})
    with pytest.raises(ConfigError, match=r"limits\.rows_per_second is 0: verify may read nothing"):
        job.verify()


def test_a_job_of_one_table_is_asked_about_that_one(tmp_path: Path) -> None:
    job = Backfill(**settings(tmp_path))
    for ask in (job.status, job.verify):
        with pytest.raises(ConfigError, match=r"the job has one table, shop\.orders"):
            ask("shop.items")
        with pytest.raises(StateError, match="there is no job orders"):
            ask("shop.orders")
