"""The map of the code names only what exists: every path of its two pages is a file or folder.

A path is written from the repository's root, or from `vnode_backfill/`. A name that is said to be in a file is in it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from devkit.spark import REPOSITORY

PAGES = [REPOSITORY / "docs" / name for name in ("architecture.md", "risingwave.md")]
LINES = 125
NAMES_THERE = (
    "BackfillState", "BarrierKind", "CdcBackfillExecutor", "CdcBackfillMetrics", "CdcBackfillState", "CdcOffset",
    "CdcTableBackfillProgress", "CdcTableBackfillState", "CreateMviewProgressReporter", "ExternalStorageTable",
    "LocalBarrierEvent", "LocalBarrierManager", "ParallelizedCdcBackfillExecutor", "SnapshotBackfillExecutor",
    "StateTable", "UpstreamStream", "UpstreamTable", "UpstreamTableExecutor", "VnodeStream", "collect",
    "mark_cdc_chunk", "mark_chunk", "notify_failure", "subscribe_barrier",
)  # fmt: skip
_PATH = re.compile(r"(?<![\w./-])((?:\w+/)*\w+\.py|(?:\w+/)+)(?![\w/])")
_NAME_IN_FILE = re.compile(r"`(\w+)`(?:,[^`|]*)? \(?(?:in )?`((?:\w+/)*\w+\.py)`")


def found(path: str) -> Path | None:
    places = (REPOSITORY / path, REPOSITORY / "vnode_backfill" / path)
    return next((place for place in places if place.exists()), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_on_the_page_exists(page: Path) -> None:
    paths = set(_PATH.findall(page.read_text()))
    assert len(paths) > 10
    assert sorted(path for path in paths if found(path) is None) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_is_in_the_file_that_is_named_beside_it(page: Path) -> None:
    named = {(name, path) for name, path in _NAME_IN_FILE.findall(page.read_text()) if found(path)}
    missing = [(name, path) for name, path in named if not _holds(found(path), name)]
    assert named
    assert sorted(missing) == []


@pytest.mark.parametrize("name", NAMES_THERE)
def test_a_name_of_risingwave_is_in_the_table(name: str) -> None:
    rows = [line for line in PAGES[1].read_text().splitlines() if line.startswith("|")]
    assert any(f"`{name}`" in row.split("|")[1] for row in rows)


def test_every_folder_of_the_code_is_on_the_map() -> None:
    page = PAGES[0].read_text()
    folders = {path.parent for path in REPOSITORY.glob("vnode_backfill/*/__init__.py")}
    assert sorted(folder.name for folder in folders if f"`{folder.name}/" not in page) == []


def test_the_map_fits_on_two_pages() -> None:
    assert len(PAGES[0].read_text().splitlines()) <= LINES


def _holds(file: Path | None, name: str) -> bool:
    return file is not None and re.search(rf"\b{name}\b", file.read_text()) is not None
