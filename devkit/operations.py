"""Holds what a workload did, as values, and the keys it believes to exist.

`replay` is the model a test compares the table with: with one writer, the rows before plus the committed operations
are the rows after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from devkit.orders import SqlValue

Row = Mapping[str, SqlValue]


class OpKind(StrEnum):
    """One change of one row, or of two for a swap."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    REKEY = "rekey"
    """The row gets `new_key`."""
    SWAP = "swap"
    """The rows of `key` and `new_key` exchange their keys within one transaction."""


@dataclass(frozen=True, slots=True)
class CommittedOp:
    """One committed operation; `transaction` counts from 1 and groups what was committed together."""

    transaction: int
    kind: OpKind
    key: int
    new_key: int | None = None
    values: tuple[tuple[str, SqlValue], ...] = ()
    """Column and value: all columns of an insert, the changed ones of an update."""


@dataclass(frozen=True, slots=True)
class WorkloadMix:
    """How often each kind of transaction is drawn, as weights."""

    insert: int = 300
    insert_in_gap: int = 100
    update: int = 380
    delete: int = 100
    rekey: int = 40
    swap: int = 30
    multi_row: int = 30
    large: int = 1
    rollback: int = 10
    savepoint: int = 9

    def names(self) -> tuple[str, ...]:
        return tuple(self.__dataclass_fields__)

    def weights(self) -> tuple[int, ...]:
        return tuple(int(getattr(self, name)) for name in self.names())


class KeySet:
    """A set of keys from which a random one is drawn in constant time, the same for the same history and seed."""

    def __init__(self, keys: Iterable[int]) -> None:
        self._keys = list(keys)
        self._places = {key: place for place, key in enumerate(self._keys)}
        self.low = min(self._keys, default=1)
        self.high = max(self._keys, default=0)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return key in self._places

    def draw(self, random: Random) -> int:
        return self._keys[random.randrange(len(self._keys))]

    def draw_gap(self, random: Random) -> int:
        """A key nobody has: between the others where there is room, else below all. Never 0, which MySQL renumbers."""
        for _ in range(32):
            key = random.randint(self.low, max(self.low, self.high))
            if key != 0 and key not in self._places:
                return key
        return self.low - 1 if self.low != 1 else -1

    def add(self, key: int) -> None:
        if key not in self._places:
            self._places[key] = len(self._keys)
            self._keys.append(key)
            self.low, self.high = min(self.low, key), max(self.high, key)

    def discard(self, key: int) -> None:
        place = self._places.pop(key, None)
        if place is None:
            return
        last = self._keys.pop()
        if last != key:
            self._keys[place] = last
            self._places[last] = place

    def apply(self, operation: CommittedOp) -> None:
        match operation.kind:
            case OpKind.INSERT:
                self.add(operation.key)
            case OpKind.DELETE:
                self.discard(operation.key)
            case OpKind.REKEY:
                self._move(operation.key, operation.new_key)
            case OpKind.UPDATE | OpKind.SWAP:
                pass

    def undo(self, operation: CommittedOp) -> None:
        match operation.kind:
            case OpKind.INSERT:
                self.discard(operation.key)
            case OpKind.DELETE:
                self.add(operation.key)
            case OpKind.REKEY:
                assert operation.new_key is not None
                self._move(operation.new_key, operation.key)
            case OpKind.UPDATE | OpKind.SWAP:
                pass

    def _move(self, old: int, new: int | None) -> None:
        assert new is not None
        self.discard(old)
        self.add(new)


def replay(rows: Mapping[int, Row], operations: Iterable[CommittedOp]) -> dict[int, Row]:
    """The rows after the operations; `rows` maps a key to its other columns."""
    model = dict(rows)
    for operation in operations:
        match operation.kind:
            case OpKind.INSERT:
                model[operation.key] = dict(operation.values)
            case OpKind.UPDATE:
                model[operation.key] = {**model[operation.key], **dict(operation.values)}
            case OpKind.DELETE:
                del model[operation.key]
            case OpKind.REKEY:
                assert operation.new_key is not None
                model[operation.new_key] = model.pop(operation.key)
            case OpKind.SWAP:
                assert operation.new_key is not None
                first, second = operation.key, operation.new_key
                model[first], model[second] = model[second], model[first]
    return model
