"""What a statement in the log means for one table: nothing, the frame of a transaction, or a reason to stop.

Rows come as row events; statements in a row-format log are DDL and the frames of transactions. This reads a statement just far
enough to know which tables it may change, and errs on the side of stopping: names match without regard to case, and a
statement that is not understood counts as touching the table if it mentions it.

A statement can also hold changes of rows, if a session switched the format. Then the rows are lost to this reader, so a statement
that names the table as its target is refused. (One that reaches it through a trigger or a routine cannot be seen.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from consume_upstream.mysql.events import Statement


class Effect(Enum):
    """What the reader must do about a statement."""

    NONE = auto()
    BEGIN = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    ROLLBACK_TO = auto()
    SAVEPOINT = auto()
    SCHEMA = auto()
    DATA = auto()


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    bare: bool
    """A word without quotes: may be a keyword."""
    name: bool
    """May name something: a word, or text in backticks or double quotes."""

    def says(self, *words: str) -> bool:
        return self.bare and self.text in words


_LEXEME = re.compile(
    r"""
      (?P<space>\s+|(?:--(?=\s|\Z)|\#)[^\n]*)
    | (?P<open>/\*M?!\d*)                     # executable comment: its text counts
    | (?P<comment>/\*.*?(?:\*/|\Z))
    | (?P<close>\*/)
    | (?P<quoted>`(?:[^`]|``)*`|"(?:[^"\\]|\\.|"")*")
    | (?P<string>'(?:[^'\\]|\\.|'')*')
    | (?P<word>[0-9A-Za-z_$@\u0080-\U0010ffff]+)
    | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def _tokens(text: str) -> list[_Token]:
    found = []
    for lexeme in _LEXEME.finditer(text):
        kind, raw = lexeme.lastgroup, lexeme.group()
        if kind == "word":
            found.append(_Token(raw.casefold(), bare=True, name=True))
        elif kind == "quoted":
            name = raw[1:-1].replace(raw[0] * 2, raw[0])
            found.append(_Token(name.casefold(), bare=False, name=True))
        elif kind in ("string", "symbol"):
            found.append(_Token(raw, bare=False, name=False))
    return found


@dataclass(frozen=True, slots=True)
class _Table:
    database: str
    table: str

    def named_at(self, tokens: list[_Token], at: int, default: str) -> bool:
        """Whether the name that begins at `at` is this table's; `db.table` or, in its database, `table`."""
        if at + 2 < len(tokens) and tokens[at + 1].text == "." and tokens[at].name:
            return (tokens[at].text, tokens[at + 2].text) == (self.database, self.table)
        return at < len(tokens) and tokens[at].name and (default, tokens[at].text) == (self.database, self.table)

    def mentioned(self, tokens: list[_Token], default: str) -> bool:
        return any(self.named_at(tokens, at, default) for at in range(len(tokens)))


def effect_of(statement: Statement, database: str, table: str) -> Effect:
    """What `statement` does, as far as it matters to `database`.`table`."""
    tokens = _tokens(statement.text)
    target = _Table(database.casefold(), table.casefold())
    default = statement.database.casefold()
    if not tokens:
        return Effect.NONE
    frame = _frame(tokens)
    if frame is not None:
        return frame
    first = tokens[0].text if tokens[0].bare else ""
    if first in _READERS:
        touched = any(target.named_at(tokens, at, default) for at in _READERS[first](tokens))
        if first == "drop" and len(tokens) > 1 and tokens[1].says("database", "schema"):
            touched = tokens[_after_exists(tokens, 2)].text == target.database
        return _outcome(first, touched=touched)
    if first in _HARMLESS:
        return Effect.NONE
    return _outcome(first, touched=target.mentioned(tokens, default))


def _outcome(first: str, *, touched: bool) -> Effect:
    if not touched:
        return Effect.NONE
    return Effect.SCHEMA if first in ("alter", "create", "drop", "rename", "truncate") else Effect.DATA


def _frame(tokens: list[_Token]) -> Effect | None:
    words = tuple(token.text for token in tokens[:2])
    match words:
        case ("begin", *_) | ("start", "transaction"):
            return Effect.BEGIN
        case ("commit", *_):
            return Effect.COMMIT
        case ("rollback", "to"):
            return Effect.ROLLBACK_TO
        case ("rollback", *_):
            return Effect.ROLLBACK
        case ("savepoint", *_) | ("release", *_):
            return Effect.SAVEPOINT
        case ("xa", "start" | "begin"):
            return Effect.BEGIN
        case ("xa", "end"):
            return Effect.SAVEPOINT
        case ("xa", _):
            return Effect.NONE
        case _:
            return None


_HARMLESS = {
    "analyze", "check", "flush", "grant", "install", "optimize", "purge", "repair", "reset", "revoke", "set", "uninstall", "use",
    "binlog", "change", "lock", "unlock", "help", "show", "cache", "shutdown",
}  # fmt: skip


def _after_exists(tokens: list[_Token], at: int) -> int:
    """Past `IF EXISTS` and `IF NOT EXISTS`, but not past the last token."""
    if at < len(tokens) and tokens[at].says("if"):
        at += 3 if at + 1 < len(tokens) and tokens[at + 1].says("not") else 2
    return min(at, len(tokens) - 1)


def _index_of(tokens: list[_Token], *words: str, start: int = 0) -> int:
    return next((i for i in range(start, len(tokens)) if tokens[i].says(*words)), len(tokens))


def _every(tokens: list[_Token], start: int) -> Iterator[int]:
    """Every place a name may begin; after a point it goes on."""
    for at in range(start, len(tokens)):
        if tokens[at].name and tokens[at - 1].text != ".":
            yield at


def _alter(tokens: list[_Token]) -> Iterator[int]:
    """ALTER TABLE t …, also where it renames to, exchanges with or converts another table."""
    at = _index_of(tokens, "table")
    if at > 3:
        return
    yield _after_exists(tokens, at + 1)
    for i in range(at + 1, len(tokens)):
        renamed = tokens[i].text == "=" and tokens[i - 1].says("rename")
        if renamed or tokens[i].says("table", "rename", "to", "as"):
            yield i + 1


def _create(tokens: list[_Token]) -> Iterator[int]:
    """CREATE [OR REPLACE] TABLE t, CREATE … INDEX i ON t; a temporary table only hides ours from its session."""
    kind = _index_of(
        tokens, "table", "index", "temporary", "view", "trigger", "procedure", "function", "event", "database"
    )
    if kind == len(tokens):
        return
    if tokens[kind].says("table"):
        yield _after_exists(tokens, kind + 1)
    elif tokens[kind].says("index"):
        yield _index_of(tokens, "on", start=kind) + 1


def _drop(tokens: list[_Token]) -> Iterator[int]:
    if len(tokens) < 2:
        return
    if tokens[1].says("table", "tables"):
        yield from _every(tokens, _after_exists(tokens, 2))
    elif tokens[1].says("index"):
        yield _index_of(tokens, "on") + 1


def _rename(tokens: list[_Token]) -> Iterator[int]:
    if len(tokens) > 1 and tokens[1].says("table", "tables"):
        yield from _every(tokens, 2)


def _truncate(tokens: list[_Token]) -> Iterator[int]:
    yield 2 if len(tokens) > 1 and tokens[1].says("table") else 1


def _insert(tokens: list[_Token]) -> Iterator[int]:
    """The first name after INSERT or REPLACE and its options."""
    at = 1
    while at < len(tokens) and tokens[at].says("low_priority", "delayed", "high_priority", "ignore", "into"):
        at += 1
    yield at


def _update(tokens: list[_Token]) -> Iterator[int]:
    return _every(tokens[: _index_of(tokens, "set")], 1)


def _load(tokens: list[_Token]) -> Iterator[int]:
    yield _index_of(tokens, "table") + 1


def _delete(tokens: list[_Token]) -> Iterator[int]:
    return _every(tokens, 1)


_READERS = {
    "alter": _alter, "create": _create, "drop": _drop, "rename": _rename, "truncate": _truncate, "insert": _insert,
    "replace": _insert, "update": _update, "load": _load, "delete": _delete,
}  # fmt: skip
