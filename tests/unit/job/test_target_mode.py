"""A new job whose file asks for another mode than its target has is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.tables import ORDERS
from tests.unit.job.test_delta_outlook import config
from tests.unit.progress.state.state_examples import at
from tests.unit.progress.store.state_folder import START
from vnode_backfill.config.job import MergeMode
from vnode_backfill.job.open.handoff import StoredHandoff
from vnode_backfill.job.open.target_ownership import check_target
from vnode_backfill.sinks.delta.sink import DeltaSink
from vnode_backfill.words.errors import PlanRefusedError, SinkError

COPY = StoredHandoff("copy", "copied", "17", "shop.orders", "", "", at(100), START)
HINT = (
    "Set `sink.delta.merge: rewrite`, or turn it over with `vnode-backfill upgrade --merge vectors` if the job exists."
)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The table of a copy that has ended."""
    DeltaSink(str(tmp_path / "lake"), ORDERS, COPY.id, creates=MergeMode.REWRITE).prepare()
    return tmp_path / "lake"


@pytest.mark.parametrize("handoff", [None, COPY], ids=["empty", "left by a copy"])
def test_another_mode_than_the_table_has_is_refused(lake: Path, handoff: StoredHandoff | None) -> None:
    version = DeltaTable(lake).version()
    with pytest.raises(PlanRefusedError, match="is changed by rewrite, not by vectors") as refused:
        check_target(config(lake.parent, merge="vectors"), ORDERS, handoff, "successor")
    assert refused.value.hint == HINT
    assert DeltaTable(lake).version() == version


@pytest.mark.parametrize("handoff", [None, COPY], ids=["empty", "left by a copy"])
@pytest.mark.parametrize("asked", [{}, {"merge": "rewrite"}], ids=["not asked", "asked"])
def test_the_mode_of_the_table_is_fine(lake: Path, handoff: StoredHandoff | None, asked: dict[str, str]) -> None:
    check_target(config(lake.parent, **asked), ORDERS, handoff, "successor")


def test_a_job_that_is_continued_with_another_mode_is_refused(lake: Path) -> None:
    with pytest.raises(SinkError, match="is changed by rewrite"):
        DeltaSink(str(lake), ORDERS, COPY.id, asked=MergeMode.VECTORS).prepare()
