"""A table that joins a job has the job's number of vnodes."""

from __future__ import annotations

import json
from pathlib import Path

from progress.store.tables_store import TablesStore
from tests.unit.progress.store.tables_folder import stored
from vnode_backfill.config.job import Config, load_config
from vnode_backfill.job.tables.joining import with_vnodes_of_job


def test_new_tables_have_the_vnodes_of_the_job_and_no_more_workers_than_that(tmp_path: Path) -> None:
    edited = _config(tmp_path, vnodes=256, workers=8)
    assert with_vnodes_of_job(edited, TablesStore(str(tmp_path / "state"), "shop")) is edited
    found = with_vnodes_of_job(edited, stored(tmp_path / "state", "a"))
    assert (found.vnodes, found.workers) == (4, 4)


def _config(folder: Path, **settings: object) -> Config:
    values = {
        "job": "shop", "mysql": {"host": "nowhere.invalid", "user": "u", "tables": ["shop.*"]},
        "sink": {"delta": {"path": f"{folder}/lake/{{table}}"}}, "state": {"path": f"{folder}/state"}, **settings,
    }  # fmt: skip
    file = folder / "job.yaml"
    file.write_text(json.dumps(values))
    return load_config(file)
