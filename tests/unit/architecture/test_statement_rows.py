"""Every row of the table in docs/schema-changes.md has tables in the job that meets statements on real servers."""

from __future__ import annotations

from pathlib import Path

from tests.system.job.tables.statement_cases import CHANGES

PAGE = Path(__file__).parents[3] / "docs" / "schema-changes.md"
SHOWN_BY = {
    "plain, FULLTEXT and SPATIAL indexes added": ("index", "spatial index", "comment"),
    "ROW_FORMAT, ENGINE=InnoDB, FORCE": ("rebuild", "visibility", "ignored index"),
    "`ALTER … SET DEFAULT`": ("comment",),
    "CHECK constraints": ("constraints",),
    "unique indexes added": ("index",),
    "the same without one": ("unique index beside the key", "another unique key"),
    "PARTITION BY, REMOVE PARTITIONING": ("partitions",),
    "ANALYZE, CHECK, OPTIMIZE": ("rebuild",),
    "ADD COLUMN": (
        "add", "add first with a default", "add without a default", "add at once", "add among comments",
        "add from another database", "add by a folded name", "two in a row",
    ),
    "DROP COLUMN": (
        "drop", "drop in the target too", "drop and add again", "drop before a new copy", "drop a column of the key"
    ),
    "RENAME COLUMN": ("rename", "change to another name", "rename the key", "exchange"),
    "a wider type": ("widen", "widen every kind"),
    "the same type given again": ("same type",),
    "NULL to NOT NULL in a strict session": ("widen",),
    "NULL to NOT NULL otherwise": (
        "null becomes zero", "another type", "another character set", "another collation", "fraction of a time", "convert",
        "text of the key grows",
    ),
    "generated columns": ("add a computed column", "change a computed column", "widen beside a computed column"),
    "an expression as the default": ("add with an expression",),
    "primary key added": ("another key", "another key of text", "add a primary key", "ignore"),
    "DROP SYSTEM VERSIONING": ("versions", "period", "tablespace"),
    "TRUNCATE |": ("truncate",),
    "DROP, TRUNCATE, CONVERT PARTITION": (
        *(f"{way} partition {policy}" for way in ("drop", "truncate", "convert") for policy in ("delete", "keep", "reread")),
        "days", "numbers", "truncate partition by hash", "partition that was never seen",
    ),
    "TRUNCATE PARTITION ALL": ("truncate partition all",),
    "EXCHANGE PARTITION with an empty": tuple(f"exchange partition {policy}" for policy in ("delete", "keep", "reread")),
    "other EXCHANGE PARTITION": ("exchange partition with rows", "table becomes a partition"),
    "RENAME of the table": (
        "dropped", "renamed", "dropped among others", "renamed among others", "dropped with its database"
    ),
    "the same, and another table": ("gh-ost", "pt-online-schema-change"),
    "the same, and the table is created": (
        "created again", "created again and again", "created like another", "created with rows", "replaced"
    ),
    "CREATE TABLE IF NOT EXISTS": ("create if it does not exist",),
    "a foreign key with CASCADE": ("cascade from elsewhere",),  # in `test_cascades.py` the parents are tables of the job
    "a column of a refused type": (
        "column of a refused type", "column of a refused character set", "column of a reserved name", "another engine",
    ),
    "ADD SYSTEM VERSIONING": ("versions", "no key left"),
    "whatever is not understood": ("not understood",),
}  # fmt: skip
"""How a row begins, and the tables that show it."""
ELSEWHERE = {"tables of the same name elsewhere"}
"""What the page says below the table."""


def test_every_row_of_the_page_is_shown_by_tables_of_the_matrix() -> None:
    table = PAGE.read_text().split("| statement on the table | effect |\n|---|---|\n")[1].split("\n\n")[0]
    unshown = [row for row in table.splitlines() if not any(row.startswith(f"| {begin}") for begin in SHOWN_BY)]
    assert unshown == []
    gone = [begin for begin in SHOWN_BY if f"| {begin}" not in table]
    assert gone == []


def test_every_table_of_the_matrix_shows_a_row() -> None:
    assert {kind for kinds in SHOWN_BY.values() for kind in kinds} | ELSEWHERE == set(CHANGES)
