"""Runs a command to its end, with its output in the error when it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from devkit.errors import DevkitError


def run_command(
    command: Sequence[str | Path], *, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run to the end and return what was printed; a non-zero exit raises with the last lines."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise DevkitError(
            f"command failed with exit code {done.returncode}: {' '.join(words)}", detail=last_lines(done.stdout)
        )
    return done.stdout


def last_lines(text: str, count: int = 40) -> str:
    return "\n".join(text.splitlines()[-count:])


def find_program(name: str) -> Path | None:
    """The program on PATH or in the folders of system daemons, which a user's PATH often lacks."""
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    found = shutil.which(name, path=folders)
    return Path(found) if found else None


def require_program(name: str, *, hint: str) -> Path:
    program = find_program(name)
    if program is None:
        raise DevkitError(f"program {name} is not installed", hint=hint)
    return program
