"""The state of a job that belongs to another account is reported as that, not as a job that does not exist."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from devkit.spark import REPOSITORY
from tests.unit.progress.state.state_examples import beginning
from tests.unit.progress.store.state_folder import PLAN, record
from vnode_backfill.config.job import load_config
from vnode_backfill.job.open.locations import state_store


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other accounts can reach; pytest closes its own again whenever another run of it starts."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def path(folder: Path) -> Path:
    """The configuration of a job that exists and that nobody drives."""
    settings = {
        "job": "orders",
        "mysql": {"host": "nowhere.invalid", "user": "root", "database": "shop", "table": "orders"},
        "sink": {"delta": {"path": str(folder / "lake")}},
        "state": {"path": str(folder / "state")},
        "vnodes": 4,
    }
    file = folder / "job.yaml"
    file.write_text(json.dumps(settings))
    store = state_store(load_config(file, {}))
    lease = store.acquire_lease("anna", timedelta(hours=1))
    store.create(record("orders"), PLAN, beginning(PLAN, workers=2), lease)
    store.release()
    return file


@pytest.mark.parametrize(
    ("mode", "command", "told"),
    [
        (0o700, "status", "cannot be read"),
        (0o700, "pause", "cannot be read"),
        (0o755, "pause", "cannot be written"),
        (0o755, "drop", "cannot be written"),
    ],
)
def test_state_of_another_account_is_said_to_be_that(path: Path, mode: int, command: str, told: str) -> None:
    """Root may do everything, so another account asks where these tests run as root."""
    lines = f"""
import os
from pathlib import Path
from vnode_backfill.commands.cli import execute
execute(["status", "--config", {str(path)!r}])
execute(["resume", "--config", {str(path)!r}])
own = os.geteuid() != 0
for folder in (Path({str(path.parent / "state")!r}) / "orders").rglob(""):
    folder.chmod({mode!r} & (0o555 if own and {mode!r} & 0o055 else 0o000 if own else 0o777))
if not own:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
print("code", execute([{command!r}, "--config", {str(path)!r}]))
"""
    done = subprocess.run(
        [sys.executable, "-c", lines], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert f"state.path is {path.parent}/state/orders" in done.stderr, done
    assert told in done.stderr
    assert "Ask with the account that runs the job" in done.stderr
    assert "panicked" not in done.stderr
    assert "code 2" in done.stdout
