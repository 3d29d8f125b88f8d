"""A job of `executor: single` in a process of its own, killed at a seam if asked for; the parallel executor may go on with it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from devkit.crash import Bomb
from progress.single_store import SingleStore
from progress.state import Request, RequestKind
from tests.system.job_case import JobCase
from vnode_backfill import actions, commands
from vnode_backfill.config import Executor, load_config
from vnode_backfill.single_job import migrate_single, run_single
from vnode_backfill.spark_session import open_session


class SingleCase(JobCase):
    """`run` starts this module; everything else is a `JobCase`."""

    def use(self, **settings: object) -> None:
        """Go on with other settings."""
        self.settings = {**self.settings, **settings}
        self.config.unlink(missing_ok=True)

    def unlimited(self) -> None:
        """Ask for the rate limit to be taken away, as `throttle --off` does; the next run finds the request."""
        store = SingleStore(str(self.folder / "state"), "case")
        store.append_request(Request(0, RequestKind.RATE_LIMIT), "a test", "here")

    def to_live(self) -> None:
        self.run("--until", "live", seconds=900)

    def _line(self, name: str, flags: tuple[str, ...], kill: str | None) -> list[str]:
        if name != "run":
            return super()._line(name, flags, kill)
        bomb = ["--kill", kill] if kill else []
        return [sys.executable, "-m", "tests.system.single_case", str(self.config), *bomb, *flags]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--kill", type=Bomb.parse, default=actions.no_seam)
    parser.add_argument("--until", default="stopped")
    given = parser.parse_args(words)
    actions.seam = given.kill
    config = load_config(given.config)
    if config.executor is Executor.PARALLEL:
        migrate_single(config, task_slots=None)
        return commands.run(config, until=given.until, master=None, asked_vnodes=None, asked_workers=None, face="quiet")
    spark = open_session(config, None, quiet=True)
    try:
        return run_single(config, spark, until=given.until)
    finally:
        spark.stop()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The storage libraries were seen to abort now and then when the interpreter takes itself apart.
    os._exit(code)
