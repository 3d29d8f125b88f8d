"""Says what a statement in the log does to one table: `effect` finds that it may, this finds what.

The statement is cut into clauses over the tokens of `text`, not parsed by a library. Of 50 forms that were tried with
sqlglot 30.30, 17 came out as a bare command or an error. Worse, some lost a clause without a word:

    ALTER TABLE t ADD c INT, ENGINE=MyISAM        one added column, no engine
    ALTER TABLE t ADD c INT /*M! , DROP b */      one added column, nothing dropped
    /*!50000 ALTER TABLE t DROP b */              an empty statement

The server has accepted the statement already, and types come from the server (`schema.derive`), so only the first words
of each clause matter, and its position.

The text can be read in several ways (character sets, backslashes, conditional comments), and the log does not say which
one was the server's. All ways must mean the same, or the statement is not understood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from consume_upstream.mysql.binlog.events import Statement
from consume_upstream.mysql.statements.alter_clauses import (
    clause_actions,
    clauses,
    dropped_index,
    is_rename_of_table,
    without_wait,
)
from consume_upstream.mysql.statements.effect import Effect, effect_of
from consume_upstream.mysql.statements.table_actions import (
    ColumnAdded,
    ColumnChanged,
    ContentChanged,
    DefaultChanged,
    KeyChanged,
    Nothing,
    NotUnderstood,
    TableAction,
    TableCame,
    TableEmptied,
    TableGone,
)
from consume_upstream.mysql.statements.target import (
    ExactTarget,
    Tokens,
    after_exists,
    after_name,
    kind_at,
    said,
    token_at,
)
from consume_upstream.mysql.statements.text import readings, texts

__all__ = ["actions_of", "has_effect"]

_IN_DOUBT = NotUnderstood("a name in the statement may be the table's, and nobody can say whether it is")


def actions_of(
    statement: Statement, database: str, table: str, *, folds_names: bool | None = None
) -> tuple[TableAction, ...]:
    """What the statement does to `database`.`table`, in order; empty if it is none of the table's business.

    `folds_names` is whether the server compares names of tables without regard to case (`lower_case_table_names` is not
    0). Where that is not known, a name in another case is not understood.
    """
    effect = effect_of(statement, database, table)
    if effect is Effect.DATA:
        return (NotUnderstood("the statement changes rows, and the log does not hold them"),)
    if effect is not Effect.SCHEMA:
        return ()
    target = ExactTarget(database, table, statement.database, folds_names)
    ways = [readings(text) for text in texts(statement.raw, statement.collation, (database, table))]
    # No server logs a statement of comments alone, so a reading without words is not the server's.
    meanings = {tuple(_actions(tokens, target)) for found in ways for tokens in found if tokens}
    if len(meanings) > 1:
        # A text in quotes may say different things, as long as the columns are the same.
        meanings = {tuple(map(_without_default, actions)) for actions in meanings}
    if len(meanings) != 1 or not all(ways):
        return (NotUnderstood("the statement can be read in several ways, which do not mean the same"),)
    # MariaDB's SET STATEMENT may have changed the modes for the statement alone.
    own_modes = any(tokens[0].says("set") for found in ways for tokens in found if tokens)
    strict = statement.is_strict and not own_modes
    return tuple(
        replace(action, strict=strict) if isinstance(action, ColumnChanged) else action for action in meanings.pop()
    )


def _without_default(action: TableAction) -> TableAction:
    return replace(action, default=None) if isinstance(action, ColumnAdded) else action


def has_effect(statement: Statement, database: str, table: str, *, primary: bool = False) -> bool:
    """False exactly if the statement provably does nothing: the reader of the log passes over it and notes it.

    So does another default for future rows. It matters to a column that was added just before, and whoever looks into
    that one sees all statements after it. Unique indexes do nothing to a table whose rows a primary key identifies
    (`primary`); of others the server must be asked (`schema.derive`).
    """
    harmless = (Nothing, DefaultChanged, KeyChanged) if primary else (Nothing, DefaultChanged)
    return any(not isinstance(action, harmless) for action in actions_of(statement, database, table))


def _actions(tokens: Tokens, target: ExactTarget) -> Iterator[TableAction]:
    while tokens and tokens[-1].text == ";" and not tokens[-1].name:
        tokens = tokens[:-1]
    first = token_at(tokens, 0)
    if first.says("set") and token_at(tokens, 1).says("statement"):
        yield from _actions(_after_for(tokens), target)
    elif first.says(*_STATEMENTS):
        yield from _STATEMENTS[first.text](tokens, target)
    else:
        yield NotUnderstood(said(tokens))


def _after_for(tokens: Tokens) -> Tokens:
    """MariaDB's `SET STATEMENT variable = value, … FOR` another statement; a value has its FOR in brackets."""
    depth = 0
    for at, token in enumerate(tokens):
        if not token.name:
            depth += (token.text == "(") - (token.text == ")")
        elif token.says("for") and depth == 0:
            return tokens[at + 1 :]
    return []


def _on_table(is_table: bool | None, action: TableAction) -> Iterator[TableAction]:
    """The action if the name is the table's."""
    if is_table is None:
        yield _IN_DOUBT
    elif is_table:
        yield action


def _alter(tokens: Tokens, target: ExactTarget) -> Iterator[TableAction]:
    kind = kind_at(tokens)
    at = after_exists(tokens, kind + 1)
    if not token_at(tokens, kind).says("table"):
        yield NotUnderstood(said(tokens))
        return
    ours, behind = target.is_table(tokens, at), without_wait(tokens[after_name(tokens, at) :])
    if ours is None:
        yield _IN_DOUBT
    elif ours:
        if any(token.says("ignore") for token in tokens[1:kind]):
            yield ContentChanged("ALTER IGNORE drops rows")
        yield from clause_actions(behind)
        yield from _renamed(behind, target, ours=True)
    else:
        yield from _renamed(behind, target, ours=False)
        yield from _exchanged(behind, target)


def _renamed(behind: Tokens, target: ExactTarget, *, ours: bool) -> Iterator[TableAction]:
    """The new name that ALTER TABLE gives its table."""
    for clause in filter(is_rename_of_table, clauses(behind)):
        linked = token_at(clause, 1).says("to", "as") or token_at(clause, 1).text == "="
        becomes_ours = target.is_table(clause, 2 if linked else 1)
        if becomes_ours is None:
            yield _IN_DOUBT
        elif ours:
            yield Nothing("RENAME to its own name") if becomes_ours else TableGone("renamed")
        elif becomes_ours:
            yield TableCame("renamed")


def _exchanged(behind: Tokens, target: ExactTarget) -> Iterator[TableAction]:
    """Another table exchanges or converts a partition with ours."""
    first, second = token_at(behind, 0), token_at(behind, 1)
    named = [at + 1 for at, token in enumerate(behind) if token.says("table")]
    if not named:
        return
    ours = target.is_table(behind, named[0])
    if first.says("exchange"):
        yield from _on_table(ours, ContentChanged("rows are exchanged with a partition", brings_rows=True))
    elif first.says("convert") and second.says("table"):
        yield from _on_table(ours, TableGone("renamed"))
    elif first.says("convert"):
        yield from _on_table(ours, TableCame("created"))
    elif any(target.is_table(behind, at) is not False for at in named):
        yield NotUnderstood(said(behind))


def _selects(behind: Tokens) -> bool:
    """Whether a CREATE TABLE fills its table, in a log of statements: SELECT, TABLE, or VALUES that bound nothing."""
    return any(
        token.says("select", "table") or (token.says("values") and not token_at(behind, at + 1).says("less", "in"))
        for at, token in enumerate(behind)
    )


def _create(tokens: Tokens, target: ExactTarget) -> Iterator[TableAction]:
    kind = kind_at(tokens)
    what, options, at = token_at(tokens, kind), tokens[1:kind], after_exists(tokens, kind + 1)
    replaces = any(token.says("replace") for token in options)
    if what.says("table"):
        missing = token_at(tokens, at - 1).says("exists")
        come = TableCame("replaced" if replaces else "created", missing, empty=not _selects(tokens[at:]))
        yield from _on_table(target.is_table(tokens, at), come)
    elif what.says("index"):
        unique = replaces or any(token.says("unique") for token in options)
        action = KeyChanged("CREATE UNIQUE INDEX") if unique else Nothing("CREATE INDEX")
        yield from _on_table(target.is_table(tokens, _after_on(tokens, kind)), action)
    elif what.says("database", "schema"):
        yield from _on_table(target.is_database(token_at(tokens, at)), TableGone("dropped"))
    else:
        yield NotUnderstood(said(tokens))


def _after_on(tokens: Tokens, start: int) -> int:
    """An index is ON a table; the name of an index that is a keyword has quotes."""
    return next((at + 1 for at in range(start, len(tokens)) if tokens[at].says("on")), len(tokens))


def _drop(tokens: Tokens, target: ExactTarget) -> Iterator[TableAction]:
    kind = kind_at(tokens)
    what, at = token_at(tokens, kind), after_exists(tokens, kind + 1)
    if what.says("table", "tables"):
        for name in clauses(tokens[at:]):
            yield from _on_table(target.is_table(name, 0), TableGone("dropped"))
    elif what.says("index"):
        yield from _on_table(target.is_table(tokens, _after_on(tokens, kind)), dropped_index(tokens[at:]))
    elif what.says("database", "schema"):
        yield from _on_table(target.is_database(token_at(tokens, at)), TableGone("dropped"))
    elif what.says("view"):
        yield Nothing("DROP VIEW drops no table")
    else:
        yield NotUnderstood(said(tokens))


def _rename(tokens: Tokens, target: ExactTarget) -> Iterator[TableAction]:
    if not token_at(tokens, 1).says("table", "tables"):
        yield NotUnderstood(said(tokens))
        return
    for pair in clauses(tokens[after_exists(tokens, 2) :]):
        to = next((at for at in range(after_name(pair, 0), len(pair)) if pair[at].says("to")), len(pair))
        yield from _on_table(target.is_table(pair, 0), TableGone("renamed"))
        yield from _on_table(target.is_table(pair, to + 1), TableCame("renamed"))


def _truncate(tokens: Tokens, target: ExactTarget) -> Iterator[TableAction]:
    yield from _on_table(target.is_table(tokens, 2 if token_at(tokens, 1).says("table") else 1), TableEmptied())


_STATEMENTS: dict[str, Callable[[Tokens, ExactTarget], Iterator[TableAction]]] = {
    "alter": _alter,
    "create": _create,
    "drop": _drop,
    "rename": _rename,
    "truncate": _truncate,
}
