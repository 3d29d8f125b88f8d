"""A driver of many tables ends as one of a single table does: with its JVM, and in order when every process is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.mysql import SqlServer
from progress.state.cut import Cut
from progress.state.report import JobPhase
from tests.system.job.run.process_tree import kill_jvm, stop_all, until_copying
from tests.system.job.tables.many_tables import fresh
from vnode_backfill.job.tables.parts import tables_store


@pytest.mark.timeout(600)
@pytest.mark.parametrize("source_server", ["mariadb"], indirect=True)
def test_a_lost_jvm_ends_the_driver_and_a_stop_of_every_process_ends_it_in_order(
    source_server: SqlServer, database: str, tmp_path: Path
) -> None:
    case = fresh(source_server, database, tmp_path)
    case.settings = {**case.settings, "limits": {"range_rows": 50, "rows_per_second": 400, "backoff": "200ms"}}
    for name, shape in (("first", "numbers"), ("second", "texts"), ("third", "pairs")):
        case.create(name, shape)
    with case.written_to():
        with case.started("run") as driver:
            until_copying(case, driver)
            kill_jvm(case, driver)
        case.command("throttle", "--off")
        with case.started("run") as driver:
            case.wait_for_phase(JobPhase.LIVE, driver)
            stop_all(driver)
        assert case.report().phase is JobPhase.STOPPED
        cut = tables_store(case.loaded_config()).cut()
        assert cut is not None
        assert len(Cut.from_json(cut).targets) == 3, "all of them are at one offset"
    case.run("--until", "live")
    assert case.wrong() == {}
