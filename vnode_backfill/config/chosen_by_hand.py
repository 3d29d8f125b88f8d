"""Changes a job's file by what operators have chosen: tables added to it, and tables taken away.

What comes out is a configuration like any other, so whatever chooses and describes tables need not know of this. An
added table becomes an entry that names it, with the settings of the entry that means it in the file, if one does. A
removed one is excluded, and no entry names it any more: no pattern brings it back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vnode_backfill.config.job import Config
from vnode_backfill.config.table_entries import TableEntry, entry_of
from vnode_backfill.words.errors import ConfigError
from vnode_backfill.words.table_name import TableName, TablePattern

__all__ = ["with_chosen"]


def with_chosen(
    config: Config,
    added: Mapping[TableName, int | None],
    removed: Collection[TableName],
    folded: Collection[TableName] = (),
) -> Config:
    """The file with these tables, each with its priority if it has one of its own, and without the removed ones.

    The file may spell those that are `folded` otherwise than the server does. Of the others it may name a second table
    whose name differs by its case alone.
    """
    if not added and not removed:
        return config
    entries = list(config.mysql.tables)
    for name, priority in sorted(added.items()):
        found = entry_of(entries, name, fold_case=False) or entry_of(entries, name, fold_case=name in folded)
        entry = found or TableEntry(table=_pattern(name))
        own: dict[str, object] = {} if priority is None else {"priority": priority}
        entries = [
            *_without(entries, name, fold_case=name in folded),
            entry.model_copy(update={"table": _pattern(name), **own}),
        ]
    for name in removed:
        entries = _without(entries, name, fold_case=name in folded)
    if not entries:
        raise ConfigError(
            f"mysql.tables: every table that the file names was taken out of job {config.job}",
            hint="`vnode-backfill tables` lists them, and `vnode-backfill tables add NAME` takes one back.",
        )
    left_out = (*config.mysql.exclude, *(_pattern(name) for name in sorted(removed)))
    mysql = config.mysql.model_copy(update={"tables": tuple(entries), "exclude": left_out})
    return config.model_copy(update={"mysql": mysql})


def _without(entries: list[TableEntry], name: TableName, *, fold_case: bool) -> list[TableEntry]:
    """The entries that do not name this table."""

    def names_it(exact: TableName | None) -> bool:
        return exact is not None and (exact == name or (fold_case and exact.folded() == name.folded()))

    return [entry for entry in entries if not names_it(entry.table.exact)]


def _pattern(name: TableName) -> TablePattern:
    return TablePattern.parse(str(name))
