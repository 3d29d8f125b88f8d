"""Finds the tables that a command is about, in the stored state of a job of many tables.

The source is not asked, so a name is compared with the names that the job has: as it was written, and if that means
none, without regard to upper and lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from progress.store.tables_store import TablesStore
from vnode_backfill.config.job import Config
from vnode_backfill.config.tables import is_chosen
from vnode_backfill.job.open.writable import check_state_readable
from vnode_backfill.job.tables.parts import part_config, tables_store
from vnode_backfill.words.errors import ConfigError, StateError
from vnode_backfill.words.table_name import TableName, TablePattern

__all__ = ["asked_names", "check_one_table", "held_names", "no_such_job", "parsed_name", "part_of", "stored_tables"]


def stored_tables(config: Config) -> TablesStore:
    """The state of the job; raises if there is no such job, or if this account may not look."""
    store = tables_store(config)
    if not store.exists():
        raise no_such_job(config)
    return store


def no_such_job(config: Config) -> StateError:
    check_state_readable(config)
    return StateError(
        f"there is no job {config.job} in {config.state.path}",
        hint="Start it with `vnode-backfill run --config …`, or check job and state.path.",
    )


def held_names(store: TablesStore, *, aside: bool = True) -> set[str]:
    """The tables that the job copies, or with `aside` cannot copy; not those that were removed by hand."""
    held = {*store.names(), *(store.aside() if aside else ())}
    return held - {choice.table for choice in store.choices.all() if not choice.wanted}


def asked_names(
    names: Iterable[str], only: Sequence[str], *, flag: str = "--table", holder: str = "the job"
) -> tuple[str, ...]:
    """Those of these tables that --table means; all of them without --table. Each --table must mean one."""
    known = sorted(names)
    if not only:
        return tuple(known)
    found: set[str] = set()
    for text in only:
        pattern = _pattern(text, flag)
        meant = _meant(pattern, known, fold_case=False) or _meant(pattern, known, fold_case=True)
        if not meant:
            raise ConfigError(
                f"{flag} {text}: {holder} has no such table",
                hint="`vnode-backfill tables` lists the tables of the job.",
            )
        found |= meant
    return tuple(sorted(found))


def part_of(config: Config, name: str) -> Config:
    """The configuration of one table that the job has; refused if the file no longer names it."""
    table = parsed_name(name)
    return part_config(config, table, fold_case=not is_chosen(config, table))


def parsed_name(text: str) -> TableName:
    """A table's name as it is stored."""
    exact = TablePattern.parse(text).exact
    assert exact is not None
    return exact


def check_one_table(config: Config, only: Sequence[str]) -> None:
    """Of a job of one table, --table may name that one."""
    own = TableName(config.mysql.database, config.mysql.table)
    for text in only:
        if not _pattern(text).matches(own, fold_case=True):
            raise ConfigError(f"--table {text}: the job has one table, {own}", hint="Leave --table out.")


def _pattern(text: str, flag: str = "--table") -> TablePattern:
    try:
        return TablePattern.parse(text)
    except ValueError as error:
        raise ConfigError(f"{flag} {text}: {error}") from error


def _meant(pattern: TablePattern, known: Iterable[str], *, fold_case: bool) -> set[str]:
    return {name for name in known if pattern.matches(parsed_name(name), fold_case=fold_case)}
