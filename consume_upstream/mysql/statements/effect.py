"""Judges what a statement in the log means for one table: nothing, the frame of a transaction, or a reason to stop.

Rows come as row events; statements in a row-format log are DDL and the frames of transactions. This reads a statement
just far enough to know which tables it may change, and errs on the side of stopping: names match without regard to
case, a name that cannot be decoded may be the table's, and a statement that is not understood counts if it mentions the
table or its database.

A session can switch the format, and then a statement holds changes of rows. It may reach the table by name, or through
a view, a trigger or a function that the log does not show. So every such statement is a reason to stop, unless it
provably cannot reach the table: MySQL names the databases that a statement changes, and the server's own schema has no
triggers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from consume_upstream.mysql.binlog.events import Statement
from consume_upstream.mysql.statements.text import UNREADABLE, Token, folded, readings, texts

__all__ = ["Effect", "effect_of", "text_of"]


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


_Tokens = list[Token]
_STOPPING = (Effect.SCHEMA, Effect.DATA)
_END = Token("", bare=False, name=False)


def effect_of(statement: Statement, database: str, table: str) -> Effect:
    """What `statement` does, as far as it matters to `database`.`table`: the worst of what it may say."""
    target = _Target(folded(database), folded(table), folded(statement.database))
    first, effects = None, set()
    for text in texts(statement.raw, statement.collation, (database, table)):
        ways = readings(text)
        effects |= {_effect(tokens, target, statement) for tokens in ways}
        if not ways and target.in_text(folded(text)):
            effects.add(Effect.SCHEMA)
        first = first or (ways[0] if ways else None)
    worst = next((effect for effect in _STOPPING if effect in effects), None)
    return worst or (_effect(first, target, statement) if first else Effect.NONE)


def text_of(statement: Statement) -> str:
    """The text for a message."""
    return texts(statement.raw, statement.collation, ())[-1]


@dataclass(frozen=True, slots=True)
class _Target:
    database: str
    table: str
    default: str
    """The database of names without one; none is known where it is empty."""

    def named_at(self, tokens: _Tokens, at: int) -> bool:
        """Whether the name that begins at `at` may be the table's: `db.table`, `table` or `.table`."""
        first, point, last = (_at(tokens, at + i) for i in range(3))
        if first.text == "." and not first.name:
            return self._in_default(point)
        if first.name and point.text == "." and not point.name:
            return _may_be(first, self.database) and _may_be(last, self.table)
        return self._in_default(first)

    def _in_default(self, name: Token) -> bool:
        return self.default in ("", self.database) and _may_be(name, self.table)

    def named_from(self, tokens: _Tokens, start: int) -> bool:
        """Whether any name from `start` on may be the table's."""
        return any(self.named_at(tokens, at) for at in _names(tokens, start))

    def mentioned(self, tokens: _Tokens) -> bool:
        """Whether the statement may speak of the table or its database anywhere."""
        return self.named_from(tokens, 1) or any(_may_be(token, self.database) for token in tokens[1:])

    def in_text(self, text: str) -> bool:
        return UNREADABLE in text or self.table in text or self.database in text


def _at(tokens: _Tokens, at: int) -> Token:
    return tokens[at] if 0 <= at < len(tokens) else _END


def _may_be(token: Token, name: str) -> bool:
    """Whether the token may be this name; `#mysql50#` comes before the name of a file.

    A name with bytes that cannot be decoded may be any name beyond ASCII. So may one with a question mark: a server
    that writes `DROP TABLE` itself converts the names to the client's character set, and puts `?` for what that lacks.
    """
    if not token.name:
        return False
    text = token.text.removeprefix("#mysql50#")
    return text == name or (not name.isascii() and (UNREADABLE in text or "?" in text))


def _names(tokens: _Tokens, start: int) -> Iterator[int]:
    """Every place where a name may begin; after a point it continues."""
    for at in range(start, len(tokens)):
        before, here = _at(tokens, at - 1), tokens[at]
        if (here.name and before.text != ".") or (here.text == "." and not before.name):
            yield at


def _effect(tokens: _Tokens, target: _Target, statement: Statement) -> Effect:
    if not tokens:
        return Effect.NONE
    frame = _frame(tokens)
    if frame is not None:
        return frame
    first, second = tokens[0], _at(tokens, 1)
    if first.says("set") and second.says("statement"):
        return _set_statement(tokens, target, statement)
    if first.says(*_SCHEMA):
        if _SCHEMA[first.text](tokens, target):
            return Effect.SCHEMA
        return Effect.DATA if _selects(tokens) and _may_reach(tokens, target, statement) else Effect.NONE
    if first.says(*_HARMLESS) or (first.says(*_HARMLESS_ON_TABLES) and _is_maintenance(tokens)):
        return Effect.NONE
    return Effect.DATA if _may_reach(tokens, target, statement) else Effect.NONE


def _frame(tokens: _Tokens) -> Effect | None:
    """The whole statement must be the frame; a longer one is something else."""
    words = [token.text if token.bare else "" for token in tokens]
    if words[0] == "xa":
        started = words[1:2] in (["start"], ["begin"])
        return Effect.BEGIN if started else Effect.SAVEPOINT if words[1:2] == ["end"] else Effect.NONE
    if words in (["begin"], ["begin", "work"]) or words[:2] == ["start", "transaction"]:
        return Effect.BEGIN
    if words[0] in ("commit", "rollback") and {*words[1:]} <= {"work", "and", "no", "chain", "release"}:
        return Effect.COMMIT if words[0] == "commit" else Effect.ROLLBACK
    if words[0] == "rollback" and "to" in words[1:3] and len(words) <= 5:
        return Effect.ROLLBACK_TO
    if (words[0] == "savepoint" and len(words) == 2) or (words[:2] == ["release", "savepoint"] and len(words) == 3):
        return Effect.SAVEPOINT
    return None


_HARMLESS = frozenset((
    "cache", "change", "flush", "grant", "help", "install", "lock", "purge", "reset", "revoke", "set", "show",
    "shutdown",
    "uninstall", "unlock", "use",
))  # fmt: skip
"""None of them changes rows of a table, whatever follows. Most are never logged."""
_HARMLESS_ON_TABLES = frozenset(("analyze", "check", "checksum", "optimize", "repair"))
"""They keep the rows of a table; MariaDB's ANALYZE before another statement carries it out."""


def _is_maintenance(tokens: _Tokens) -> bool:
    at = 2 if _at(tokens, 1).says("no_write_to_binlog", "local") else 1
    return _at(tokens, at).says("table", "tables", "view", "views")


def _set_statement(tokens: _Tokens, target: _Target, statement: Statement) -> Effect:
    """MariaDB's `SET STATEMENT variable = value, … FOR` another statement; a value may hold a FOR too."""
    starts = [at + 1 for at, token in enumerate(tokens) if token.says("for")]
    effects = {_effect(tokens[start:], target, statement) for start in starts}
    return next((effect for effect in _STOPPING if effect in effects), Effect.NONE)


def _may_reach(tokens: _Tokens, target: _Target, statement: Statement) -> bool:
    """Whether a statement that changes rows may change some of the table's."""
    if statement.updated is not None:
        return target.database in map(folded, statement.updated)
    return not _writes_to_the_servers_schema(tokens)


def _writes_to_the_servers_schema(tokens: _Tokens) -> bool:
    """A plain write to one table of `mysql`, such as a hosted server's heartbeat.

    No trigger can be there, and no function is called.
    """
    at = 1
    while _at(tokens, at).says("low_priority", "quick", "ignore", "into", "from"):
        at += 1
    if not tokens[0].says("insert", "replace", "update", "delete"):
        return False
    if not (_at(tokens, at).name and _at(tokens, at).text == "mysql" and _at(tokens, at + 1).text == "."):
        return False
    called = (i for i in range(at + 3, len(tokens)) if _at(tokens, i + 1).text == "(" and tokens[i].name)
    plain = all(tokens[i].says("values", "value", "in", "and", "or", "where", "set") for i in called)
    lists_tables = tokens[0].says("update", "delete") and not _at(tokens, at + 3).says("set", "where", "")
    return plain and not lists_tables and not any(token.says("select", "table", "using") for token in tokens)


def _selects(tokens: _Tokens) -> bool:
    """CREATE TABLE … SELECT as a statement: in row format the server writes the definition alone."""
    if not (tokens[0].says("create") and _at(tokens, _kind(tokens)).says("table")):
        return False
    rows = (at for at, token in enumerate(tokens) if token.says("values") and _at(tokens, at + 1).text in ("(", "row"))
    return any(token.says("select") for token in tokens) or any(rows)


_OBJECTS = frozenset((
    "event", "function", "instance", "library", "logfile", "package", "procedure", "resource", "role", "server",
    "tablespace",
    "trigger", "user",
))  # fmt: skip
"""What can be created, altered and dropped without a change of any table's rows or columns."""
_KINDS = _OBJECTS | {"database", "index", "schema", "sequence", "table", "tables", "view"}
_OPTIONS = frozenset((
    "aggregate", "external", "fulltext", "ignore", "offline", "online", "or", "replace", "spatial", "temporary",
    "undo", "unique",
    "vector",
))  # fmt: skip


def _kind(tokens: _Tokens) -> int:
    """Where the kind of object is named, or the end if something else comes before it."""
    at = 1
    while at < len(tokens):
        if tokens[at].says("definer", "algorithm") and _at(tokens, at + 1).text == "=":
            at = _after_account(tokens, at + 2)
        elif tokens[at].says("sql") and _at(tokens, at + 1).says("security"):
            at += 3
        elif tokens[at].says(*_OPTIONS):
            at += 1
        else:
            break
    if tokens[at - 1].says("spatial") and _at(tokens, at).says("reference"):
        return at - 1
    return at if _at(tokens, at).says(*_KINDS) else len(tokens)


def _after_account(tokens: _Tokens, at: int) -> int:
    """After `name`, `name@host` or `CURRENT_USER()`; quotes part such a name into several tokens."""
    at += 1
    while _at(tokens, at).text.startswith("@") or _at(tokens, at - 1).text.endswith("@"):
        at += 1
    return at + 2 if _at(tokens, at).text == "(" else at


def _after_exists(tokens: _Tokens, at: int) -> int:
    """After `IF EXISTS` and `IF NOT EXISTS`."""
    if _at(tokens, at).says("if"):
        at += 3 if _at(tokens, at + 1).says("not") else 2
    return at


def _on_table(tokens: _Tokens, target: _Target, start: int) -> bool:
    """An index is ON a table."""
    return any(target.named_at(tokens, at + 1) for at in range(start, len(tokens)) if tokens[at].says("on"))


def _alter(tokens: _Tokens, target: _Target) -> bool:
    at = _kind(tokens)
    kind = _at(tokens, at)
    if kind.says("table", "view", "sequence"):
        return target.named_at(tokens, _after_exists(tokens, at + 1)) or _alters_another(tokens, target, at + 1)
    if kind.says("database", "schema"):
        return any(token.says("upgrade") for token in tokens) and target.mentioned(tokens)
    return not _is_object(tokens, at) and target.mentioned(tokens)


def _alters_another(tokens: _Tokens, target: _Target, start: int) -> bool:
    """ALTER TABLE may give its table another's name, and exchange or convert a partition with another table."""
    for at in range(start, len(tokens)):
        if tokens[at].says("table") and target.named_at(tokens, at + 1):
            return True
        if tokens[at].says("rename") and not _at(tokens, at + 1).says("column", "index", "key"):
            linked = _at(tokens, at + 1).says("to", "as") or _at(tokens, at + 1).text == "="
            if target.named_at(tokens, at + 2 if linked else at + 1):
                return True
    return False


def _create(tokens: _Tokens, target: _Target) -> bool:
    at = _kind(tokens)
    kind, options = _at(tokens, at), tokens[1:at]
    if kind.says("table", "view", "sequence"):
        # A temporary table only hides ours from its session.
        hidden = any(token.says("temporary") for token in options)
        return not hidden and target.named_at(tokens, _after_exists(tokens, at + 1))
    if kind.says("index"):
        return _on_table(tokens, target, at)
    if kind.says("database", "schema"):
        replaced = any(token.says("replace") for token in options)
        return replaced and _may_be(_at(tokens, _after_exists(tokens, at + 1)), target.database)
    return not _is_object(tokens, at) and target.mentioned(tokens)


def _drop(tokens: _Tokens, target: _Target) -> bool:
    at = _kind(tokens)
    kind = _at(tokens, at)
    if kind.says("table", "tables", "view", "sequence"):
        return not any(token.says("temporary") for token in tokens[1:at]) and target.named_from(tokens, at + 1)
    if kind.says("index"):
        return _on_table(tokens, target, at)
    if kind.says("database", "schema"):
        return _may_be(_at(tokens, _after_exists(tokens, at + 1)), target.database)
    return not _is_object(tokens, at) and target.mentioned(tokens)


def _is_object(tokens: _Tokens, at: int) -> bool:
    return _at(tokens, at).says("spatial", *_OBJECTS)


def _rename(tokens: _Tokens, target: _Target) -> bool:
    if _at(tokens, 1).says("table", "tables"):
        return target.named_from(tokens, 2)
    return not _at(tokens, 1).says("user") and target.mentioned(tokens)


def _truncate(tokens: _Tokens, target: _Target) -> bool:
    return target.named_at(tokens, 2 if _at(tokens, 1).says("table") else 1)


_SCHEMA = {"alter": _alter, "create": _create, "drop": _drop, "rename": _rename, "truncate": _truncate}
