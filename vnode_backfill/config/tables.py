"""Chooses the tables of a job from those that the server has, and describes each one as a job of one table.

`chosen_tables` answers which; `table_config` answers how: the same file with `mysql.database` and `mysql.table` set,
the sink's templates filled in, the settings of the table's entry applied, and `mysql.tables` gone. So whatever copies
one table needs to know nothing of many.

A pattern never chooses what nobody means by it: tables of the server itself, and what tools and the server make for the
time of a schema change. gh-ost's `_orders_gho`, `_orders_ghc` and `_orders_del`, pt-online-schema-change's
`_orders_new` and `_orders_old`, and `#sql-…` come and go with the rows of a table that is copied already. A table that
is named is chosen whatever it is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from vnode_backfill.config.choices import NewTables
from vnode_backfill.config.iotdb import IotdbSinkConfig
from vnode_backfill.config.job import Config, DeltaSinkConfig, LimitsConfig
from vnode_backfill.config.table_entries import DEFAULT_PRIORITY, TableEntry, entry_of
from vnode_backfill.config.targets import Clash, clashes_of, filled, filled_database, templates_of
from vnode_backfill.config.yaml_file import explain
from vnode_backfill.words.errors import ConfigError
from vnode_backfill.words.table_name import SYSTEM_SCHEMAS, TableName

__all__ = [
    "Chosen",
    "MeantTables",
    "chosen_tables",
    "config_beside",
    "is_chosen",
    "is_never_matched",
    "only_reported",
    "priority_of",
    "table_config",
    "table_sink",
]

_HELPER = re.compile(r"_.*_(gho|ghc|del|new|old)|#sql.*", re.IGNORECASE | re.DOTALL)
_OF_THE_JOB = ("zero_dates", "schema_changes", "dropped_columns", "dropped_partitions")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tables of a job, in the order of their names, and what of the file found none."""

    tables: tuple[TableName, ...]
    missing: tuple[TableName, ...] = ()
    """Tables that are named and that the server does not list: they do not exist, or are no tables."""
    unmatched: tuple[str, ...] = ()
    """Patterns that match nothing."""
    clashes: tuple[Clash, ...] = ()
    """Tables, also among `tables`, whose target another one has."""
    fold_case: bool = False
    """How the server compares names; `table_config` and `priority_of` want to know."""


def chosen_tables(config: Config, listed: Iterable[TableName], *, fold_case: bool) -> Chosen:
    """Which of the tables that the server lists are the job's."""
    mysql = config.mysql
    if not config.many:
        return _the_one(config, listed, fold_case=fold_case)
    entries: dict[TableName, TableEntry] = {}
    for name in sorted(listed):
        entry = entry_of(mysql.tables, name, fold_case=fold_case)
        if entry is not None and is_chosen(config, name, fold_case=fold_case):
            entries[name] = entry
    used = {id(entry) for entry in entries.values()}
    unused = [entry.table for entry in mysql.tables if id(entry) not in used]
    return Chosen(
        tables=tuple(entries),
        missing=tuple(pattern.exact for pattern in unused if pattern.exact is not None),
        unmatched=tuple(
            pattern.text
            for pattern in unused
            if pattern.exact is None and not any(pattern.matches(name, fold_case=fold_case) for name in entries)
        ),
        clashes=clashes_of(config.sink, entries),
        fold_case=fold_case,
    )


def table_config(config: Config, name: TableName, *, fold_case: bool = False) -> Config:
    """The job's file for one of its tables alone; a value that does not fit the table is a ConfigError.

    `fold_case` is as the server compares names: `Chosen.fold_case`.
    """
    if not config.many:
        return config
    entry = entry_of(config.mysql.tables, name, fold_case=fold_case)
    if entry is None:
        raise ConfigError(f"mysql.tables: no entry matches {name}")
    one_table: dict[str, object] = {
        "database": name.database, "table": name.table, "tables": (), "exclude": (), "new_tables": NewTables.ADD,
    }  # fmt: skip
    mysql = config.mysql.model_copy(update=one_table)
    limits = config.limits.model_copy(update=_limits(config.limits, entry))
    try:
        sink = config.sink.model_copy(update=_sink(config, entry, name))
        epoch = config.epoch.model_copy(update={"cut": None, "lag": None})
        own: dict[str, object] = {
            "mysql": mysql, "sink": sink, "limits": limits, "epoch": epoch, **_given(entry, _OF_THE_JOB),
        }  # fmt: skip
        return Config.model_validate({**dict(config), **own}).as_one_of(config, folds_case=fold_case)
    except ValidationError as error:
        found = [str(mistake) for item in error.errors() for mistake in explain(item, Config)]
    at = f"mysql.tables[{config.mysql.tables.index(entry)}]"
    raise ConfigError(
        f"{at}: {found[0]}",
        detail="\n".join((f"for table {name}, which the entry {entry.table.text} matches", *found[1:])),
    )


def table_sink(config: Config, name: TableName, *, fold_case: bool = False) -> Config:
    """The job's file with the target of one of its tables; for those who want to know no more than that."""
    entry = entry_of(config.mysql.tables, name, fold_case=fold_case)
    if entry is None:
        raise ConfigError(f"mysql.tables: no entry matches {name}")
    return config.model_copy(update={"sink": config.sink.model_copy(update=_sink(config, entry, name))})


def is_chosen(config: Config, name: TableName, *, fold_case: bool = False) -> bool:
    """Whether the file means this table, whether the server has it or not."""
    entry = entry_of(config.mysql.tables, name, fold_case=fold_case)
    return entry is not None and (entry.table.exact is not None or not _left_out(config, name, fold_case=fold_case))


class MeantTables:
    """The tables that one file means. It remembers what it was asked: each answer goes through all entries of the file,
    and a running job asks for every table once a second."""

    def __init__(self, config: Config, *, fold_case: bool) -> None:
        self._config, self._fold_case = config, fold_case
        self._known: dict[TableName, bool] = {}

    def __contains__(self, name: TableName) -> bool:
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = is_chosen(self._config, name, fold_case=self._fold_case)
        return found


def config_beside(config: Config, name: TableName) -> Config | None:
    """The description of another table of the same job; None if the job does not mean that table."""
    if config.among is None:
        return None
    many, fold_case = config.among
    return table_config(many, name, fold_case=fold_case) if is_chosen(many, name, fold_case=fold_case) else None


def priority_of(config: Config, name: TableName, *, fold_case: bool = False) -> int:
    """Lower ones are copied first."""
    entry = entry_of(config.mysql.tables, name, fold_case=fold_case)
    return DEFAULT_PRIORITY if entry is None else entry.priority


def only_reported(config: Config, new: Iterable[TableName], *, fold_case: bool) -> tuple[TableName, ...]:
    """Those of the tables that are new to the job that it is not to copy but to report: no entry names them."""
    if config.mysql.new_tables is NewTables.ADD:
        return ()
    entries = ((name, entry_of(config.mysql.tables, name, fold_case=fold_case)) for name in new)
    return tuple(name for name, entry in entries if entry is None or entry.table.exact is None)


def is_never_matched(name: TableName) -> bool:
    """Whether no pattern chooses this table."""
    return name.database.lower() in SYSTEM_SCHEMAS or _HELPER.fullmatch(name.table) is not None


def _the_one(config: Config, listed: Iterable[TableName], *, fold_case: bool) -> Chosen:
    asked = TableName(config.mysql.database, config.mysql.table)
    found = [name for name in listed if name == asked or (fold_case and name.folded() == asked.folded())]
    return Chosen(tuple(found[:1]), missing=() if found else (asked,), fold_case=fold_case)


def _left_out(config: Config, name: TableName, *, fold_case: bool) -> bool:
    return is_never_matched(name) or any(pattern.matches(name, fold_case=fold_case) for pattern in config.mysql.exclude)


def _given(entry: TableEntry, keys: Iterable[str]) -> dict[str, object]:
    return {key: value for key in keys if (value := getattr(entry, key)) is not None}


def _limits(limits: LimitsConfig, entry: TableEntry) -> dict[str, object]:
    """A table is read no faster than the job may read."""
    rates = [rate for rate in (limits.rows_per_second, entry.rows_per_second) if rate is not None]
    return {**_given(entry, ("range_rows",)), "rows_per_second": min(rates, default=None)}


def _sink(config: Config, entry: TableEntry, name: TableName) -> dict[str, object]:
    delta, iotdb = config.sink.delta, config.sink.iotdb
    places = {template.key: filled(template, name) for template in templates_of(config.sink, entry)}
    if delta is not None:
        return {"delta": _delta(delta, entry, places)}
    return {} if iotdb is None else {"iotdb": _iotdb(iotdb, entry, name, places)}


def _delta(delta: DeltaSinkConfig, entry: TableEntry, places: dict[str, str]) -> DeltaSinkConfig:
    own = _given_of(entry.delta)
    # The whole section is not checked again: sizes are numbers by now, and a file must give their unit.
    DeltaSinkConfig.model_validate({"path": places["path"]})
    return delta.model_copy(update={**own, **places})


def _iotdb(iotdb: IotdbSinkConfig, entry: TableEntry, name: TableName, places: dict[str, str]) -> IotdbSinkConfig:
    own = _given_of(entry.iotdb)
    values = {**dict(iotdb), **own, **places}
    if "include" in own or "exclude" in own:
        # They exclude each other, so a table's own one replaces both.
        values |= {key: () for key in ("include", "exclude") if key not in own}
    if values["database"]:
        values["database"] = filled_database(str(values["database"]), name)
    return IotdbSinkConfig.model_validate(values)


def _given_of(section: object) -> dict[str, object]:
    return {} if section is None else {key: value for key, value in vars(section).items() if value is not None}
