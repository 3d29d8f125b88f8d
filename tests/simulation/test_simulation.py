"""Thousands of random histories of the real protocol against a model source: nothing is lost, repeated or resurrected.

`SEEDS=100000 pytest tests/simulation` runs more of them; `python -m tests.simulation 100000` too, with a count of what
happened.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.cascading import Cascading
from tests.simulation.recreated import Recreating
from tests.simulation.sabotage import SABOTAGES
from tests.simulation.simulator import Simulation
from tests.simulation.statement_sabotage import STATEMENT_SABOTAGES

SEEDS = int(os.environ.get("SEEDS", "2000"))
CHUNKS = 20
ALL_SABOTAGES = {**SABOTAGES, **STATEMENT_SABOTAGES}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_sink_equals_source_after_any_history(chunk: int) -> None:
    crashes = commits = changed_logs = ended = own_slices = slices = drained = versions = renewed = 0
    for seed in range(chunk, SEEDS, CHUNKS):
        simulation = Simulation(seed)
        simulation.run()
        crashes += simulation.crashes
        commits += simulation.commits
        changed_logs += simulation.changed_logs
        ended += simulation.ended
        own_slices += simulation.own_slices
        slices += simulation.slices
        drained += simulation.drained_slices
        versions += simulation.versions
        renewed += simulation.renewed
    assert crashes > 0
    assert commits > 0
    assert changed_logs > 0
    assert ended > 0
    assert own_slices > 0
    assert slices > 0
    assert drained > 0
    assert versions > 0
    assert renewed > 0


def test_table_that_is_created_again_is_copied_by_the_log_alone_after_any_history() -> None:
    created = 0
    for seed in range(SEEDS // 40):
        simulation = Recreating(seed)
        simulation.run()
        created += simulation.created
    assert created > 0


def test_rows_that_a_parent_changes_outside_the_log_are_copied_again_after_any_history() -> None:
    renewed = 0
    for seed in range(SEEDS // 40):
        simulation = Cascading(seed)
        simulation.run()
        renewed += simulation.renewed
    assert renewed > 0


@pytest.mark.parametrize("rule", ALL_SABOTAGES)
def test_simulator_notices_when_a_rule_is_taken_away(rule: str) -> None:
    sabotage = ALL_SABOTAGES[rule]
    assert sabotage.catches(range(sabotage.first_seed, sabotage.first_seed + 1000)) is not None


def test_a_failing_seed_tells_its_story() -> None:
    sabotage = SABOTAGES["an unread range counted as read"]
    seed = sabotage.catches(range(1000))
    assert seed is not None
    with sabotage.in_force(), pytest.raises(AssertionError, match=rf"(?s)seed {seed}: .*RangesRead"):
        sabotage.simulation(seed, make_driver=sabotage.driver).run()
