"""Runs other tools on the same table in the same run: dlt with connectorx into Delta, and the Debezium engine.

Each is set up in an environment of its own in the cache folder, by PyPI and Maven, and runs as one process like the job.
One that cannot be had, or that fails, is left out with a word: what is printed is never a guess. Neither does what the
job does. dlt copies into memory and captures no changes; Debezium captures them and writes nothing.
"""

from __future__ import annotations

import json
import shutil
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import TABLE, Bench
from benchmarks.results import Figure, figure
from benchmarks.runs import RunFailedError, Spent, memory_figures, run_program
from benchmarks.source import DATABASE
from devkit.cache import cached
from devkit.commands import run_command
from devkit.errors import DevkitError
from devkit.packages import Artifact, copy_with_dependencies
from vnode_backfill.spark.class_archive import find_java

_DLT = "1.31.0"
_PACKAGES = (
    f"dlt[deltalake]=={_DLT}", "connectorx==0.4.6", "pyarrow==26.0.1", "SQLAlchemy==2.1.8",
    "PyMySQL==1.2.4", "deltalake==1.6.6",
)  # fmt: skip
_DEBEZIUM = "3.5.0.Final"
_ENGINE = tuple(
    Artifact("io.debezium", name, _DEBEZIUM)
    for name in ("debezium-api", "debezium-embedded", "debezium-connector-mariadb", "debezium-storage-file")
)
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class _Peer:
    name: str
    set_up: Callable[[], Path]
    words: Callable[[Path, Bench, Path], Sequence[str]]


def peers(bench: Bench) -> list[Figure]:
    """The job and each peer that can be had, in turns."""
    ready: list[tuple[_Peer, Path]] = []
    for peer in _PEERS:
        try:
            ready.append((peer, peer.set_up()))
        except (DevkitError, OSError) as error:
            _say(f"{peer.name} is left out: it cannot be set up: {error}")
    spent: dict[str, list[Spent]] = {}
    for _ in range(bench.rounds):
        spent.setdefault("the job, to live", []).append(bench.copied_by_job(TABLE).spent)
        for peer, home in tuple(ready):
            try:
                spent.setdefault(peer.name, []).append(_run(bench, peer, home))
            except RunFailedError as error:
                _say(f"{peer.name} is left out: {error}")
                ready.remove((peer, home))
                spent.pop(peer.name)
    return [each for name, runs in spent.items() for each in _figures(name, runs)]


def _run(bench: Bench, peer: _Peer, home: Path) -> Spent:
    folder = bench.folder / "peer"
    folder.mkdir()
    try:
        spent = run_program(bench.source, peer.words(home, bench, folder))
        json.loads(spent.output.strip().splitlines()[-1])  # its last word; without it, it has not come to its end
    except (ValueError, IndexError) as error:
        raise RunFailedError(f"{peer.name} has not said how long it took:\n{error}") from error
    finally:
        shutil.rmtree(folder)
    return spent


def _figures(name: str, spent: Sequence[Spent]) -> list[Figure]:
    return [
        figure("peers", f"{name}, whole process", [each.whole_seconds for each in spent], "s"),
        figure("peers", f"{name}, CPU of client", [each.cpu.total for each in spent], "CPU-s"),
        figure("peers", f"{name}, CPU of server", [each.server_cpu for each in spent], "CPU-s"),
        *memory_figures("peers", name, spent),
    ]


def _dlt_home() -> Path:
    return cached(f"peer-dlt-{_DLT}", _install_dlt)


def _install_dlt(target: Path) -> None:
    venv.create(target, with_pip=True, symlinks=True)
    run_command([target / "bin" / "python", "-m", "pip", "install", "--quiet", *_PACKAGES])


def _dlt_words(home: Path, bench: Bench, folder: Path) -> Sequence[str]:
    asked = ["--port", str(bench.source.port), "--database", DATABASE, "--table", TABLE, "--folder", str(folder)]
    return [str(home / "bin" / "python"), str(_HERE / "dlt_copy.py"), *asked]


def _debezium_home() -> Path:
    return cached(f"peer-debezium-{_DEBEZIUM}", lambda target: copy_with_dependencies(_ENGINE, target))


def _debezium_words(home: Path, bench: Bench, folder: Path) -> Sequence[str]:
    asked = [str(bench.source.port), DATABASE, TABLE, str(bench.rows), str(folder)]
    return [find_java() or "java", "-Xmx2g", "-cp", f"{home}/*", str(_HERE / "Snapshot.java"), *asked]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


_PEERS = (
    _Peer(f"dlt {_DLT} with connectorx, to Delta", _dlt_home, _dlt_words),
    _Peer(f"Debezium engine {_DEBEZIUM}, to nowhere", _debezium_home, _debezium_words),
)
