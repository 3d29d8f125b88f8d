"""Writes what a benchmark found: figures with their goals, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "numba", "numpy", "pymysql")


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; `value` is the median of `values`. `goal` is `>= 2.0`, `< 1` or empty."""

    case: str
    what: str
    value: float
    unit: str
    values: tuple[float, ...] = ()
    goal: str = ""
    note: str = ""

    @property
    def met(self) -> bool | None:
        if not self.goal:
            return None
        sign, number = self.goal.split()
        return self.value >= float(number) if sign == ">=" else self.value < float(number)

    @property
    def spread(self) -> str:
        if len(self.values) < 2:
            return ""
        return f"{_number(min(self.values))} – {_number(max(self.values))}"


def figure(case: str, what: str, values: Sequence[float], unit: str, *, goal: str = "", note: str = "") -> Figure:
    """The median of the values, which are kept beside it."""
    return Figure(case, what, statistics.median(values), unit, tuple(values), goal, note)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the machine had to spare when a case began."""

    case: str
    load: tuple[float, ...]
    memory_available_bytes: int
    disk_free_bytes: int

    def __str__(self) -> str:
        load = " ".join(f"{each:.1f}" for each in self.load)
        memory, disk = _gigabytes(self.memory_available_bytes), _gigabytes(self.disk_free_bytes)
        return f"{self.case}: load {load}, {memory} of memory and {disk} of disk free"


@dataclass
class Results:
    """Everything of one run of the command."""

    rows: int
    rounds: int
    server: str
    columns: int
    traffic: Mapping[str, object]
    """How live cases were run."""
    load_before: tuple[float, ...] = field(default_factory=os.getloadavg)
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    figures: list[Figure] = field(default_factory=list)
    circumstances: list[Circumstances] = field(default_factory=list)

    def begin(self, case: str, folder: Path) -> Circumstances:
        """Note what the machine has to spare before a case that writes below `folder`."""
        found = Circumstances(case, os.getloadavg(), _available_bytes(), shutil.disk_usage(folder).free)
        self.circumstances.append(found)
        return found

    def add(self, figures: Sequence[Figure]) -> None:
        self.figures.extend(figures)

    def table(self) -> str:
        """The figures as a Markdown table."""
        machine = _machine()
        lines = [
            f"{machine['cores']} cores, {_gigabytes(int(machine['memory_bytes']))} of memory, {machine['cpu']}",
            *map(str, self.circumstances),
            f"{self.rows:,} rows × {self.columns} columns, {self.rounds} rounds, load before {self.load_before[0]:.1f}",
            "",
            "| case | what | median | min – max | goal | met |",
            "|---|---|---:|---:|---:|---|",
        ]
        return "\n".join([*lines, *map(_line, self.figures)])

    def store(self, path: Path) -> None:
        """Write the document; one that is there already is replaced."""
        document = {
            "version": 1,
            "started": self.started,
            "rows": self.rows,
            "columns": self.columns,
            "rounds": self.rounds,
            "machine": _machine(),
            "load": {"before": self.load_before, "after": os.getloadavg()},
            "traffic": dict(self.traffic),
            "circumstances": [asdict(each) for each in self.circumstances],
            "versions": {"server": self.server, "python": platform.python_version(), **_versions()},
            "figures": [{**asdict(each), "met": each.met} for each in self.figures],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _line(figure: Figure) -> str:
    met = {True: "yes", False: "**no**", None: ""}[figure.met]
    cells = [figure.case, _what(figure), f"{_number(figure.value)} {figure.unit}", figure.spread, figure.goal, met]
    return f"| {' | '.join(cells)} |"


def _what(figure: Figure) -> str:
    return f"{figure.what} ({figure.note})" if figure.note else figure.what


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"


def _machine() -> dict[str, str | int]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": _cpu_model(), "cores": os.cpu_count() or 1, "memory_bytes": memory, "system": platform.system()}


def _available_bytes() -> int:
    """What the kernel could give to new processes without swapping, the page cache included."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _versions() -> dict[str, str]:
    return {name: version(name) for name in _PACKAGES}
