"""A driver that dies of kill -9 while it plans: run as a process, with the job's file and after how many answers.

Every answer of the server is noted and said, so the driver dies at a place of the walk that the test chooses.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from devkit.spark import REPOSITORY
from tests.system.job_case import KILLED, JobCase
from vnode_backfill.config.job import load_config
from vnode_backfill.job.open.create import create_job
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.job.open.opened import Opened
from vnode_backfill.job.open.planning import Pace
from vnode_backfill.job.tables.open import OpenedTables, TablesOpener
from vnode_backfill.job.tables.parts import tables_store

AT_ONCE = Pace(after=0, every=0, share=0, told=0)
"""Every answer is noted and said."""


def created(
    case: JobCase, say: Callable[[str], None] = print, *, before_writing: Callable[[], object] = lambda: None
) -> Opened:
    """The job, created in this process without Spark, with its lease given back."""
    config = load_config(case.config, {})
    opened = create_job(config, state_store(config), before_writing=before_writing, say=say, pace=AT_ONCE)
    opened.store.release()
    return opened


def created_tables(case: JobCase, say: Callable[[str], None] = print) -> OpenedTables:
    """The same for a job of many tables."""
    config = load_config(case.config, {})
    store = tables_store(config)
    opened = TablesOpener(config, store, lambda: None, say, pace=AT_ONCE).open()
    store.release()
    return opened


def killed_while_planning(case: JobCase, *, answers: int) -> None:
    """Create the job in another process, which dies after so many answers about ranges that are settled."""
    driven(case, answers=answers, code=KILLED)


def driven(case: JobCase, *, answers: int, code: int) -> str:
    """What such a process printed; it must end with `code`."""
    line = [sys.executable, "-m", "tests.system.job.open.planning_driver", str(case.config), str(answers)]
    done = subprocess.run(
        line, cwd=REPOSITORY, env=case.process_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def main(file: str, answers: int) -> None:
    left = answers

    def die_in_time(line: str) -> None:
        nonlocal left
        left -= line.startswith("planning ")
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    config = load_config(Path(file), {})
    if config.many:
        TablesOpener(config, tables_store(config), lambda: None, die_in_time, pace=AT_ONCE).open()
    else:
        create_job(config, state_store(config), before_writing=lambda: None, say=die_in_time, pace=AT_ONCE)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
