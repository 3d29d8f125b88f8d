"""Makes the target of a table from a template: `/lake/{database}/{table}` becomes `/lake/shop/orders`.

What must be true: no name of a table can leave the folder that the template gives it, and two tables never share one.
A folder's name keeps letters, digits, `_`, `-`, `$` and dots that are not the first character. Every other byte, `~`
itself too, becomes `~` and two hexadecimal digits, so that different names stay different:

    orders         orders              ..             ~2E.
    a/b            a~2Fb               a~2Fb          a~7E2Fb
    _delta_log     ~5Fdelta_log        order items    order~20items

Combining marks are among the bytes that are written so, so that a file system which normalises names changes none.

IoTDB takes fewer characters in names. There `_` and two digits are written, which is not reversible; two tables that
get one name are refused like any two with one target (`config.tables`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from vnode_backfill.words.table_name import TableName

__all__ = ["filled_folder", "filled_series", "holds_table", "unknown_parts"]

_PLACEHOLDER = re.compile(r"\{(database|table)\}")
_BRACES = re.compile(r"\{([^{}]*)\}|[{}]")
_FOLDER = re.compile(r"[\w$.-]")
_SERIES = re.compile(r"[A-Za-z0-9_\u4e00-\u9fff]")


def filled_folder(template: str, name: TableName) -> str:
    """The folder of a table."""
    return _filled(template, name, _as_folder)


def filled_series(template: str, name: TableName) -> str:
    """The device path, or the name of an IoTDB table or database; other names in braces are columns and stay."""
    return _filled(template, name, _as_series)


def holds_table(template: str) -> bool:
    """Whether tables of one database get different targets."""
    return "{table}" in template


def unknown_parts(template: str) -> tuple[str, ...]:
    """What is in braces, or is a brace, and would not be replaced."""
    return tuple(found[0] for found in _BRACES.finditer(template) if not _PLACEHOLDER.fullmatch(found[0]))


def _filled(template: str, name: TableName, form: Callable[[str], str]) -> str:
    parts = {"database": form(name.database), "table": form(name.table)}
    return _PLACEHOLDER.sub(lambda found: parts[found[1]], template)


def _as_folder(name: str) -> str:
    kept = "".join(letter if _FOLDER.fullmatch(letter) else _bytes("~", letter) for letter in name)
    if kept.startswith(".") or kept.lower() == "_delta_log":
        return _bytes("~", kept[0]) + kept[1:]
    return kept


def _as_series(name: str) -> str:
    return "".join(letter if _SERIES.fullmatch(letter) else _bytes("_", letter) for letter in name)


def _bytes(sign: str, letter: str) -> str:
    return "".join(f"{sign}{byte:02X}" for byte in letter.encode("utf-8", "surrogatepass"))
