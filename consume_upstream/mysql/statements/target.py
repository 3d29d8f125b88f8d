"""Finds names in the words of a statement, and says whether they may be the names of one table and its database.

Names match without regard to case, and a name that cannot be decoded may be any: a judge of statements must not
miss the table. `ExactTarget` says more, for those that act on the answer: yes, no, or nobody can say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from consume_upstream.mysql.statements.text import UNREADABLE, Token, folded

__all__ = [
    "OBJECTS", "ExactTarget", "Target", "Tokens", "after_exists", "after_name", "kind_at", "may_be", "said", "token_at",
]  # fmt: skip

Tokens = list[Token]
_END = Token("", bare=False, name=False)


@dataclass(frozen=True, slots=True)
class Target:
    """The folded names of the table and its database."""

    database: str
    table: str
    default: str
    """The database of names without one; none is known where it is empty."""

    def named_at(self, tokens: Tokens, at: int) -> bool:
        """Whether the name that begins at `at` may be the table's: `db.table`, `table` or `.table`."""
        first, point, last = (token_at(tokens, at + i) for i in range(3))
        if first.text == "." and not first.name:
            return self._in_default(point)
        if first.name and point.text == "." and not point.name:
            return may_be(first, self.database) and may_be(last, self.table)
        return self._in_default(first)

    def _in_default(self, name: Token) -> bool:
        return self.default in ("", self.database) and may_be(name, self.table)

    def named_from(self, tokens: Tokens, start: int) -> bool:
        """Whether any name from `start` on may be the table's."""
        return any(self.named_at(tokens, at) for at in _names(tokens, start))

    def mentioned(self, tokens: Tokens) -> bool:
        """Whether the statement may speak of the table or its database anywhere."""
        return self.named_from(tokens, 1) or any(may_be(token, self.database) for token in tokens[1:])

    def in_text(self, text: str) -> bool:
        return UNREADABLE in text or self.table in text or self.database in text


@dataclass(frozen=True, slots=True)
class ExactTarget:
    """The names as the server spells them, for those who act on a statement instead of stopping at it."""

    database: str
    table: str
    default: str
    folds_names: bool | None
    """Whether the server compares names of tables without regard to case; None if that is not known."""

    def is_table(self, tokens: Tokens, at: int) -> bool | None:
        """Whether the name at `at` is the table's; None if it may be.

        `TRUNCATE Orders` empties another table than `orders` on a server where case matters.
        """
        if not Target(folded(self.database), folded(self.table), folded(self.default)).named_at(tokens, at):
            return False
        length = after_name(tokens, at) - at
        database = tokens[at].spelled if length == 3 else self.default
        written = (database, tokens[at + length - 1].spelled)
        return self._compared(written, (self.database, self.table))

    def is_database(self, token: Token) -> bool | None:
        """Whether the token is the name of the table's database; None if it may be."""
        if not may_be(token, folded(self.database)):
            return False
        return self._compared((token.spelled,), (self.database,))

    def _compared(self, written: tuple[str, ...], names: tuple[str, ...]) -> bool | None:
        if written == names:
            return True
        same = tuple(map(folded, written)) == tuple(map(folded, names))
        return self.folds_names if same else None


def after_name(tokens: Tokens, at: int) -> int:
    """After the name of a table that begins at `at`: `db.table`, `.table` or `table`."""
    if token_at(tokens, at).text == "." and not token_at(tokens, at).name:
        return at + 2
    point = token_at(tokens, at + 1)
    return at + 3 if point.text == "." and not point.name else at + 1


def token_at(tokens: Tokens, at: int) -> Token:
    return tokens[at] if 0 <= at < len(tokens) else _END


def said(tokens: Tokens) -> str:
    """The first words of a clause, for a message."""
    return " ".join(token.text for token in tokens[:6])


def may_be(token: Token, name: str) -> bool:
    """Whether the token may be this name; `#mysql50#` comes before the name of a file.

    A name with bytes that cannot be decoded may be any name beyond ASCII. So may one with a question mark: a server
    that writes `DROP TABLE` itself converts the names to the client's character set, and puts `?` for what that lacks.
    """
    if not token.name:
        return False
    text = token.text.removeprefix("#mysql50#")
    return text == name or (not name.isascii() and (UNREADABLE in text or "?" in text))


def _names(tokens: Tokens, start: int) -> Iterator[int]:
    """Every place where a name may begin; after a point it continues."""
    for at in range(start, len(tokens)):
        before, here = token_at(tokens, at - 1), tokens[at]
        if (here.name and before.text != ".") or (here.text == "." and not before.name):
            yield at


OBJECTS = frozenset((
    "event", "function", "instance", "library", "logfile", "package", "procedure", "resource", "role", "server",
    "tablespace",
    "trigger", "user",
))  # fmt: skip
"""What can be created, altered and dropped without a change of any table's rows or columns."""
_KINDS = OBJECTS | {"database", "index", "schema", "sequence", "table", "tables", "view"}
_OPTIONS = frozenset((
    "aggregate", "external", "fulltext", "ignore", "offline", "online", "or", "replace", "spatial", "temporary",
    "undo", "unique",
    "vector",
))  # fmt: skip


def kind_at(tokens: Tokens) -> int:
    """Where the kind of object is named, or the end if something else comes before it."""
    at = 1
    while at < len(tokens):
        if tokens[at].says("definer", "algorithm") and token_at(tokens, at + 1).text == "=":
            at = _after_account(tokens, at + 2)
        elif tokens[at].says("sql") and token_at(tokens, at + 1).says("security"):
            at += 3
        elif tokens[at].says(*_OPTIONS):
            at += 1
        else:
            break
    if tokens[at - 1].says("spatial") and token_at(tokens, at).says("reference"):
        return at - 1
    return at if token_at(tokens, at).says(*_KINDS) else len(tokens)


def _after_account(tokens: Tokens, at: int) -> int:
    """After `name`, `name@host` or `CURRENT_USER()`; quotes part such a name into several tokens."""
    at += 1
    while token_at(tokens, at).text.startswith("@") or token_at(tokens, at - 1).text.endswith("@"):
        at += 1
    return at + 2 if token_at(tokens, at).text == "(" else at


def after_exists(tokens: Tokens, at: int) -> int:
    """After `IF EXISTS` and `IF NOT EXISTS`."""
    if token_at(tokens, at).says("if"):
        at += 3 if token_at(tokens, at + 1).says("not") else 2
    return at
