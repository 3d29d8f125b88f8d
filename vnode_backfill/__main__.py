"""Launches a command: `python -m vnode_backfill …`, and the file that spark-submit is given.

Run as a script, Python puts this file's own folder on the path instead of the folder that holds the packages; that is
corrected first.
"""

from __future__ import annotations

import sys
from pathlib import Path


def _repair_path() -> None:
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    root = str(here.parent)
    if root not in sys.path:
        sys.path.insert(0, root)


if __name__ == "__main__":
    _repair_path()
    from vnode_backfill.commands.cli import main

    main()
