"""The offset before a statement holds the transactions that a sample of the server holds, and no others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from consume_upstream.log.batch import Transaction
from consume_upstream.log.continuity import check_log_goes_on
from consume_upstream.log.offset import CdcOffset
from consume_upstream.log.statement import FoundStatement, LogCut
from consume_upstream.mysql.connection import SourceAddress
from consume_upstream.mysql.known_table import KnownTable
from consume_upstream.mysql.positions import statements
from consume_upstream.mysql.positions.statements import found_statement
from consume_upstream.mysql.server import ServerIdentity
from tests.unit.progress.state.state_examples import DEFINITION

UUID = "11111111-2222-3333-4444-555555555555"
TABLE = KnownTable(SourceAddress("h", 3306, "u", "p"), DEFINITION, ServerIdentity("mysql", (8, 0, 33), "s"))


@dataclass
class Read:
    transactions: tuple[Transaction, ...]


def at(pos: int, executed: str) -> CdcOffset:
    return replace(CdcOffset.at("s", "binlog.000003", pos, gtids=f"{UUID}:{executed}"), log="known")


def found(sample: CdcOffset, monkeypatch: pytest.MonkeyPatch) -> FoundStatement:
    """Statement 4, met after transactions 2 and 3."""
    passed = tuple(Transaction(f"{UUID}:{number}", (3, number), (3, number + 1), 0) for number in (2, 3))
    monkeypatch.setattr(statements, "read_log", lambda *_, **__: iter([Read(passed)]))
    return found_statement(TABLE, at(100, "1"), sample, LogCut((3, 500), (3, 600), "ALTER", f"{UUID}:4"))


def test_offsets_hold_what_was_logged_where_all_of_it_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    statement = found(at(900, "1-9"), monkeypatch)
    assert (statement.before.gtids, statement.after.gtids) == (f"{UUID}:1-3", f"{UUID}:1-4")


@pytest.mark.parametrize("executed", ["1-2:4", "1-2"])
def test_transaction_that_is_logged_and_not_executed_is_not_part_of_it(
    monkeypatch: pytest.MonkeyPatch, executed: str
) -> None:
    """Transaction 3 waits for a replica's acknowledgement. A job that moves begins there, and meets the statement."""
    sample = at(900, executed)
    statement = found(sample, monkeypatch)
    assert (statement.before.gtids, statement.after.gtids) == (f"{UUID}:1-2", f"{UUID}:1-2")
    check_log_goes_on(statement.after, sample)
