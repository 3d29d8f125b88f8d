"""Runs the cases on a private server, prints one table and stores it as JSON.

`python -m benchmarks [--rows 2000000] [--only snapshot,…]`
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import yaml

from benchmarks import points
from benchmarks.bench import COLUMNS, TABLE, Bench, Traffic
from benchmarks.driver.commands import commands, verify
from benchmarks.driver.commits import commits
from benchmarks.driver.log_stage import log_stage
from benchmarks.driver.scale import scale
from benchmarks.following import catchup, epoch
from benchmarks.idle import idle
from benchmarks.live.case import following
from benchmarks.peers.case import peers
from benchmarks.results import Figure, Results
from benchmarks.snapshots import growth, planning, snapshot, writer
from benchmarks.source import private_source
from benchmarks.tables import tables
from benchmarks.workers import workers
from devkit.spark import REPOSITORY

CASES: dict[str, Callable[[Bench], list[Figure]]] = {
    "snapshot": snapshot,
    "workers": workers,
    "writer": writer,
    "planning": planning,
    "growth": growth,
    "epoch": epoch,
    "catchup": catchup,
    "following": following,
    "commits": commits,
    "tables": tables,
    "log": log_stage,
    "idle": idle,
    "verify": verify,
    "commands": commands,
    "scale": scale,
    "iotdb": points.iotdb,
    "peers": peers,
}
_PEERS = "peers"
"""Sets other tools up first, so it runs only if it is asked for."""
_OWN_TABLE = {"following", "commits", "log", "idle", "commands", "scale", "iotdb"}
"""Cases that make a table of their own, and warm up by themselves."""
_WARM_UP_ROWS = 20_000


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    names = arguments.only.split(",") if arguments.only else [name for name in CASES if name != _PEERS]
    if arguments.peers:
        names = [_PEERS] if not arguments.only else [*names, *([] if _PEERS in names else [_PEERS])]
    unknown = [name for name in names if name not in CASES]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(CASES)}", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="vnode-backfill-bench-"))
    try:
        results = _run(names, folder, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(results.table())
    results.store(arguments.out or _document(arguments.rows, names if arguments.only or arguments.peers else []))
    return 0


def _document(rows: int, only: list[str]) -> Path:
    """Some of the cases have a document of their own, so that they do not replace that of all."""
    return REPOSITORY / "benchmarks" / "results" / f"{'-'.join([*only, str(rows)])}-rows.json"


def sink_key(word: str) -> tuple[str, object]:
    """`KEY=VALUE` with a value as YAML has it."""
    key, sign, value = word.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{word} is not KEY=VALUE")
    return key, yaml.safe_load(value)


def _run(names: list[str], folder: Path, arguments: argparse.Namespace) -> Results:
    rows, rounds = arguments.rows, arguments.rounds
    traffic = Traffic(
        arguments.rate, arguments.seconds, arguments.warm_up, dict(arguments.sink), arguments.prepare_deleted,
        arguments.commits,
    )  # fmt: skip
    with private_source(rows) as source:
        columns = points.COLUMNS if names == ["iotdb"] else COLUMNS
        results = Results(rows, rounds, source.version, columns, asdict(traffic))
        bench = Bench(source, folder, rows, rounds, traffic)
        if set(names) - _OWN_TABLE:
            _say(f"table of {rows:,} rows")
            source.create_table(TABLE, rows)
            _say("warm-up")
            _warm_up(bench)
        for name in names:
            _say(str(results.begin(name, folder)))
            began = time.monotonic()
            results.add(CASES[name](bench))
            _say(f"{name}: {time.monotonic() - began:.0f} s")
    return results


def _warm_up(bench: Bench) -> None:
    """Both sides once: compiled code on disk, files in the page cache. Each run is a new process all the same."""
    bench.source.create_table("warm_up", _WARM_UP_ROWS)
    bench.copied_by_job("warm_up")
    bench.copied_plainly("warm_up")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/benchmark", description="how fast the job is, beside a plain copy")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the table (default: 2000000)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each side runs, in turns (default: 3)")
    parser.add_argument("--peers", action="store_true", help="run other tools on the same table, beside the job")
    parser.add_argument("--only", metavar="CASES", help=f"some of {','.join(CASES)} (default: all)")
    parser.add_argument(
        "--out", type=Path, help="the JSON document (default: benchmarks/results/[CASES-]ROWS-rows.json)"
    )
    live = parser.add_argument_group("of the case following")
    live.add_argument("--rate", type=int, default=500, help="scattered updates per second (default: 500)")
    live.add_argument("--seconds", type=float, default=120, help="length of what is measured (default: 120)")
    live.add_argument("--warm-up", type=float, default=30, help="seconds before it (default: 30)")
    live.add_argument(
        "--sink", type=sink_key, action="append", default=[], metavar="KEY=VALUE", help="a further key of sink.delta"
    )
    live.add_argument(
        "--prepare-deleted", action="store_true",
        help="begin with half of the rows gone that make a fold due, so that one falls into the stretch",
    )  # fmt: skip
    many = parser.add_argument_group("of the case commits")
    many.add_argument("--commits", type=int, default=20_000, help="how many merges (default: 20000)")
    return parser


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
