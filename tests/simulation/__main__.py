"""Run any number of seeds: `python -m tests.simulation COUNT [FIRST]`."""

from __future__ import annotations

import sys

from tests.simulation.simulator import Simulation


def main(count: int, first: int) -> int:
    crashes = commits = own_slices = slices = drained = versions = renewed = 0
    for seed in range(first, first + count):
        simulation = Simulation(seed)
        simulation.run()
        crashes += simulation.crashes
        commits += simulation.commits
        own_slices += simulation.own_slices
        slices += simulation.slices
        drained += simulation.drained_slices
        versions += simulation.versions
        renewed += simulation.renewed
    print(
        f"{count} histories from seed {first}: {crashes} crashes, {commits} commits, "
        f"{own_slices} epochs that merged their own slice, {slices} that ended before the sample "
        f"({drained} SyncCheckpoints), {versions} statements followed, {renewed} new copies, 0 failures"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000, int(sys.argv[2]) if len(sys.argv) > 2 else 0))
