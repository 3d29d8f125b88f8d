"""Reads the heartbeat's row back from the lake as a user would, and notes how old it was.

`python -m benchmarks.live.heartbeat --lake FOLDER --key N --samples FILE` runs until SIGTERM.

The age is the moment the row has been read minus the moment that was written into it, on the clock all processes of a
machine share. It is what a reader gets: what he spends on reading is in it, and is noted beside it. He keeps his handle
and reads only the new part of the log, and asks by key, so that all files but a few are left out by their statistics.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from deltalake import DeltaTable, QueryBuilder

READ_EVERY_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """At `at` the row was read with the time `written`; reading took `cost` seconds and found table version `version`."""

    at: float
    written: float
    cost: float
    version: int

    @property
    def age(self) -> float:
        return self.at - self.written


def read_beat(table: DeltaTable, key: int) -> Sample:
    """Read the row in the newest version of the table."""
    began = time.monotonic()
    table.update_incremental()
    query = f"SELECT score FROM lake WHERE id = {key}"
    found = QueryBuilder().register("lake", table).execute(query).read_all()
    at = time.monotonic()
    if found.num_rows != 1:
        raise LookupError(f"version {table.version()} of the lake has {found.num_rows} rows with the key {key}")
    return Sample(at, found.column("score")[0].as_py(), at - began, table.version())


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    table = DeltaTable(str(arguments.lake))
    with arguments.samples.open("w") as file:
        while not ending.wait(READ_EVERY_SECONDS - time.monotonic() % READ_EVERY_SECONDS):
            file.write(json.dumps(asdict(read_beat(table, arguments.key))) + "\n")
            file.flush()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="how old the heartbeat in the lake is")
    parser.add_argument("--lake", type=Path, required=True)
    parser.add_argument("--key", type=int, required=True)
    parser.add_argument("--samples", type=Path, required=True, help="where the samples go, one line of JSON each")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
