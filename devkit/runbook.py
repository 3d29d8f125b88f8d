"""Runs the commands of a runbook as they are written, and compares what they print with what the runbook shows.

A runbook is Markdown. A `yaml` block whose first line is `# NAME.yaml` is that file. The `sh` blocks are the steps,
each run in its own shell, which stops at the first failure. A `text` block right after an `sh` block shows what it
prints: its lines must be printed in this order, with others between them or not. Numbers may differ, and `…` matches
anything.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from devkit.errors import DevkitError
from devkit.spark import REPOSITORY

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (\S+\.yaml)\n")
_VARYING = re.compile(r"(…|[0-9][0-9,.]*)")


@dataclass(frozen=True, slots=True)
class Step:
    """One `sh` block; `shown` are the lines it is said to print."""

    commands: str
    shown: tuple[str, ...] = ()

    def run(self, folder: Path, environment: Mapping[str, str], *, seconds: float) -> str:
        """What it printed, both streams; a step that fails or takes too long raises. No process of it stays."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        output = folder / "printed.txt"
        with output.open("w") as file:
            shell = subprocess.Popen(
                ["bash", "-c", f"set -euo pipefail\n{self.commands}"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": path, **environment},
                start_new_session=True,
            )
        try:
            code = shell.wait(seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        printed = output.read_text(errors="replace")
        if code != 0:
            raise DevkitError(f"a step ended with exit code {code}: {self.commands}", detail=printed[-8000:])
        return printed

    def missing(self, printed: str) -> str | None:
        """The first line shown that was not printed after the ones before it; None if all were."""
        rest = iter(printed.splitlines())
        for line in self.shown:
            pattern = _pattern(line)
            if not any(pattern.fullmatch(candidate.rstrip()) for candidate in rest):
                return line
        return None


@dataclass(frozen=True, slots=True)
class Runbook:
    files: Mapping[str, str]
    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str) -> Runbook:
        files: dict[str, str] = {}
        steps: list[Step] = []
        before = ""
        for kind, body in _BLOCK.findall(text):
            name = _FILE_NAME.match(body)
            if kind == "yaml" and name is not None:
                files[name[1]] = body
            elif kind == "sh":
                steps.append(Step(body))
            elif kind == "text" and before == "sh":
                steps[-1] = Step(steps[-1].commands, tuple(line.rstrip() for line in body.splitlines() if line.strip()))
            before = kind
        return cls(files, tuple(steps))

    def lay_out(self, folder: Path) -> None:
        """Write the files, and put the project's scripts where the commands look for them."""
        for name, body in self.files.items():
            (folder / name).write_text(body)
        (folder / "scripts").symlink_to(REPOSITORY / "scripts")


def _pattern(line: str) -> re.Pattern[str]:
    """The line with other numbers and anything for `…`."""
    parts = (
        ".*" if part == "…" else r"[0-9][0-9,.]*" if number % 2 else re.escape(part)
        for number, part in enumerate(_VARYING.split(line))
    )
    return re.compile("".join(parts))
