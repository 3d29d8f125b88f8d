"""Task slots: one count of what a job needs, against what a session has or would have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.unit.config.test_job import MINIMAL, load
from vnode_backfill.config.job import Config
from vnode_backfill.spark.session import _configured
from vnode_backfill.spark.slots import check_planned_slots, check_slots, slots_needed, slots_of
from vnode_backfill.words.finding import Level

CORES = os.cpu_count() or 1


def config(folder: Path, **settings: object) -> Config:
    given: dict[str, object] = {"workers": 4, "limits": {"log_readers": 2}, **settings}
    return load(folder, MINIMAL + "".join(f"{name}: {json.dumps(value)}\n" for name, value in given.items()))


@pytest.mark.parametrize(
    ("executor", "workers", "needed"), [("parallel", None, 7), ("parallel", 9, 12), ("single", None, 4)]
)
def test_each_worker_each_log_reader_and_the_merge_need_a_slot(
    tmp_path: Path, executor: str, workers: int | None, needed: int
) -> None:
    assert slots_needed(config(tmp_path, executor=executor), workers) == needed


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1), ("local[3]", 3), ("local[*]", CORES), ("local[3,4]", 3), ("local[*, 4]", CORES), ("yarn", None),
        ("spark://host:7077", None), ("local-cluster[2,1,1024]", None),
    ],
)  # fmt: skip
def test_a_local_master_names_its_slots(master: str, slots: int | None) -> None:
    assert slots_of(master) == slots


def test_too_few_slots_are_a_warning_with_the_master_to_use(tmp_path: Path) -> None:
    short = check_slots(config(tmp_path), 6)
    assert (short.level, short.fix.split(",")[0]) == (Level.WARNING, "--master local[7]")
    assert "6 task slots for 4 workers, 2 log readers and the merge, which need 7" in short.fact
    assert check_slots(config(tmp_path), 7).level is Level.OK


def test_plan_says_what_the_session_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    many = config(tmp_path, workers=CORES + 4)
    found = check_planned_slots(many, None)
    assert (found.level, f"Spark has {CORES + 7} task slots" in found.fact) == (Level.OK, True)
    assert _configured(many, None).get("spark.master") == f"local[{CORES + 7}]"
    assert check_planned_slots(many, "local[2]").level is Level.WARNING


def test_plan_leaves_the_slots_of_a_cluster_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    found = check_planned_slots(config(tmp_path), "spark://host:7077")
    assert (found.level, found.fact) == (
        Level.INFO, "the job needs 7 task slots at the same time; `run` says whether spark://host:7077 has them",
    )  # fmt: skip
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert "the master that spark-submit was given" in check_planned_slots(config(tmp_path), "local[2]").fact
