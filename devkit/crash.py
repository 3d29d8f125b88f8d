"""The command line with a bomb in it: the process is killed with -9 before or after a given order of the coordinator.

`python -m devkit.crash --kill after:MergeEpoch:3 -- run --config job.yaml` runs as `vnode-backfill run …` and dies at once when the
third `MergeEpoch` has been carried out, before its report is acted on.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import dataclass

from vnode_backfill import actions
from vnode_backfill.actions import Moment
from vnode_backfill.cli import main as run_command
from vnode_backfill.protocol import Action


@dataclass
class Bomb:
    """Counts the orders of one kind and kills the process at the given one."""

    moment: str
    order: str
    count: int

    @classmethod
    def parse(cls, text: str) -> Bomb:
        moment, order, *rest = text.split(":")
        return cls(moment, order, int(rest[0]) if rest else 1)

    def __call__(self, moment: Moment, action: Action) -> None:
        if moment == self.moment and type(action).__name__ == self.order:
            self.count -= 1
            if self.count == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kill", required=True, type=Bomb.parse, metavar="before|after:Order[:number]")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    actions.seam = arguments.kill
    run_command([word for word in arguments.command if word != "--"])


if __name__ == "__main__":
    main(sys.argv[1:])
