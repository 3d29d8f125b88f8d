"""Checks the table: its engine, key and columns, and whether its rows are changed without the log saying so."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from consume_upstream.mysql.preflight.facts import ForeignKey, ServerFacts, TableProfile
from consume_upstream.mysql.rows.key_walk import check_walkable
from consume_upstream.mysql.schema.charsets import charset_named
from consume_upstream.mysql.schema.labels import doubtful_labels
from consume_upstream.mysql.sql import quoted
from vnode_backfill.config.job import Config, Executor
from vnode_backfill.words.change import BEFORE_PREFIX, RESERVED_COLUMNS
from vnode_backfill.words.columns import Kind, TableDefinition
from vnode_backfill.words.errors import PlanRefusedError
from vnode_backfill.words.finding import Finding, Level
from vnode_backfill.words.units import format_size

__all__ = [
    "FOREIGN_KEY",
    "CascadingKey",
    "TableDetails",
    "cascading_keys",
    "check_schema",
    "check_table",
    "check_table_type",
]

FOREIGN_KEY = "table.foreign_key"
"""What a finding about a foreign key that changes rows outside the log is called."""
_LARGE = {"mediumblob", "mediumtext", "longblob", "longtext", "json"}
_SMALL_PACKET = 16 << 20
_GOOD_PACKET = 64 << 20
_NAME = r"`(?:[^`]|``)*`"
_NAMES = rf"\((?:{_NAME}(?:, )?)+\)"
_RULE = r"(?:CASCADE|SET NULL|SET DEFAULT|RESTRICT|NO ACTION)"
_CONSTRAINT = re.compile(
    rf"^\s*CONSTRAINT (?P<name>{_NAME}) FOREIGN KEY (?P<columns>{_NAMES}) "
    rf"REFERENCES (?P<parent>(?:{_NAME}\.)?{_NAME}) (?P<referenced>{_NAMES})"
    rf"(?: ON DELETE (?P<on_delete>{_RULE}))?(?: ON UPDATE (?P<on_update>{_RULE}))?",
    re.MULTILINE,
)
_COMPRESSED = re.compile(
    rf"^\s*(?P<before>(?P<name>{_NAME}) \w+(?:\(\d+\))?) /\*M?!\d+ COMPRESSED\*/(?P<after>.*?),?$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class CascadingKey:
    """A foreign key through which the engine changes rows of the table itself; every part quoted as the server does."""

    name: str
    columns: str
    parent: str
    referenced: str
    rules: str


@dataclass(frozen=True, slots=True)
class TableDetails:
    """What the checks must know of the table beyond its definition and `TableProfile`."""

    table_type: str
    """As `information_schema.TABLES` says: BASE TABLE, VIEW, SEQUENCE, SYSTEM VERSIONED, TEMPORARY, …"""
    partitioned: bool
    invisible_columns: tuple[str, ...]
    create_table: str
    """What SHOW CREATE TABLE says; empty if the account may not see it."""
    unorderable: str
    """Why the server gives no sort keys for the text columns of the key; empty if it does."""
    lowest_date: str = ""
    """The lowest value of a key that begins with a date; empty if there is none, or the account may not see it."""


@dataclass(frozen=True, slots=True)
class _Seen:
    config: Config
    facts: ServerFacts
    profile: TableProfile
    definition: TableDefinition
    details: TableDetails

    @property
    def name(self) -> str:
        return f"{quoted(self.definition.database)}.{quoted(self.definition.table)}"


def check_table(
    config: Config, facts: ServerFacts, profile: TableProfile, definition: TableDefinition, details: TableDetails
) -> Iterator[Finding]:
    seen = _Seen(config, facts, profile, definition, details)
    yield from check_table_type(seen.name, details.table_type, details.create_table)
    for check in _CHECKS:
        yield from check(seen)


def check_schema(name: str) -> Finding:
    """A table of the server itself: GRANT, the engines and upgrades change it, and none of them logs rows."""
    fact = f"{name} is a table of the server itself, which changes it without rows in the log"
    return Finding(Level.REFUSED, "table.schema", fact, "mysql.database: a database of your own")


def check_table_type(name: str, table_type: str, create_table: str) -> Iterator[Finding]:
    """Of a system-versioned table a DELETE is logged as an update, an UPDATE as that and an insert of the same key."""
    match table_type.upper():
        case "BASE TABLE":
            yield Finding(Level.OK, "table.type", f"{name} is a table")
        case "VIEW" | "SYSTEM VIEW":
            fact = f"{name} is a view; a view has no key and no changes in the log"
            yield Finding(Level.REFUSED, "table.type", fact, "mysql.table: one of the tables the view reads")
        case "SYSTEM VERSIONED":
            fact = (
                f"{name} is system-versioned: its history, which the fix removes, is logged as changes of the same keys"
            )
            yield Finding(Level.REFUSED, "table.type", fact, _without_versions(name, create_table))
        case other:
            fact = f"{name} is of the type {other}, whose changes are not logged as those of a table"
            yield Finding(Level.REFUSED, "table.type", fact, "mysql.table: a base table")


def _without_versions(name: str, create_table: str) -> str:
    """A period that has its own columns must go together with them."""
    period = re.search(rf"PERIOD FOR SYSTEM_TIME \(({_NAME}), ({_NAME})\)", create_table)
    if period is None:
        return f"ALTER TABLE {name} DROP SYSTEM VERSIONING;"
    return (
        "SET SESSION system_versioning_alter_history = KEEP;\n"
        f"ALTER TABLE {name} DROP SYSTEM VERSIONING, DROP COLUMN {period[1]}, DROP COLUMN {period[2]};"
    )


def cascading_keys(create_table: str) -> tuple[CascadingKey, ...]:
    """The foreign keys whose parent's changes change rows of this table, from the text of SHOW CREATE TABLE.

    MariaDB hides `REFERENTIAL_CONSTRAINTS` from an account that may only SELECT; this text it shows.
    """
    found = []
    for match in _CONSTRAINT.finditer(create_table):
        rules = [f"ON {event} {match[group]}" for event, group in (("DELETE", "on_delete"), ("UPDATE", "on_update"))
                 if match[group] not in (None, "RESTRICT", "NO ACTION")]  # fmt: skip
        if rules:
            key = CascadingKey(match["name"], match["columns"], match["parent"], match["referenced"], " ".join(rules))
            found.append(key)
    return tuple(found)


def _engine(seen: _Seen) -> Iterator[Finding]:
    engine = seen.profile.engine
    if engine.lower() == "innodb":
        yield Finding(Level.OK, "table.engine", "the table's engine is InnoDB")
    else:
        fact = f"the table's engine is {engine}; reading without locks at one moment needs InnoDB"
        yield Finding(Level.REFUSED, "table.engine", fact, f"ALTER TABLE {seen.name} ENGINE = InnoDB;")


def _key(seen: _Seen) -> Iterator[Finding]:
    """Only the parallel executor compares keys in the client."""
    names = ", ".join(seen.definition.key)
    if seen.config.executor is Executor.SINGLE:
        yield _walkable(seen, names)
        return
    refusals = []
    for column in seen.definition.key_columns:
        try:
            column.key_part()
        except PlanRefusedError as error:
            refusals.append(Finding(Level.REFUSED, "table.key_type", error.message, "executor: single"))
    if not refusals and seen.details.unorderable:
        refusals.append(Finding(Level.REFUSED, "table.key_type", seen.details.unorderable, "executor: single"))
    yield from refusals or [Finding(Level.OK, "table.key", f"rows are identified and ordered by ({names})")]


def _key_dates(seen: _Seen) -> Iterator[Finding]:
    """A zero date sorts before all others. NULL cannot replace it in a key."""
    lowest = seen.details.lowest_date
    if re.match(r"\d{4}-(00-\d\d|\d\d-00)", lowest):
        column = quoted(seen.definition.key[0])
        fact = f"column {column} of the key holds {lowest}, which is not a day of the calendar; no target can hold it"
        fix = f"give the rows that this shows another {column}: SELECT * FROM {seen.name} WHERE {column} = '{lowest}';"
        yield Finding(Level.REFUSED, "table.key_dates", fact, fix)


def _walkable(seen: _Seen, names: str) -> Finding:
    try:
        check_walkable(seen.definition)
    except PlanRefusedError as error:
        fix = "mysql.table: a table with a NOT NULL unique key of other columns"
        return Finding(Level.REFUSED, "table.key_type", f"{error.message}. {error.detail}", fix)
    return Finding(Level.OK, "table.key", f"rows are identified by ({names}), walked in the server's own order")


def _column_types(seen: _Seen) -> Iterator[Finding]:
    for match in _COMPRESSED.finditer(seen.details.create_table):
        fact = f"column {match['name']} is COMPRESSED, which cannot be decoded from the log"
        fix = f"ALTER TABLE {seen.name} MODIFY {match['before']}{match['after']};"
        yield Finding(Level.REFUSED, "table.column_type", fact, fix)
    for column in seen.definition.columns:
        try:
            charset_named(column.charset)
        except PlanRefusedError as error:
            fix = f"ALTER TABLE {seen.name} CONVERT TO CHARACTER SET utf8mb4;"
            yield Finding(Level.REFUSED, "table.column_type", f"column {column.name}: {error.message}", fix)


def _labels(seen: _Seen) -> Iterator[Finding]:
    """Labels that the server shows with a `?` for what may be another character.

    In the log they are whole with FULL.
    """
    metadata = seen.facts.binlog_row_metadata or "absent"
    for name in doubtful_labels(seen.definition, seen.facts.flavour):
        fact = (
            f"column {name} has labels with a `?`, which the server also shows for a character beyond U+FFFF; "
            f"binlog_row_metadata is {metadata}"
        )
        if not seen.definition.column(name).charset:
            fact = f"column {name} has labels with bytes that are not shown by the server"
            yield Finding(Level.REFUSED, "table.labels", fact, f"ALTER TABLE {seen.name} MODIFY {quoted(name)} BLOB;")
        elif metadata.upper() == "FULL":
            yield Finding(Level.OK, "table.labels", f"{fact}: the log holds the labels themselves")
        else:
            fact += ": the log does not hold the labels"
            yield Finding(Level.REFUSED, "table.labels", fact, "SET GLOBAL binlog_row_metadata = FULL;")


def _column_names(seen: _Seen) -> Iterator[Finding]:
    """The buffer keeps its own columns beside the table's, and Delta's readers do not distinguish `Name` from
    `name`."""
    spellings: dict[str, list[str]] = defaultdict(list)
    for column in seen.definition.columns:
        lowered = column.name.lower()
        spellings[lowered].append(column.name)
        if lowered in RESERVED_COLUMNS or lowered.startswith(BEFORE_PREFIX):
            fact = f"column {column.name} has a name that is reserved for buffered changes"
            yield Finding(Level.REFUSED, "table.column_name", fact, _rename(seen, column.name))
    for names in spellings.values():
        if len(names) > 1:
            fact = f"columns {', '.join(names)} differ in case only, which a Delta table cannot hold"
            yield Finding(Level.REFUSED, "table.column_name", fact, _rename(seen, names[-1]))


def _rename(seen: _Seen, column: str) -> str:
    taken = {other.name.lower() for other in seen.definition.columns}
    free = f"source_{column.lstrip('_')}"
    while free.lower() in taken:
        free += "_"
    return f"ALTER TABLE {seen.name} RENAME COLUMN {quoted(column)} TO {quoted(free)};"


def _foreign_keys(seen: _Seen) -> Iterator[Finding]:
    """The engine changes child rows by itself, below the log."""
    keys = cascading_keys(seen.details.create_table)
    for key in keys:
        fact = (
            f"foreign key {key.name} ({key.rules}) changes rows of {seen.name} when {key.parent} changes, and these "
            "changes are not in the log"
        )
        fix = (
            f"ALTER TABLE {seen.name} DROP FOREIGN KEY {key.name};\n"
            f"ALTER TABLE {seen.name} ADD CONSTRAINT {key.name} FOREIGN KEY {key.columns} "
            f"REFERENCES {key.parent} {key.referenced};"
        )
        yield Finding(Level.REFUSED, FOREIGN_KEY, fact, fix)
    named = {key.name for key in keys}
    for listed in seen.profile.foreign_keys:
        if listed.changes_rows and quoted(listed.name) not in named:
            yield _cascading_by_dictionary(seen, listed)


def _cascading_by_dictionary(seen: _Seen, key: ForeignKey) -> Finding:
    """One that the dictionary lists and the table's text does not: reported, because it cannot be trusted to be
    nothing."""
    fact = f"foreign key {quoted(key.name)} changes rows of {seen.name} when {key.parent} changes, outside the log"
    return Finding(Level.REFUSED, FOREIGN_KEY, fact, f"ALTER TABLE {seen.name} DROP FOREIGN KEY {quoted(key.name)};")


def _notes(seen: _Seen) -> Iterator[Finding]:
    """What looks special about the table and needs nothing."""
    profile, details = seen.profile, seen.details
    if profile.triggers:
        fact = f"triggers on the table: {', '.join(profile.triggers)}; what they change in it is logged as any change"
        yield Finding(Level.INFO, "table.triggers", fact)
    if profile.generated_columns:
        fact = f"generated columns are copied as values: {', '.join(profile.generated_columns)}"
        yield Finding(Level.INFO, "table.generated", fact)
    if details.invisible_columns:
        fact = f"invisible columns are copied too: {', '.join(details.invisible_columns)}"
        yield Finding(Level.INFO, "table.invisible", fact)
    if details.partitioned:
        yield Finding(Level.INFO, "table.partitions", "the table is partitioned; it is read by its key all the same")
    rows = f"about {profile.estimated_rows:,} rows" if profile.estimated_rows else "no or few rows"
    yield Finding(Level.OK, "table.rows", f"the server's statistics count {rows}, {profile.data_bytes:,} bytes")


def _time_zone(seen: _Seen) -> Iterator[Finding]:
    kinds = {column.kind for column in seen.definition.columns}
    zone = seen.facts.time_zone
    if Kind.TIMESTAMP in kinds:
        fact = f"the server's time zone is {zone}; TIMESTAMP is read and logged in UTC whatever it is"
        yield Finding(Level.OK, "server.time_zone", fact)
    if Kind.DATETIME in kinds:
        fact = f"DATETIME has no zone and is copied as it is; the server's zone is {zone}"
        yield Finding(Level.INFO, "server.time_zone", fact)


def _packet(seen: _Seen) -> Iterator[Finding]:
    limit = seen.facts.max_allowed_packet
    large = [column.name for column in seen.definition.columns if column.type_name in _LARGE]
    fact = f"max_allowed_packet is {format_size(limit)}: no longer row can be read"
    if large and limit < _SMALL_PACKET:
        fact += f"; columns that can be long: {', '.join(large)}"
        yield Finding(Level.WARNING, "server.packet", fact, f"SET GLOBAL max_allowed_packet = {_GOOD_PACKET};")
    else:
        yield Finding(Level.OK, "server.packet", fact)


_CHECKS: tuple[Callable[[_Seen], Iterator[Finding]], ...] = (
    _engine,
    _key,
    _key_dates,
    _column_types,
    _labels,
    _column_names,
    _foreign_keys,
    _notes,
    _time_zone,
    _packet,
)
