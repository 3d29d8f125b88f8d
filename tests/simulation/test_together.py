"""Several tables in one driver: each is as exact as a single one, whatever is committed together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from progress.state.backfill_state import BackfillState
from tests.simulation.actors import Steps
from tests.simulation.together import SharedCommits, SharingDriver, Together
from tests.simulation.world import ModelStore
from vnode_backfill.words.errors import LawBrokenError

HISTORIES = 60


def test_every_sink_equals_its_source_after_any_history_of_several_tables() -> None:
    together = 0
    for seed in range(HISTORIES):
        history = Together(seed)
        history.run()
        together += history.shared.together
    assert together > 0


class ToldEarly(SharingDriver):
    """Is told of a commit that only waits."""

    def _until_durable(self, waits: tuple[ModelStore, BackfillState]) -> Steps:  # noqa: ARG002 - it does not wait
        if self.random.random() < 0.4:
            self.shared.commit()
        yield None


def _forgets_nothing(shared: SharedCommits, store: ModelStore) -> None:
    """What a table had waiting is committed after it was opened again."""


def caught(history: Callable[[int], Together]) -> bool:
    for seed in range(5 * HISTORIES):
        try:
            history(seed).run()
        except (AssertionError, LawBrokenError):
            return True
    return False


def test_table_that_is_told_before_its_commit_is_durable_is_noticed() -> None:
    assert caught(lambda seed: Together(seed, ToldEarly))


def test_commit_that_lands_after_its_table_was_opened_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedCommits, "forget", _forgets_nothing)
    assert caught(Together)
