"""Does what a hint says: takes the command out of the printed words, and carries out exactly that one.

A test that asks by itself would pass with any hint.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from vnode_backfill.commands.cli import execute

_CODE = re.compile(r"`vnode-backfill ((?:'[^']*'|[^`'])*)`")


def commands_in(text: str) -> list[list[str]]:
    """The commands that a text names, each as the words that a shell would make of it."""
    return [_without_file(shlex.split(found)) for found in _CODE.findall(text)]


def carry_out(text: str, config: Path) -> list[str]:
    """Carry out the one command that a printed hint names, on the job of this file; the words of the command."""
    (command,) = commands_in(text)
    assert execute([command[0], "--config", str(config), *command[1:]]) == 0, command
    return command


def _without_file(words: list[str]) -> list[str]:
    """Hints that name a file leave it to the reader: `--config …`."""
    if "--config" not in words:
        return words
    at = words.index("--config")
    return words[:at] + words[at + 2 :]
