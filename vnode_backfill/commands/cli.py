"""Reads the command line: the commands, their flags and their exit codes.

0: done. 1: failed, the reason is on stderr and in the state. 2: wrong configuration, or refused before anything was
written. Ctrl-C and SIGTERM end `run` at a SyncCheckpoint with 0, also where the JVM and the workers get the signal,
too. `plan`, `status`, `compact`, `upgrade` and the requests start no JVM, and on one machine `verify` starts none.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from vnode_backfill import __version__
from vnode_backfill.spark.without_pandas import hide_pandas
from vnode_backfill.words.errors import BackfillError, ConfigError

if TYPE_CHECKING:
    from vnode_backfill.config.job import Config

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_NOBODY_READS = 141
"""What a shell says of a program that ended because nobody read what it printed."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a command and end the process with its exit code.

    The process ends at once: native threads of the table library were seen to abort a normal interpreter exit.
    """
    arguments = _parsed(sys.argv[1:] if argv is None else argv)
    if arguments.command in _AT_ONCE:
        hide_pandas()
        # To look for plugins of pydantic is to read what every installed package says of itself.
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        code = _end_code(arguments, ends_process=True)
        sys.stdout.flush()
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        code = _NOBODY_READS
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)


def _nobody_reads() -> bool:
    """Whether the reader of what is printed is gone. It has seen enough, as `head` has after some lines."""
    printed = select.poll()
    printed.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & select.POLLERR for _, event in printed.poll(0))


def execute(argv: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    return _end_code(_parsed(argv))


def _end_code(arguments: argparse.Namespace, *, ends_process: bool = False) -> int:
    logging.basicConfig(
        level=logging.INFO if arguments.verbose else logging.ERROR, format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )  # fmt: skip
    if not arguments.verbose:
        for handler in logging.getLogger().handlers:
            handler.addFilter(_without_gateway)
    try:
        return _dispatch(arguments, ends_process=ends_process)
    except BackfillError as error:
        print(f"vnode-backfill: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _without_gateway(record: logging.LogRecord) -> bool:
    """Py4J logs the traceback of every broken connection; the caller reports the reason."""
    return "py4j" not in Path(record.pathname).parts


def _dispatch(arguments: argparse.Namespace, *, ends_process: bool) -> int:
    # Each command is imported when it runs: `status` must not pay for Spark.
    from vnode_backfill.config.job import load_config

    if arguments.config is None:
        raise ConfigError("--config is missing", hint="Name the job's file: `--config job.yaml`.")
    overrides = {name: getattr(arguments, name, None) for name in ("vnodes", "ui.port")}
    if arguments.command == "run":
        overrides["workers"] = arguments.workers
    config = load_config(Path(arguments.config), overrides)
    if ends_process and arguments.command in _IN_SPARK:
        _use_process(config)
    if arguments.command == "tables":
        return _tables(config, arguments)
    if config.many and arguments.command != "run":
        from vnode_backfill.commands.tables.choose import chosen_config

        config = chosen_config(config)
    return _request(config, arguments) if arguments.command in _REQUESTS else _work(config, arguments)


def _use_process(config: Config) -> None:
    """This process does nothing else, and ends with the command."""
    from vnode_backfill.spark.slots import end_process_after

    end_process_after()
    if config.sink.iotdb is None:
        # The client of IoTDB uses pandas.
        hide_pandas()


def _tables(config: Config, arguments: argparse.Namespace) -> int:
    from vnode_backfill.commands.tables import choose

    match arguments.change:
        case "add":
            return choose.add_tables(config, arguments.names, arguments.priority)
        case "remove":
            return choose.remove_tables(config, arguments.names)
        case _:
            return choose.list_tables_of_job(config, as_json=arguments.json)


def _work(config: Config, arguments: argparse.Namespace) -> int:
    only = getattr(arguments, "table", ())
    match arguments.command:
        case "plan":
            from vnode_backfill.commands.plan import plan

            return plan(config, master=arguments.master, as_json=arguments.json, only=only, strict=arguments.strict)
        case "status":
            from vnode_backfill.commands.status import status

            return status(
                config, as_json=arguments.json, per_vnode=arguments.per_vnode, watch=arguments.watch, only=only
            )
        case "cut":
            from vnode_backfill.commands.tables.cut import cut

            return cut(config, as_json=arguments.json, only=only)
        case "verify":
            from vnode_backfill.commands.verify import verify

            return verify(config, master=arguments.master, as_json=arguments.json, verbose=arguments.verbose, only=only)
        case "handoff":
            from vnode_backfill.commands.handoff import handoff

            return handoff(config, follow=arguments.follow)
        case "compact":
            from vnode_backfill.commands.compact import compact

            return compact(config, sweep_only=arguments.sweep_only, only=only)
        case "upgrade":
            from vnode_backfill.commands.upgrade import upgrade
            from vnode_backfill.config.job import MergeMode

            return upgrade(config, merge=MergeMode(arguments.merge), only=only)
        case _:
            from vnode_backfill.commands.run import run

            return run(
                config, until=arguments.until, master=arguments.master, asked_vnodes=arguments.vnodes,
                asked_workers=arguments.workers, face=_face(arguments), verbose=arguments.verbose,
            )  # fmt: skip


def _request(config: Config, arguments: argparse.Namespace) -> int:
    from vnode_backfill.commands import requests

    only = arguments.table
    match arguments.command:
        case "rescale":
            return requests.rescale(config, workers=arguments.workers, bitmaps=arguments.bitmap, only=only)
        case "throttle":
            return requests.throttle(config, rows_per_second=arguments.rows_per_second, only=only)
        case "pause":
            return requests.pause(config, only=only)
        case "resume":
            return requests.resume(config, accept=arguments.accept, only=only)
        case "stop":
            return requests.stop(config, only=only)
        case "wait":
            return requests.wait(config, timeout=_timeout(arguments.timeout), only=only)
        case "drop":
            return requests.drop(config, only=only)
        case _:
            from vnode_backfill.commands.resnapshot import resnapshot

            return resnapshot(
                config, only=arguments.only, where_key=arguments.where_key, everything=arguments.all, tables=only
            )


_REQUESTS = {"rescale", "throttle", "pause", "resume", "stop", "resnapshot", "wait", "drop"}
_IN_SPARK = {"run", "verify"}
_AT_ONCE = {"status", "cut", "tables", *_REQUESTS}


def _timeout(text: str | None) -> timedelta | None:
    from vnode_backfill.words.units import parse_duration

    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"--timeout {text}: {error}") from error


def _face(arguments: argparse.Namespace) -> str:
    if arguments.json_lines:
        return "json-lines"
    return "quiet" if arguments.quiet else "terminal"


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    return _parser(argv[0] if argv else "").parse_args(argv)


def _parser(command: str = "") -> argparse.ArgumentParser:
    """What reads the command line. Where the command is known, others are left out: to make them all takes longer than
    to look at a job."""
    parser = argparse.ArgumentParser(
        prog="vnode-backfill",
        description="Copy live MySQL or MariaDB tables, or whole databases, into Delta Lake or Apache IoTDB, and follow "
        "them.",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"vnode-backfill {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", required=True, metavar="job.yaml", help="the job's configuration")
    common.add_argument("--verbose", action="store_true", help="log what happens, to stderr")
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print one JSON document")
    spark = argparse.ArgumentParser(add_help=False)
    spark.add_argument("--master", help="Spark master; one given by spark-submit is kept")
    tables = argparse.ArgumentParser(add_help=False)
    tables.add_argument(
        "--table", action="append", default=[], metavar="NAME",
        help="only this table of a job of many, as shop.orders or 'shop.o*'; repeatable",
    )  # fmt: skip
    groups: tuple[tuple[set[str], Callable[[], None]], ...] = (
        ({"plan"}, lambda: _add_plan(commands, common, as_json, spark, tables)),
        ({"status", "cut"}, lambda: _add_looks(commands, common, as_json, tables)),
        ({"tables"}, lambda: _add_tables(commands, as_json)),
        ({"verify", "handoff"}, lambda: _add_checks(commands, common, as_json, spark, tables)),
        ({"run"}, lambda: _add_run(commands, common, spark)),
        ({"compact", "upgrade"}, lambda: _add_upkeep(commands, common, tables)),
        (_REQUESTS, lambda: _add_requests(commands, common, tables)),
    )
    known = any(command in names for names, _ in groups)
    for names, add in groups:
        if command in names or not known:
            add()
    return parser


def _add_plan(commands: Commands, *common: argparse.ArgumentParser) -> None:
    plan = commands.add_parser("plan", parents=common, help="check the source, cut its tables; writes nothing")
    plan.add_argument("--strict", action="store_true", help="exit code 2 also if only one of many tables is refused")


def _add_looks(
    commands: Commands,
    common: argparse.ArgumentParser,
    as_json: argparse.ArgumentParser,
    tables: argparse.ArgumentParser,
) -> None:
    status = commands.add_parser("status", parents=[common, as_json, tables], help="how far the job is")
    status.add_argument("--per-vnode", action="store_true", help="list every vnode")
    status.add_argument("--watch", action="store_true", help="show it again every second until interrupted")
    commands.add_parser(
        "cut", parents=[common, as_json, tables], help="one offset, and the version of each of many targets there"
    )


def _add_checks(commands: Commands, common: argparse.ArgumentParser, *others: argparse.ArgumentParser) -> None:
    commands.add_parser("verify", parents=[common, *others], help="compare source and target row by row")
    handoff = commands.add_parser("handoff", parents=[common], help="where a job of startup_mode snapshot has ended")
    handoff.add_argument(
        "--follow", type=Path, metavar="cdc.yaml", help="check that the job of this file can take over, before one runs"
    )


def _add_tables(commands: Commands, as_json: argparse.ArgumentParser) -> None:
    tables = commands.add_parser("tables", parents=[as_json], help="list, add and remove tables of a job")
    later = argparse.ArgumentParser(add_help=False)
    # The file may be named before the change or after it: what is left out after it does not count.
    for parser, without in ((tables, None), (later, argparse.SUPPRESS)):
        parser.add_argument("--config", metavar="job.yaml", default=without, help="the job's configuration")
        parser.add_argument("--verbose", action="store_true", default=without, help="log what happens, to stderr")
    later.add_argument("names", nargs="+", metavar="NAME", help="a table, as shop.items")
    changes = tables.add_subparsers(dest="change", metavar="add|remove")
    add = changes.add_parser("add", parents=[later], help="copy these tables from now on, whatever the file says")
    add.add_argument("--priority", type=int, help="in place of that in the file; lower numbers are copied first")
    changes.add_parser("remove", parents=[later], help="no longer copy these; their targets and states stay")


def _add_upkeep(commands: Commands, *common: argparse.ArgumentParser) -> None:
    compact = commands.add_parser(
        "compact", parents=common, help="join small files of the target in key order and delete old ones",
        description="Join small files of a Delta target, neighbours in key order, up to sink.delta.target_file_size, "
        "and delete "
        "files that were superseded longer ago than sink.delta.retention, or were never committed and are a day old. "
        "No row "
        "changes; the job may run meanwhile, and does the same by itself when it is live.",
    )  # fmt: skip
    compact.add_argument("--sweep-only", action="store_true", help="join nothing, only delete old files")
    upgrade = commands.add_parser(
        "upgrade", parents=common, help="change rows of the target in the other way; the job must be stopped",
        description="Turn a Delta target over. To vectors: readers must know deletion vectors from now on. To "
        "rewrite: files "
        "with deleted rows are written again, and every reader can read the table. No row changes. Whatever was "
        "interrupted is continued by a second call.",
    )  # fmt: skip
    upgrade.add_argument("--merge", required=True, choices=("vectors", "rewrite"), help="how rows are changed then")


def _add_requests(commands: Commands, *common: argparse.ArgumentParser) -> None:
    rescale = commands.add_parser("rescale", parents=common, help="spread the vnodes over other workers")
    how = rescale.add_mutually_exclusive_group(required=True)
    how.add_argument("--workers", type=int, help="so many, as few vnodes moved as possible")
    how.add_argument("--bitmap", action="append", default=[], metavar="WORKER=VNODES", help="exactly so, e.g. 0=0-127")
    throttle = commands.add_parser("throttle", parents=common, help="limit the snapshot of the whole job")
    rate = throttle.add_mutually_exclusive_group(required=True)
    rate.add_argument("--rows-per-second", type=int, help="0 pauses the snapshot; the log is still captured")
    rate.add_argument("--off", action="store_true", help="no limit")
    commands.add_parser("pause", parents=common, help="pause the snapshot; the log is still captured")
    resume = commands.add_parser("resume", parents=common, help="continue the snapshot, or accept a statement")
    resume.add_argument(
        "--accept",
        metavar="FILE:POS",
        help="pass the statement there, where `schema_changes: stop` has stopped the job",
    )
    commands.add_parser("stop", parents=common, help="stop the running driver at a SyncCheckpoint")
    again = commands.add_parser("resnapshot", parents=common, help="read again and replace what the target holds")
    what = again.add_mutually_exclusive_group(required=True)
    what.add_argument("--only", metavar="VNODES", help="these vnodes, e.g. 3,17-20")
    what.add_argument("--where-key", metavar="LOW..HIGH", help="the ranges that hold these keys")
    what.add_argument("--all", action="store_true", help="the whole table")
    wait = commands.add_parser("wait", parents=common, help="return when the job is live")
    wait.add_argument("--until", choices=("live",), default="live")
    wait.add_argument(
        "--timeout",
        metavar="30m",
        help="give up after this long (exit code 1); until then a job that does not exist yet is waited for, too",
    )
    commands.add_parser("drop", parents=common, help="remove a job's state and buffer, never its target")


def _add_run(commands: Commands, *common: argparse.ArgumentParser) -> None:
    run = commands.add_parser("run", parents=common, help="create the job and run it, or continue it")
    run.add_argument("--vnodes", type=int, help="how many vnodes a new job has (1 to 32768; fixed afterwards)")
    run.add_argument("--workers", type=int, help="how many Spark partitions share the vnodes")
    run.add_argument("--until", choices=("live", "stopped"), default="stopped", help="when to end (default: stopped)")
    run.add_argument("--ui-port", dest="ui.port", type=int, help="port of the progress page; 0 turns it off")
    run.add_argument("--quiet", action="store_true", help="show no progress")
    run.add_argument("--json-lines", action="store_true", help="show progress as one JSON document per line")
