"""Takes the pictures of the progress page in `docs/` from a real job: `python -m devkit.pictures docs`.

Starts a private MySQL with a shop of five tables and lets a writer loose on it. A job copies all of them while a
headless Chromium has its page open. An operator raises the rate and the number of workers in the middle. Each picture is
taken when the page shows its moment:

    page-snapshot   two thirds are copied
    page-phone      the same moment on a narrow screen
    page-live       all tables have been live for a while (dark colours)
    page-failed     an ALTER TABLE has stopped one table, as `schema_changes: stop` demands; the others continue

Everything that was started is gone at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from devkit.browser import Browser, Page
from devkit.errors import DevkitError
from devkit.mysql import MySqlServer, SqlServer
from devkit.process import GuardedProcess, free_ports
from devkit.shop.tables import create_shop
from devkit.spark import REPOSITORY
from devkit.waiting import wait_for


@dataclass(frozen=True, slots=True)
class Window:
    """The size of a browser window, and how many pixels of the picture a pixel of it is."""

    width: int
    height: int
    scale: float = 1.0


STEER_AT_PERCENT = 25.0
SNAPSHOT_AT_PERCENT = 66.0
LIVE_SECONDS = 45.0
_WIDE, _NARROW = Window(1180, 900), Window(375, 1160, scale=1.5)
_SECONDS = 600.0
_CONFIG = """\
job: shop
mysql: {{host: 127.0.0.1, port: {port}, user: root, tables: ["shop.*"]}}
sink: {{delta: {{path: "./lake/{{database}}/{{table}}"}}}}
state: {{path: "./lake/_backfill"}}
workers: 2
epoch: {{backfill: 2s}}
limits: {{rows_per_second: 6000, range_rows: 1000}}
schema_changes: stop
ui: {{port: {ui}}}
"""


class Pictures:
    """One run of a job; `take` writes the pictures of it into `target`."""

    def __init__(self, server: SqlServer, folder: Path, target: Path) -> None:
        self._server, self._folder, self._target = server, folder, target
        self._config, self._address = folder / "job.yaml", f"http://127.0.0.1:{(ui := free_ports()[0])}/"
        self._config.write_text(_CONFIG.format(port=server.port, ui=ui))
        self._environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}

    def take(self, browser: Browser, rows: int, rate: int) -> None:
        self._fill(rows)
        writer = self._running(
            "devkit.shop.writer", "--port", str(self._server.port), "--database", "shop", "--rate", str(rate)
        )
        with writer, self._running("vnode_backfill", "run", "--config", str(self._config), "--quiet") as job:
            wide = self._open(browser, job, _WIDE)
            self._wait(wide, job, f"Number(document.querySelector('#percent').innerText) >= {STEER_AT_PERCENT}")
            self._command("throttle", "--rows-per-second", "9000")
            self._command("rescale", "--workers", "4")
            self._wait(wide, job, f"Number(document.querySelector('#percent').innerText) >= {SNAPSHOT_AT_PERCENT}")
            self._shoot(wide, "page-snapshot")
            narrow = self._open(browser, job, _NARROW)
            self._shoot(narrow, "page-phone", whole=False)
            narrow.close()
            self._command("throttle", "--off")
            self._wait(wide, job, _phase_is("live"))
            self._execute("CREATE INDEX by_state ON shop.orders (state)")
            self._live_for(wide, job, LIVE_SECONDS)
            wide.set_dark(dark=True)
            self._shoot(wide, "page-live")
            wide.set_dark(dark=False)
            self._execute("ALTER TABLE shop.orders ADD COLUMN note VARCHAR(100)")
            wide.wait_until("document.querySelector('#tables').innerText.includes('failed')", seconds=60)
            self._shoot(wide, "page-failed")

    def _fill(self, rows: int) -> None:
        with self._server.connect() as connection:
            create_shop(connection, rows)

    @contextmanager
    def _running(self, module: str, *arguments: str) -> Iterator[GuardedProcess]:
        """The module as a process that has ended when the block ends, or when this process does."""
        command = [sys.executable, "-m", module, *arguments]
        process = GuardedProcess(command, log=self._folder / f"{module}.log", environment=self._environment)
        try:
            yield process
        finally:
            process.stop(seconds=60)

    def _open(self, browser: Browser, job: GuardedProcess, window: Window) -> Page:
        """The job's page in a new tab, once the driver serves it and shows a plan."""
        self._until(job, self._served, f"a page at {self._address}")
        page = browser.open(self._address, width=window.width, height=window.height, scale=window.scale)
        self._wait(page, job, "document.querySelector('#percent').innerText !== '–'")
        return page

    def _served(self) -> bool:
        try:
            with urlopen(self._address, timeout=10):
                return True
        except OSError:
            return False

    def _wait(self, page: Page, job: GuardedProcess, expression: str) -> None:
        self._until(job, lambda: page.evaluate(f"Boolean({expression})") is True, expression)

    def _live_for(self, page: Page, job: GuardedProcess, seconds: float) -> None:
        ends = time.monotonic() + seconds
        self._until(job, lambda: time.monotonic() >= ends, f"{seconds:g} s of a live job")
        self._wait(page, job, _phase_is("live"))

    def _until(self, job: GuardedProcess, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            self._check_runs(job)
            return condition()

        wait_for(holds, what, seconds=_SECONDS)

    @staticmethod
    def _check_runs(job: GuardedProcess) -> None:
        if not job.running:
            raise DevkitError("the job ended before all pictures were taken", detail=job.log_tail())

    def _command(self, *words: str) -> None:
        name, *flags = words
        command = [sys.executable, "-m", "vnode_backfill", name, "--config", str(self._config), *flags]
        subprocess.run(command, env=self._environment, check=True)

    def _execute(self, statement: str) -> None:
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)

    def _shoot(self, page: Page, name: str, *, whole: bool = True) -> None:
        file = self._target / f"{name}.png"
        page.screenshot(file, whole=whole)
        print(f"{file}  {file.stat().st_size / 1000:,.0f} kB", flush=True)


def _phase_is(phase: str) -> str:
    return f"document.querySelector('#phase-word').innerText === '{phase}'"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m devkit.pictures", description="pictures of the progress page")
    parser.add_argument("target", type=Path, help="folder the pictures go to")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rate", type=int, default=200, help="changed rows per second")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder, MySqlServer() as server, Browser() as browser:
        pictures = Pictures(server, Path(folder), arguments.target.resolve())
        # The job's paths are relative: the page shows no folder of this machine.
        with chdir(folder):
            pictures.take(browser, arguments.rows, arguments.rate)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
