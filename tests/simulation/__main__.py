"""Run any number of seeds: `python -m tests.simulation COUNT [FIRST]`."""

from __future__ import annotations

import sys

from tests.simulation.simulator import Simulation


def main(count: int, first: int) -> int:
    crashes = commits = 0
    for seed in range(first, first + count):
        simulation = Simulation(seed)
        simulation.run()
        crashes += simulation.crashes
        commits += simulation.commits
    print(f"{count} histories from seed {first}: {crashes} crashes, {commits} commits, 0 failures")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000, int(sys.argv[2]) if len(sys.argv) > 2 else 0))
