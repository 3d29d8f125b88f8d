"""A live job whose table is changed by random statements between writes: every row of the target is compared.

A run has a hundred statements in bursts. The server takes a burst as fast as it can, so the job meets a short one
statement by statement or a few at once, and a long one when the server is far ahead. Then the test waits until the job
has followed, and gives the table one statement that must be carried over: a column is added, dropped, renamed or
widened. It has to be followed without a new copy, with its rows compared. In the middle of a burst the driver is killed
with -9 and run again.

The seed is printed; `SEED=… pytest -m long` repeats a run. Statements that the server refuses are passed over, and
others take their place. Some need a new copy, some empty the table, most are followed.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pymysql
import pytest

from consume_upstream.log.offset import CdcOffset
from devkit.mysql import MariaDbServer, MySqlServer, SqlServer
from devkit.waiting import wait_for
from tests.system.job_case import JobCase, Started, execute, fetch
from vnode_backfill.job.open.locations import state_store
from vnode_backfill.words.schema_change import AddColumn, DropColumn, RenameColumn, RetypeColumn

TYPES = ("INT", "BIGINT", "VARCHAR(20)", "VARCHAR(40)", "DECIMAL(8,2)", "DECIMAL(12,2)", "FLOAT", "DOUBLE", "DATE")
DEFAULTS = {"INT": "7", "BIGINT": "8", "VARCHAR(20)": "'new'", "VARCHAR(40)": "'newer'", "DECIMAL(8,2)": "1.25"}
WIDER = {"INT": "BIGINT", "VARCHAR(20)": "VARCHAR(40)", "DECIMAL(8,2)": "DECIMAL(12,2)", "FLOAT": "DOUBLE"}
CARRIED = {"add": AddColumn, "drop": DropColumn, "rename": RenameColumn, "widen": RetypeColumn}
"""What is carried over, by the step that the target takes for it."""
STATEMENTS, ROUNDS = 100, 8

Columns = dict[str, str]
"""The type of each column that is not the key, by its name."""


@pytest.fixture(params=["mysql-FULL", "mysql-MINIMAL", "mariadb-FULL", "mariadb-NO_LOG"])
def server(request: pytest.FixtureRequest) -> Iterator[SqlServer]:
    flavour, metadata = request.param.split("-")
    make = {"mysql": MySqlServer, "mariadb": MariaDbServer}[flavour]
    with make({"binlog-row-metadata": metadata}) as started:
        yield started


class RandomChanges:
    """Draws statements on the table `t` and writes by the columns that it has."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0
        self.killed_in = self._random.randrange(2, ROUNDS - 1)
        """The round in whose burst the driver is killed."""

    def bursts(self) -> list[int]:
        """How many statements come at once before each one that comes alone: a few or many, in turn."""
        short = [self._random.randint(1, 3) for _ in range(ROUNDS // 2)]
        left = STATEMENTS - ROUNDS - sum(short)
        return [few for at, each in enumerate(short) for few in (each, left * (at + 1) // 4 - left * at // 4)]

    def kinds(self) -> list[str]:
        """What comes alone in each round: all four twice, in any order."""
        found = [*CARRIED, *CARRIED]
        self._random.shuffle(found)
        return found

    def statement(self, columns: Columns) -> str:
        pick = self._random
        name, other, kind = self._name(), pick.choice(list(columns)), pick.choice(TYPES)
        place = self._place(columns)
        return pick.choice((
            f"ALTER TABLE t ADD {name} {kind}{self._default(kind)}{place}",
            f"ALTER TABLE t ADD {name} {kind}{place}, ADD INDEX i{self._number} ({other})",
            f"ALTER TABLE t DROP {other}",
            f"ALTER TABLE t CHANGE {other} {name} {kind}",
            f"ALTER TABLE t RENAME COLUMN {other} TO {name}",
            f"ALTER TABLE t MODIFY {other} {kind}{place}",
            f"CREATE INDEX i{self._number} ON t ({other})",
            f"ALTER TABLE t COMMENT = 'number {self._number}'",
            "ANALYZE TABLE t",
            "TRUNCATE TABLE t" if pick.random() < 0.2 else f"ALTER TABLE t ADD {name} {kind}",
        ))  # fmt: skip

    def carried(self, kind: str, columns: Columns) -> str:
        """A statement that is carried over when it comes alone. No two have one text."""
        pick, name, other = self._random, self._name(), self._random.choice(list(columns))
        match kind:
            case "add":
                added = pick.choice(TYPES)
                return f"ALTER TABLE t ADD {name} {added}{self._default(added)}{self._place(columns)}"
            case "drop":
                return f"ALTER TABLE t DROP {other}"
            case "rename":
                return f"ALTER TABLE t RENAME COLUMN {other} TO {name}"
            case _:
                wide = pick.choice([column for column, narrow in columns.items() if narrow in WIDER])
                return f"ALTER TABLE t MODIFY {wide} {WIDER[columns[wide]]} COMMENT '{name}'"

    def more_columns(self) -> str:
        return f"ALTER TABLE t ADD {self._name()} INT, ADD {self._name()} VARCHAR(20)"

    def writes(self, columns: Columns) -> list[str]:
        first, column = self._random.randrange(100_000), self._random.choice(list(columns))
        value = self._random.choice(("NULL", "'2024-02-29'" if columns[column] == "DATE" else f"id % 31 + {first % 7}"))
        keys = ", ".join(f"({first + number})" for number in range(5))
        return [
            f"INSERT IGNORE INTO t (id) VALUES {keys}",
            f"UPDATE IGNORE t SET {column} = {value} WHERE id % 11 = {first % 11}",
            f"DELETE FROM t WHERE id % 97 = {first % 97}",
        ]

    def _name(self) -> str:
        self._number += 1
        return f"c{self._number}"

    def _place(self, columns: Columns) -> str:
        return self._random.choice(("", " FIRST", f" AFTER {self._random.choice(list(columns))}"))

    def _default(self, kind: str) -> str:
        return f" NOT NULL DEFAULT {DEFAULTS[kind]}" if kind in DEFAULTS and self._random.random() < 0.5 else ""


@dataclass
class Followed:
    """What the job has done with statements. Its state forgets, so this is collected while a test waits."""

    case: JobCase
    copy: str = ""
    """The id of the copy that was seen last."""
    copies: set[str] = field(default_factory=set)
    effects: dict[CdcOffset, tuple[str, str]] = field(default_factory=dict)
    """The text and the effect of each statement, by its place in the log."""
    steps: dict[str, set[type]] = field(default_factory=dict)
    """The kinds of steps that the target took for a statement."""
    shown: str = ""

    def look(self) -> bool:
        """Whether the job is live and its target has followed all statements that it has met."""
        found = state_store(self.case.loaded_config()).load()
        if found is None:
            return False
        self.copy, schema = found.record.id, found.state.schema
        self.copies.add(self.copy)
        self.effects |= {note.at: (note.statement, note.effect) for note in schema.notes}
        self.steps |= {each.statement: {type(step) for step in each.steps} for each in schema.versions}
        self.shown = f"live {found.state.is_live}, {found.state.failure}, {schema.notes[-3:]}"
        return found.state.is_live and schema.pending is None

    def wait(self, driver: Started, what: str) -> None:
        """Until every row is in the target of a live job. A row written last says that the job has come so far."""

        def followed() -> bool:
            driver.check_running()
            return self.look() and self.case.differences() == [] and self.look()

        wait_for(
            followed, f"{what} is followed", seconds=240,
            state=lambda: f"{self.shown}\n{driver.output.read_text()[-4000:]}",
        )  # fmt: skip

    def effect_of(self, statement: str) -> str:
        """The effect of the one statement of this text."""
        (effect,) = (effect for text, effect in self.effects.values() if text == statement)
        return effect


def columns_of(case: JobCase) -> Columns:
    rows = fetch(case.server, case.database, "SHOW COLUMNS FROM t")
    types = {str(row[0]): str(row[1]).upper() for row in rows if row[0] != "id"}
    # MariaDB shows widths of numbers.
    return {name: kind.partition("(")[0] if "INT(" in kind else kind for name, kind in types.items()}


def tried(case: JobCase, statement: str) -> bool:
    """Whether the server has carried the statement out."""
    try:
        execute(case.server, case.database, "SET SESSION sql_mode = ''", statement)
    except pymysql.err.Error:
        return False
    return True


def burst(case: JobCase, changes: RandomChanges, statements: int) -> None:
    """Random statements with writes between them; afterwards the table has columns for each kind that is carried over."""
    done = 0
    while done < statements:
        columns = columns_of(case)
        if not columns:
            done += tried(case, changes.more_columns())
            continue
        for write in changes.writes(columns):
            tried(case, write)
        done += tried(case, changes.statement(columns))
    columns = columns_of(case)
    if len(columns) < 2 or not WIDER.keys() & set(columns.values()):
        tried(case, changes.more_columns())


def mark(case: JobCase, number: int) -> None:
    """A row that is in the target once the job has come to here."""
    execute(
        case.server, case.database, "SET SESSION sql_mode = ''", f"INSERT INTO t (id) VALUES ({1_000_000 + number})"
    )


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_random_statements_between_writes_leave_no_difference(server: SqlServer, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(10**6)))
    print(f"seed {seed}")
    execute(
        server, None, "CREATE DATABASE randomly", "CREATE TABLE randomly.t (id INT PRIMARY KEY, a INT, b VARCHAR(20))",
        "INSERT INTO randomly.t VALUES (1, 1, 'one'), (2, 2, 'two'), (50000, NULL, NULL)",
    )  # fmt: skip
    case = JobCase(server, tmp_path, "randomly", "t", settings={"dropped_columns": "drop"})
    changes, followed, alone = RandomChanges(seed), Followed(case), dict[str, str]()
    with ExitStack() as drivers:
        driver = drivers.enter_context(case.started("run"))
        followed.wait(driver, "the table as it was")
        for number, (statements, kind) in enumerate(zip(changes.bursts(), changes.kinds(), strict=True)):
            burst(case, changes, statements // 2)
            if number == changes.killed_in:
                driver.check_running()
                driver.send(signal.SIGKILL)
                driver.process.wait(60)
            burst(case, changes, statements - statements // 2)
            mark(case, 2 * number)
            if number == changes.killed_in:
                driver = drivers.enter_context(case.started("run"))
            followed.wait(driver, f"burst {number}")

            copy, columns = followed.copy, columns_of(case)
            statement = changes.carried(kind, columns)
            assert tried(case, statement), statement
            for write in changes.writes(columns_of(case)):
                tried(case, write)
            mark(case, 2 * number + 1)
            followed.wait(driver, statement)
            alone[statement] = kind
            assert followed.copy == copy, f"seed {seed}: the table was copied again for {statement}"
        driver.send(signal.SIGTERM)
        driver.wait(0)
    print(f"{len(followed.copies)} copies, {Counter(effect for _, effect in followed.effects.values())}")
    effects = {statement: followed.effect_of(statement) for statement in alone}
    assert effects == dict.fromkeys(alone, "the columns follow"), f"seed {seed}"
    assert [text for text, kind in alone.items() if CARRIED[kind] not in followed.steps[text]] == [], f"seed {seed}"
    assert case.differences() == [], f"seed {seed}"
    case.command("verify")
