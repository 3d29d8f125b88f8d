"""Reads the options of a table: `ENGINE = InnoDB COMMENT 'x' ROW_FORMAT = DYNAMIC`.

An option is in the list below, or it is not understood: MariaDB's engines define options of their own, and an option of
a later server may do anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from consume_upstream.mysql.statements.table_actions import Nothing, NotUnderstood, TableAction, Unsupported
from consume_upstream.mysql.statements.target import Tokens, token_at

__all__ = ["option_actions"]

_WITH_VALUE = frozenset((
    "algorithm", "auto_increment", "autoextend_size", "avg_row_length", "charset", "checksum", "collate", "comment",
    "compression", "delay_key_write", "encrypted", "encryption", "encryption_key_id", "engine_attribute",
    "insert_method", "key_block_size", "lock", "max_rows", "min_rows", "pack_keys", "page_checksum", "page_compressed",
    "page_compression_level", "password", "row_format", "secondary_engine", "secondary_engine_attribute",
    "stats_auto_recalc", "stats_persistent", "stats_sample_pages", "table_checksum", "tablespace", "transactional",
))  # fmt: skip
"""None of them changes a row; another default character set is for columns to come."""
_TWO_WORDS = (("character", "set"), ("char", "set"), ("data", "directory"), ("index", "directory"))


def option_actions(clause: Tokens) -> Iterator[TableAction]:
    """One action for each option; the first that is not known ends the clause."""
    at = 0
    while at < len(clause):
        if clause[at].says("partition", "remove"):
            yield Nothing("partitioning")
            return
        at += clause[at].says("default")
        name, value = token_at(clause, at), _value_at(clause, at)
        if not value or not _is_value(clause, value):
            yield NotUnderstood(f"the table option {' '.join(token.text for token in clause[at : at + 4])}")
            return
        yield _action(name.text, clause[value].text)
        at = value + 1


def _value_at(clause: Tokens, at: int) -> int:
    """Where the value is; 0 if the option is not known."""
    first, second = token_at(clause, at), token_at(clause, at + 1)
    if first.says("engine", "type", *_WITH_VALUE):
        at += 1
    elif any(first.says(one) and second.says(two) for one, two in _TWO_WORDS):
        at += 2
    else:
        return 0
    return at + (token_at(clause, at).text == "=" and not token_at(clause, at).name)


def _is_value(clause: Tokens, at: int) -> bool:
    """A word, a number or a text, not a symbol."""
    value = token_at(clause, at)
    return value.name or value.text.startswith("'")


def _action(name: str, value: str) -> TableAction:
    if name in ("engine", "type") and value.strip("'").lower() != "innodb":
        return Unsupported(f"the table's engine becomes {value}")
    return Nothing(name)
