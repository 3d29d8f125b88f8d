"""Reads what an ALTER TABLE does to the partitions of its table: whose rows go, and which come in whose place.

A command on partitions is the last clause of its statement, and has commas of its own. A new partitioning may also
follow another clause without a comma. Names are taken as the statement spells them. What a partition holds is not read
from the text: the server is asked for it (`schema.follow_partitions`).

    DROP PARTITION p1, p2                                PartitionsEmptied(drop, p1 p2)
    ADD PARTITION (PARTITION p5 VALUES LESS THAN (9))    Repartitioned(new: p5)
    REORGANIZE PARTITION p3 INTO (PARTITION a …, b …)    Repartitioned(old: p3, new: a b)
    ENGINE=InnoDB PARTITION BY HASH (id)                 Repartitioned: any may come in the place of any
"""

from __future__ import annotations

from collections.abc import Iterator

from consume_upstream.mysql.statements.table_actions import (
    ContentChanged,
    Nothing,
    NotUnderstood,
    PartitionsEmptied,
    Repartitioned,
    TableAction,
)
from consume_upstream.mysql.statements.target import Tokens, after_exists, said, token_at
from consume_upstream.mysql.statements.text import Token

__all__ = ["is_partition_command", "partition_command", "repartitions"]

_KEEPS_PARTITIONS = frozenset(("analyze", "check", "optimize", "rebuild", "repair", "upgrade"))
"""What can be done to a PARTITION without a row or a bound coming or going."""
_KEEPS_ROWS = frozenset(("add", "coalesce", "reorganise", "reorganize"))
"""What changes the partitions and keeps every row."""


def is_partition_command(clause: Tokens) -> bool:
    first, second = token_at(clause, 0), token_at(clause, 1)
    if first.says("partition", "upgrade") or (first.says("remove") and second.says("partitioning")):
        return True
    exchanged = first.says("convert") and second.says("table")
    removed = first.says("convert", "discard", "drop", "exchange", "import", "truncate")
    return exchanged or (second.says("partition") and (removed or first.says(*_KEEPS_ROWS, *_KEEPS_PARTITIONS)))


def partition_command(tokens: Tokens) -> TableAction:
    """What the command does; `tokens` are all that is left of the statement, without commas outside brackets."""
    first = tokens[0]
    if first.says(*_KEEPS_PARTITIONS):
        return Nothing(f"{first.text} partition")
    if first.says("partition", "remove", *_KEEPS_ROWS):
        return _repartitioned(tokens)
    if first.says("discard", "import"):
        return ContentChanged(f"{first.text.upper()} TABLESPACE of a partition", brings_rows=True)
    if token_at(tokens, 1).says("table"):
        return ContentChanged("CONVERT TABLE … TO PARTITION brings rows", brings_rows=True)
    named = tokens[after_exists(tokens, 2) :]
    if first.says("convert", "exchange"):
        named = named[:1]
    names = tuple(token.spelled for token in named if token.name)
    if any(not token.name and token.text != "," for token in named):
        return NotUnderstood(f"the partitions of {said(tokens)}")
    return PartitionsEmptied(first.text, () if [token.text for token in named if token.bare] == ["all"] else names)


def repartitions(tokens: Tokens) -> bool:
    """Whether a new partitioning, or its removal, follows the clauses of the statement."""
    words = [token for depth, token in _with_depth(tokens) if depth == 0]
    return any(
        (word.says("partition") and token_at(words, at + 1).says("by"))
        or (word.says("remove") and token_at(words, at + 1).says("partitioning"))
        for at, word in enumerate(words)
    )


def _repartitioned(tokens: Tokens) -> Repartitioned:
    """The partitions of ADD and REORGANIZE; of anything else nobody knows which they are."""
    inside = [token for depth, token in _with_depth(tokens) if depth == 1]
    new = tuple(inside[at + 1].spelled for at in range(len(inside) - 1) if inside[at].says("partition"))
    if not new or not tokens[0].says("add", "reorganise", "reorganize"):
        return Repartitioned()
    if tokens[0].says("add"):
        return Repartitioned((), new)
    into = next((at for at, token in enumerate(tokens) if token.says("into")), 2)
    old = tuple(token.spelled for token in tokens[2:into] if token.name)
    return Repartitioned(old, new) if old else Repartitioned()


def _with_depth(tokens: Tokens) -> Iterator[tuple[int, Token]]:
    """Each token with the number of brackets around it; brackets themselves are left out."""
    depth = 0
    for token in tokens:
        if not token.name and token.text in ("(", ")"):
            depth += 1 if token.text == "(" else -1
        else:
            yield depth, token
