"""What tables order together: nothing of an attempt that has failed begins beside the next one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from consume_upstream.log.offset import CdcOffset, VisibleAt
from progress.state.backfill_state import BackfillState, Failure
from progress.state.parked import ParkedDocument
from progress.store.tables_store import TablesStore
from tests.unit.decide.coordinated_job import LOST, PLAN, held_in_epoch_one, live_job
from tests.unit.progress.state.state_examples import at
from vnode_backfill.config.job import Config
from vnode_backfill.decide.next_epoch import Sample
from vnode_backfill.decide.protocol import BufferChanges, CommitEpoch, ReadRanges, RestartEpoch, Sampled, SampleSource
from vnode_backfill.job.run.driver_tools import DriverTools
from vnode_backfill.job.run.performer import Answer
from vnode_backfill.job.run.services import Committed
from vnode_backfill.job.tables.order import Order
from vnode_backfill.job.tables.parked_tables import Missed
from vnode_backfill.job.tables.running_table import RunningTable
from vnode_backfill.job.tables.shared_work import SharedWork, cut_of
from vnode_backfill.words.epoch import Epoch


class Begun:
    """A store, a target and a Spark that only say what was begun."""

    def __init__(self) -> None:
        self.works: list[str] = []
        self.context = None

    def parked(self) -> None:
        return None

    def commit_together(self, _commits: object, _cut: object, parked: object) -> dict[str, object]:
        self.works.append("commit" if parked is None else "commit with what rests")
        return {}

    def run(self, actor: object, *_: object) -> list[object]:
        self.works.append(str(actor))
        return []

    def perform(self, action: object, _: object) -> None:
        self.works.append(type(action).__name__)

    def written_offset(self, last: CdcOffset) -> CdcOffset:
        self.works.append("ask")
        self.asked()
        return replace(last, pos=last.pos + 100)

    def visible_offset(self) -> VisibleAt:
        return VisibleAt(live_job().state.written)

    def asked(self) -> None:
        """Called whenever the source is asked how far it has written."""


@pytest.fixture
def begun() -> Begun:
    return Begun()


@pytest.fixture
def shared(begun: Begun) -> Iterator[SharedWork]:
    second = timedelta(seconds=1)
    epoch = SimpleNamespace(live=second, backfill=second, cut=None, lag=None)
    config = SimpleNamespace(epoch=epoch, limits=SimpleNamespace(log_readers=2))
    tools = SimpleNamespace(spark=begun, source=begun)
    made = SharedWork(cast(Config, config), cast(TablesStore, begun), cast(DriverTools, tools), lambda: None)
    yield made
    made.close()


def table_of(state: BackfillState, begun: Begun) -> RunningTable:
    run = SimpleNamespace(has_stopped=False, failure=None, coordinator=SimpleNamespace(saved=state))
    sink = SimpleNamespace(version=lambda: 7)
    table = SimpleNamespace(
        name="a", run=run, performer=begun, captured=state.written, is_soon_done=False, is_at_rest=False,
        services=SimpleNamespace(sink=sink), left_out_because="?",
        table=SimpleNamespace(opened=SimpleNamespace(record=SimpleNamespace(sink="delta"))),
    )  # fmt: skip
    return cast(RunningTable, _Hashable(table))


class _Hashable:
    def __init__(self, of: SimpleNamespace) -> None:
        self.__dict__.update(vars(of))


def test_what_nobody_has_begun_of_a_failed_attempt_is_left_out(shared: SharedWork, begun: Begun) -> None:
    job = held_in_epoch_one(ReadRanges, BufferChanges)
    table, committed = table_of(job.state, begun), Committed(job.state, PLAN)
    for order in (*job.held, CommitEpoch(job.state)):
        shared.carry_out(table, order, committed)
    shared.carry_out(table, RestartEpoch(1, LOST), committed)
    shared.begin([table])
    shared.close()
    assert begun.works == ["RestartEpoch"]


def test_table_that_fails_with_a_commit_is_not_part_of_its_cut(begun: Begun) -> None:
    """It keeps its intent: the merge may have landed, so that the target is beyond the offset of its state."""
    state = live_job().state
    failed = replace(state, failure=Failure(Epoch(1), "x"))
    table = table_of(state, begun)
    made = cut_of([table], {"a": state}, datetime.now(UTC))
    assert made is not None
    assert set(made.targets) == {"a"}
    assert cut_of([table], {"a": failed}, datetime.now(UTC)) is None


def test_table_that_cannot_rest_is_told_why_and_the_others_are_given_their_sample(
    shared: SharedWork, begun: Begun
) -> None:
    """Otherwise it would wait for a sample for ever."""
    state = live_job().state
    table = table_of(state, begun)
    told: list[BaseException] = []
    vars(table)["barriers"] = SimpleNamespace(notify_failure=lambda _actor, _attempt, error: told.append(error))
    asks = Order(table, SampleSource(idle=True, ticket=1), Committed(state, PLAN))
    shared._rest(asks)
    assert [type(error) for error in told] == [AttributeError]


def test_a_cut_says_of_a_table_that_fails_with_its_commit_why_it_is_left_out(begun: Begun) -> None:
    """Nobody has told the running table yet: what it says of itself is another reason."""
    state = live_job().state
    well, failing = table_of(state, begun), table_of(state, begun)
    vars(failing)["name"] = "b"
    made = cut_of(
        [well, failing], {"a": state, "b": replace(state, failure=Failure(Epoch(1), "wrong"))}, datetime.now(UTC)
    )
    assert made is not None
    assert (set(made.targets), made.left_out) == ({"a"}, {"b": "wrong"})


def test_a_cut_takes_tables_as_they_were_committed_though_nobody_has_told_them(begun: Begun) -> None:
    """The next commit may begin right after one, before the loop has heard of it: two tables that stop one after the
    other are a cut, and a table that has become live is not left out."""
    state = live_job().state
    assert state.intent is None
    first, last = table_of(state, begun), table_of(state, begun)
    vars(first).update(name="b", is_at_rest=False)
    states, now = {"a": state}, datetime.now(UTC)
    assert cut_of([first, last], states, now) is None
    made = cut_of([first, last], states, now, {first: replace(state, revision=state.revision + 1)})
    assert made is not None
    assert set(made.targets) == {"a", "b"}
    job = held_in_epoch_one(ReadRanges, BufferChanges)
    assert not job.state.is_live
    vars(first)["run"] = SimpleNamespace(has_stopped=False, failure=None, coordinator=SimpleNamespace(saved=job.state))
    works = replace(state, revision=state.revision + 1, intent=job.state.intent)
    assert cut_of([first, last], states, now, {first: works}) is None


def test_what_an_ended_table_has_committed_does_not_count_for_the_one_of_its_name(begun: Begun) -> None:
    """The table that was opened again has an epoch under way, so its target may be beyond the offset of the cut."""
    state = live_job().state
    ended, again, other = table_of(state, begun), table_of(state, begun), table_of(state, begun)
    vars(ended).update(name="b")
    vars(again).update(name="b", is_at_rest=False)
    untold = {ended: replace(state, revision=state.revision + 1)}
    assert cut_of([again, other], {"a": state}, datetime.now(UTC), untold) is None


def test_what_a_commit_says_counts_for_a_cut_until_the_table_was_told(shared: SharedWork, begun: Begun) -> None:
    state = live_job().state
    committed = replace(state, revision=state.revision + 1)
    table = table_of(state, begun)
    vars(table).update(barriers=SimpleNamespace(tell=lambda _: None), performer=SimpleNamespace(orders=None))
    vars(table.services).update(store=None, sink=SimpleNamespace(version=lambda: 7, is_beside=False))
    shared._commit([Order(table, CommitEpoch(committed), Committed(state, PLAN))])
    assert shared._untold() == {table: committed}
    vars(table)["run"] = SimpleNamespace(coordinator=SimpleNamespace(saved=committed))
    assert shared._untold() == {}
    vars(table)["run"] = SimpleNamespace(coordinator=SimpleNamespace(saved=state))
    shared.forget(table)
    assert shared._untold() == {}


def test_a_new_copy_that_is_beside_the_old_one_is_not_part_of_a_cut(shared: SharedWork, begun: Begun) -> None:
    """The target that readers know is still the old one."""
    state = live_job().state
    table, sink = table_of(state, begun), SimpleNamespace(is_beside=True, put_in_place=lambda: None)
    vars(table)["performer"] = SimpleNamespace(orders=SimpleNamespace(begin=lambda *_, **__: None))
    vars(table)["barriers"] = SimpleNamespace(tell=lambda _: None)
    vars(table.services).update(store=None, sink=sink)
    order = Order(table, CommitEpoch(replace(state, revision=state.revision + 1)), Committed(state, PLAN))
    shared._commit([order])
    assert shared._untold() == {}


def test_table_that_has_ended_does_not_rest(shared: SharedWork, begun: Begun) -> None:
    """Another one may have its name by now, and would be counted as the one that rests."""
    state = live_job().state
    table = table_of(state, begun)
    rests = cast(Callable[[object, object], object], lambda *_: SimpleNamespace(state=state))
    vars(table)["performer"] = SimpleNamespace(peek_order=rests)
    asks = Order(table, SampleSource(idle=True, ticket=1), Committed(state, PLAN))
    vars(table.run)["has_stopped"] = True
    shared._rest(asks)
    assert not shared._parked
    vars(table.run)["has_stopped"] = False
    shared._rest(asks)
    assert table.name in shared._parked


class Told:
    """Tables that ask for a sample, and what each is told.

    `asking` is called while the source is asked for a table, and `telling` before a table is told.
    """

    def __init__(self, shared: SharedWork, begun: Begun, *names: str) -> None:
        self.told: list[str] = []
        self.ends: list[CdcOffset | None] = []
        self.slice_ends: dict[str, CdcOffset] = {}
        self.asking: Callable[[str], None] = lambda _: None
        self.telling: Callable[[str], None] = lambda _: None
        state = live_job().state
        for name in names:
            table = table_of(state, begun)
            performer = SimpleNamespace(
                seen=SimpleNamespace(moved_at=0.0), pace=SimpleNamespace(lengthened=1), presses=lambda _: True,
                sample_of=partial(self._sample, name), orders=SimpleNamespace(follow=lambda _: None),
                slice_end=partial(self._slice_end, name),
            )  # fmt: skip
            barriers = SimpleNamespace(tell=partial(self._tell, name), notify_failure=self._failed)
            vars(table).update(
                name=name, performer=performer, barriers=barriers, may_settle=lambda **_: False, unread=lambda: None
            )
            shared.carry_out(table, SampleSource(idle=False, ticket=1), Committed(state, PLAN))

    def _slice_end(self, name: str, *_: object) -> CdcOffset | None:
        return self.slice_ends.get(name)

    def _sample(self, name: str, _: object, answer: Answer, **__: object) -> Sample:
        self.asking(name)
        return Sample(answer.written, answer.visible, 1, slice_end=answer.slice_end)

    def _tell(self, name: str, event: Sampled) -> None:
        self.telling(name)
        self.told.append(name)
        self.ends.append(event.sample.slice_end)

    def _failed(self, _actor: object, _attempt: object, error: BaseException) -> None:
        raise error


@pytest.mark.parametrize("for_a_cut", [False, True])
def test_an_answer_that_was_asked_for_before_all_were_to_stop_is_asked_for_again(
    shared: SharedWork, begun: Begun, for_a_cut: bool
) -> None:
    """A table that was at work then would be given a later one, and the two would end at two offsets.

    A cut does not wait for all of them, as a stop does.
    """
    tables = Told(shared, begun, "a", "b")
    vars(begun)["asked"] = lambda: setattr(shared, "stopping", True)
    shared._sample(together=for_a_cut, stopping=False)
    assert (begun.works, tables.told) == (["ask"], [])
    shared._sample(together=True, stopping=True)
    assert (begun.works, tables.told) == (["ask", "ask"], ["a", "b"])


def test_a_table_that_ends_while_it_waits_is_not_asked_for_again(shared: SharedWork, begun: Begun) -> None:
    """A new copy with its name would not be waited for: its place would be taken."""
    tables = Told(shared, begun, "a", "b")
    ended = shared._asking["a"].table

    def stop() -> None:
        shared.stopping = True
        vars(ended.run)["has_stopped"] = True

    vars(begun)["asked"] = stop
    shared._sample(together=False, stopping=False)
    assert tables.told == []
    assert list(shared._asking) == ["b"]


def test_all_are_given_a_sample_before_the_first_of_them_hears_of_a_stop(shared: SharedWork, begun: Begun) -> None:
    """One that hears of the stop first ends at that sample, and others at the next one."""

    def stop() -> None:
        with shared.telling:
            tables.told.append("stop")

    def stop_meanwhile(name: str) -> None:
        if name == "b":
            stopping.start()
            stopping.join(0.3)

    tables, stopping = Told(shared, begun, "a", "b", "c"), threading.Thread(target=stop)
    tables.telling = stop_meanwhile
    shared._sample(together=False, stopping=False)
    stopping.join()
    assert tables.told == ["a", "b", "c", "stop"]


def test_a_stop_does_not_wait_while_the_source_is_asked(shared: SharedWork, begun: Begun) -> None:
    """The driver's loop asks tables to stop, and the source may not answer for as long as its time-out."""

    def stopped() -> None:
        with shared.telling:
            shared.stopping = True

    def stop(_: str) -> None:
        loop = threading.Thread(target=stopped, daemon=True)
        loop.start()
        loop.join(5)
        waited.append(loop.is_alive())

    waited: list[bool] = []
    tables = Told(shared, begun, "a", "b")
    tables.asking = stop
    shared._sample(together=False, stopping=False)
    assert waited == [False, False]
    assert tables.told == []
    tables.asking = lambda _: None
    shared._sample(together=True, stopping=True)
    assert tables.told == ["a", "b"]


def test_a_sample_that_was_missed_is_not_asked_for_in_the_loop(shared: SharedWork, begun: Begun) -> None:
    """The loop carries orders out: it must not wait for the source."""
    tables, threads = Told(shared, begun, "a"), list[str]()
    tables.asking = lambda _: threads.append(threading.current_thread().name)
    order = shared._asking.pop("a")
    missed = Missed(order.committed.state.written, VisibleAt(order.committed.state.written))
    vars(shared._parked)["missed"] = lambda _: missed
    vars(shared)["_is_due"] = lambda *_, **__: False
    shared.carry_out(order.table, order.action, order.committed)
    assert tables.told == []
    shared.begin([])
    shared._busy["missed"].result()
    assert tables.told == ["a"]
    assert [name.startswith("shared") for name in threads] == [True]


def test_a_table_that_has_missed_a_sample_stops_with_the_others(shared: SharedWork, begun: Begun) -> None:
    tables = Told(shared, begun, "a")
    order = shared._asking.pop("a")
    tables.asking = lambda _: setattr(shared, "stopping", True)
    written = order.committed.state.written
    shared._give_missed([(order, Missed(written, VisibleAt(written)))])
    assert tables.told == []
    assert shared._asking == {"a": order}


@pytest.mark.parametrize(
    ("ends", "told"), [((200, 200), (200, 200)), ((200, 300), (None, None)), ((200,), (None, None))]
)
def test_tables_stop_at_the_end_of_a_slice_that_is_the_same_for_all(
    shared: SharedWork, begun: Begun, ends: tuple[int, ...], told: tuple[int | None, ...]
) -> None:
    tables = Told(shared, begun, "a", "b")
    tables.slice_ends = dict(zip("ab", map(at, ends), strict=False))
    shared.stopping = True
    shared._sample(together=True, stopping=True)
    assert tables.ends == [None if end is None else at(end) for end in told]


def test_tables_that_do_not_stop_have_slices_of_their_own(shared: SharedWork, begun: Begun) -> None:
    tables = Told(shared, begun, "a", "b")
    tables.slice_ends = {"a": at(200), "b": at(300)}
    shared._sample(together=False, stopping=False)
    assert tables.ends == [at(200), at(300)]


def test_a_stop_that_comes_while_tables_rest_waits_until_they_were_woken(shared: SharedWork, begun: Begun) -> None:
    """Those that ask would be told of an offset that the others, which are woken next, do not end at."""
    tables = Told(shared, begun, "a")

    def due(*_: object, **seen: bool) -> bool:
        # As if somebody asked all tables to stop right after it was looked at.
        assert seen == {"stopping": False, "together": False}
        shared.stopping = True
        return True

    vars(shared)["_is_due"] = due
    shared.begin([])
    shared._busy["sample"].result()
    assert (begun.works, tables.told) == (["ask"], [])


def test_commits_that_follow_each_other_say_now_and_then_how_far_tables_are_that_rest(
    shared: SharedWork, begun: Begun
) -> None:
    """Where commits come all the time nothing else would ever store it."""
    state = live_job().state
    table = table_of(state, begun)
    vars(table)["services"] = SimpleNamespace(store=None, sink=SimpleNamespace(is_beside=False))
    vars(table)["barriers"] = SimpleNamespace(tell=lambda _: None)
    vars(table)["performer"] = SimpleNamespace(orders=None)
    order = Order(table, CommitEpoch(state), Committed(state, PLAN))
    vars(shared._parked)["document"] = lambda *_: ParkedDocument("[]")
    shared._parked_at -= 60
    noted_at = shared._parked_at
    shared._commit([order])
    shared._commit([order])
    assert shared._parked_at > noted_at
    shared._parked_at = noted_at
    shared._commit([order])
    assert begun.works == ["commit with what rests", "commit", "commit with what rests"]
    shared._parked_at = noted = time.monotonic()
    shared._commit([order])
    assert shared._parked_at == noted
