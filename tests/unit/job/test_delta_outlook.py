"""`plan` says how a Delta target is changed, who can read it, and about how much disk it takes."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.tables import ORDERS
from vnode_backfill.config.job import Config, MergeMode, load_config
from vnode_backfill.job.sink.configured import configured_sink
from vnode_backfill.job.sink.delta_outlook import superseded_by_vectors
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.finding import Finding, Level
from vnode_backfill.words.plan import TableFacts

FACTS = TableFacts(ORDERS.key_parts, None, None, 2_000_000, 20)
VECTORS, REWRITE = MergeMode


def config(folder: Path, startup_mode: str = "initial", **delta: object) -> Config:
    source = {"host": "db", "user": "u", "database": "shop", "table": "orders", "cdc": {"startup_mode": startup_mode}}
    settings = {
        "job": "orders",
        "mysql": source,
        "sink": {"delta": {"path": str(folder / "lake"), **delta}},
        "state": {"path": str(folder / "state")},
    }
    file = folder / "job.yaml"
    file.write_text(json.dumps(settings))
    return load_config(file)


def outlook(asked: Config, *, exists: bool = False, follows: bool = True) -> tuple[Finding, ...]:
    return configured_sink(asked).outlook(FACTS, exists=exists, follows=follows)


def made(folder: Path, mode: MergeMode) -> None:
    DeltaSink(str(folder / "lake"), ORDERS, "job", creates=mode).prepare()


def test_a_job_that_follows_makes_a_table_with_vectors_and_names_readers(tmp_path: Path) -> None:
    merge, disk = outlook(config(tmp_path))
    assert (merge.level, merge.check) == (Level.INFO, "target.merge")
    assert "deletion vectors, which Spark" in merge.fact
    assert "refuse; see docs/readers.md" in merge.fact
    assert disk.fact == (
        "the rows take about 40 MB at most, and what merges supersede within 6h about 6.97 GB, "
        "at 500 scattered changes a second"
    )


def test_a_copy_that_ends_makes_a_table_for_every_reader(tmp_path: Path) -> None:
    merge, disk = outlook(config(tmp_path, "snapshot"), follows=False)
    assert (merge.level, "every reader" in merge.fact) == (Level.OK, True)
    assert disk.fact == "the rows take about 40 MB at most"


def test_files_that_are_written_again_stay_for_days(tmp_path: Path) -> None:
    _, disk = outlook(config(tmp_path, merge="rewrite"))
    assert disk.fact.endswith("each merge supersedes the files that it touches, which stay for 7d")


@pytest.mark.parametrize(("mode", "word"), [(VECTORS, "deletion vectors"), (REWRITE, "every reader")])
def test_a_table_that_is_there_decides_its_mode(tmp_path: Path, mode: MergeMode, word: str) -> None:
    made(tmp_path, mode)
    merge, _ = outlook(config(tmp_path), exists=True)
    assert word in merge.fact


def test_a_file_that_asks_for_the_other_mode_is_told_the_command(tmp_path: Path) -> None:
    made(tmp_path, REWRITE)
    (merge,) = outlook(config(tmp_path, merge="vectors"), exists=True)
    assert merge.level is Level.REFUSED
    assert merge.fix == "vnode-backfill upgrade --merge vectors, or set sink.delta.merge: rewrite"


def test_superseded_bytes_grow_with_the_root_of_the_table_and_with_the_retention() -> None:
    hours, second = timedelta(hours=6), timedelta(seconds=1)
    large = TableFacts(ORDERS.key_parts, None, None, 32_000_000, 20)
    small = superseded_by_vectors(FACTS, hours, second)
    assert 3.4 * small < superseded_by_vectors(large, hours, second) < 4 * small
    assert superseded_by_vectors(FACTS, 2 * hours, second) == 2 * small
