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

from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import cache

from consume_upstream.mysql.binlog.events import Statement
from consume_upstream.mysql.statements.target import (
    OBJECTS,
    Target,
    Tokens,
    after_exists,
    kind_at,
    may_be,
    token_at,
)
from consume_upstream.mysql.statements.text import folded, readings, texts

__all__ = ["Effect", "effect_of", "effects_of", "text_of"]


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


_STOPPING = (Effect.SCHEMA, Effect.DATA)


def effect_of(statement: Statement, database: str, table: str) -> Effect:
    """What `statement` does, as far as it matters to `database`.`table`: the worst of what it may say."""
    return effects_of(statement, ((database, table),))[0]


def effects_of(statement: Statement, tables: Sequence[tuple[str, str]]) -> list[Effect]:
    """What `statement` does to each of the tables, given as database and table. Its text is read once for all."""
    known = cache(readings)
    return [_effect_on(statement, database, table, known) for database, table in tables]


def _effect_on(statement: Statement, database: str, table: str, known: Callable[[str], list[Tokens]]) -> Effect:
    target = Target(folded(database), folded(table), folded(statement.database))
    first, effects = None, set()
    for text in texts(statement.raw, statement.collation, (database, table)):
        ways = known(text)
        effects |= {_effect(tokens, target, statement) for tokens in ways}
        if not ways and target.in_text(folded(text)):
            effects.add(Effect.SCHEMA)
        first = first or (ways[0] if ways else None)
    worst = next((effect for effect in _STOPPING if effect in effects), None)
    return worst or (_effect(first, target, statement) if first else Effect.NONE)


def text_of(statement: Statement) -> str:
    """The text for a message."""
    return texts(statement.raw, statement.collation, ())[-1]


def _effect(tokens: Tokens, target: Target, statement: Statement) -> Effect:
    if not tokens:
        return Effect.NONE
    frame = _frame(tokens)
    if frame is not None:
        return frame
    first, second = tokens[0], token_at(tokens, 1)
    if first.says("set") and second.says("statement"):
        return _set_statement(tokens, target, statement)
    if first.says(*_SCHEMA):
        if _SCHEMA[first.text](tokens, target):
            return Effect.SCHEMA
        return Effect.DATA if _selects(tokens) and _may_reach(tokens, target, statement) else Effect.NONE
    if first.says(*_HARMLESS) or (first.says(*_HARMLESS_ON_TABLES) and _is_maintenance(tokens)):
        return Effect.NONE
    return Effect.DATA if _may_reach(tokens, target, statement) else Effect.NONE


def _frame(tokens: Tokens) -> Effect | None:
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


def _is_maintenance(tokens: Tokens) -> bool:
    at = 2 if token_at(tokens, 1).says("no_write_to_binlog", "local") else 1
    return token_at(tokens, at).says("table", "tables", "view", "views")


def _set_statement(tokens: Tokens, target: Target, statement: Statement) -> Effect:
    """MariaDB's `SET STATEMENT variable = value, … FOR` another statement; a value may hold a FOR too."""
    starts = [at + 1 for at, token in enumerate(tokens) if token.says("for")]
    effects = {_effect(tokens[start:], target, statement) for start in starts}
    return next((effect for effect in _STOPPING if effect in effects), Effect.NONE)


def _may_reach(tokens: Tokens, target: Target, statement: Statement) -> bool:
    """Whether a statement that changes rows may change some of the table's."""
    if statement.updated is not None:
        return target.database in map(folded, statement.updated)
    return not _writes_to_the_servers_schema(tokens)


def _writes_to_the_servers_schema(tokens: Tokens) -> bool:
    """A plain write to one table of `mysql`, such as a hosted server's heartbeat.

    No trigger can be there, and no function is called.
    """
    at = 1
    while token_at(tokens, at).says("low_priority", "quick", "ignore", "into", "from"):
        at += 1
    if not tokens[0].says("insert", "replace", "update", "delete"):
        return False
    if not (
        token_at(tokens, at).name and token_at(tokens, at).text == "mysql" and token_at(tokens, at + 1).text == "."
    ):
        return False
    called = (i for i in range(at + 3, len(tokens)) if token_at(tokens, i + 1).text == "(" and tokens[i].name)
    plain = all(tokens[i].says("values", "value", "in", "and", "or", "where", "set") for i in called)
    lists_tables = tokens[0].says("update", "delete") and not token_at(tokens, at + 3).says("set", "where", "")
    return plain and not lists_tables and not any(token.says("select", "table", "using") for token in tokens)


def _selects(tokens: Tokens) -> bool:
    """CREATE TABLE … SELECT as a statement: in row format the server writes the definition alone."""
    if not (tokens[0].says("create") and token_at(tokens, kind_at(tokens)).says("table")):
        return False
    rows = (
        at for at, token in enumerate(tokens) if token.says("values") and token_at(tokens, at + 1).text in ("(", "row")
    )
    return any(token.says("select") for token in tokens) or any(rows)


def _on_table(tokens: Tokens, target: Target, start: int) -> bool:
    """An index is ON a table."""
    return any(target.named_at(tokens, at + 1) for at in range(start, len(tokens)) if tokens[at].says("on"))


def _alter(tokens: Tokens, target: Target) -> bool:
    at = kind_at(tokens)
    kind = token_at(tokens, at)
    if kind.says("table", "view", "sequence"):
        return target.named_at(tokens, after_exists(tokens, at + 1)) or _alters_another(tokens, target, at + 1)
    if kind.says("database", "schema"):
        return any(token.says("upgrade") for token in tokens) and target.mentioned(tokens)
    return not _is_object(tokens, at) and target.mentioned(tokens)


def _alters_another(tokens: Tokens, target: Target, start: int) -> bool:
    """ALTER TABLE may give its table another's name, and exchange or convert a partition with another table."""
    for at in range(start, len(tokens)):
        if tokens[at].says("table") and target.named_at(tokens, at + 1):
            return True
        if tokens[at].says("rename") and not token_at(tokens, at + 1).says("column", "index", "key"):
            linked = token_at(tokens, at + 1).says("to", "as") or token_at(tokens, at + 1).text == "="
            if target.named_at(tokens, at + 2 if linked else at + 1):
                return True
    return False


def _create(tokens: Tokens, target: Target) -> bool:
    at = kind_at(tokens)
    kind, options = token_at(tokens, at), tokens[1:at]
    if kind.says("table", "view", "sequence"):
        # A temporary table only hides ours from its session.
        hidden = any(token.says("temporary") for token in options)
        return not hidden and target.named_at(tokens, after_exists(tokens, at + 1))
    if kind.says("index"):
        return _on_table(tokens, target, at)
    if kind.says("database", "schema"):
        replaced = any(token.says("replace") for token in options)
        return replaced and may_be(token_at(tokens, after_exists(tokens, at + 1)), target.database)
    return not _is_object(tokens, at) and target.mentioned(tokens)


def _drop(tokens: Tokens, target: Target) -> bool:
    at = kind_at(tokens)
    kind = token_at(tokens, at)
    if kind.says("table", "tables", "view", "sequence"):
        return not any(token.says("temporary") for token in tokens[1:at]) and target.named_from(tokens, at + 1)
    if kind.says("index"):
        return _on_table(tokens, target, at)
    if kind.says("database", "schema"):
        return may_be(token_at(tokens, after_exists(tokens, at + 1)), target.database)
    return not _is_object(tokens, at) and target.mentioned(tokens)


def _is_object(tokens: Tokens, at: int) -> bool:
    return token_at(tokens, at).says("spatial", *OBJECTS)


def _rename(tokens: Tokens, target: Target) -> bool:
    if token_at(tokens, 1).says("table", "tables"):
        return target.named_from(tokens, 2)
    return not token_at(tokens, 1).says("user") and target.mentioned(tokens)


def _truncate(tokens: Tokens, target: Target) -> bool:
    return target.named_at(tokens, 2 if token_at(tokens, 1).says("table") else 1)


_SCHEMA = {"alter": _alter, "create": _create, "drop": _drop, "rename": _rename, "truncate": _truncate}
