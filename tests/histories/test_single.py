"""The single executor loses and repeats nothing, compares no keys, and keeps its state in one row of schema v1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from consume_upstream.log.offset import CdcOffset, VisibleAt
from consume_upstream.mark import MarkView
from consume_upstream.mysql.rows.key_walk import check_walkable, cursor_of, select_behind
from progress.state.backfill_state import (
    MOST_ROWS_PER_SECOND,
    BackfillState,
    Controls,
    Failure,
    Intent,
    Phase,
    Request,
    RequestKind,
    new_state,
)
from progress.state.walk_state import WHOLE_KEY, Walk, walk_plan
from progress.store.rows.walk_rows import WALK_SCHEMA, _document
from progress.store.store import JobRecord, StateStore
from progress.store.walk_store import SingleStore, store_of
from tests.histories.walk_simulation import WalkDriver, WalkSimulation
from tests.simulation.actors import Steps
from tests.simulation.world import BufferedChange, ReadReceipt, WrongError
from tests.unit.progress.state.state_examples import DEFINITION, at
from tests.unit.progress.store.state_folder import MINUTE, Clock, create, record
from vnode_backfill.decide.protocol import CommitReceipts, RangesRead, ReadRanges
from vnode_backfill.words.bitmap import split_evenly
from vnode_backfill.words.change import Mark
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.errors import FencedError, KeyOrderError, LawBrokenError, PlanRefusedError, StateError
from vnode_backfill.words.key_range import SplitPlan

PLAN = walk_plan(("id",), 100)
RECORD = replace(record(), executor="single", vnode_count=1, format_version=1)


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_walk_equals_its_source_through_any_history_of_crashes(first: int) -> None:
    for seed in range(first, first + 20):
        WalkSimulation(seed).run()


class ReadsLandedStretchAgain(WalkDriver):
    """Sabotage: what landed before a crash is not looked for; the append is skipped, but the cursor follows the new
    read."""

    def landed(self, epoch: Epoch) -> tuple[ReadReceipt, ...] | None:  # noqa: ARG002
        return None

    def commit_receipts(self, action: CommitReceipts) -> Steps:
        read, ended = self.read, self.ended
        for event in super().commit_receipts(action):
            self.read, self.ended = read, ended
            yield event


class DropsWhatComesLater(WalkDriver):
    """Sabotage: changes ahead of the cursor are dropped, although a stretch may have read them already."""

    def kept(
        self, after: CdcOffset, intent: Intent, plan: SplitPlan, view: MarkView
    ) -> list[tuple[BufferedChange, Mark]]:
        ahead = set(self.behind(self.walks.walks[-1].last_key))
        return [pair for pair in super().kept(after, intent, plan, view) if pair[0].key not in ahead]


class EndsAtAnyStretch(WalkDriver):
    """Sabotage: a stretch that was given up counts as the end of the table."""

    def read_ranges(self, action: ReadRanges) -> Steps:
        for event in super().read_ranges(action):
            self.ended = bool(self.read)
            yield replace(event, receipts=self.receipts()) if isinstance(event, RangesRead) else event


class CutsThroughATransaction(WalkDriver):
    """Sabotage: a boundary has a row, so only the first change of a transaction that ends on its changes is at or below
    its end."""

    def is_due(self, change: BufferedChange, applied: CdcOffset, upto: CdcOffset) -> bool:
        return (*applied.order, 0) < (*change.offset.order, change.row) <= (*upto.order, 0)


SABOTAGED = (ReadsLandedStretchAgain, DropsWhatComesLater, EndsAtAnyStretch, CutsThroughATransaction)


@pytest.mark.parametrize("sabotaged", SABOTAGED)
def test_simulation_catches_a_driver_that_breaks_the_rules(sabotaged: type[WalkDriver]) -> None:
    assert any(_fails(WalkSimulation(seed, make_driver=sabotaged)) for seed in range(60))


def _fails(simulation: WalkSimulation) -> bool:
    try:
        simulation.run()
    except WrongError:
        return True
    return False


def test_every_key_is_outside_a_walks_plan_and_in_its_one_vnode() -> None:
    positions, vnodes = PLAN.vnodes_of([pa.array(["b", "a", "č"])])
    assert (positions.tolist(), vnodes.tolist()) == ([-1, -1, -1], [0, 0, 0])
    assert PLAN.at(7) is PLAN
    with pytest.raises(LawBrokenError, match="cannot be extended"):
        PLAN.extend()


def test_cursor_moves_on_with_rows_only() -> None:
    walk = Walk(Epoch(3), (5,), 10, 100)
    assert walk.advanced(Epoch(4), (9,), 4) == Walk(Epoch(4), (9,), 14, 100)
    assert walk.advanced(Epoch(4), None, 0) == Walk(Epoch(4), (5,), 10, 100)
    with pytest.raises(LawBrokenError, match="cannot follow"):
        walk.advanced(Epoch(3), (9,), 4)


def table(*columns: tuple[str, str], charset: str = "", collation: str = "") -> TableDefinition:
    """A table whose key is all its columns."""
    parsed = [Column.parse(name, kind, nullable=False, charset=charset, collation=collation) for name, kind in columns]
    return TableDefinition("shop", "things", tuple(parsed), tuple(name for name, _ in columns))


@pytest.mark.parametrize(
    ("kind", "value", "cursor"),
    [
        ("enum('z','a')", "a", 2),
        ("enum('z','a')", "", 0),
        ("set('z','a','m')", "z,m", 5),
        ("set('z','a','m')", "", 0),
        ("bit(1)", True, 1),
        ("bit(12)", b"\x0f\x01", 0x0F01),
        ("time(3)", "-10:00:00.500", "-10:00:00.500"),
        ("double", 0.1, "0.1"),
        ("bigint unsigned", Decimal(2**64 - 1), 2**64 - 1),
        ("decimal(65,2)", "1.50", Decimal("1.50")),
        ("varbinary(9)", b"\x00", b"\x00"),
    ],
)
def test_cursor_is_the_last_key_as_the_server_compares_it(kind: str, value: object, cursor: object) -> None:
    definition = table(("k", kind))
    column = pa.array([value, value], definition.columns[0].arrow_type)
    assert cursor_of(definition, pa.table({"k": column})) == (cursor,)


def test_cursor_without_a_value_stops_the_walk() -> None:
    with pytest.raises(KeyOrderError, match="from which a walk cannot continue"):
        cursor_of(table(("k", "date")), pa.table({"k": pa.array([None], pa.date32())}))


def test_stretch_is_asked_for_in_the_order_of_the_index() -> None:
    query = select_behind(table(("e", "enum('z','a')"), ("at", "time(3)")), "PRIMARY", (2, "20:00:00.000"), 5)
    assert query.text == (
        "SELECT `e`, CAST(`at` AS CHAR) AS `at` FROM `shop`.`things` FORCE INDEX (`PRIMARY`) "
        "WHERE ((`e` > ?) OR (`e` = ? AND `at` > ?)) ORDER BY `shop`.`things`.`e`, `shop`.`things`.`at` LIMIT 5"
    )
    assert query.parameters == (2, 2, "20:00:00.000")


def test_text_is_compared_under_its_own_collation() -> None:
    definition = table(("name", "varchar(9)"), charset="latin2", collation="latin2_czech_cs")
    text = select_behind(definition, "PRIMARY", ("ch",), 5).text
    assert "`name` > CONVERT(? USING latin2) COLLATE latin2_czech_cs" in text


@pytest.mark.parametrize(
    "kind", ["enum('','a')", "enum('?','a','?')", "json", f"set({','.join(repr(str(n)) for n in range(64))})"]
)
def test_key_that_cannot_be_walked_exactly_is_refused(kind: str) -> None:
    with pytest.raises(PlanRefusedError, match="cannot be walked exactly"):
        check_walkable(table(("k", kind)))


OpenSingle = Callable[[], SingleStore]


@pytest.fixture
def open_single(tmp_path: Path) -> OpenSingle:
    clock = Clock()
    return lambda: SingleStore(str(tmp_path), "orders", now=clock)


def begun(store: SingleStore, stored: JobRecord = RECORD) -> BackfillState:
    state = new_state(VisibleAt(at(100)), PLAN, split_evenly(1, 1))
    store.create(stored, PLAN, state, store.acquire_lease("anna", MINUTE))
    return state


def ended(state: BackfillState, epoch: int, pos: int) -> BackfillState:
    """The next commit of a job whose walk goes on."""
    intent = Intent(Epoch(epoch + 1), BarrierKind.CHECKPOINT, at(pos + 50), VisibleAt(at(pos)), ((WHOLE_KEY,),), 0)
    return replace(
        state,
        revision=state.revision + 1,
        epoch=Epoch(epoch),
        written=at(pos),
        intent=intent,
        visible=((Epoch(epoch), VisibleAt(at(pos))),),
        vnodes=(replace(state.vnodes[0], phase=Phase.SNAPSHOT),),
    )


def test_state_is_one_row_of_version_one(open_single: OpenSingle) -> None:
    store = open_single()
    state = begun(store)
    store.walked(store.walk.advanced(Epoch(1), (71,), 40))
    store.commit(ended(state, 1, 200))
    (row,) = DeltaTable(f"{store.folder}/walk").to_pyarrow_table().to_pylist()
    assert {name: row[name] for name in ("version", "job", "last_key", "row_count", "finished")} == {
        "version": 1, "job": RECORD.id, "last_key": '[["int", "71"]]', "row_count": 40, "finished": False,
    }  # fmt: skip
    assert CdcOffset.from_json(row["offset"]) == at(200)


def test_another_driver_finds_state_and_cursor_as_they_were_committed(open_single: OpenSingle) -> None:
    store = open_single()
    state = ended(begun(store), 1, 200)
    store.walked(store.walk.advanced(Epoch(1), (71,), 40))
    store.commit(state)
    store.release()
    other = open_single()
    other.acquire_lease("bert", MINUTE)
    loaded, found = other.load(), other.stored()
    assert loaded is not None
    assert found is not None
    assert (loaded.state, loaded.record, loaded.plan) == (state, RECORD, PLAN)
    assert other.walk == found.walk == Walk(Epoch(1), (71,), 40, 100)


def test_cursor_of_an_epoch_that_failed_is_not_committed_with_the_reason(open_single: OpenSingle) -> None:
    store = open_single()
    state = begun(store)
    store.walked(store.walk.advanced(Epoch(1), (71,), 40))
    failed = replace(state, revision=1, failure=Failure(Epoch(0), "the source said no"))
    store.commit(failed)
    assert store.walk == Walk(Epoch(0), None, 0, 100)
    found = open_single().stored()
    assert found is not None
    assert (found.walk.last_key, found.state) == (None, failed)


def test_limit_of_an_earlier_release_that_no_server_takes_is_bounded(open_single: OpenSingle) -> None:
    store = open_single()
    store.commit(replace(ended(begun(store), 1, 200), controls=Controls(rows_per_second=10**400)))
    found = open_single().stored()
    assert found is not None
    assert found.state.controls == Controls(rows_per_second=MOST_ROWS_PER_SECOND)


@pytest.mark.parametrize("accepted", ["", "binlog.000042:1234"])
def test_accepted_statement_is_stored_only_where_there_is_one(open_single: OpenSingle, accepted: str) -> None:
    store = open_single()
    store.commit(replace(ended(begun(store), 1, 200), controls=Controls(accepted=accepted)))
    found = open_single().stored()
    assert found is not None
    assert found.state.controls.accepted == accepted
    assert ("accepted" in _document(found).model_dump_json(exclude_defaults=True)) is bool(accepted)


def test_epoch_that_merges_its_own_slice_has_no_place_in_the_fixed_form(open_single: OpenSingle) -> None:
    store = open_single()
    state = ended(begun(store), 1, 200)
    assert state.intent is not None
    with pytest.raises(LawBrokenError, match="no place for an epoch that merges its own slice"):
        store.commit(replace(state, intent=replace(state.intent, own_slice=True)))


def test_rows_behind_the_cursor_are_shown_as_read(open_single: OpenSingle) -> None:
    store = open_single()
    state = begun(store)
    store.walked(store.walk.advanced(Epoch(1), (71,), 40))
    store.commit(ended(state, 1, 200))
    snapshot = open_single().status_snapshot()
    assert snapshot is not None
    assert (snapshot.state.rows, snapshot.estimates.rows, snapshot.percent) == (40, {WHOLE_KEY: 60}, 38.81)


def test_driver_that_lost_its_lease_cannot_commit_a_cursor(open_single: OpenSingle) -> None:
    first, second = open_single(), open_single()
    state = begun(first)
    first.release()
    first.acquire_lease("anna", -MINUTE)
    second.acquire_lease("bert", MINUTE)
    with pytest.raises(FencedError, match="another driver took over"):
        first.commit(ended(state, 1, 200))


@pytest.mark.parametrize("kind", [RequestKind.RESCALE, RequestKind.RESNAPSHOT])
def test_request_that_makes_no_sense_for_a_walk_is_refused(open_single: OpenSingle, kind: RequestKind) -> None:
    begun(open_single())
    with pytest.raises(PlanRefusedError, match=f"cannot be asked to {kind}"):
        open_single().append_request(Request(0, kind, workers=2), "anna", "here")


def test_other_requests_reach_the_driver(open_single: OpenSingle) -> None:
    store = open_single()
    state = begun(store)
    number = open_single().append_request(Request(0, RequestKind.PAUSE), "bert", "there")
    assert [request.id for request in store.unacknowledged(state)] == [number]


def test_unknown_version_is_refused(open_single: OpenSingle) -> None:
    store = open_single()
    row = {"version": 5, "job": "x"}
    write_deltalake(f"{store.folder}/walk", pa.Table.from_pylist([row], schema=WALK_SCHEMA))
    with pytest.raises(StateError, match="has version 5, this program reads versions 1, 3 and 4"):
        store.load()


def test_job_is_found_whichever_executor_holds_it(tmp_path: Path, open_single: OpenSingle) -> None:
    def found(*, single: bool) -> type[StateStore]:
        return type(store_of(str(tmp_path), "orders", single=single))

    assert (found(single=False), found(single=True)) == (StateStore, SingleStore)
    begun(open_single())
    assert found(single=False) is SingleStore
    create(StateStore(str(tmp_path), "orders"))
    assert (found(single=False), found(single=True)) == (StateStore, StateStore)


def test_dropped_job_is_gone_and_can_be_created_again(open_single: OpenSingle) -> None:
    store = open_single()
    begun(store)
    store.drop("anna")
    assert not open_single().exists()
    begun(open_single(), replace(RECORD, id="another"))
    again = open_single().stored()
    assert again is not None
    assert again.record.id == "another"


def test_definition_travels_with_the_row(open_single: OpenSingle) -> None:
    begun(open_single())
    found = open_single().stored()
    assert found is not None
    assert found.record.definition == DEFINITION
