"""Several tables in one driver: each is as exact as a single one, and every cut of them is one moment of the source."""

from __future__ import annotations

import pytest

from tests.simulation.sabotage import SABOTAGES
from tests.simulation.simulator import Simulation
from tests.simulation.statement_sabotage import STATEMENT_SABOTAGES
from tests.simulation.together import Together
from tests.simulation.together_sabotage import CAUGHT_AT, FOCUSED, LEFT_OUT, TOGETHER_SABOTAGES

HISTORIES, MANY = 60, 2000
OF_TABLES = TOGETHER_SABOTAGES.values()
ALL_SABOTAGES = {**SABOTAGES, **STATEMENT_SABOTAGES, **TOGETHER_SABOTAGES}


def histories(seeds: range) -> None:
    cuts = rested = left = spanning = together = stops = 0
    for seed in seeds:
        history = Together(seed)
        history.run()
        cuts, rested, left = cuts + history.cuts, rested + history.rested, left + history.left_tables
        spanning, together = spanning + history.server.spanning, together + history.store.together
        stops += history.stops
    assert min(cuts, rested, left, spanning, together) > 0
    assert stops > len(seeds)


def catches(rule: str, seeds: range) -> int | None:
    """The first seed at which a history of several tables fails without the rule."""
    sabotage = ALL_SABOTAGES[rule]
    with sabotage.in_force():
        for seed in seeds:
            try:
                Together(seed, sabotage.driver, FOCUSED.get(rule, sabotage.simulation)).run()
            except AssertionError:
                return seed
    return None


def test_every_sink_equals_its_source_and_every_cut_is_one_after_any_history_of_several_tables() -> None:
    histories(range(HISTORIES))


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(10))
def test_every_sink_and_every_cut_are_right_after_many_histories_of_several_tables(chunk: int) -> None:
    histories(range(chunk, MANY, 10))


@pytest.mark.parametrize(
    "simulation", sorted({*FOCUSED.values(), *(s.simulation for s in OF_TABLES)} - {Simulation}, key=str)
)
def test_histories_in_which_something_happens_more_often_go_well(simulation: type[Simulation]) -> None:
    """Otherwise what is caught in them would prove nothing."""
    for seed in range(15):
        Together(seed, simulation=simulation).run()


@pytest.mark.parametrize("rule", [rule for rule in ALL_SABOTAGES if rule not in LEFT_OUT])
def test_tables_together_notice_when_a_rule_is_taken_away(rule: str) -> None:
    first = CAUGHT_AT.get(rule, 0)
    assert catches(rule, range(first, first + 100)) is not None
