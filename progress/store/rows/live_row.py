"""Writes the vnodes of a live table as one row, and reads them back.

Every vnode of a live table is at one offset, and what differs between them (rows, the epochs of reads) does not change
while the table is live. A job of many tables writes the rows of all its tables with every commit: 300 tables of 256
vnodes would be 76,800 rows. A table that is not live has a row per vnode, as a job of one table has.

Most tables are small, and most of their vnodes hold nothing. So a value is written once for all vnodes, and then for
those that have another one:

    row     table        document
    job     shop.orders  …
    live    shop.orders  {"applied": …, "vnodes": 256, "epoch": [41, {}], "rows": [0, {"7": 1200}], …}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from consume_upstream.log.offset import CdcOffset
from progress.state.backfill_state import BackfillState, Phase, VnodeState
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import VnodeId

__all__ = ["LIVE", "is_one_row", "live_document", "vnodes_of_live"]

LIVE = "live"
Runs = Callable[[Iterable[tuple[int, int]]], Iterator[tuple[int, int, int]]]


def is_one_row(state: BackfillState) -> bool:
    """Whether one row holds all that there is to say of the vnodes."""
    first = state.vnodes[0].applied
    return all(
        vnode.phase is Phase.LIVE
        and vnode.complete is not None
        and not vnode.replaces
        and vnode.floor is None
        and (vnode.applied is first or _same(vnode.applied, first))
        for vnode in state.vnodes
    )


def live_document(state: BackfillState, runs: Runs) -> str:
    """The vnodes as JSON. Demands that one row can hold them. `runs` are ranges in a row that were read together."""
    vnodes = state.vnodes
    return json.dumps(
        {
            "applied": vnodes[0].applied.to_json(),
            "vnodes": len(vnodes),
            "epoch": _short([vnode.epoch for vnode in vnodes]),
            "rows": _short([vnode.rows for vnode in vnodes]),
            "complete": _short([vnode.complete or 0 for vnode in vnodes]),
            "reads": {vnode.vnode: list(runs(vnode.reads)) for vnode in vnodes if vnode.reads},
        },
        separators=(",", ":"),
    )


def vnodes_of_live(document: str) -> Iterator[VnodeState]:
    """The vnodes that `live_document` wrote."""
    stored = json.loads(document)
    applied, count = CdcOffset.from_json(stored["applied"]), int(stored["vnodes"])
    columns = (_long(stored[name], count) for name in ("epoch", "rows", "complete"))
    reads = {int(vnode): _ranges(runs) for vnode, runs in stored["reads"].items()}
    for vnode, (epoch, rows, complete) in enumerate(zip(*columns, strict=True)):
        yield VnodeState(
            vnode=VnodeId(vnode),
            phase=Phase.LIVE,
            applied=applied,
            epoch=Epoch(epoch),
            reads=reads.get(vnode, ()),
            rows=rows,
            complete=Epoch(complete),
        )


def _ranges(runs: Iterable[Sequence[int]]) -> tuple[tuple[int, Epoch], ...]:
    return tuple((ordinal, Epoch(epoch)) for epoch, first, last in runs for ordinal in range(first, last + 1))


def _short(values: Sequence[int]) -> tuple[int, dict[int, int]]:
    """The number that most vnodes have, and those of the others."""
    most = Counter(values).most_common(1)[0][0]
    return most, {vnode: value for vnode, value in enumerate(values) if value != most}


def _long(stored: tuple[int, dict[str, int]], count: int) -> Sequence[int]:
    most, others = stored
    values = [most] * count
    for vnode, value in others.items():
        values[int(vnode)] = value
    return values


def _same(one: CdcOffset, other: CdcOffset) -> bool:
    """What travels along with an offset takes no part in its equality, and is stored too."""
    return one == other and one.gtids == other.gtids and one.log == other.log
