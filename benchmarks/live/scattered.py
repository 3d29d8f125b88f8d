"""Updates rows all over a table at a steady pace, and one row, the heartbeat, with the time.

`python -m benchmarks.live.scattered --port … --table … --rows N --rate 500 --counter FILE` runs until SIGTERM.

Every 20 ms it writes the monotonic clock into the heartbeat's row, in a transaction of its own. Then it updates as many
rows as are due by the clock, chosen at random, in one transaction. A tick that came late is followed by the next one at
once, so the pace is that of the clock for as long as the server can. Once a second, and at the end, a line of JSON says how many rows
were updated so far, the heartbeat's own not among them.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import TextIO

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

BEAT_SECONDS = 0.02
_SEED = 11
_BEAT = "UPDATE {table} SET score = {now!r} WHERE id = {key}"
_UPDATE = "UPDATE {table} SET amount = amount + 1, created = NOW(6) WHERE id IN ({keys})"


class Writer:
    """Rows 1 to `rows` are updated; the one after them is the heartbeat."""

    def __init__(self, connection: Connection[Cursor], table: str, rows: int, rate: float) -> None:
        self._cursor = connection.cursor()
        self._table, self._rows, self._rate = table, rows, rate
        self._random = Random(_SEED)
        self.updated = 0

    def tick(self, elapsed: float) -> None:
        """Write the time, and the updates that are due `elapsed` seconds after the beginning."""
        self._cursor.execute(_BEAT.format(table=self._table, now=time.monotonic(), key=self._rows + 1))
        due = min(int(self._rate * elapsed) - self.updated, self._rows)
        if due > 0:
            keys = self._random.sample(range(1, self._rows + 1), due)
            self.updated += self._cursor.execute(_UPDATE.format(table=self._table, keys=",".join(map(str, keys))))


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    connection = pymysql.connect(
        host="127.0.0.1", port=arguments.port, user="root", database=arguments.database, autocommit=True
    )
    with connection, arguments.counter.open("w") as counter:
        writer = Writer(connection, arguments.table, arguments.rows, arguments.rate)
        began, tick = time.monotonic(), 0
        while not ending.wait(max(0.0, began + tick * BEAT_SECONDS - time.monotonic())):
            writer.tick(tick * BEAT_SECONDS)
            if tick % round(1 / BEAT_SECONDS) == 0:
                _note(counter, writer.updated)
            tick += 1
        _note(counter, writer.updated)
    return 0


def _note(counter: TextIO, updated: int) -> None:
    counter.write(json.dumps([time.monotonic(), updated]) + "\n")
    counter.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="scattered updates and a heartbeat")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--rows", type=int, required=True, help="keys 1 to ROWS are updated, ROWS + 1 is the heartbeat")
    parser.add_argument("--rate", type=float, required=True, help="updated rows per second")
    parser.add_argument("--counter", type=Path, required=True, help="where moments and counts go")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
