"""A beginning in the past is looked at before anything is written; one that now or a handoff proves is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import cast

import pytest

from consume_upstream.log.ahead import ChangingStatement, LogAhead
from consume_upstream.log.offset import CdcOffset
from consume_upstream.upstream_table import UpstreamTable
from vnode_backfill.config.job import Config
from vnode_backfill.decide.start_point import At, AtGtids, AtTime, Earliest, Latest, StartFrom, StartPlan
from vnode_backfill.job.open.begin import Beginning
from vnode_backfill.job.open.handoff import StoredHandoff
from vnode_backfill.job.open.past import followable, followed
from vnode_backfill.words.errors import PlanRefusedError

NOW = datetime(2026, 11, 20, tzinfo=UTC)
CONFIG = Config.model_validate({
    "job": "follow", "mysql": {"host": "h", "user": "u", "database": "shop", "table": "orders"},
    "sink": {"delta": {"path": "/lake"}}, "state": {"path": "/state"},
})  # fmt: skip


def at(pos: int) -> CdcOffset:
    return CdcOffset.at("s", "binlog.000007", pos)


CHANGED = ChangingStatement(at(300), at(400), "ALTER TABLE orders MODIFY e ENUM('b','a')", "Why.")
LAST = ChangingStatement(at(500), at(600), "ALTER TABLE orders ADD c INT", "Why not.")


@dataclass
class LookedAt:
    """A table whose log holds what a test says; `looks` are the offsets from which the log was read."""

    ahead: list[LogAhead] = field(default_factory=list)
    looks: list[list[CdcOffset]] = field(default_factory=list)

    def look_ahead(self, tables: Sequence[tuple[UpstreamTable, CdcOffset]]) -> list[LogAhead]:
        self.looks.append([first for _, first in tables])
        return self.ahead

    def identified(self, offset: CdcOffset) -> CdcOffset:
        return replace(offset, log="identity")

    @property
    def table(self) -> UpstreamTable:
        return cast("UpstreamTable", self)


def beginning(from_: StartFrom, handoff: StoredHandoff | None = None) -> Beginning:
    return Beginning(StartPlan(snapshot=False, from_=from_), at(200), at(4), handoff)


HANDOFF = StoredHandoff("copy", "id", "s", "shop.orders", "/lake", "fingerprint", at(200), NOW)
PAST = beginning(At(at(200)))


@pytest.mark.parametrize("from_", [At(at(200)), AtGtids("0-1-1"), AtTime(NOW), Earliest(at(4))])
def test_each_beginning_in_the_past_is_refused_by_a_statement_that_changes_the_table(from_: StartFrom) -> None:
    with pytest.raises(
        PlanRefusedError, match=r"shop\.orders may have been another table at binlog\.000007:200"
    ) as told:
        followable(CONFIG, LookedAt([LogAhead(at(200), (CHANGED,))]).table, beginning(from_))
    assert told.value.exit_code == 2
    assert f"the log at binlog.000007:300 holds {CHANGED.text}" in told.value.message
    assert told.value.detail.startswith("Why.")
    assert "startup_mode: specific, mysql.cdc.specific: {file: binlog.000007, pos: 400}" in told.value.hint
    assert "startup_mode: initial" in told.value.hint


def test_hint_names_the_point_after_the_last_statement() -> None:
    with pytest.raises(PlanRefusedError, match=r"binlog\.000007:300") as told:
        followable(CONFIG, LookedAt([LogAhead(at(200), (CHANGED, LAST))]).table, PAST)
    assert "Of 2 such statements the last is at binlog.000007:500." in told.value.detail
    assert "{file: binlog.000007, pos: 600}" in told.value.hint


def test_hint_names_no_point_where_rows_follow_in_the_transaction() -> None:
    with pytest.raises(PlanRefusedError) as told:
        followable(CONFIG, LookedAt([LogAhead(at(200), (replace(CHANGED, after=None),))]).table, PAST)
    assert told.value.hint == "Use mysql.cdc.startup_mode: initial (or snapshot), which copies the table."


def test_beginning_moves_behind_statements_before_the_first_rows_and_says_so() -> None:
    found = followable(CONFIG, LookedAt([LogAhead(at(250))]).table, PAST)
    assert (found.first, found.first.log) == (at(250), "identity")
    assert "passed over: the job begins at binlog.000007:250" in found.start.notes[0]


def test_beginning_with_nothing_behind_it_stays() -> None:
    assert followable(CONFIG, LookedAt([LogAhead(at(200))]).table, PAST) is PAST


@pytest.mark.parametrize("proved", [beginning(Latest()), beginning(At(at(200)), HANDOFF)])
def test_log_is_not_read_for_a_beginning_whose_definition_is_known(proved: Beginning) -> None:
    looked = LookedAt()
    assert followable(CONFIG, looked.table, proved) is proved
    assert looked.looks == []


def test_log_is_read_once_for_all_tables_and_refuses_only_those_that_it_changes() -> None:
    looked, now = LookedAt([LogAhead(at(200), (CHANGED,)), LogAhead(at(200))]), beginning(Latest())
    refused, known, kept = followed([(CONFIG, looked.table, each) for each in (PAST, now, PAST)])
    assert isinstance(refused, PlanRefusedError)
    assert (known, kept) == (now, PAST)
    assert looked.looks == [[at(200), at(200)]]
