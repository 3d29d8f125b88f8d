"""`plan` says what becomes of statements that change a table: by the file, by the target, and by a table's entry."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from vnode_backfill.commands.plan import policies, policy_text
from vnode_backfill.commands.tables.plan import policy_lines
from vnode_backfill.config.job import Config
from vnode_backfill.config.tables import table_config
from vnode_backfill.job.open.examine import Examined
from vnode_backfill.job.tables.examine import ExaminedTable
from vnode_backfill.words.table_name import TableName

DELTA: Mapping[str, object] = {"delta": {"path": "/lake/orders"}}
IOTDB: Mapping[str, object] = {"iotdb": {"host": "h", "device": "root.shop.{id}", "time": {"column": "at"}}}
FOLLOWED = "statements that change the table are followed"
COPIED = "a statement that changes the table begins a new copy"
STOPS = "the job stops before a statement that changes the table, until it is accepted"
USUAL = f"{FOLLOWED}; dropped columns are kept, dropped partitions lose their rows"


def config(keys: Mapping[str, object], sink: Mapping[str, object] = DELTA) -> Config:
    mysql = {"host": "h", "user": "u", "database": "shop", "table": "orders"}
    return Config.model_validate({"job": "j", "mysql": mysql, "sink": sink, "state": {"path": "/s"}, **keys})


def many(*tables: object, **keys: object) -> Config:
    sink = {"delta": {"path": "/lake/{database}/{table}"}}
    return Config.model_validate(
        {
            "job": "j",
            "mysql": {"host": "h", "user": "u", "tables": tables},
            "sink": sink,
            "state": {"path": "/s"},
            **keys,
        }
    )


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, USUAL),
        ({"schema_changes": "stop"}, f"{STOPS}; dropped columns are kept, dropped partitions lose their rows"),
        ({"dropped_columns": "drop", "dropped_partitions": "keep"},
         f"{FOLLOWED}; dropped columns are dropped from the target, dropped partitions keep their rows"),
        ({"dropped_partitions": "reread"},
         f"{FOLLOWED}; dropped columns are kept, dropped partitions make a new copy necessary"),
        ({"executor": "single"},
         f"{COPIED}; dropped columns are kept, dropped partitions make a new copy necessary"),
    ],
)  # fmt: skip
def test_policies_of_the_file_are_said(keys: Mapping[str, object], text: str) -> None:
    assert policy_text(config(keys)) == text


def test_points_of_a_dropped_partition_are_a_new_copy() -> None:
    assert policy_text(config({}, IOTDB)).endswith("dropped partitions make a new copy necessary")
    assert policy_text(config({"dropped_partitions": "keep"}, IOTDB)).endswith("dropped partitions keep their rows")


def test_document_has_what_the_file_says() -> None:
    assert policies(config({"schema_changes": "stop", "dropped_partitions": "keep"})) == {
        "schema_changes": "stop", "dropped_columns": "keep", "dropped_partitions": "keep",
    }  # fmt: skip


def examined(job: Config, *tables: str) -> list[ExaminedTable]:
    names = [TableName("shop", table) for table in tables]
    return [
        ExaminedTable(name, 100, Examined((), None, None), config=table_config(job, name, fold_case=False))
        for name in names
    ]


def test_tables_whose_entries_say_otherwise_are_named_after_the_job() -> None:
    job = many("shop.*", {"table": "shop.b", "schema_changes": "stop"}, {"table": "shop.c", "schema_changes": "stop"})
    told = f"of shop.b, shop.c: {STOPS}; dropped columns are kept, dropped partitions lose their rows"
    assert list(policy_lines(job, examined(job, "a", "b", "c"))) == [USUAL, told]


def test_entry_that_says_what_the_job_says_is_not_named() -> None:
    job = many("shop.*", {"table": "shop.b", "schema_changes": "follow"})
    undescribed = ExaminedTable(TableName("shop", "x"), 100, Examined((), None, None))
    assert list(policy_lines(job, [*examined(job, "a", "b"), undescribed])) == [USUAL]


def test_of_very_many_such_tables_some_are_named() -> None:
    names = [f"t{number}" for number in range(10)]
    job = many({"table": "shop.t*", "dropped_partitions": "keep"})
    (_, told) = policy_lines(job, examined(job, *names))
    assert told.startswith("of shop.t0, shop.t1,")
    assert "shop.t7 and 2 more: " in told
