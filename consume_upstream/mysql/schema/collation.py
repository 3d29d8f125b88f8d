"""Asks the server for its own sort keys of text, so that the client can order keys as the server does.

Characters are never compared here: `WEIGHT_STRING` gives bytes whose order is the collation's order. Two kinds:

- A collation that does not pad (`NO PAD`): the weights of the value as they are. A prefix sorts first.
- A collation that pads (`PAD SPACE`, where 'a' = 'a ' and 'a' > 'a<tab>'): the weights of the value padded with spaces
  to a fixed number of characters, twice the column's length, because one character can have several weights (ß as ss).
  MariaDB pads and cuts the *weights* to that number; MySQL pads the *characters*, so that the weights' number varies
  and is evened out here by adding or taking away weights of the space, which changes nothing in such a collation.

A value whose weights do not fit even so cannot be ordered exactly and is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pymysql.connections import Connection

from consume_upstream.mysql import sql
from consume_upstream.mysql.server import ask
from vnode_backfill.words.columns import Column, Kind, TableDefinition
from vnode_backfill.words.errors import KeyOrderError
from vnode_backfill.words.key import Key
from vnode_backfill.words.key_range import Bound, bound_of

__all__ = ["Weights", "collation_keys", "order_bounds", "unorderable"]

Weights = tuple[bytes | None, ...]
"""One weight string per key column; None where the client compares the values themselves."""

_VALUES_PER_QUESTION = 200


@dataclass(frozen=True, slots=True)
class _Padding:
    """What a padded value ends with: the weight of a space, and the weights of nothing but padding."""

    space: bytes
    blank: bytes

    def even_out(self, column: Column, weights: bytes) -> bytes:
        """Give all weight strings of the column one length."""
        missing = len(self.blank) - len(weights)
        if missing == 0:
            return weights
        surplus = weights[len(self.blank) :]
        whole = len(self.blank) % len(self.space) == 0 and missing % len(self.space) == 0
        if whole and self.blank == self._spaces(len(self.blank)) and surplus == self._spaces(len(surplus)):
            return weights[: len(self.blank)] + self._spaces(max(missing, 0))
        raise _unorderable(column)

    def _spaces(self, size: int) -> bytes:
        return self.space * (size // len(self.space))


def order_bounds(connection: Connection, definition: TableDefinition, keys: Sequence[Key]) -> list[Bound]:
    """Each key with its place in the server's order."""
    parts = definition.key_parts
    weights = collation_keys(connection, definition, keys)
    return [bound_of(parts, key, weight) for key, weight in zip(keys, weights, strict=True)]


def collation_keys(connection: Connection, definition: TableDefinition, keys: Sequence[Key]) -> list[Weights]:
    """The weight strings of each key's text columns; a key without text costs no question."""
    columns: list[Sequence[bytes | None]] = []
    for position, column in enumerate(definition.key_columns):
        if column.kind is Kind.STRING:
            columns.append(_weights_of(connection, column, [str(key[position]) for key in keys]))
        else:
            columns.append([None] * len(keys))
    return list(zip(*columns, strict=True))


def _weights_of(connection: Connection, column: Column, values: Sequence[str]) -> list[bytes]:
    distinct = list(dict.fromkeys(values))
    padding = _padding(connection, column) if distinct else None
    found: dict[str, bytes] = {}
    for start in range(0, len(distinct), _VALUES_PER_QUESTION):
        some = distinct[start : start + _VALUES_PER_QUESTION]
        found.update(zip(some, _ask_weights(connection, column, some, padding), strict=True))
    return [found[value] for value in values]


def _padding(connection: Connection, column: Column) -> _Padding | None:
    """None for a collation that does not pad; asked by comparing, because not every server lists the attribute."""
    (answer,) = ask(connection, sql.pads_with_spaces(column))
    if not answer["padded"]:
        return None
    (space,) = _raw_weights(connection, column, [" "], pad_to=None)
    (blank,) = _raw_weights(connection, column, [""], pad_to=_pad_to(column))
    return _Padding(space[0], blank[0])


def _ask_weights(
    connection: Connection, column: Column, values: Sequence[str], padding: _Padding | None
) -> list[bytes]:
    if padding is None:
        return [weights for weights, _ in _raw_weights(connection, column, values, pad_to=None)]
    weighed = []
    for weights, needed in _raw_weights(connection, column, values, pad_to=_pad_to(column)):
        if needed > len(weights):
            raise _unorderable(column)
        weighed.append(padding.even_out(column, weights))
    return weighed


def _raw_weights(
    connection: Connection, column: Column, values: Sequence[str], *, pad_to: int | None
) -> list[tuple[bytes, int]]:
    """The weights of each value, and how long they are without padding or cutting."""
    (row,) = ask(connection, sql.weight_strings(column, len(values), pad_to=pad_to), [v.encode() for v in values] * 2)
    cells = list(row.values())
    count = len(values)
    weighed = []
    for weights, needed in zip(cells[:count], cells[count:], strict=True):
        if not isinstance(weights, bytes) or not isinstance(needed, int):
            raise _unorderable(column)
        weighed.append((weights, needed))
    return weighed


def _pad_to(column: Column) -> int:
    return 2 * max(column.width, 1)


def _unorderable(column: Column) -> KeyOrderError:
    return KeyOrderError(
        f"a value of the key column {column.name} has no exact sort key under {column.collation}",
        hint="Set `executor: single`, which walks the key in the server's own order.",
    )


def unorderable(connection: Connection, definition: TableDefinition) -> str:
    """Ask the server for one sort key of each text column, as planning will for many."""
    if all(column.kind is not Kind.STRING for column in definition.key_columns):
        return ""
    try:
        collation_keys(connection, definition, [tuple("a" for _ in definition.key)])
    except KeyOrderError as error:
        return error.message
    return ""
