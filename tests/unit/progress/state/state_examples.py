"""Plans, states and offsets for the tests of what is decided and what is stored, by hand and by Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from consume_upstream.log.gtid import GtidSet
from consume_upstream.log.offset import CdcOffset, LoggedTransaction, Visibility, VisibleAt, VisibleGtids
from progress.state.backfill_state import (
    MOST_ROWS_PER_SECOND,
    Acknowledgement,
    BackfillState,
    Controls,
    Failure,
    Intent,
    Phase,
    VnodeState,
    new_state,
)
from vnode_backfill.words.bitmap import VnodeBitmap, split_evenly
from vnode_backfill.words.columns import Column, TableDefinition
from vnode_backfill.words.epoch import BarrierKind, Epoch
from vnode_backfill.words.key import KeyKind, KeyPart, VnodeId
from vnode_backfill.words.key_range import SplitPlan, bound_of, plan_of

SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
PARTS = (KeyPart("id", KeyKind.INT),)
DEFINITION = TableDefinition(
    "shop",
    "orders",
    (Column.parse("id", "bigint(20)", nullable=False), Column.parse("note", "varchar(20)", nullable=True)),
    ("id",),
)


def at(pos: int, *, number: int = 1, gtids: str = "") -> CdcOffset:
    return CdcOffset(SERVER, "binlog", number, pos, gtids)


def plan_with(*bounds: int, vnode_count: int = 4, rows: int = 10) -> SplitPlan:
    """Ranges between the given keys, each estimated to hold `rows` rows."""
    return plan_of(PARTS, tuple((bound_of(PARTS, (key,)), rows) for key in bounds), vnode_count)


def beginning(plan: SplitPlan, workers: int = 1, pos: int = 100) -> BackfillState:
    return new_state(VisibleAt(at(pos)), plan, split_evenly(plan.vnode_count, workers))


texts = st.text(max_size=20)
counts = st.integers(min_value=0, max_value=2**53)
rates = st.integers(min_value=0, max_value=MOST_ROWS_PER_SECOND)
small = st.integers(min_value=0, max_value=9)
epochs = small.map(Epoch)
gtid_sets = st.lists(st.integers(min_value=1, max_value=30), max_size=8).map(
    lambda numbers: GtidSet.parse(",".join(f"{SERVER}:{number}" for number in numbers))
)
offsets = st.builds(
    CdcOffset,
    st.sampled_from([SERVER, "17"]),
    st.sampled_from(["binlog", "mysql-bin", "a.b c"]),
    st.integers(min_value=1, max_value=2_000_000),
    counts,
    st.one_of(st.just(""), gtid_sets.map(str)),
)
visibilities: st.SearchStrategy[Visibility] = st.one_of(offsets.map(VisibleAt), gtid_sets.map(VisibleGtids))
intents = st.builds(
    Intent,
    epochs,
    st.sampled_from(BarrierKind),
    offsets,
    visibilities,
    st.lists(st.lists(counts, max_size=4).map(tuple), max_size=4).map(tuple),
    small,
    st.booleans(),
)
reads = st.lists(st.tuples(st.integers(min_value=0, max_value=40), epochs), max_size=12, unique_by=lambda pair: pair[0])


def vnode_states(vnode: int) -> st.SearchStrategy[VnodeState]:
    return st.builds(
        VnodeState,
        st.just(VnodeId(vnode)),
        st.sampled_from(Phase),
        offsets,
        epochs,
        reads.map(tuple),
        counts,
        st.none() | epochs,
        st.frozensets(counts, max_size=4),
        st.none() | offsets,
    )


def bitmaps(vnode_count: int) -> st.SearchStrategy[tuple[VnodeBitmap, ...]]:
    """Any disjoint and complete assignment, workers without vnodes included."""
    owners = st.lists(st.integers(min_value=0, max_value=4), min_size=vnode_count, max_size=vnode_count)
    return owners.map(
        lambda owned: tuple(
            VnodeBitmap.of([v for v, owner in enumerate(owned) if owner == worker], vnode_count) for worker in range(5)
        )
    )


@st.composite
def states(draw: st.DrawFn) -> BackfillState:
    """Any state whatever that could be stored, whether or not a job can reach it."""
    vnode_count = draw(st.integers(min_value=1, max_value=6))
    return BackfillState(
        revision=draw(counts),
        epoch=draw(epochs),
        written=draw(offsets),
        visible=tuple(draw(st.lists(st.tuples(epochs, offsets.map(VisibleAt)), max_size=4))),
        vnodes=tuple(draw(vnode_states(vnode)) for vnode in range(vnode_count)),
        assignment=draw(bitmaps(vnode_count)),
        intent=draw(st.none() | intents),
        missing=tuple(draw(st.lists(st.builds(LoggedTransaction, texts, offsets), max_size=3))),
        changed=draw(st.none() | offsets),
        plan_generation=draw(small),
        assignment_generation=draw(small),
        controls=draw(
            st.builds(Controls, st.booleans(), st.none() | rates, st.sampled_from(["", "binlog.000042:1234"]))
        ),
        acknowledged=tuple(draw(st.lists(st.builds(Acknowledgement, counts, epochs, texts), max_size=3))),
        failure=draw(st.none() | st.builds(Failure, epochs, texts, texts, texts)),
        stopped=draw(st.booleans()),
    )
