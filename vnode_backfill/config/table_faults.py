"""Finds what is wrong with the tables that a job's file names, before any server is asked.

Each fault is a YAML path and what is wrong there. What depends on which tables exist is found later, when the server
has listed them (`config.tables`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vnode_backfill.config.choices import Executor, NewTables
from vnode_backfill.config.targets import Template, clashes_of, templates_of
from vnode_backfill.config.templates import holds_table, unknown_parts
from vnode_backfill.words.units import format_duration

if TYPE_CHECKING:
    from vnode_backfill.config.job import Config, MySqlConfig
    from vnode_backfill.config.table_entries import TableEntry

Faults = Iterator[tuple[str, str]]
_BOTH_FORMS = "give database and table for one table, or tables for many"


def faults_of_source(mysql: MySqlConfig) -> list[tuple[str, str]]:
    """What `mysql.database`, `table`, `tables`, `exclude` and `new_tables` say that cannot be meant."""
    if "tables" in mysql.model_fields_set and not (mysql.tables or mysql.database or mysql.table):
        return [("mysql.tables", "is empty; must name at least one table")]
    return [*_forms(mysql), *_named_twice(mysql), *_without_effect(mysql)]


def faults_of_sink(config: Config) -> list[tuple[str, str]]:
    """What the job's tables and its sink say that does not go together."""
    if not config.many:
        return list(_templates_of_one(config))
    faults = [*_of_executor(config), *_of_cut(config), *_of_other_sinks(config), *_of_templates(config)]
    return faults or list(_clashes(config))


def at_entry(number: int) -> str:
    return f"mysql.tables[{number}]"


def _forms(mysql: MySqlConfig) -> Faults:
    for name in ("database", "table"):
        given = bool(getattr(mysql, name))
        if given and mysql.tables:
            yield f"mysql.{name}", f"must not be given together with tables; {_BOTH_FORMS}"
        elif not given and not mysql.tables:
            yield f"mysql.{name}", f"is missing; {_BOTH_FORMS}"


def _named_twice(mysql: MySqlConfig) -> Faults:
    """A second entry for one table would never count; a table that is named and excluded is a contradiction."""
    seen: set[object] = set()
    for number, entry in enumerate(mysql.tables):
        pattern = entry.table
        if (pattern.exact or pattern.text) in seen:
            yield f"{at_entry(number)}.table", f"is {pattern.text}; an entry before it has the same name"
        seen.add(pattern.exact or pattern.text)
    for number, excluded in enumerate(mysql.exclude):
        if excluded.exact is not None and excluded.exact in seen:
            yield f"mysql.exclude[{number}]", f"is {excluded.text}; mysql.tables names this table"


def _without_effect(mysql: MySqlConfig) -> Faults:
    if any(entry.table.exact is None for entry in mysql.tables):
        return
    for name, given in (("exclude", mysql.exclude), ("new_tables", mysql.new_tables is NewTables.REPORT)):
        if given:
            yield f"mysql.{name}", "has no effect without a pattern in mysql.tables, as in shop.*"


def _templates_of_one(config: Config) -> Faults:
    iotdb = config.sink.iotdb
    for name in ("database", "table") if iotdb else ():
        if "{" in (getattr(iotdb, name) or ""):
            yield f"sink.iotdb.{name}", f"is {getattr(iotdb, name)}; names are replaced only with mysql.tables"


def _of_executor(config: Config) -> Faults:
    if config.executor is Executor.SINGLE:
        yield "executor", "is single; must be parallel with mysql.tables: the single executor walks one table"


def _of_cut(config: Config) -> Faults:
    """A cut is to be read until the next one is made, and its versions are kept for no longer than that."""
    cut, kept = config.epoch.cut, config.cut_kept_for
    if cut is not None and config.sink.delta is not None and cut >= kept:
        yield (
            "epoch.cut",
            (
                f"is {format_duration(cut)}; must be less than {format_duration(kept)}, for which a cut is kept: it "
                "could not be read until the next one"
            ),
        )


def _of_other_sinks(config: Config) -> Faults:
    own = "delta" if config.sink.delta else "iotdb"
    for number, entry in enumerate(config.mysql.tables):
        for name in ("delta", "iotdb"):
            if name != own and getattr(entry, name) is not None:
                yield f"{at_entry(number)}.{name}", f"has no effect: the job's sink is {own}"


def _of_templates(config: Config) -> Faults:
    sink = "delta" if config.sink.delta else "iotdb"
    shared: Counter[str] = Counter()
    for number, entry in enumerate(config.mysql.tables):
        for template in templates_of(config.sink, entry):
            path = f"{at_entry(number)}.{sink}.{template.key}" if template.own else f"sink.{sink}.{template.key}"
            several = entry.table.exact is None or (not template.own and shared[template.key] > 0)
            shared[template.key] += not template.own
            yield from _of_template(path, template, entry, several=several)


def _of_template(path: str, template: Template, entry: TableEntry, *, several: bool) -> Faults:
    unknown = unknown_parts(template.text) if template.is_folder else ()
    if unknown:
        yield path, f"is {template.text}; {unknown[0]} is not replaced, only {{database}} and {{table}} are"
    elif several and not holds_table(template.text):
        yield path, f"is {template.text}; must hold {{table}}, because {entry.table.text} is not the only table there"


def _clashes(config: Config) -> Faults:
    named = {entry.table.exact: entry for entry in config.mysql.tables if entry.table.exact is not None}
    for clash in clashes_of(config.sink, named):
        yield "mysql.tables", f"must give each table its own target; {clash}"
