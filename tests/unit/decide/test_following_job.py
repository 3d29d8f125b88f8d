"""A job meets a statement: it asks what it did, merges up to it, lets the sink follow, or stops before it."""

from __future__ import annotations

import pytest

from consume_upstream.log.offset import VisibleAt
from progress.state.backfill_state import RequestKind
from progress.state.schema_state import StatementNote
from tests.unit.decide.coordinated_job import DAMAGED, PLAN, Job, kinds, live_job, only
from tests.unit.decide.statements import CARRIED, EMPTIED, statement
from tests.unit.progress.state.state_examples import DEFINITION, at
from vnode_backfill.decide.coordinator import Coordinator, Stage
from vnode_backfill.decide.protocol import (
    Action,
    ActorFailed,
    BufferChanges,
    ChangesBuffered,
    ChangeSink,
    CommitEpoch,
    CommitReceipts,
    MergeEpoch,
    RangesRead,
    ReadRanges,
    ReceiptsCommitted,
    ResolveStatement,
    RestartEpoch,
    SinkChanged,
    SinkNotChanged,
    Started,
    StateCommitted,
    StatementResolved,
    Stop,
)
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.errors import LawBrokenError, SinkError, SinkUnavailableError
from vnode_backfill.words.schema_change import (
    Carried,
    DropColumn,
    Ended,
    NewCopy,
    NoEffect,
    SetAside,
    StatementEffect,
)

FULL = SinkUnavailableError("full")


def met(effect: StatementEffect, *hold: type[Action]) -> tuple[Job, list[Action]]:
    """A live job at 100 whose log holds a statement at 150 and goes on to 200."""
    job = live_job()
    job.position, job.hold = 200, hold
    job.statements = {statement(150): effect}
    return job, job.sample()


def test_live_job_follows_a_statement_and_is_live_after_it() -> None:
    job, orders = met(CARRIED)
    assert only(orders, ResolveStatement).found == statement(150)
    assert only(orders, ChangeSink).version.number == 1
    assert job.state.schema.in_sink == 1
    assert job.state.is_live
    assert {v.applied for v in job.state.vnodes} == {at(200)}


def test_sink_is_ordered_to_follow_after_the_merge_up_to_the_statement_only() -> None:
    job, orders = met(CARRIED, ChangeSink)
    order = kinds(orders)
    upto = [action.upto for action in orders if isinstance(action, MergeEpoch)]
    assert at(150) in upto
    assert max(upto) == at(150)
    last_merge = max(place for place, kind in enumerate(order) if kind == "MergeEpoch")
    assert order.index("ChangeSink") > last_merge > order.index("ResolveStatement")
    assert not job.state.is_live
    assert job.state.schema.pending is not None


def test_sink_is_ordered_once_while_it_follows() -> None:
    job, _ = met(CARRIED, ChangeSink)
    for position in (300, 400, 500):
        job.position = position
        assert "ChangeSink" not in kinds(job.sample())
    assert job.state.written == at(500)
    assert {v.applied for v in job.state.vnodes} == {at(150)}


def test_two_statements_are_followed_one_after_the_other() -> None:
    job = live_job()
    job.position, job.hold = 300, (ChangeSink,)
    job.statements = {statement(150): CARRIED, statement(200): Carried(DEFINITION, (DropColumn("c"),))}
    job.sample()
    assert [v.number for v in job.state.schema.versions] == [1, 2]
    assert [order.version.number for order in job.orders if isinstance(order, ChangeSink)] == [1]
    assert {v.applied for v in job.state.vnodes} == {at(150)}
    job.happen(SinkChanged(1))
    assert {v.applied for v in job.state.vnodes} == {at(200)}
    assert [order.version.number for order in job.orders if isinstance(order, ChangeSink)] == [1, 2]
    job.happen(SinkChanged(2))
    assert job.state.is_live
    assert {v.applied for v in job.state.vnodes} == {at(300)}


def test_table_emptied_while_the_sink_follows_another_statement() -> None:
    job = live_job()
    job.position, job.hold = 300, (ChangeSink,)
    job.statements = {statement(150): CARRIED, statement(200, "TRUNCATE orders"): EMPTIED}
    job.sample()
    assert {v.applied for v in job.state.vnodes} == {at(210)}
    assert [order.version.number for order in job.orders if isinstance(order, ChangeSink)] == [1]
    job.happen(SinkChanged(1))
    assert [order.version.number for order in job.orders if isinstance(order, ChangeSink)] == [1, 2]
    assert {v.applied for v in job.state.vnodes} == {at(210)}, "nothing is merged before the sink is empty"
    job.happen(SinkChanged(2))
    assert job.state.is_live
    assert job.state.ranges == len(PLAN.ranges)


def test_stop_that_meets_a_statement_finds_out_what_it_did_and_captures_to_its_sample() -> None:
    job = live_job()
    job.position = 200
    job.statements = {statement(150): CARRIED}
    orders = job.ask(1, RequestKind.STOP)
    assert "ResolveStatement" in kinds(orders)
    assert only(orders, Stop) == Stop(None)
    assert job.state.stopped
    assert {v.applied for v in job.state.vnodes} == {at(150)}
    assert job.state.written == at(200)


def test_stop_does_not_wait_for_the_sink_to_follow() -> None:
    job, _ = met(CARRIED, ChangeSink)
    orders = job.ask(1, RequestKind.STOP)
    assert only(orders, Stop).failure is None
    assert job.state.schema.pending is not None


def test_new_copy_stops_the_job_before_the_statement_and_says_why() -> None:
    job, orders = met(NewCopy("charset"))
    assert only(orders, Stop) == Stop(None, NewCopy("charset"))
    assert job.state.stopped
    assert {v.applied for v in job.state.vnodes} == {at(150)}
    assert job.state.failure is None


def test_table_that_is_gone_ends_the_job_and_its_state_says_so() -> None:
    job, orders = met(Ended("dropped"))
    assert only(orders, Stop) == Stop(None, Ended("dropped"))
    assert job.state.schema.ended == f"dropped at {at(150)}"
    assert job.state.schema.notes[-1] == StatementNote(at(150), statement(150).text, "dropped")


def test_table_that_is_gone_ends_the_job_when_the_sink_has_followed_and_all_is_merged() -> None:
    job, _ = met(CARRIED, ChangeSink)
    gone = statement(250, "DROP TABLE orders")
    job.position, job.statements, job.hold = 300, {gone: Ended("dropped")}, (ChangeSink, ResolveStatement)
    only(job.sample(), ResolveStatement)
    assert only(job.happen(StatementResolved(gone, Ended("dropped"))), ResolveStatement).found == gone
    assert {v.applied for v in job.state.vnodes} == {at(150)}
    job.happen(SinkChanged(1))
    only(job.happen(StatementResolved(gone, Ended("dropped"))), ResolveStatement)
    job.hold = ()
    orders = job.happen(StatementResolved(gone, Ended("dropped")))
    assert only(orders, Stop) == Stop(None, Ended("dropped"))
    assert {v.applied for v in job.state.vnodes} == {at(250)}
    assert job.state.schema.ended == f"dropped at {at(250)}"


def test_other_endings_leave_no_word_of_an_end() -> None:
    assert met(NewCopy("charset"))[0].state.schema.ended == ""


def test_table_that_is_set_aside_has_failed_with_the_statement() -> None:
    job, orders = met(SetAside("nobody can say what it did"))
    failure = only(orders, Stop).failure
    assert failure is not None
    assert "set aside" in failure.message
    assert "nobody can say" in failure.message
    assert statement(150).text in failure.detail
    assert "resnapshot --all" in failure.hint
    assert job.state.failure == failure
    assert not job.state.stopped


def refused(job: Job) -> list[Action]:
    """The one read in progress ends with a range that the source would not read."""
    (read,) = (action for action in job.held if isinstance(action, ReadRanges))
    job.held.clear()
    return job.happen(RangesRead(read.barrier.epoch, (), read.barrier.attempt, "no column c"))


def test_refused_read_fails_the_job_when_the_next_stretch_of_the_log_does_not_explain_it() -> None:
    job = Job.new()
    job.hold = (ReadRanges,)
    job.happen(Started())
    assert "Stop" not in kinds(refused(job)), "the log up to a later sample may explain it"
    assert job.coordinator.refused == "no column c"
    assert "Stop" in kinds(refused(job))
    assert job.state.failure is not None
    assert "does not read the table by the columns" in job.state.failure.message
    assert "no column c" in job.state.failure.detail


@pytest.mark.parametrize("place", [150, 250])
def test_refused_read_is_explained_by_a_statement_of_its_epoch_or_of_the_next(place: int) -> None:
    job = Job.new()
    job.position, job.hold = 200, (ReadRanges,)
    job.statements = {statement(place): CARRIED}
    job.happen(Started())
    job.position = 300
    refused(job)
    if place > 200:
        assert job.coordinator.refused == "no column c"
        refused(job)
    assert job.coordinator.refused == ""
    job.hold = ()
    (read,) = (action for action in job.held if isinstance(action, ReadRanges))
    job.happen(RangesRead(read.barrier.epoch, ()))
    assert job.state.failure is None
    assert job.state.is_live


def test_sink_that_could_not_follow_is_ordered_again() -> None:
    job, _ = met(CARRIED, ChangeSink)
    orders = job.happen(SinkNotChanged(1, FULL))
    assert only(orders, RestartEpoch).cause is FULL
    assert only(orders, ChangeSink).version.number == 1
    job.happen(SinkChanged(1))
    assert job.state.is_live


def test_sink_that_cannot_follow_ends_the_job() -> None:
    job, _ = met(CARRIED, ChangeSink)
    orders = job.happen(SinkNotChanged(1, SinkError("the target has other columns")))
    failure = only(orders, Stop).failure
    assert failure is not None
    assert failure.message == "the target has other columns"
    assert job.state.failure == failure


def test_sink_that_fails_too_often_ends_the_job() -> None:
    job, _ = met(CARRIED, ChangeSink)
    for _ in range(job.coordinator.attempts_allowed):
        assert "ChangeSink" in kinds(job.happen(SinkNotChanged(1, FULL)))
    assert "Stop" in kinds(job.happen(SinkNotChanged(1, FULL)))
    assert job.state.failure is not None


def test_stale_report_of_a_sink_that_could_not_follow_does_not_count() -> None:
    job, _ = met(CARRIED)
    before = job.coordinator
    assert job.happen(SinkNotChanged(1, SinkError("late"))) == []
    assert job.coordinator == before


def test_next_driver_orders_the_sink_to_follow_again() -> None:
    job, _ = met(CARRIED, ChangeSink)
    again = Job(Coordinator(job.state, PLAN), position=200, hold=(ChangeSink,))
    assert only(again.happen(Started()), ChangeSink).version.number == 1
    again.happen(SinkChanged(1))
    assert again.state.is_live


def test_next_driver_orders_it_in_an_epoch_too() -> None:
    job, _ = met(CARRIED, ChangeSink)
    job.hold, job.position = (ChangeSink, BufferChanges), 300
    job.sample()
    again = Job(Coordinator(job.state, PLAN), position=300)
    assert only(again.happen(Started()), ChangeSink).version.number == 1
    assert again.state.is_live


def test_report_that_the_sink_has_followed_counts_in_the_middle_of_an_epoch() -> None:
    job, _ = met(CARRIED, ChangeSink)
    job.hold, job.position = (ChangeSink, BufferChanges), 300
    job.sample()
    assert job.happen(SinkChanged(1)) == []
    (buffer,) = (action for action in job.held if isinstance(action, BufferChanges))
    job.hold = ()
    job.happen(ChangesBuffered(buffer.barrier.epoch, VisibleAt(at(300)), (), 1))
    assert job.state.schema.in_sink == 1
    assert job.state.is_live


def test_statement_that_changes_nothing_leaves_a_live_job_live() -> None:
    job, orders = met(NoEffect())
    assert "ChangeSink" not in kinds(orders)
    assert job.state.is_live
    assert [note.effect for note in job.state.schema.notes] == ["none"]


def test_statements_that_were_passed_over_are_noted() -> None:
    job = live_job()
    job.position, job.hold = 200, (BufferChanges,)
    job.sample()
    (buffer,) = (action for action in job.held if isinstance(action, BufferChanges))
    job.hold = ()
    passed = (statement(150, "CREATE INDEX i ON orders (note)"),)
    job.happen(ChangesBuffered(buffer.barrier.epoch, VisibleAt(at(200)), (), 0, passed=passed))
    assert job.state.schema.notes == (StatementNote(at(150), passed[0].text, "none"),)


def test_request_to_stop_while_a_statement_is_looked_at_leaves_it_to_the_next_driver() -> None:
    job, orders = met(CARRIED, ResolveStatement)
    found = only(orders, ResolveStatement).found
    job.ask(1, RequestKind.STOP)
    again = only(job.happen(StatementResolved(found, None)), ResolveStatement)
    job.happen(StatementResolved(again.found, None))
    assert job.state.stopped
    assert job.state.schema.versions == ()
    assert job.state.written == at(150)


def test_report_of_receipts_of_another_epoch_is_refused_while_a_statement_is_looked_at() -> None:
    job, _ = met(CARRIED, ResolveStatement)
    with pytest.raises(LawBrokenError, match="stage resolving cannot receive"):
        job.happen(ReceiptsCommitted(Epoch(1), ()))


def test_commit_that_follows_the_sink_is_made_though_nothing_else_happened() -> None:
    """The statement is all that the log holds."""
    job = live_job()
    job.position, job.kept, job.hold = 200, 0, (ChangeSink,)
    job.statements = {statement(190): CARRIED}
    job.sample()
    epoch = job.state.epoch
    orders = job.happen(SinkChanged(1))
    assert only(orders, CommitEpoch).state.schema.in_sink == 1
    assert job.state.epoch == epoch
    assert job.state.is_live


def test_failure_of_the_sink_does_not_keep_a_reason_from_being_stored() -> None:
    """The job is ending with a reason already; what the sink says then is not about the commit of it."""
    job, _ = met(CARRIED, ChangeSink)
    job.hold = (CommitEpoch,)
    job.happen(ActorFailed(DAMAGED))
    assert job.stage is Stage.FAILING
    assert job.happen(SinkNotChanged(1, SinkError("other columns"))) == []
    (commit,) = (action for action in job.held if isinstance(action, CommitEpoch))
    orders = job.happen(StateCommitted(commit.state.revision))
    assert only(orders, Stop).failure == job.state.failure
    assert job.state.failure is not None
    assert job.state.failure.message == DAMAGED.message


def test_stop_at_a_statement_reads_again_what_was_read_near_it() -> None:
    job = Job.new()
    job.position, job.hold = 200, (CommitReceipts,)
    job.statements = {statement(150): CARRIED}
    job.happen(Started())
    (commit,) = (action for action in job.held if isinstance(action, CommitReceipts))
    job.ask(1, RequestKind.STOP)
    job.hold = ()
    job.happen(ReceiptsCommitted(commit.barrier.epoch, commit.receipts))
    assert job.state.stopped
    assert job.state.written == at(200)
    assert job.state.ranges == 0
    assert frozenset(o for v in job.state.vnodes for o in v.replaces) == {r.ordinal for r in PLAN.ranges}


def test_plan_is_not_extended_while_the_sink_follows() -> None:
    job, _ = met(CARRIED, ChangeSink)
    assert "ExtendPlan" not in kinds(job.ask(1, RequestKind.RESNAPSHOT, extend=True, vnodes=frozenset({0})))
    job.position = 300
    assert "ExtendPlan" not in kinds(job.sample())
    assert "ExtendPlan" in kinds(job.happen(SinkChanged(1)))
    assert [answer.request for answer in job.state.acknowledged] == [1]


def test_copying_job_gets_on_while_every_epoch_passes_over_an_index() -> None:
    job = Job.new()
    job.passes, job.rows_per_worker = True, 1
    job.happen(Started())
    reads = [
        ordinal for order in job.orders if isinstance(order, ReadRanges) for lane in order.lanes for ordinal in lane
    ]
    assert sorted(reads) == sorted(planned.ordinal for planned in PLAN.ranges), "each range is read once"
    assert job.state.is_live
    assert job.state.schema.notes[-1].effect == "none"
    assert "ResolveStatement" not in kinds(job.orders)
