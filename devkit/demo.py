"""Shows the whole product in a few minutes: live traffic, a kill -9 in the middle, and a comparison at the end.

It starts a private MySQL (or MariaDB) with a shop of five tables, and a writer whose transactions span them. One job
copies all tables into a local lake. It is killed in the middle and started again. When all tables are live one of them
gets a column and an index, under the writer. When the lake has followed the writer and the job are stopped, and every
row of every table is compared. Everything that was started is gone at the end; the lake stays.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.shop.tables import KEYS, create_shop, rows_of_tables
from devkit.waiting import wait_for
from vnode_backfill.commands.status import read_report
from vnode_backfill.config.job import Config, load_config
from vnode_backfill.words.errors import StateError

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "conf" / "local.yaml"
KILL_AT_PERCENT = 30.0
STATEMENTS = (
    "ALTER TABLE shop.orders ADD COLUMN channel VARCHAR(20) NOT NULL DEFAULT 'web'",
    "CREATE INDEX by_channel ON shop.orders (channel)",
)
"""The writer does not know the new column."""


class Demo:
    """One run of the demonstration in `folder`."""

    def __init__(self, server: SqlServer, folder: Path, rows: int, rate: int) -> None:
        self._server, self._folder, self._rows, self._rate = server, folder, rows, rate
        self._took: list[tuple[str, float]] = []
        self._job: subprocess.Popen[bytes] | None = None
        self._environment = {
            **os.environ,
            "DEMO_MYSQL_PORT": str(server.port),
            "DEMO_FOLDER": str(folder),
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
        }

    def run(self) -> int:
        """Show everything; a job that is still at work when something went wrong is ended."""
        try:
            return self._shown()
        finally:
            if self._job is not None and self._job.poll() is None:
                self._job.kill()
                self._job.wait()

    def _shown(self) -> int:
        self._fill()
        with self._writer():
            with self._timed("snapshot, killed with -9 in the middle"):
                self._run_and_kill()
            with self._timed("resumed, and all tables live"):
                job = self._start()
                self._wait(job, self._is_live)
            with self._timed("a column and an index added, followed by the lake"):
                self._change_table()
                self._wait(job, self._has_followed)
        with self._timed("writer stopped, last changes applied"):
            job.send_signal(signal.SIGTERM)
            if job.wait() != 0:
                return self._failed("run", job.returncode)
        self._command("cut")
        with self._timed("every row of every table compared"):
            code = self._command("verify")
        self._summary()
        return code

    def _fill(self) -> None:
        counts = rows_of_tables(self._rows)
        with self._timed(f"a shop of {len(counts)} tables"), self._server.connect() as connection:
            create_shop(connection, self._rows)
        say(
            f"a shop of {sum(counts.values()):,} rows: {', '.join(f'{name} {rows:,}' for name, rows in counts.items())}"
        )

    @contextmanager
    def _writer(self) -> Iterator[None]:
        command = [
            sys.executable, "-m", "devkit.shop.writer", "--port", str(self._server.port), "--database", "shop",
            "--rate", str(self._rate), "--seed", "7",
        ]  # fmt: skip
        writer = subprocess.Popen(command, cwd=ROOT, env=self._environment, stdout=subprocess.PIPE, text=True)
        say(
            f"a writer changes about {self._rate} rows a second: orders with lines, stock, customer and event in one transaction"
        )
        try:
            yield
        finally:
            writer.send_signal(signal.SIGTERM)
            counts, _ = writer.communicate(timeout=60)
            say(f"the writer is done: {counts.strip()}")

    def _run_and_kill(self) -> None:
        job = self._start()
        self._wait(job, lambda: self._percent() >= KILL_AT_PERCENT)
        say(f"at {self._percent():.0f} %: kill -9 {job.pid}")
        job.kill()
        job.wait()

    def _change_table(self) -> None:
        with self._server.connect() as connection, connection.cursor() as cursor:
            for statement in STATEMENTS:
                say(f"mysql> {statement};")
                cursor.execute(statement)

    def _has_followed(self) -> bool:
        report = read_report(self._config(), ["shop.orders"])
        seen = report.definition
        if seen is None or len(seen.statements) < len(STATEMENTS):
            return False
        return report.phase == "live" and seen.version == seen.in_target > 0

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "vnode_backfill", "run", "--config", str(CONFIG)]
        say("$ vnode-backfill run --config conf/local.yaml")
        self._job = subprocess.Popen(command, cwd=ROOT, env=self._environment)
        return self._job

    def _command(self, name: str) -> int:
        say(f"$ vnode-backfill {name} --config conf/local.yaml")
        command = [sys.executable, "-m", "vnode_backfill", name, "--config", str(CONFIG)]
        return subprocess.run(command, cwd=ROOT, env=self._environment, check=False).returncode

    def _wait(self, job: subprocess.Popen[bytes], done: Callable[[], bool]) -> None:
        def ended_or_done() -> bool:
            if job.poll() is not None:
                raise SystemExit(self._failed("run", job.returncode))
            return done()

        wait_for(ended_or_done, "the job", seconds=300)

    def _percent(self) -> float:
        try:
            return read_report(self._config()).percent
        except StateError:
            return 0.0

    def _is_live(self) -> bool:
        return read_report(self._config()).phase == "live"

    def _config(self) -> Config:
        return load_config(CONFIG, env=self._environment)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._took.append((name, time.monotonic() - began))

    def _failed(self, what: str, code: int) -> int:
        say(f"{what} ended with exit code {code}")
        return code or 1

    def _summary(self) -> None:
        say("")
        for name, seconds in self._took:
            say(f"{seconds:7.1f} s  {name}")
        say(f"{sum(seconds for _, seconds in self._took):7.1f} s  in all")
        say("")
        say(f"The lake is in {self._folder}: {', '.join(KEYS)}. Look into it with:")
        say(
            '  .venv/bin/python -c "from devkit.lake import read_lake; '
            f"print(read_lake('{self._folder / 'orders'}').slice(0, 5).to_pandas())\""
        )


def say(line: str) -> None:
    print(line, flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rate", type=int, default=300, help="changed rows per second")
    parser.add_argument("--folder", type=Path, help="where the lake goes (default: a new temporary folder)")
    arguments = parser.parse_args(argv)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="vnode-backfill-demo-"))
    make = MySqlServer if arguments.server == "mysql" else MariaDbServer
    say(f"starting a private {arguments.server} server")
    with make() as server:
        return Demo(server, folder, arguments.rows, arguments.rate).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
