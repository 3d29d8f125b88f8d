"""Reads the clauses of an ALTER TABLE: what each does to the columns, the key and the rows.

The server has accepted the statement, so its grammar holds, and the first words of a clause decide what it is. Commas
outside brackets part the clauses. Three things have commas of their own: ORDER BY, lists of partitions, and a list of
columns in brackets. A clause is read to its last word where words at its end matter (positions), or where something
unknown could follow (table options).

    ALTER TABLE t ADD c INT DEFAULT 5 AFTER a, DROP b, ENGINE=InnoDB COMMENT 'x', ALGORITHM=COPY
                  ColumnAdded(c, After(a))     ColumnDropped(b)  Nothing           Nothing
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from consume_upstream.mysql.statements.partition_clauses import is_partition_command, partition_command, repartitions
from consume_upstream.mysql.statements.table_actions import (
    After,
    Cascades,
    ColumnAdded,
    ColumnChanged,
    ColumnDropped,
    ColumnRenamed,
    ContentChanged,
    DefaultChanged,
    First,
    KeyChanged,
    Nothing,
    NotUnderstood,
    Position,
    Repartitioned,
    TableAction,
)
from consume_upstream.mysql.statements.table_options import option_actions
from consume_upstream.mysql.statements.target import Tokens, after_exists, said, token_at

__all__ = ["DROPS_FOREIGN_KEY", "clause_actions", "clauses", "is_rename_of_table", "without_wait"]

_DROP_FOREIGN_KEY, _DROP_CONSTRAINT = "DROP FOREIGN KEY", "DROP CONSTRAINT"
DROPS_FOREIGN_KEY = frozenset((_DROP_FOREIGN_KEY, _DROP_CONSTRAINT))
"""What actions are called that drop a foreign key, or a constraint that may be one."""

_PARTITIONING = ("partition", "remove")
"""What may follow the last clause without a comma; both keep all rows."""
_CONSTRAINTS = ("check", "foreign", "primary", "unique")


def clauses(tokens: Tokens) -> list[Tokens]:
    """Cut at the commas outside brackets."""
    found: list[Tokens] = [[]]
    depth = 0
    for token in tokens:
        if not token.name:
            depth += (token.text == "(") - (token.text == ")")
        if token.text == "," and not token.name and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    return [clause for clause in found if clause]


def clause_actions(tokens: Tokens) -> Iterator[TableAction]:
    """The actions of everything after the table's name, except of RENAME of the table, which the caller knows."""
    left = clauses(tokens)
    if left and not is_partition_command(left[0]) and repartitions(tokens):
        yield Repartitioned()
    while left:
        if is_partition_command(left[0]):
            yield partition_command([token for clause in left for token in clause])
            return
        clause = left.pop(0)
        if clause[0].says("order") and token_at(clause, 1).says("by"):
            while left and _is_order(left[0]):
                left.pop(0)
            yield Nothing("ORDER BY")
        elif not is_rename_of_table(clause):
            yield from _clause(clause)


def without_wait(tokens: Tokens) -> Tokens:
    """MariaDB's WAIT n or NOWAIT comes after the name of a table."""
    if token_at(tokens, 0).says("wait"):
        return tokens[2:]
    return tokens[1:] if token_at(tokens, 0).says("nowait") else tokens


def is_rename_of_table(clause: Tokens) -> bool:
    return token_at(clause, 0).says("rename") and not token_at(clause, 1).says("column", "index", "key")


def _is_order(clause: Tokens) -> bool:
    """A column of ORDER BY; no clause but FORCE, which does nothing, consists of a name alone."""
    last = len(clause) - 1 if clause[-1].says("asc", "desc") else len(clause)
    return last in (1, 3, 5) and clause[0].name and _dotted(clause[:last])


def _dotted(tokens: Tokens) -> bool:
    return all(token.name if at % 2 == 0 else token.text == "." for at, token in enumerate(tokens))


def _clause(clause: Tokens) -> Iterator[TableAction]:
    read = _CLAUSES.get(clause[0].text) if clause[0].bare else None
    if read is not None:
        yield from read(clause)
    else:
        yield from option_actions(clause)


def _add(clause: Tokens) -> Iterator[TableAction]:
    at = 1
    if token_at(clause, at).says("column"):
        at = after_exists(clause, at + 1)
    elif token_at(clause, at).says("period") and token_at(clause, at + 1).says("for"):
        yield ContentChanged("ADD PERIOD")
        return
    elif token_at(clause, at).says("system") and token_at(clause, at + 1).says("versioning"):
        yield ContentChanged("ADD SYSTEM VERSIONING")
        return
    else:
        at = after_exists(clause, at)
    if_not_exists = token_at(clause, at - 1).says("exists")
    if token_at(clause, at).text == "(" and not clause[at].name:
        yield from _added_list(clause, at, if_not_exists=if_not_exists)
    else:
        yield from _added(clause[at:], if_not_exists=if_not_exists)


def _added_list(clause: Tokens, at: int, *, if_not_exists: bool) -> Iterator[TableAction]:
    """`ADD (a INT, b INT, KEY (a))`; only the partitioning may follow the bracket."""
    end = _closing(clause, at)
    if end < 0 or not (end + 1 == len(clause) or token_at(clause, end + 1).says(*_PARTITIONING)):
        yield NotUnderstood(f"the columns of {said(clause)}")
        return
    for element in clauses(clause[at + 1 : end]):
        yield from _added(element, if_not_exists=if_not_exists)


def _closing(tokens: Tokens, opening: int) -> int:
    depth = 0
    for at in range(opening, len(tokens)):
        if not tokens[at].name:
            depth += (tokens[at].text == "(") - (tokens[at].text == ")")
        if depth == 0:
            return at
    return -1


def _added(element: Tokens, *, if_not_exists: bool) -> Iterator[TableAction]:
    """An index, a constraint or a column."""
    first, second = token_at(element, 0), token_at(element, 1)
    if first.says("constraint"):
        at = after_exists(element, 1)
        named = not token_at(element, at).says(*_CONSTRAINTS)
        yield from _constraint(element[at + named :])
    elif first.says(*_CONSTRAINTS):
        yield from _constraint(element)
    elif first.says("index", "key", "fulltext", "spatial") or (first.says("vector") and second.says("index", "key")):
        yield Nothing("ADD INDEX")
    elif not first.name or second.text == "." or not second.bare:
        yield NotUnderstood(f"what is added by {said(element)}")
    else:
        position = _position(element[1:])
        if isinstance(position, NotUnderstood):
            yield position
            return
        yield ColumnAdded(first.spelled, position, if_not_exists, _literal(element[1:]))
        yield from _attributes(element[1:])


def _constraint(element: Tokens) -> Iterator[TableAction]:
    first = token_at(element, 0)
    if first.says("primary"):
        yield ContentChanged("the primary key changes")
    elif first.says("unique"):
        yield KeyChanged("ADD UNIQUE")
    elif first.says("check"):
        yield Nothing("ADD CHECK")
    elif first.says("foreign"):
        yield Cascades(_CASCADES) if _cascades(element) else Nothing("ADD FOREIGN KEY")
    else:
        yield NotUnderstood(f"the constraint {said(element)}")


_CASCADES = "a foreign key changes rows of the table outside the log"


def _cascades(tokens: Tokens) -> bool:
    """Whether a foreign key changes rows when its parent changes."""
    events = (at for at, token in enumerate(tokens) if token.says("on"))
    return any(
        token_at(tokens, at + 1).says("delete", "update") and token_at(tokens, at + 2).says("cascade", "set")
        for at in events
    )


def _outside_brackets(tokens: Tokens) -> Tokens:
    found, depth = [], 0
    for token in tokens:
        if not token.name and token.text in ("(", ")"):
            depth += 1 if token.text == "(" else -1
        elif depth == 0:
            found.append(token)
    return found


def _position(definition: Tokens) -> Position | NotUnderstood | None:
    """FIRST or AFTER a column, the last words of a column's definition; partitioning may follow them."""
    words = _outside_brackets(definition)
    ends = [at for at, token in enumerate(words) if token.says(*_PARTITIONING)]
    words = words[: ends[0]] if ends else words
    after = [at for at, token in enumerate(words) if token.says("after")]
    if after:
        exact = after == [len(words) - 2] and words[-1].name
        return After(words[-1].spelled) if exact else NotUnderstood(f"the position in {said(definition)}")
    if any(token.says("first") for token in words[:-1]):
        return NotUnderstood(f"the position in {said(definition)}")
    return First() if words and words[-1].says("first") else None


def _literal(definition: Tokens) -> str | None:
    """The value after DEFAULT: a number, or a text in one pair of quotes without backslashes."""
    found = [at for at, token in enumerate(definition) if token.says("default")]
    if len(found) != 1:
        return None
    value = definition[found[0] + 1 :]
    number = re.match(r"[-+]?[0-9]*\.?[0-9]+(?=$| )", _numeric(value))
    if number:
        return number[0]
    first, second = token_at(value, 0), token_at(value, 1)
    if first.bare or "\\" in first.text or second.text.startswith("'") or (second.name and not second.bare):
        return None
    if first.name:
        return first.spelled
    return first.text[1:-1].replace("''", "'") if first.text.startswith("'") else None


def _numeric(value: Tokens) -> str:
    """Signs, digits and points joined, then a space for any other token."""
    return "".join(
        token.text if token.text in "+-." or token.text.isdecimal() or token.text[:1].isdecimal() else " "
        for token in value[:5]
    )


def _attributes(definition: Tokens) -> Iterator[TableAction]:
    """What a column's definition says beyond the column: `c INT KEY` is a primary key."""
    words = _outside_brackets(definition)
    unique = any(token.says("unique", "serial") for token in words)
    keys = [at for at, token in enumerate(words) if token.says("key") and not token_at(words, at - 1).says("unique")]
    if any(token.says("primary") for token in words) or keys:
        yield ContentChanged("the primary key changes")
    if unique:
        yield KeyChanged("a unique column")
    if any(token.says("references") for token in words) and _cascades(words):
        yield Cascades(_CASCADES)
    if any(token.says("versioning") for token in words):
        yield ContentChanged("SYSTEM VERSIONING of a column")


def _change(clause: Tokens) -> Iterator[TableAction]:
    at = after_exists(clause, 2 if token_at(clause, 1).says("column") else 1)
    old, new, behind = token_at(clause, at), token_at(clause, at + 1), token_at(clause, at + 2)
    if not (old.name and new.name and behind.bare):
        yield NotUnderstood(f"the columns of {said(clause)}")
        return
    yield from _changed(clause, at + 2, old.spelled, new.spelled)


def _modify(clause: Tokens) -> Iterator[TableAction]:
    at = after_exists(clause, 2 if token_at(clause, 1).says("column") else 1)
    name, behind = token_at(clause, at), token_at(clause, at + 1)
    if not (name.name and behind.bare):
        yield NotUnderstood(f"the column of {said(clause)}")
        return
    yield from _changed(clause, at + 1, name.spelled, name.spelled)


def _changed(clause: Tokens, at: int, old: str, new: str) -> Iterator[TableAction]:
    position = _position(clause[at:])
    if isinstance(position, NotUnderstood):
        yield position
        return
    yield ColumnChanged(old, new, position, any(token.says("exists") for token in clause[:at]))
    yield from _attributes(clause[at:])


def _drop(clause: Tokens) -> Iterator[TableAction]:
    first, second = token_at(clause, 1), token_at(clause, 2)
    if first.says("foreign"):
        yield Nothing(_DROP_FOREIGN_KEY)
    elif first.says("check"):
        yield Nothing("DROP CHECK")
    elif first.says("primary"):
        yield ContentChanged("the primary key changes")
    elif first.says("index", "key", "constraint"):
        named = clause[after_exists(clause, 2) :]
        yield dropped_index(named, _DROP_CONSTRAINT) if first.says("constraint") else dropped_index(named)
    elif first.says("system") and second.says("versioning"):
        yield ContentChanged("DROP SYSTEM VERSIONING")
    elif first.says("period") and second.says("for"):
        yield ContentChanged("DROP PERIOD")
    else:
        yield _dropped_column(clause)


def dropped_index(named: Tokens, what: str = "DROP INDEX") -> TableAction:
    """The index or constraint of this name; whether it is unique, only the server knew."""
    name = token_at(named, 0)
    if not name.name:
        return NotUnderstood(f"the index {said(named)}")
    return ContentChanged("the primary key changes") if name.text == "primary" else KeyChanged(what)


def _dropped_column(clause: Tokens) -> TableAction:
    at = after_exists(clause, 2 if token_at(clause, 1).says("column") else 1)
    name, behind = token_at(clause, at), clause[at + 1 :]
    plain = not behind or behind[0].says(*_PARTITIONING) or (len(behind) == 1 and behind[0].says("restrict", "cascade"))
    if not name.name or not plain:
        return NotUnderstood(f"the column of {said(clause)}")
    return ColumnDropped(name.spelled, token_at(clause, at - 1).says("exists"))


def _alter(clause: Tokens) -> Iterator[TableAction]:
    if token_at(clause, 1).says("index", "key", "check", "constraint"):
        yield Nothing(f"ALTER {clause[1].text}")
        return
    at = after_exists(clause, 2 if token_at(clause, 1).says("column") else 1)
    name, verb, what = (token_at(clause, at + i) for i in range(3))
    if name.name and verb.says("set", "drop") and what.says("default"):
        yield DefaultChanged(name.spelled)
    elif name.name and verb.says("set") and what.says("visible", "invisible") and at + 3 == len(clause):
        yield Nothing("a column's visibility")
    else:
        yield NotUnderstood(said(clause))


def _rename(clause: Tokens) -> Iterator[TableAction]:
    if token_at(clause, 1).says("index", "key"):
        yield KeyChanged("RENAME INDEX")
        return
    at = after_exists(clause, 2)
    old, to, new = (token_at(clause, at + i) for i in range(3))
    exact = old.name and new.name and (to.says("to", "as") or to.text == "=")
    if not exact or (at + 3 < len(clause) and not clause[at + 3].says(*_PARTITIONING)):
        yield NotUnderstood(said(clause))
        return
    yield ColumnRenamed(old.spelled, new.spelled, at > 2)


def _convert(clause: Tokens) -> Iterator[TableAction]:
    yield (
        ContentChanged("CONVERT TO another character set")
        if token_at(clause, 1).says("to")
        else NotUnderstood(said(clause))
    )


def _tablespace(clause: Tokens) -> Iterator[TableAction]:
    yield ContentChanged(f"{clause[0].text.upper()} TABLESPACE", brings_rows=True)


def _exactly(*forms: str) -> Callable[[Tokens], Iterator[TableAction]]:
    """Clauses that do nothing, in the forms that are listed and no other; partitioning may follow them."""

    def read(clause: Tokens) -> Iterator[TableAction]:
        ends = [at for at, token in enumerate(clause) if token.says(*_PARTITIONING)]
        words = " ".join(token.text for token in clause[: ends[0] if ends else len(clause)])
        yield Nothing(words) if words in forms else NotUnderstood(said(clause))

    return read


_CLAUSES: dict[str, Callable[[Tokens], Iterator[TableAction]]] = {
    "add": _add,
    "alter": _alter,
    "change": _change,
    "convert": _convert,
    "discard": _tablespace,
    "drop": _drop,
    "disable": _exactly("disable keys"),
    "enable": _exactly("enable keys"),
    "force": _exactly("force"),
    "import": _tablespace,
    "modify": _modify,
    "rename": _rename,
    "with": _exactly("with validation"),
    "without": _exactly("without validation"),
}
