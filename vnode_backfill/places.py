"""Where a job's state lies and who is asking: what every command needs and nothing more, so that `status` answers at once."""

from __future__ import annotations

import getpass
import os

from progress.delta_table import Retention
from progress.single_store import store_of
from progress.state_reader import folder_name
from progress.store import StateStore
from vnode_backfill.config import Config, Executor
from vnode_backfill.config_values import reveal


def state_store(config: Config) -> StateStore:
    """The state of the job, in the schema in which it exists; of a job that does not, in that of the configured executor."""
    single = config.executor is Executor.SINGLE
    options = reveal(config.storage.options)
    return store_of(config.state.path, config.job, options, single=single, retention=state_retention(config))


def state_retention(config: Config) -> Retention:
    return Retention(hours=max(1, int(config.state.retention.total_seconds() // 3600)))


def state_folder(config: Config) -> str:
    return f"{config.state.path.rstrip('/')}/{folder_name(config.job)}"


def buffer_path(config: Config) -> str:
    return f"{state_folder(config)}/buffer"


def receipts_path(config: Config, job: str, job_id: str) -> str:
    """Where a sink without commits of its own keeps what it has written; a job created again begins with none."""
    return f"{config.state.path.rstrip('/')}/{folder_name(job)}/receipts/{job_id}"


def owner() -> str:
    """Who runs this process, for leases and requests."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
