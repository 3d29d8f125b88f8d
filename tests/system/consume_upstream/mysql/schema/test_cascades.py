"""The tables whose changes reach a table through foreign keys are found, and stay known when the server forgets them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consume_upstream.log.cascade import CascadingParent
from consume_upstream.log.statement import MetStatements
from consume_upstream.mysql.schema.cascades import ancestors
from consume_upstream.mysql.table import MySqlTable
from devkit.mysql import SqlServer
from tests.system.consume_upstream.mysql.test_server_questions import address_of
from tests.system.job_case import execute
from vnode_backfill.job.open.begin import ChangedMeanwhileError, check_unchanged
from vnode_backfill.words.errors import PlanRefusedError
from vnode_backfill.words.schema_change import NewCopy

TABLES = (
    "CREATE TABLE `my ``root` (Id INT PRIMARY KEY, code INT NOT NULL UNIQUE)",
    (
        "CREATE TABLE parent (id INT PRIMARY KEY, r INT, CONSTRAINT p FOREIGN KEY (r) REFERENCES `my ``root` (ID) "
        "ON DELETE SET NULL)"
    ),
    (
        "CREATE TABLE t (id INT PRIMARY KEY, p INT, up INT, other INT, "
        "CONSTRAINT a FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE ON UPDATE CASCADE, "
        "CONSTRAINT b FOREIGN KEY (up) REFERENCES t (id) ON DELETE CASCADE, "
        "CONSTRAINT c FOREIGN KEY (other) REFERENCES plain (id))"
    ),
)


@pytest.fixture
def table(source_server: SqlServer, database: str) -> MySqlTable:
    execute(source_server, database, "CREATE TABLE plain (id INT PRIMARY KEY)", *TABLES)
    return replace(MySqlTable.open(address_of(source_server), database, "t"), follows_parents=True)


def shown(parents: tuple[CascadingParent, ...]) -> list[tuple[str, bool, tuple[str, ...]]]:
    return [(parent.definition.table, parent.on_delete, parent.on_update) for parent in parents]


FOUND = [("my `root", True, ()), ("parent", True, ("id",)), ("t", True, ())]


def test_every_table_on_the_way_is_found_with_its_rules(
    table: MySqlTable, source_server: SqlServer, database: str
) -> None:
    assert shown(table.with_parents().parents) == FOUND
    assert shown(replace(table, follows_parents=False).with_parents().parents) == []
    execute(source_server, database, "ALTER TABLE parent DROP FOREIGN KEY p")
    execute(
        source_server, database, "ALTER TABLE parent ADD CONSTRAINT q FOREIGN KEY (r) REFERENCES `my ``root` (code) "
        "ON UPDATE CASCADE",
    )  # fmt: skip
    assert shown(table.with_parents().parents)[0] == ("my `root", False, ("code",))


def test_stored_parents_stay_when_the_server_has_others_or_none(
    table: MySqlTable, source_server: SqlServer, database: str
) -> None:
    stored = table.with_parents().parents
    execute(source_server, database, "ALTER TABLE parent DROP FOREIGN KEY p", "ALTER TABLE t DROP FOREIGN KEY a")
    assert shown(table.with_parents().parents) == FOUND[2:]
    assert shown(table.with_known_parents(stored).parents) == FOUND
    execute(
        source_server, database, "RENAME TABLE parent TO elsewhere",
        "ALTER TABLE t ADD CONSTRAINT d FOREIGN KEY (p) REFERENCES elsewhere (id) ON UPDATE CASCADE",
    )  # fmt: skip
    now = table.with_known_parents(stored).parents
    assert shown(now) == [("elsewhere", False, ("id",)), *FOUND]
    execute(source_server, database, "DROP TABLE t")
    assert table.with_known_parents(stored).parents == stored


def test_a_parent_that_cannot_be_described_is_refused_by_name(
    table: MySqlTable, source_server: SqlServer, database: str
) -> None:
    with source_server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION foreign_key_checks = 0")
        cursor.execute("DROP TABLE parent")
    with pytest.raises(PlanRefusedError, match=f"{database}.parent"):
        table.with_parents()
    with table.connect() as connection:
        found = ancestors(connection, database, "t")
    assert {name: bool(fault) for (_, name), fault in found.items()} == {"parent": True, "t": False}


def test_a_foreign_key_that_changes_between_the_parents_and_the_first_offset_is_noticed(
    table: MySqlTable, source_server: SqlServer, database: str
) -> None:
    known = table.with_parents()
    check_unchanged(known)
    execute(source_server, database, "ALTER TABLE parent DROP FOREIGN KEY p")
    with pytest.raises(ChangedMeanwhileError, match="foreign keys"):
        check_unchanged(known)


def test_a_key_that_begins_to_cascade_is_a_new_copy_where_parents_are_looked_at(
    table: MySqlTable, source_server: SqlServer, database: str
) -> None:
    before, met = table.written_offset(), MetStatements()
    execute(source_server, database, "ALTER TABLE t DROP FOREIGN KEY c")
    execute(source_server, database, "ALTER TABLE t ADD FOREIGN KEY (other) REFERENCES plain (id) ON DELETE CASCADE")
    after = table.written_offset()
    assert [len(batch) for batch in table.read_log(before, after, 0, met)] in ([], [0])
    assert met.cut is not None
    outcome = table.effect_of(table.found_statement(before, after, met.cut))
    assert outcome is not None
    assert isinstance(outcome.effect, NewCopy)
