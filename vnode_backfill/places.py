"""Where a job's state lies and who is asking: what every command needs and nothing more, so that `status` answers at once."""

from __future__ import annotations

import getpass
import os

from progress.state_reader import folder_name
from progress.store import StateStore
from vnode_backfill.config import Config
from vnode_backfill.config_values import reveal


def state_store(config: Config) -> StateStore:
    return StateStore(config.state.path, config.job, reveal(config.storage.options))


def buffer_path(config: Config) -> str:
    return f"{config.state.path.rstrip('/')}/{folder_name(config.job)}/buffer"


def receipts_path(config: Config, job: str, job_id: str) -> str:
    """Where a sink without commits of its own keeps what it has written; a job created again begins with none."""
    return f"{config.state.path.rstrip('/')}/{folder_name(job)}/receipts/{job_id}"


def owner() -> str:
    """Who runs this process, for leases and requests."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
