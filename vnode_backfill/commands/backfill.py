"""Runs jobs from Python: what the commands do, as values and errors instead of text and exit codes.

`from vnode_backfill import Backfill` is for a notebook or an orchestrator. It is built on the functions that the
commands are built on. Nothing is printed. What a command would say on stderr goes to the logger `vnode_backfill`. A
session that is given is used and left alive; without one a run starts its own and ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vnode_backfill.commands.say import heard_by
from vnode_backfill.commands.tables.choose import chosen_config
from vnode_backfill.config.job import Config, check_config, load_config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from progress.state.report import Report
    from vnode_backfill.job.sink.description import Verdict
    from vnode_backfill.job.tables.examine import ExaminedTables

__all__ = ["Backfill"]

log = logging.getLogger("vnode_backfill")


class Backfill:
    """A job, by its configuration. Making one asks nobody anything; each method may be called again.

    Every method raises errors of `vnode_backfill.words.errors`: `BackfillError` is the root of them all.
    """

    def __init__(self, **settings: object) -> None:
        """The keys of a job's file, as keyword arguments: `job`, `mysql`, `sink`, `state`, …"""
        self.config: Config = check_config(settings, "the arguments of Backfill")

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: object) -> Backfill:
        """The job of a file. `overrides` replace keys, also inner ones: `workers=2, **{"ui.port": 0}`."""
        found = cls.__new__(cls)
        found.config = load_config(Path(path), overrides)
        return found

    def plan(self, *tables: str, master: str | None = None) -> ExaminedTables:
        """What `run` would do, table by table; writes nothing. `tables` are names or patterns, all without them."""
        from vnode_backfill.commands.plan import planned_tables

        with heard_by(log.info):
            return planned_tables(chosen_config(self.config), master=master, only=tables)

    def run(
        self,
        until: Literal["live", "stopped"] = "live",
        *,
        spark: SparkSession | None = None,
        master: str | None = None,
    ) -> Report:
        """Create the job or take it up, and run it in this thread; how far it is then.

        It ends when the job is live, or for `stopped` when it is asked to stop: by `vnode-backfill stop`, and in the
        main thread by Ctrl-C and SIGTERM. A job that fails raises why, and so does one of many tables that has ended
        without some of them. Run again, it continues.
        """
        with heard_by(log.info), _within(spark):
            if self.config.many:
                self._run_tables(until, master)
            else:
                from vnode_backfill.commands.run import run

                run(self.config, until=until, master=master, asked_vnodes=None, asked_workers=None, face="quiet")
        return self.status()

    def _run_tables(self, until: str, master: str | None) -> None:
        from vnode_backfill.commands.tables.run import error_of, run_to_end

        if lost := run_to_end(self.config, until=until, master=master, face="quiet"):
            raise error_of(self.config.job, lost)

    def status(self, *tables: str) -> Report:
        """How far the job is, or these tables of it, whether somebody runs it or not."""
        from vnode_backfill.commands.status import read_report

        return read_report(chosen_config(self.config), tables)

    def verify(self, *tables: str, spark: SparkSession | None = None, master: str | None = None) -> Verdict:
        """Compare every row of source and target; `equal` says whether they are the same, `text` lists differences.

        `tables` are names or patterns, all without them.
        """
        from vnode_backfill.commands.verify import compare

        with heard_by(log.info), _within(spark):
            return compare(chosen_config(self.config), master=master, only=tables)


@contextmanager
def _within(spark: SparkSession | None) -> Iterator[None]:
    if spark is None:
        yield
        return
    from vnode_backfill.spark.slots import within

    with within(spark):
        yield
