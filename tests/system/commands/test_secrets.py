"""Keys of object stores that a job is given reach nobody else on its machine, and nobody else's code reaches the job."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from devkit.cluster import descendants
from devkit.mysql import MySqlServer
from devkit.orders import create_orders_table
from devkit.process import free_ports
from devkit.waiting import wait_for
from progress.state.report import JobPhase
from tests.system.job_case import JobCase, Started, execute
from vnode_backfill.words.errors import StateError

PLANTED = "q9Zt7-planted"
"""No name or value of a setting that Spark hides by itself holds this."""
STORES = {"AZURE_STORAGE_ACCOUNT_NAME": "shop", "AZURE_STORAGE_ACCOUNT_KEY": PLANTED, "AWS_SECRET_ACCESS_KEY": PLANTED}


@pytest.fixture
def case(mysql_server: MySqlServer, tmp_path: Path) -> Iterator[JobCase]:
    execute(mysql_server, None, "DROP DATABASE IF EXISTS secrets", "CREATE DATABASE secrets")
    with mysql_server.connect() as connection:
        create_orders_table(connection, 200, 3, database="secrets")
    (tmp_path / "events").mkdir()
    (port,) = free_ports()
    spark = {
        "spark.driver.memory": "1g", "spark.ui.enabled": "true", "spark.ui.port": str(port),
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file:{tmp_path}/events",
        "spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false",
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": PLANTED,
    }  # fmt: skip
    yield JobCase(mysql_server, tmp_path, "secrets", settings={"storage": {"options": STORES}, "spark": spark})
    execute(mysql_server, None, "DROP DATABASE secrets")


def test_planted_key_is_nowhere_and_a_planted_module_is_not_imported(case: JobCase) -> None:
    """One run of a job shows it all: starting a JVM is what takes the time."""
    folder = case.folder / "anybodys"
    folder.mkdir()
    for name in ("pandas", "numba", "mmh3"):
        (folder / f"{name}.py").write_text(f"open({str(case.folder / 'imported')!r}, 'w')")
    seen: dict[int, str] = {}
    with started_in(folder, case) as started:

        def is_live() -> bool:
            look_at(started.pid, seen)
            started.check_running()
            with suppress(StateError):
                return case.report().phase is JobPhase.LIVE
            return False

        wait_for(is_live, "the job to be live", seconds=240, state=started.output.read_text)
        page = page_of(case)
        addresses = listening(seen)
        started.send(signal.SIGTERM)
        started.wait(0)
    assert any("org.apache.spark.deploy.SparkSubmit" in line for line in seen.values())
    assert [line for line in seen.values() if PLANTED in line] == []
    (events,) = (path.read_text() for path in (case.folder / "events").iterdir() if not path.name.startswith("."))
    for shown in (page, events):
        assert "fs.azure.account.key.lake.dfs.core.windows.net" in shown
        assert PLANTED not in shown
    assert addresses
    assert {address for address in addresses if not address.startswith("127.")} == set()
    assert not (case.folder / "imported").exists()
    assert case.differences() == []


@contextmanager
def started_in(folder: Path, case: JobCase) -> Iterator[Started]:
    """`run` in this folder, as the installed program does it: without the current folder on its search path."""
    output = case.folder / "run.log"
    command = [sys.executable, "-P", "-m", "vnode_backfill", "run", "--config", str(case.config), "--quiet"]
    with output.open("w") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=case.process_environment(), stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield Started(process, output)
    finally:
        process.kill()
        process.wait()


def look_at(driver: int, seen: dict[int, str]) -> None:
    """Add what anybody can read of the driver's processes, and their environments."""
    for pid in (driver, *descendants(driver)):
        for name in ("cmdline", "environ"):
            try:
                text = Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if text not in seen.get(pid, ""):
                seen[pid] = seen.get(pid, "") + text


def page_of(case: JobCase) -> str:
    settings = case.settings["spark"]
    assert isinstance(settings, dict)
    with urlopen(f"http://127.0.0.1:{settings['spark.ui.port']}/environment/", timeout=60) as answer:
        return str(answer.read().decode())


def listening(pids: dict[int, str]) -> set[str]:
    """The addresses on which these processes take connections over the network."""
    sockets = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                sockets[f"socket:[{words[9]}]"] = readable(words[1].partition(":")[0])
    found = set()
    for pid in pids:
        try:
            found |= {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        except OSError:
            continue
    return {address for link, address in sockets.items() if link in found}


def readable(number: str) -> str:
    """As the kernel lists it, in words of four bytes of this machine's order.

    An IPv4 address in the form of IPv6 as itself.
    """
    packed = b"".join(bytes.fromhex(number[at : at + 8])[::-1] for at in range(0, len(number), 8))
    if len(packed) == 16 and packed.startswith(b"\0" * 10 + b"\xff\xff"):
        packed = packed[12:]
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
