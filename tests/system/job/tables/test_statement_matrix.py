"""Every kind of statement meets a job in every phase, with every form of the log, and every row is compared at the end.

One job has a table for each kind of statement that docs/schema-changes.md names (`statement_cases`). All of them are
changed in the same phase. Before and after the statements rows are written by the old columns, then by the new ones.
Where the statements are about columns, a thread writes `id` and `a` at the same moment. A driver is killed with -9
around the statements in every phase:

    snapshot   while ranges are read some tables are whole, some half read and some not begun; killed after the statements
    catch-up   killed when every range of most tables is read and nothing of these is merged, before the statements
    live       half of the tables are changed and followed, then the other half; killed after the statements
    stopped    the next driver is killed while it changes targets

The target of a table that ends has all of its last rows if it was live. In the other phases nothing says how large a part
it has: usually nothing in `snapshot`, and in `catch-up` whatever was merged by then. There only the rows that are in the
target are compared.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devkit.errors import DevkitError
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.waiting import wait_for
from progress.state.make_report import phase_of
from progress.state.report import JobPhase
from tests.system.job.followed_hints import carry_out
from tests.system.job.tables.changed_tables import ChangedTables, changed_tables
from tests.system.job.tables.many_tables import Here
from tests.system.job.tables.statement_cases import ROWS, Change, cases_on, of_table
from tests.system.job_case import Started, fetch
from vnode_backfill.commands.tables.run import ending_lines
from vnode_backfill.words.errors import StateError

LOGS = [("mysql", "MINIMAL"), ("mysql", "FULL"), ("mariadb", "NO_LOG"), ("mariadb", "MINIMAL"), ("mariadb", "FULL")]
USUAL = {("mysql", "MINIMAL", "snapshot"), ("mariadb", "NO_LOG", "live")}
"""What is not left to the long tests."""
FOLDS = ("mariadb", "FULL")
"""Where names of tables are compared without regard to case; MySQL would need other data for that."""
WHOLE = ("live", "stopped")
"""Phases in which every row is in the target before the statements come."""
SLOW = {"range_rows": 100, "rows_per_second": 300}


Meet = Callable[[ChangedTables, SparkSession], None]
"""Runs the job into its phase and changes the tables there."""


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    kind, metadata = request.param
    options: dict[str, str | None] = {"binlog-row-metadata": metadata}
    if request.param == FOLDS:
        options["lower-case-table-names"] = "1"
    with {"mysql": MySqlServer, "mariadb": MariaDbServer}[kind](options) as started:
        yield started


@pytest.fixture
def matrix(server: SqlServer, tmp_path: Path) -> Iterator[ChangedTables]:
    folds = bool(fetch(server, None, "SELECT @@lower_case_table_names")[0][0])
    with changed_tables(server, tmp_path, cases_on(server.flavour, folds=folds)) as found:
        yield found


def is_reported(matrix: ChangedTables, driver: Started, *, rows: int = 0, live: bool = False) -> bool:
    """Whether the driver, which must run, has come so far by what `status` shows."""
    driver.check_running()
    try:
        report = matrix.report()
    except StateError:
        return False
    return report.rows >= rows and len(report.tables) == len(matrix.cases) and (
        not live or all(table.live for table in report.tables)
    )  # fmt: skip


def snapshot(matrix: ChangedTables, spark: SparkSession) -> None:
    matrix.use(limits=SLOW)
    total = len(matrix.cases) * ROWS
    with matrix.started("run") as driver:
        wait_for(lambda: is_reported(matrix, driver, rows=total // 8), "an eighth of the rows is read", seconds=240)
        matrix.copies_before = matrix.copies()
        for half in matrix.halves():
            matrix.change(half)
        kill(driver)


def catch_up(matrix: ChangedTables, spark: SparkSession) -> None:
    matrix.run("--until", "live", kill=f"after:CommitEpoch:{len(matrix.cases) + 1}")
    here = Here(matrix, spark)
    phases = {phase_of(table.run.coordinator.saved, running=True) for table in here.job.tables}
    here.store.release()
    assert JobPhase.CATCH_UP in phases, here.shown()
    matrix.copies_before = matrix.copies()
    matrix.change(list(matrix.cases))


def live(matrix: ChangedTables, spark: SparkSession) -> None:
    first, second = matrix.halves()
    with matrix.started("run") as driver:
        wait_for(lambda: is_reported(matrix, driver, live=True), "live", seconds=240)
        matrix.copies_before = matrix.copies()
        matrix.change(first)
        behind = [name for name in first if is_followed(matrix.cases[name])]

        def followed() -> bool:
            driver.check_running()
            behind[:] = [name for name in behind if is_behind(matrix, name)]
            return not behind

        wait_for(followed, "one half is followed", seconds=300, state=lambda: f"{behind} {driver.output.read_text()}")
        matrix.change(second)
        kill(driver)


def stopped(matrix: ChangedTables, spark: SparkSession) -> None:
    assert Here(matrix, spark).run() == {}
    matrix.copies_before = matrix.copies()
    matrix.change(list(matrix.cases))
    matrix.run("--until", "live", kill="after:ChangeSink:8")


def kill(driver: Started) -> None:
    driver.check_running()
    driver.send(signal.SIGKILL)
    driver.process.wait(60)


def is_behind(matrix: ChangedTables, name: str) -> bool:
    try:
        return bool(matrix.wrong_rows(name, whole=True))
    except DevkitError:
        # The key has another name there.
        return True


PHASES: dict[str, Meet] = {"snapshot": snapshot, "catch-up": catch_up, "live": live, "stopped": stopped}


@pytest.mark.parametrize(
    ("server", "phase"),
    [
        pytest.param(
            log, phase, marks=() if (*log, phase) in USUAL else pytest.mark.long, id=f"{'-'.join(log)}-{phase}"
        )
        for log in LOGS
        for phase in PHASES
    ],
    indirect=["server"],
)
@pytest.mark.timeout(1200)
def test_every_statement_has_its_effect_in_this_phase(matrix: ChangedTables, spark: SparkSession, phase: str) -> None:
    PHASES[phase](matrix, spark)
    matrix.use(limits={})
    here = Here(matrix, spark)
    here.run()
    assert wrongly_copied(matrix, here) == {}
    assert wrongly_ended(matrix, here) == {}
    after = matrix.copies()
    take_up(matrix, here)

    again = Here(matrix, spark)
    assert again.run() == {}
    assert again.job.aside == {}
    ended = {matrix.full_name(name): case.ended for name, case in matrix.cases.items() if case.ended}
    assert {name: how.partition(" at ")[0] for name, how in again.opened.ended.items()} == ended
    assert wrong_effects(matrix, again, after) == {}
    rows = {name: found[:5] for name in matrix.cases if (found := matrix.wrong_rows(name, whole=phase in WHOLE))}
    assert rows == {}
    assert matrix.written_meanwhile > 0


def is_followed(case: Change) -> bool:
    """Whether nobody has to do anything until the target has the table's rows."""
    return not (case.ended or case.aside or case.refused)


def wrongly_copied(matrix: ChangedTables, here: Here) -> dict[str, str]:
    """Tables whose new copy is refused, or not, against what is expected."""
    refused = {matrix.full_name(name): case.refused for name, case in matrix.cases.items() if case.refused}
    said = {name: str(error) for name, error in here.job.aside.items()}
    right = {name for name, reason in refused.items() if reason in said.get(name, "")}
    return {name: said.get(name, "copied") for name in {*refused, *said} - right}


def wrongly_ended(matrix: ChangedTables, here: Here) -> dict[str, str]:
    """Tables that are set aside, or not, against what is expected; the statement and its offset are named."""
    wrong: dict[str, str] = {}
    for name, case in matrix.cases.items():
        if matrix.full_name(name) in here.opened.ended:
            # The driver that was killed has seen the end.
            continue
        failure = here.table(name).run.failure
        if case.aside:
            statement = of_table(case.statements[-1], name)
            said = "" if failure is None else f"{failure.message} {failure.detail}"
            right = "the table is set aside at binlog." in said and case.aside in said and statement in said
        else:
            right, said = failure is None, str(failure)
        wrong |= {} if right else {name: said}
    return wrong


def take_up(matrix: ChangedTables, here: Here) -> None:
    """Carry out what the hint of each table that is set aside says, as it is printed, once the reason is gone."""
    printed = ending_lines(here.job.tables, here.job.aside)
    for name in (name for name, case in matrix.cases.items() if case.aside or case.refused):
        matrix.run_on(name, matrix.cases[name].fix)
        if matrix.cases[name].refused:
            # Nothing has to be asked for: the job meets the statement again.
            continue
        full = matrix.full_name(name)
        (told,) = (text for text in printed if text.startswith(f"{full}: "))
        assert carry_out(told.partition("hint: ")[2], matrix.config) == ["resnapshot", "--all", "--table", full]


def wrong_effects(matrix: ChangedTables, here: Here, after: dict[str, str]) -> dict[str, str]:
    """Tables that were copied again, or read, or whose statements were noted otherwise than is expected."""
    wrong = {}
    for name, case in matrix.cases.items():
        if not is_followed(case):
            continue
        table = here.table(name)
        copied = after[name] != matrix.copies_before[name]
        if case.copies is not None and copied != (case.copies > 1):
            wrong[name] = f"copied again: {copied}"
        if case.by_log and table.table.opened.plan.ranges:
            wrong[name] = "the new copy was read"
        effects = {note.effect for note in table.run.coordinator.saved.schema.notes}
        if case.effects is not None and effects != case.effects:
            wrong[name] = f"effects are {effects}"
    return wrong
