"""Makes a Delta table hours older than it is, so that a sweep, a checkpoint and a cleanup of its log are due at once."""

from __future__ import annotations

import json
import os
from pathlib import Path

HOURS = 30
"""Longer than every retention of a table with vectors, and than files that no commit names are left alone."""


def age(table: Path) -> None:
    """Move the table's files, commits and checkpoints `HOURS` into the past. Demands that nobody writes to it.

    What a checkpoint says of removals stays as it is: only commits behind it are aged.
    """
    for commit in (table / "_delta_log").glob("*.json"):
        aged = commit.with_suffix(".aged")
        aged.write_text("".join(f"{_aged(line)}\n" for line in commit.read_text().splitlines()))
        aged.replace(commit)
    for path in table.rglob("*"):
        if path.is_file():
            moment = path.stat().st_mtime - HOURS * 3600
            os.utime(path, (moment, moment))


def _aged(line: str) -> str:
    action = json.loads(line)
    if "remove" in action:
        action["remove"]["deletionTimestamp"] -= HOURS * 3_600_000
    return json.dumps(action)
