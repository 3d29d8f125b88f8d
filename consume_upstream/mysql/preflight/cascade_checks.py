"""Judges foreign keys that change rows outside the log: they may be, where the job looks at every table they lead to.

The log says only that a parent was changed. A job of many tables reads the parents of a table with it
(`log.cascade`), and copies the table again after a change that may have reached it. So a key may cascade if every table
from which a change can come, however many steps away, is a table of the same job that can be copied. Otherwise the
table is refused: nobody has said that the others belong to it, or their rows in the log could not be read.

A job that begins in the past does not know which keys there were. A key that only the dictionary lists, and not the
table's text, cannot be followed to its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pymysql.connections import Connection

from consume_upstream.mysql.preflight.table_checks import FOREIGN_KEY, cascading_keys
from consume_upstream.mysql.schema.cascades import ancestors
from consume_upstream.mysql.schema.current_table import create_table_text
from vnode_backfill.config.job import Config, StartupMode
from vnode_backfill.config.tables import config_beside
from vnode_backfill.words.finding import Finding, Level
from vnode_backfill.words.table_name import TableName

__all__ = ["judge_cascades"]

WhyNot = Callable[[Config], str]
"""Why the table of a configuration cannot be copied, its foreign keys apart; empty if it can."""
_BEGIN_NOW = (StartupMode.INITIAL, StartupMode.LATEST)


def judge_cascades(
    connection: Connection, config: Config, findings: tuple[Finding, ...], why_not: WhyNot
) -> tuple[Finding, ...]:
    """The findings about a table; keys that cascade are warnings where the tables they lead to are the job's."""
    refused = [each for each in findings if each.check == FOREIGN_KEY and each.level is Level.REFUSED]
    where = config.mysql.database, config.mysql.table
    if not refused or not config.among_many:
        return findings
    if len(refused) != len(cascading_keys(create_table_text(connection, *where))):
        return findings
    reasons = list(_reasons(connection, config, why_not))
    return tuple(_judged(each, reasons) if each in refused else each for each in findings)


def _judged(finding: Finding, reasons: list[tuple[str, str]]) -> Finding:
    if not reasons:
        fact = f"{finding.fact}; each change there that may cascade makes a new copy of this table"
        return replace(finding, level=Level.WARNING, fact=fact)
    fixes = "\n".join(fix for _, fix in reasons if fix)
    return replace(finding, fact="; ".join((finding.fact, *(why for why, _ in reasons))), fix=fixes or finding.fix)


def _reasons(connection: Connection, config: Config, why_not: WhyNot) -> Iterator[tuple[str, str]]:
    """Why keys may not cascade here, each with its fix."""
    mode = config.mysql.cdc.startup_mode
    if mode not in _BEGIN_NOW:
        yield f"startup_mode is {mode}, and nobody knows which foreign keys there were in the past", ""
    where = config.mysql.database, config.mysql.table
    for found, fault in ancestors(connection, *where).items():
        name = TableName(*found)
        if found == where:
            continue
        beside = config_beside(config, name)
        if beside is None:
            yield f"{name} is not a table of this job", f"mysql.tables: {name} as well"
        elif fault or (fault := why_not(beside)):
            yield f"{name} cannot be copied: {fault}", ""
