"""A CREATE in the middle of a transaction is one whose rows follow: the table is not empty after it."""

from __future__ import annotations

from consume_upstream.log.offset import CdcOffset
from consume_upstream.mysql.binlog.events import Statement
from consume_upstream.mysql.binlog.route import POSITION
from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.positions.logged_statements import CollectsStatements, open_look
from consume_upstream.mysql.server import ServerIdentity
from consume_upstream.mysql.statements.effect import Effect
from consume_upstream.mysql.statements.table_actions import TableCame
from tests.unit.progress.state.state_examples import DEFINITION

NAME = f"`{DEFINITION.database}`.`{DEFINITION.table}`"


def collected(*, in_transaction: bool, era: int = 0) -> CollectsStatements:
    table = KnownTable(
        SourceAddress("h", 3306, "u", "p"), DEFINITION, ServerIdentity("mysql", (8, 0, 33), "s"), era=era
    )
    (judge,), _ = open_look([(table, CdcOffset.at("s", "binlog.000003", 400, era=era))], folds=False)
    if in_transaction:
        judge.place.begin_transaction()
    judge.place.state[POSITION] += 100
    statement = Statement("", f"CREATE TABLE {NAME} (id INT PRIMARY KEY)".encode())
    judge.refuse_statement(Effect.SCHEMA, statement)
    return judge


def test_create_of_its_own_leaves_an_empty_table() -> None:
    (found,) = collected(in_transaction=False).found
    assert found.actions == (TableCame("created", empty=True),)


def test_create_in_a_transaction_may_bring_rows() -> None:
    (found,) = collected(in_transaction=True).found
    assert found.actions == (TableCame("created"),)


def test_place_of_a_statement_is_of_the_jobs_own_log() -> None:
    (found,) = collected(in_transaction=False, era=2).found
    assert (found.at.end[0] >> 32, found.at.end[0] & 0xFFFFFFFF) == (2, 3)
