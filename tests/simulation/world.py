"""Holds what survives a crash in a simulated run (sink, buffer, checkpoints, plan) and checks what each must never do.

Every effect is keyed by an application id and an epoch, as in production: a repeated one changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from consume_upstream.log.offset import CdcOffset, LoggedTransaction, VisibleAt
from consume_upstream.log.statement import FoundStatement
from progress.state.backfill_state import BackfillState
from tests.simulation.source import Row, Statement, Table
from vnode_backfill.words.change import ChangeOp
from vnode_backfill.words.epoch import Epoch
from vnode_backfill.words.key_range import SplitPlan


class WrongError(AssertionError):
    """The simulated job did something it must never do."""


@dataclass(frozen=True, slots=True)
class BufferedChange:
    """A change in the buffer; `vnode` is where it was stored, a hint for layout only."""

    key: int
    op: ChangeOp
    value: Row
    offset: CdcOffset
    row: int
    half: int
    vnode: int
    epoch: Epoch = Epoch(0)

    @property
    def order(self) -> tuple[int, int, int, int]:
        return (*self.offset.order, self.row, self.half)


@dataclass(frozen=True, slots=True)
class BufferReceipt:
    """What a buffer commit says of itself, so that a recovery that finds it landed knows what it held."""

    visible: VisibleAt
    missing: tuple[LoggedTransaction, ...]
    kept: int
    cut: FoundStatement | None = None
    passed: tuple[FoundStatement, ...] = ()
    cascaded: CdcOffset | None = None


@dataclass(frozen=True, slots=True)
class ReadReceipt:
    ordinal: int
    rows: tuple[tuple[int, Row], ...]


@dataclass
class ModelSink:
    """Rows and landed transactions. Appending a key that is there already is the duplicate row Delta would show."""

    rows: Table = field(default_factory=dict)
    landed: dict[tuple[str, int], tuple[ReadReceipt, ...]] = field(default_factory=dict)
    applied: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    columns: int | None = None
    """How many each row must have; any number where no statement is ever followed."""
    followed: list[int] = field(default_factory=list)
    """The versions it was changed to."""

    def change(self, version: int, statement: Statement) -> None:
        """Follow a statement, once per version."""
        if version in self.followed:
            return
        if statement.kind == "truncate":
            self.applied.clear()
        self.rows = {key: statement.carried_out(row) for key, row in self.rows.items() if statement.leaves(row)}
        if self.columns is not None:
            self.columns = {"add": 2, "drop": 1}.get(statement.kind, self.columns)
        self.followed.append(version)

    def _take(self, key: int, row: Row) -> None:
        if self.columns not in (None, len(row)):
            raise WrongError(f"row {row} of key {key} in a target of {self.columns} columns")
        self.rows[key] = row

    def append(self, app: str, epoch: Epoch, receipts: tuple[ReadReceipt, ...]) -> tuple[ReadReceipt, ...]:
        """Returns what the sink holds of this epoch: if it had landed before, what landed then."""
        if (app, epoch) in self.landed or not receipts:
            return self.landed.get((app, epoch), ())
        for receipt in receipts:
            for key, value in receipt.rows:
                if key in self.rows:
                    raise WrongError(f"row {key} of range {receipt.ordinal} appended twice in epoch {epoch}")
                self._take(key, value)
        self.landed[app, epoch] = receipts
        return receipts

    def replace(
        self, app: str, epoch: Epoch, receipts: tuple[ReadReceipt, ...], held: dict[int, frozenset[int]]
    ) -> tuple[ReadReceipt, ...]:
        """Each range's rows become exactly the rows read; `held` are the keys each range may hold."""
        if (app, epoch) in self.landed or not receipts:
            return self.landed.get((app, epoch), ())
        for receipt in receipts:
            for key in held[receipt.ordinal]:
                self.rows.pop(key, None)
            for key, value in receipt.rows:
                self._take(key, value)
        self.landed[app, epoch] = receipts
        return receipts

    def merge(self, app: str, epoch: Epoch, changes: list[BufferedChange]) -> None:
        if (app, epoch) in self.landed:
            return
        for change in changes:
            if self.applied.get(change.key, (0, 0, 0, 0)) > change.order:
                raise WrongError(f"key {change.key}: {change.offset} applied after {self.applied[change.key]}")
            self.applied[change.key] = change.order
            if change.op is ChangeOp.DELETE:
                self.rows.pop(change.key, None)
            else:
                self._take(change.key, change.value)
        self.landed[app, epoch] = ()


@dataclass
class ModelStore:
    """Checkpoints, the plan's generations, and the buffer."""

    states: list[BackfillState] = field(default_factory=list)
    plans: dict[int, SplitPlan] = field(default_factory=dict)
    buffer: list[BufferedChange] = field(default_factory=list)
    buffered: dict[tuple[str, int], BufferReceipt] = field(default_factory=dict)

    @property
    def state(self) -> BackfillState:
        return self.states[-1]

    def commit(self, state: BackfillState) -> None:
        if self.states and state.revision <= self.state.revision:
            if state != self.state:
                raise WrongError(f"revision {state.revision} committed twice with different content")
            return
        self.states.append(state)

    def append(self, app: str, epoch: Epoch, changes: list[BufferedChange], receipt: BufferReceipt) -> None:
        if (app, epoch) not in self.buffered:
            self.buffer.extend(changes)
            self.buffered[app, epoch] = receipt

    def trim(self, upto: CdcOffset) -> None:
        self.buffer = [change for change in self.buffer if change.offset > upto]
