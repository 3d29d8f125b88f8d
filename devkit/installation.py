"""Makes the project as a stranger gets it: a wheel, and an interpreter that has its dependencies and not itself."""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
import zipfile
from pathlib import Path

from devkit.commands import run_command
from devkit.errors import DevkitError
from devkit.spark import REPOSITORY

_PACKAGES = ("vnode_backfill", "consume_upstream", "progress")
_LAUNCHER = "vnode_backfill/__main__.py"


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this repository into `folder`, from a copy: a build leaves files beside its sources."""
    sources = folder / "sources"
    sources.mkdir(parents=True)
    for name in _PACKAGES:
        shutil.copytree(REPOSITORY / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, sources / name)
    run_command(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, sources], folder=folder
    )
    (wheel,) = folder.glob("vnode_backfill-*.whl")
    shutil.rmtree(sources)
    return wheel


def launcher_of(wheel: Path, folder: Path) -> Path:
    """The file that spark-submit runs, out of the wheel and alone in a folder: the rest must come by the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(_LAUNCHER, folder)
    return folder / _LAUNCHER


def bare_environment(folder: Path) -> Path:
    """The interpreter of a new environment with the dependencies of this one, in which the project is not installed.

    A folder that is named in a .pth file is searched, but its own .pth files are not read. So an editable installation
    is not found.
    """
    run_command([sys.executable, "-m", "venv", "--without-pip", folder])
    python = folder / "bin/python"
    (target,) = folder.glob("lib/python*/site-packages")
    (target / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    found = subprocess.run(
        [python, "-c", "import vnode_backfill"], cwd=folder, env={}, capture_output=True, check=False
    )
    if found.returncode == 0:
        raise DevkitError(
            "the project is installed beside its dependencies", hint="Install it editable: pip install -e ."
        )
    return python
