"""Reports on an imaginary job at any point of its life, made from real states by the real `report_of`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from consume_upstream.log.offset import CdcOffset, VisibleAt
from progress.state.backfill_state import BackfillState, Phase, Request, RequestKind, VnodeState, new_state
from progress.state.estimates import Estimates
from progress.state.make_report import report_of
from progress.state.report import AskedRequest, Observed, Report, Subject
from vnode_backfill.words.bitmap import reassign, split_evenly
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key import KeyKind, KeyPart, VnodeId
from vnode_backfill.words.key_range import SplitPlan, bound_of
from vnode_backfill.words.plan import make_plan

SUBJECT = Subject("orders", "shop.orders", "s3://lake/shop/orders")
SERVER = "5f2c7a31-0b1e-11ef-9c1a-0242ac120002"
RUNNING = Observed(driver="etl-3 (pid 4711)")
_KEY = KeyPart("id", KeyKind.INT)


def offset(number: int, pos: int = 4) -> CdcOffset:
    return CdcOffset.at(SERVER, f"binlog.{number:06d}", pos)


def plan_of(vnodes: int, ranges: int, rows: int = 15_600) -> SplitPlan:
    """As many ranges of about `rows` rows over an integer key."""
    cuts = [(bound_of((_KEY,), (number * rows,)), rows) for number in range(ranges)]
    return make_plan((_KEY,), (*cuts, (bound_of((_KEY,), (ranges * rows,)), 0)), vnodes)


class ImaginaryJob:
    """A job over a plan; `at(share)` is its state when that share of each worker's ranges is read."""

    def __init__(self, vnodes: int = 256, ranges: int = 1240, workers: int = 4, rescaled: int = 0) -> None:
        """`rescaled` is the number of workers it was spread over later."""
        self.plan = plan_of(vnodes, ranges)
        self.estimates = Estimates.of(self.plan)
        assignment = split_evenly(vnodes, workers)
        assignment = reassign(assignment, rescaled) if rescaled else assignment
        self.start = new_state(VisibleAt(offset(417, 9_120_443)), self.plan, assignment)

    def at(self, share: float, *, epoch: int = 41, just_read: int = 7) -> BackfillState:
        """Of each worker's complete vnodes, the `just_read` read last still wait for their first merge."""
        reached = offset(419, 21_873_204)
        vnodes = list(self.start.vnodes)
        for bitmap in self.start.assignment:
            ranges = [(vnode, planned.ordinal) for vnode in bitmap for planned in self.plan.of_vnode(vnode)]
            read = {ordinal for _, ordinal in ranges[: round(share * len(ranges))]}
            done = [vnode for vnode in bitmap if self._read(vnode) <= read]
            late = set(done[len(done) - just_read :]) if share < 1 else set()
            for vnode in bitmap:
                vnodes[vnode] = self._vnode(vnodes[vnode], read, Epoch(epoch), None if vnode in late else reached)
        written = offset(419, 22_114_870)
        return replace(self.start, revision=epoch + 6, epoch=Epoch(epoch), written=written, vnodes=tuple(vnodes))

    def live(self, *, epoch: int = 214) -> BackfillState:
        return self.at(1.0, epoch=epoch)

    def report(self, state: BackfillState | None, observed: Observed = RUNNING, at_least: float = 0.0) -> Report:
        return report_of(SUBJECT, self.estimates, state, observed, at_least=at_least)

    def _read(self, vnode: VnodeId) -> set[int]:
        return {planned.ordinal for planned in self.plan.of_vnode(vnode)}

    def _vnode(self, start: VnodeState, read: Iterable[int], epoch: Epoch, merged: CdcOffset | None) -> VnodeState:
        mine = sorted(self._read(start.vnode) & set(read))
        complete = len(mine) == len(self._read(start.vnode))
        if not mine and not complete:
            return start
        if complete and merged is not None:
            phase, applied = Phase.LIVE, merged
        else:
            phase, applied = (Phase.CATCH_UP if complete else Phase.SNAPSHOT), start.applied
        rows = sum(15_000 + ordinal * 7919 % 1200 for ordinal in mine)
        return replace(
            start, phase=phase, applied=applied, epoch=epoch, rows=rows, reads=tuple((each, Epoch(0)) for each in mine),
            complete=Epoch(0) if complete else None,
        )  # fmt: skip


def asked(number: int, kind: RequestKind, when: datetime, who: str = "maria") -> AskedRequest:
    return AskedRequest(Request(number, kind), who, "bastion-1", when)
