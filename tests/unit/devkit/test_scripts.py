"""The shell scripts: clean by ShellCheck, helpful, and with the exit codes of the commands they call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
SCRIPTS = sorted(path for path in (REPOSITORY / "scripts").iterdir() if path.is_file())
PIPELINES = ("migration_pipeline.sh", "cdc_pipeline.sh", "handoff_backfill_to_cdc.sh")
LACKING: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("migration_pipeline.sh", ("--quiet",)),
    ("migration_pipeline.sh", ("--config",)),
    ("cdc_pipeline.sh", ()),
    ("handoff_backfill_to_cdc.sh", ("--backfill", "copy.yaml")),
    ("handoff_backfill_to_cdc.sh", ("--backfill", "copy.yaml", "--cdc", "")),
)


def run(script: str, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    line = [str(REPOSITORY / "scripts" / script), *words]
    return subprocess.run(line, env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def write_config(folder: Path, job: str, cdc: dict[str, object]) -> str:
    """A configuration whose server is never asked."""
    path = folder / f"{job}.yaml"
    source = {"host": "127.0.0.1", "port": 1, "user": "nobody", "database": "shop", "table": "orders", "cdc": cdc}
    settings = {"job": job, "mysql": source, "sink": {"delta": {"path": str(folder / "lake")}}}
    path.write_text(json.dumps({**settings, "state": {"path": str(folder / "state")}}))
    return str(path)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    checker = Path(sys.executable).with_name("shellcheck")
    found = subprocess.run([checker, "-x", script], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("script", PIPELINES)
def test_help_tells_use_and_exit_codes(script: str) -> None:
    told = run(script, "--help")
    assert told.returncode == 0
    assert f"scripts/{script} --" in told.stdout
    assert "Exit codes: 0 " in told.stdout


@pytest.mark.parametrize(("script", "words"), LACKING)
def test_a_script_without_its_configuration_says_what_it_needs(script: str, words: tuple[str, ...]) -> None:
    refused = run(script, *words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--" in refused.stderr


@pytest.mark.parametrize("script", ["migration_pipeline.sh", "cdc_pipeline.sh"])
def test_a_configuration_that_does_not_exist_is_refused(script: str, tmp_path: Path) -> None:
    refused = run(script, "--config", "gone.yaml", folder=tmp_path)
    assert refused.returncode == 2
    assert "gone.yaml cannot be read" in refused.stderr


def test_a_copy_that_would_never_end_is_refused_before_it_begins(tmp_path: Path) -> None:
    refused = run("migration_pipeline.sh", "--config", write_config(tmp_path, "copy", {"startup_mode": "initial"}))
    assert refused.returncode == 2
    assert "mysql.cdc.startup_mode is initial; the job that copies must have snapshot" in refused.stderr
    assert not (tmp_path / "state").exists()


def test_two_files_that_do_not_belong_together_are_refused_before_the_copy(tmp_path: Path) -> None:
    copy = write_config(tmp_path, "copy", {"startup_mode": "snapshot"})
    follow = write_config(tmp_path, "follow", {"startup_mode": "specific", "specific": {"from_job": "other"}})
    refused = run("handoff_backfill_to_cdc.sh", "--backfill", copy, "--cdc", follow)
    assert refused.returncode == 2
    assert "mysql.cdc.specific.from_job is other; the job that follows must have copy" in refused.stderr
    assert not (tmp_path / "state").exists()


def test_a_source_that_cannot_be_reached_fails_the_copy(tmp_path: Path) -> None:
    failed = run("migration_pipeline.sh", "--config", write_config(tmp_path, "copy", {"startup_mode": "snapshot"}))
    assert failed.returncode == 1
    assert "127.0.0.1:1" in failed.stderr
    assert not (tmp_path / "state").exists()
